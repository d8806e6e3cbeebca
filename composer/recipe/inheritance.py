"""Inheritance (`extends`): a recipe laid over its bases.

Bases are files, no higher than the repository or folder of the recipe, or pinned recipes from the cache.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path

from composer.errors import Fault, RecipeError, did_you_mean
from composer.recipe.cache import parse_pin, read_pinned
from composer.recipe.json_schema import DATA_SOURCES, VERSION
from composer.recipe.messages import unsupported_version
from composer.recipe.node import Node, fault_at, to_data
from composer.recipe.registry import CHOICES
from composer.recipe.yaml_reader import dump, read

MAX_FILES = 32

Steps = tuple[str | int, ...]

REPLACED_WHOLE = {
    *(("data", source) for source in DATA_SOURCES),
    *(choice.key for choice in CHOICES.values()),
    ("model", "output"),
}
"""Keys whose values are not merged: half of one optimizer's settings would make no sense for another."""


def extend(path: Path) -> Node:
    """Return the recipe of a file laid over its bases. Raise RecipeError with the faults of all files."""
    return _without_extends(_Extender(_ceiling(path)).load(path, str(path), ()))


def extend_node(own: Node, file: Path) -> Node:
    """Return a recipe in memory laid over its bases, as if it lay in `file`. Raise RecipeError."""
    return _without_extends(_Extender(_ceiling(file)).apply(own, str(file), file.parent, (_real_path(file),)))


def resolve_relative(file: Path, base: Node) -> Node:
    """Return the recipe that a value in a file names by the rules of `extends`. Raise RecipeError."""
    return _without_extends(_Extender(_ceiling(file)).base(base, str(file), file.parent, (_real_path(file),)))


def portable_text(path: Path, ceiling: Path | None = None) -> str:
    """Return a recipe and all its bases as one YAML text, with `vars` still open: the form that the cache stores.

    Others write down the hash of this text, so the same recipe must give the same bytes in every version of the code.
    `ceiling` is the folder above which no path may climb, by default the recipe's repository; for a recipe that
    somebody else wrote, the folder that it came in. Raise RecipeError.
    """
    top = _ceiling(path) if ceiling is None else Path(os.path.realpath(ceiling))
    if ceiling is not None and not Path(_real_path(path)).is_relative_to(top):
        raise RecipeError([Fault(str(path), 1, 1, "file", "", "this leads out of its folder", "name a file inside it")])
    return dump(to_data(_without_extends(_Extender(top).load(path, str(path), ()))))


def _without_extends(root: Node) -> Node:
    return replace(root, value={key: node for key, node in root.value.items() if key != "extends"})


def _ceiling(path: Path) -> Path:
    """Return the folder above which no path may climb: the repository's, or the recipe's own."""
    folder = Path(os.path.realpath(path.parent))
    return next((parent for parent in (folder, *folder.parents) if os.path.exists(parent / ".git")), folder)


def _real_path(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # not a path at all, as reading it will say
        return str(path)


@dataclass
class _Extender:
    """Reads recipes and their bases, each file once. `chain` is the files that lead to the one being read."""

    ceiling: Path
    done: dict[str, Node] = field(default_factory=dict)

    def load(self, path: Path, shown: str, chain: tuple[str, ...]) -> Node:
        """Return the recipe of a file laid over its bases; `shown` is its name in faults."""
        real = _real_path(path)
        if real not in self.done:
            own = _check_version(read(path, shown))
            self.done[real] = self.apply(own, shown, path.parent, (*chain, real))
        return self.done[real]

    def apply(self, own: Node, shown: str, folder: Path, chain: tuple[str, ...]) -> Node:
        """Return a recipe laid over its bases, looked up from its folder. Raise RecipeError with the faults of all."""
        bases, faults = [], []
        for node in _base_nodes(own):
            try:
                bases.append(self.base(node, shown, folder, chain))
            except RecipeError as error:
                faults.extend(error.faults)
        if faults:
            raise RecipeError(faults)
        return reduce(merge, (*bases, own))

    def base(self, node: Node, shown: str, folder: Path, chain: tuple[str, ...]) -> Node:
        """Return one base: a file by its path, or a pinned recipe. Raise RecipeError."""
        if isinstance(node.value, dict):
            return self._pinned(node, chain)
        path = node.value
        target = os.path.realpath(folder / path)
        if os.path.isabs(path) or not Path(target).is_relative_to(self.ceiling):
            message = f"`{path}` leads out of the recipe's repository or folder"
            raise _base_error(node, "file", message, "write a path relative to this file, inside the same repository")
        if target in chain:
            names = [os.path.relpath(file, self.ceiling) for file in (*chain[chain.index(target) :], target)]
            message = f"these recipes extend each other: {' -> '.join(names)}"
            raise _base_error(node, "cycle", message, "break the circle")
        self._check_count(node, chain)
        name = os.path.normpath(os.path.join(os.path.dirname(shown), path))
        if not os.path.isfile(target):
            reason = "is not a file" if os.path.exists(target) else "does not exist"
            others = [other for other in _recipes_in(Path(target).parent) if other not in chain]
            close = did_you_mean(os.path.basename(target), map(os.path.basename, others))
            raise _base_error(node, "file", f"`{name}` {reason}{close}", "the path is relative to this file")
        return self.load(Path(target), name, chain)

    def _pinned(self, node: Node, chain: tuple[str, ...]) -> Node:
        pin = parse_pin(node)
        if pin.sha256 not in self.done:
            self._check_count(node, chain)
            self.done[pin.sha256] = _check_version(read_pinned(pin))
        return self.done[pin.sha256]

    def _check_count(self, node: Node, chain: tuple[str, ...]) -> None:
        if len(self.done) + len(chain) > MAX_FILES:
            raise _base_error(node, "size", f"more than {MAX_FILES} files extend each other", "use fewer files")


def _base_error(node: Node, code: str, message: str, hint: str) -> RecipeError:
    return RecipeError([fault_at(node.mark, code, "extends", message, hint)])


def _recipes_in(folder: Path) -> list[str]:
    """Return the paths of the recipes in a folder; none if it cannot be listed."""
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".yaml")]
    except OSError:
        return []


def _check_version(root: Node) -> Node:
    """Return the mapping of one file unchanged. Raise RecipeError if it is in another version of the language.

    Every file is checked by itself: after merging, a base's `recipe:` is hidden by that of the recipe above it.
    """
    version = root.value.get("recipe")
    if version is not None and type(version.value) is int and 0 < version.value != VERSION:
        raise RecipeError([unsupported_version(version.mark, "recipe", version.value)])
    return root


def _base_nodes(own: Node) -> list[Node]:
    extends = own.value.get("extends")
    if extends is None or extends.value is None:
        return []
    nodes = extends.value if isinstance(extends.value, list) else [extends]
    wrong = [node for node in nodes if not isinstance(node.value, (str, dict)) or not node.value]
    if wrong:
        message = "`extends` takes a path, a pinned recipe, or a list of them"
        hint = "write `extends: base.yaml`, or `extends: {pull: REF, sha256: HEX}`"
        raise RecipeError(fault_at(node.mark, "type", "extends", message, hint) for node in wrong)
    return nodes


def merge(base: Node, own: Node, path: Steps = ()) -> Node:
    """Return `own` laid over `base`: mappings key by key, lists and choices replaced whole, `null` removes."""
    if not isinstance(base.value, dict) or not isinstance(own.value, dict) or path in REPLACED_WHOLE:
        return own
    merged = dict(base.value)
    if path == ("data",) and any(key in own.value and own.value[key].value is not None for key in DATA_SOURCES):
        merged = {key: node for key, node in merged.items() if key not in DATA_SOURCES}
    for key, node in own.value.items():
        if node.value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged[key], node, (*path, key)) if key in merged else node
    return replace(own, value=merged)
