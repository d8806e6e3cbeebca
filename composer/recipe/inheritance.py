"""`extends`: a recipe laid over others.

They are files that may lie no higher than the repository or folder of the recipe, or recipes of the store, pinned.
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


def extend(path: Path) -> Node:
    """The recipe of a file laid over what it extends. Raises RecipeError with the faults of all files."""
    return _without_extends(_Extender(_ceiling(path)).load(path, str(path), ()))


def extend_node(own: Node, file: Path) -> Node:
    """A recipe that lies in no file, laid over what it extends as if `file` were its own. Raises RecipeError."""
    return _without_extends(_Extender(_ceiling(file)).laid(own, str(file), file.parent, (_real_path(file),)))


def resolve_relative(file: Path, named: Node) -> Node:
    """The recipe that a value of a file names, by the rules of `extends`. Raises RecipeError with the faults of all."""
    return _without_extends(_Extender(_ceiling(file)).base(named, str(file), file.parent, (_real_path(file),)))


def portable_text(path: Path, ceiling: Path | None = None) -> str:
    """A recipe as the store keeps it: one YAML text with all that it extends, and with its `vars` still open.

    The hash of this text is what others write down, so the same recipe must give the same bytes in every version.
    `ceiling` is the folder above which no path may climb, where that is not the repository of the file: of a recipe
    that somebody else wrote, the folder that it came in. Raises RecipeError.
    """
    top = _ceiling(path) if ceiling is None else Path(os.path.realpath(ceiling))
    if ceiling is not None and not Path(_real_path(path)).is_relative_to(top):
        raise RecipeError([Fault(str(path), 1, 1, "file", "", "this leads out of its folder", "name a file inside it")])
    return dump(to_data(_without_extends(_Extender(top).load(path, str(path), ()))))


def _without_extends(root: Node) -> Node:
    return replace(root, value={name: node for name, node in root.value.items() if name != "extends"})


def _ceiling(path: Path) -> Path:
    """The folder above which no path may climb: the repository's, or the recipe's own."""
    folder = Path(os.path.realpath(path.parent))
    return next((each for each in (folder, *folder.parents) if os.path.exists(each / ".git")), folder)


def _real_path(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # not a path at all, as reading it will say
        return str(path)


def _recipes_in(folder: Path) -> list[str]:
    """The recipes in a folder; none where it cannot be looked into."""
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".yaml"))
    except OSError:
        return []


@dataclass
class _Extender:
    """Reads recipes and what they extend, each file once."""

    ceiling: Path
    done: dict[str, Node] = field(default_factory=dict)

    def load(self, path: Path, shown: str, chain: tuple[str, ...]) -> Node:
        real = _real_path(path)
        if real not in self.done:
            own = _check_version(read(path, shown))
            self.done[real] = self.laid(own, shown, path.parent, (*chain, real))
        return self.done[real]

    def laid(self, own: Node, shown: str, folder: Path, chain: tuple[str, ...]) -> Node:
        """A recipe over what it extends, looked up from its folder. Raises RecipeError with the faults of all."""
        bases, faults = [], []
        for node in _bases(own):
            try:
                bases.append(self.base(node, shown, folder, chain))
            except RecipeError as error:
                faults.extend(error.faults)
        if faults:
            raise RecipeError(faults)
        return reduce(merge, (*bases, own))

    def base(self, node: Node, shown: str, folder: Path, chain: tuple[str, ...]) -> Node:
        """What one file extends, by the name that it gives. Raises RecipeError."""
        if isinstance(node.value, dict):
            return self._kept(node, chain)
        named = node.value
        target = os.path.realpath(folder / named)
        if os.path.isabs(named) or not Path(target).is_relative_to(self.ceiling):
            self._refuse(
                node,
                "file",
                f"`{named}` leads out of the recipe's repository or folder",
                "write a path relative to this file, inside the same repository",
            )
        if target in chain:
            names = [os.path.relpath(each, self.ceiling) for each in (*chain[chain.index(target) :], target)]
            self._refuse(node, "cycle", f"these recipes extend each other: {' -> '.join(names)}", "break the circle")
        self._count(node, chain)
        return self._read(node, Path(target), os.path.normpath(os.path.join(os.path.dirname(shown), named)), chain)

    def _count(self, node: Node, chain: tuple[str, ...]) -> None:
        if len(self.done) + len(chain) > MAX_FILES:
            self._refuse(node, "size", f"more than {MAX_FILES} files extend each other", "use fewer files")

    def _kept(self, node: Node, chain: tuple[str, ...]) -> Node:
        """A recipe of the store, which extends no other."""
        pin = parse_pin(node)
        if pin.sha256 not in self.done:
            self._count(node, chain)
            self.done[pin.sha256] = _check_version(read_pinned(pin))
        return self.done[pin.sha256]

    def _read(self, node: Node, target: Path, shown: str, chain: tuple[str, ...]) -> Node:
        if not os.path.isfile(target):
            reason = "is not a file" if os.path.exists(target) else "does not exist"
            others = [each for each in _recipes_in(target.parent) if os.path.join(target.parent, each) not in chain]
            close = did_you_mean(target.name, others)
            self._refuse(node, "file", f"`{shown}` {reason}{close}", "the path is relative to this file")
        return self.load(target, shown, chain)

    @staticmethod
    def _refuse(node: Node, code: str, message: str, hint: str) -> None:
        raise RecipeError([fault_at(node.mark, code, "extends", message, hint)])


def _check_version(root: Node) -> Node:
    """Return the mapping of one file unchanged. Raise RecipeError if it is in another version of the language.

    Every file is checked by itself: after merging, a base's `recipe:` is hidden by that of the recipe above it.
    """
    version = root.value.get("recipe")
    if version is not None and type(version.value) is int and 0 < version.value != VERSION:
        raise RecipeError([unsupported_version(version.mark, "recipe", version.value)])
    return root


def _bases(own: Node) -> list[Node]:
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
    """`own` laid over `base`: mappings key by key, lists and choices replaced whole, `null` removes."""
    if not isinstance(base.value, dict) or not isinstance(own.value, dict) or path in REPLACED_WHOLE:
        return own
    merged = {key: node for key, node in base.value.items() if not _other_source(key, own, path)}
    for key, node in own.value.items():
        if node.value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged[key], node, (*path, key)) if key in merged else node
    return replace(own, value=merged)


def _other_source(key: str, own: Node, path: Steps) -> bool:
    """Whether an inherited data source gives way to the one that is written."""
    written = any(source in own.value and own.value[source].value is not None for source in DATA_SOURCES)
    return path == ("data",) and key in DATA_SOURCES and written
