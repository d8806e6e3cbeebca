"""Merging: a recipe with its bases (`extends`), and `key=value` overrides from the command line.

Bases are files in the recipe's own tree, recipes of this package
(`composer:papers/vaswani2017_base`), or pinned ones from the cache. Overrides set what a recipe can
say; items of lists by their index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

from composer.errors import Fault, KeyPath, Mark, RecipeError, error_at, fault_at, format_path
from composer.recipe.cache import check_pin, read_pinned
from composer.recipe.interpolation import recipe_variables, unknown_variable
from composer.recipe.registry import CHOICE_KEYS
from composer.recipe.schema_reader import (
    DATA_SOURCES,
    VERSION,
    Schema,
    chosen_entry,
    duplicate_faults,
    first_setting,
    unsupported_version,
)
from composer.recipe.yaml_reader import (
    COMMAND_LINE,
    MAX_DEPTH,
    Node,
    dump,
    nesting_depth,
    parse_value,
    read,
    to_data,
)
from composer.suggest import did_you_mean

MAX_FILES = 32
SHIPPED = "composer:"
"""Before the path of a recipe of this package, without its `.yaml`."""
REPLACED_WHOLE = {
    *(("data", source) for source in DATA_SOURCES),
    *CHOICE_KEYS,
    ("model", "output"),
}
"""Keys whose values are not merged: half of one optimizer's settings would make no sense for
another.
"""
MEANINGFUL_NULLS = {
    ("training", "early_stopping", "patience"),
    ("training", "validation_sample", "lines"),
    ("data", "hub", "val"),
    ("data", "hub", "test"),
}
"""Keys that `null` sets, and does not remove: their default is another."""
EXAMPLE = "write, for example, `training.max_steps=100`"

_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_-]*)|\.([0-9]{1,6})(?![A-Za-z0-9_-])|\[([0-9]{1,6})\]")


# -------------------------------------------------------------------------------------------
# extends


def extend(path: Path, own: Node | None = None) -> Node:
    """Return the recipe of a file laid over its bases.

    `own` is its mapping if that has been read, or is in no file.

    Raises RecipeError with the faults of all files.
    """
    own = read(path, str(path)) if own is None else own
    extender = _Extender(_ceiling(path))
    return _without_extends(extender.apply(own, str(path), path.parent, (_real_path(path),)))


def resolve_relative(file: Path, base: Node) -> Node:
    """Return the recipe that a value in a file names by the rules of `extends`."""
    extender = _Extender(_ceiling(file))
    return _without_extends(extender.base(base, str(file), file.parent, (_real_path(file),)))


def portable_text(path: Path, ceiling: Path | None = None) -> str:
    """Return a recipe and its bases as one YAML text with open `vars`, for the cache.

    Others write down the hash of this text, so the same recipe must give the same bytes in every
    version of the code. `ceiling` is the folder above which no path may climb, by default the
    recipe's repository; for a recipe that somebody else wrote, the folder that it came in. Raise
    RecipeError.
    """
    top = _ceiling(path) if ceiling is None else Path(os.path.realpath(ceiling))
    if ceiling is not None and not Path(_real_path(path)).is_relative_to(top):
        message, hint = "this leads out of its folder", "name a file inside it"
        raise RecipeError([Fault(str(path), 1, 1, "file", "", message, hint)])
    return dump(to_data(_without_extends(_Extender(top).load(path, str(path), ()))))


def _without_extends(root: Node) -> Node:
    return replace(root, value={key: node for key, node in root.value.items() if key != "extends"})


def _ceiling(path: Path) -> Path:
    """Return the folder above which no path may go: the repository's, else the working folder.

    A recipe in neither has its own folder.
    """
    folder, working = Path(os.path.realpath(path.parent)), Path.cwd()
    for parent in (folder, *folder.parents):
        if os.path.exists(parent / ".git"):
            return parent
    return working if folder.is_relative_to(working) else folder


def shipped_folder(name: str) -> Path:
    """Return a folder of this package: inside it when installed, beside it in a clone."""
    package = Path(__file__).resolve().parent.parent
    return package / name if (package / name).exists() else package.parent / name


def _real_path(path: Path) -> str:
    try:
        return os.path.realpath(path)
    except ValueError:  # not a path at all, as reading it will say
        return str(path)


@dataclass
class _Extender:
    """Reads recipes and their bases, each file once.

    `chain` is the files that lead to the one being read.
    """

    ceiling: Path
    done: dict[str, Node] = field(default_factory=dict)

    def load(self, path: Path, shown: str, chain: tuple[str, ...]) -> Node:
        """Return the recipe of a file laid over its bases; `shown` is its name in faults."""
        real = _real_path(path)
        if real not in self.done:
            self.done[real] = self.apply(read(path, shown), shown, path.parent, (*chain, real))
        return self.done[real]

    def apply(self, own: Node, shown: str, folder: Path, chain: tuple[str, ...]) -> Node:
        """Return a recipe laid over its bases, looked up from its folder.

        Raise RecipeError with the faults of all.
        """
        _check_is_recipe(own)
        bases, faults = [], []
        for node in _base_nodes(own):
            try:
                bases.append(self.base(node, shown, folder, chain))
            except RecipeError as error:
                faults.extend(error.faults)
        # what a fragment says without effect is not the recipe's to fix
        if len(chain) == 1 and bases:
            faults.extend(_idle_nulls(reduce(merge, bases), own))
        if faults:
            raise RecipeError(faults)
        return reduce(merge, (*bases, own))

    def base(self, node: Node, shown: str, folder: Path, chain: tuple[str, ...]) -> Node:
        """Return one base: a file by its path, or a pinned recipe. Raise RecipeError."""
        if isinstance(node.value, dict):
            return self._pinned(node, chain)
        if node.value.startswith(SHIPPED):
            recipes = shipped_folder("recipes")
            path = f"{node.value.removeprefix(SHIPPED).removesuffix('.yaml')}.yaml"
            return replace(self, ceiling=recipes)._file(
                node, path, str(recipes / "recipe.yaml"), recipes, chain
            )
        return self._file(node, node.value, shown, folder, chain)

    def _file(
        self, node: Node, path: str, shown: str, folder: Path, chain: tuple[str, ...]
    ) -> Node:
        """Return the base at a path from a folder."""
        target = os.path.realpath(folder / path)
        if os.path.isabs(path) or not Path(target).is_relative_to(self.ceiling):
            message = (
                f"`{node.value}` leads out of `{self.ceiling}`, where this recipe and what it"
                " extends may lie"
            )
            hint = (
                "write a path from this file to one inside; without a git repository, run this in"
                " the folder of both"
            )
            raise error_at(node.mark, "file", "extends", message, hint)
        if target in chain:
            names = [
                os.path.relpath(file, self.ceiling)
                for file in (*chain[chain.index(target) :], target)
            ]
            message = f"these recipes extend each other: {' -> '.join(names)}"
            raise error_at(node.mark, "cycle", "extends", message, "remove one of these `extends`")
        self._check_count(node, chain)
        if not os.path.isfile(target):
            raise error_at(
                node.mark, "file", "extends", *_missing_base(node.value, shown, path, target, chain)
            )
        return self.load(
            Path(target), os.path.normpath(os.path.join(os.path.dirname(shown), path)), chain
        )

    def _pinned(self, node: Node, chain: tuple[str, ...]) -> Node:
        check_pin(node)
        sha256 = node.value["sha256"].value
        if sha256 not in self.done:
            self._check_count(node, chain)
            self.done[sha256] = _check_is_recipe(read_pinned(node))
        return self.done[sha256]

    def _check_count(self, node: Node, chain: tuple[str, ...]) -> None:
        if len(self.done) + len(chain) > MAX_FILES:
            message = f"more than {MAX_FILES} files extend each other"
            raise error_at(node.mark, "size", "extends", message, "use fewer files")


def _missing_base(
    text: str, shown: str, path: str, target: str, chain: tuple[str, ...]
) -> tuple[str, str]:
    """Return the message and the fix for a base that is no file."""
    reason = "is not a file" if os.path.exists(target) else "does not exist"
    if text.startswith(SHIPPED):
        recipes = shipped_folder("recipes")
        names = sorted(
            path.relative_to(recipes).with_suffix("").as_posix() for path in recipes.rglob("*.yaml")
        )
        close = did_you_mean(text, [f"{SHIPPED}{name}" for name in names])
        return f"`{text}` {reason} in this package{close}", f"its recipes are in `{recipes}`"
    folder, file = os.path.split(target)
    others = sorted(Path(folder).glob("*.yaml")) if os.path.isdir(folder) else []
    close = did_you_mean(file, [other.name for other in others if str(other) not in chain])
    name = os.path.normpath(os.path.join(os.path.dirname(shown), path))
    return (
        f"`{name}` {reason}{close}",
        f"the path is relative to this file; `{SHIPPED}NAME` is a recipe of the package",
    )


def _check_is_recipe(root: Node) -> Node:
    """Return the mapping of one file unchanged.

    Raise RecipeError for a sweep, or another version of the language.

    Every file is checked by itself: after merging, a base's `recipe:` is hidden by that of the
    recipe above it.
    """
    if "sweep" in root.value:
        file = root.mark.file
        fix = (
            f"list its points with `seqcomposer sweep {file} --dry-run`, and name one: `{file}"
            " axis=value ...`, "
        )
        fix += f"for `diff` `{file}#axis=value,...`"
        raise error_at(
            root.value["sweep"].place, "sweep", "", "this is a sweep, many recipes in one file", fix
        )
    version = root.value.get("recipe")
    if version is not None and type(version.value) is int and 0 < version.value != VERSION:
        raise RecipeError([unsupported_version(version.mark, "recipe", version.value)])
    return root


def _base_nodes(own: Node) -> list[Node]:
    extends = own.value.get("extends")
    if extends is None:
        return []
    if not extends.value and not isinstance(extends.value, (str, dict)):
        hint = "remove `extends`, or name a recipe: `extends: base.yaml`"
        raise error_at(extends.place, "unused", "extends", "`extends` names no recipe", hint)
    nodes = extends.value if isinstance(extends.value, list) else [extends]
    faults = []
    for node in nodes:
        if not isinstance(node.value, (str, dict)) or not node.value:
            message = "`extends` takes a path, a pinned recipe, or a list of them"
            hint = "write `extends: base.yaml`, or `extends: {pull: REF, sha256: HEX}`"
            faults.append(fault_at(node.mark, "type", "extends", message, hint))
    if faults:
        raise RecipeError(faults)
    if repeated := duplicate_faults(nodes, "extends"):
        raise RecipeError(repeated)
    return nodes


def _idle_nulls(base: Node, own: Node, path: KeyPath = ()) -> Iterator[Fault]:
    """Yield a fault for each `null` that is to remove what no base has."""
    if (
        not isinstance(base.value, dict)
        or not isinstance(own.value, dict)
        or path in REPLACED_WHOLE
    ):
        return
    for key, node in own.value.items():
        if key in base.value:
            yield from _idle_nulls(base.value[key], node, (*path, key))
        elif node.value is None and key != "extends" and (*path, key) not in MEANINGFUL_NULLS:
            shown = format_path((*path, key))
            message = f"`null` removes `{key}`, and nothing that is extended has it"
            yield fault_at(
                node.place, "unused", shown, message, "remove this line, or correct the key"
            )


def merge(base: Node, own: Node, path: KeyPath = ()) -> Node:
    """Return `own` laid over `base`: mappings merge, lists and choices replace, `null` removes."""
    if not isinstance(base.value, dict) or not isinstance(own.value, dict):
        return own
    if path in REPLACED_WHOLE:
        return replace(own, replaced=base)
    merged = dict(base.value)
    if path == ("data",) and _has_source(own):
        for key in DATA_SOURCES:
            if key not in own.value:
                merged.pop(key, None)
    for key, node in own.value.items():
        if node.value is None and (*path, key) not in MEANINGFUL_NULLS:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged[key], node, (*path, key)) if key in merged else node
    return replace(own, value=merged)


def lost_settings(node: Node, file: str, path: KeyPath = ()) -> Iterator[Fault]:
    """Yield a warning for each value that replaces its base's and loses some of its settings.

    Of two fragments in one list, the later is meant to win.
    """
    for key, value in node.value.items():
        if value.replaced is not None and value.place.file == file:
            yield from _losses(value.replaced, value, (*path, key))
        elif isinstance(value.value, dict):
            yield from lost_settings(value, file, (*path, key))


def _has_source(data: Node) -> bool:
    sources = [data.value[key] for key in DATA_SOURCES if key in data.value]
    return any(node.value is not None for node in sources)


def _losses(base: Node, own: Node, path: KeyPath) -> Iterator[Fault]:
    """Yield a warning of the keys of its base's value that a value lacks.

    Of a choice only where both choose the same.
    """
    if not isinstance(base.value, dict) or not isinstance(own.value, dict | None):
        return
    settings, is_choice = own.value or {}, path in CHOICE_KEYS
    for key in settings:
        if key in base.value and (is_choice or (*path, key) in REPLACED_WHOLE):
            yield from _losses(base.value[key], settings[key], (*path, key))
    lost = {key: node for key, node in base.value.items() if key not in settings}
    if lost and not is_choice:
        texts = []
        for key, node in lost.items():
            texts.append(f"`{key}: {node.text}`" if node.text else f"`{key}`")
        listed = ", ".join(texts)
        message = (
            f"this replaces the whole of `{path[-1]}` in {base.place.file}:{base.place.line},"
            f" {listed} too"
        )
        hint = "write that here as well, or the values that it is to have"
        yield fault_at(own.place, "unused", format_path(path), message, hint).as_warning()


# -------------------------------------------------------------------------------------------
# overrides


def parse_path(text: str) -> tuple[list[tuple[str | int, int, int]], int]:
    """Return the steps of `model.encoder.0.repeat` or `model.encoder[0]`, with their columns.

    Each step is a key or an index, and where it begins and ends in the text.
    """
    steps: list[tuple[str | int, int, int]] = []
    end = 0
    while end < len(text):
        match = _STEP.match(text, end)
        if match is None or (end == 0) != (match.group()[0] not in ".["):
            break
        name, *index = match.groups()
        begin = end + (match.group()[0] in ".[")
        end = match.end()
        steps.append((name if name is not None else int(index[0] or index[1]), begin, end))
    return steps, end


def apply_overrides(root: Node, overrides: Sequence[str], rules: Schema) -> Node:
    """Return the recipe with `key=value` settings laid over it, in their order.

    Raise RecipeError with all faults.
    """
    faults: list[Fault] = []
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, _ = text.partition("=")
        mark = Mark(COMMAND_LINE, 1, 1, max(1, len(key)), text)
        try:
            if not equals:
                raise error_at(mark, "override", "", f"`{text}` is not KEY=VALUE", EXAMPLE)
            root = apply_override(root, key, mark, parse_value(text, len(key) + 1), rules)
        except RecipeError as error:
            faults.extend(error.faults)
    if faults:
        raise RecipeError(faults)
    return root


def apply_override(root: Node, key: str, mark: Mark, value: Node, rules: Schema) -> Node:
    """Return the recipe with one value at the path `key`, which is written at `mark`.

    Raise RecipeError.
    """
    parts, end = parse_path(key)
    column = mark.column
    if end < len(key):
        rest = mark._replace(column=column + end, length=len(key) - end)
        hint = "write keys and list indices with dots: `model.encoder.0.repeat.times=2`"
        raise error_at(rest, "override", "", f"`{key}` is no path to a key", hint)
    if not parts or len(parts) > MAX_DEPTH:
        raise error_at(mark, "override", "", "there is no such key", EXAMPLE)
    if len(parts) + nesting_depth(value) > MAX_DEPTH:
        message = f"this is nested deeper than {MAX_DEPTH} levels"
        raise error_at(mark, "override", "", message, "write it in the recipe")
    steps = [
        (name, mark._replace(column=column + begin, length=end - begin))
        for name, begin, end in parts
    ]
    top, top_mark = steps[0]
    if top == "extends":
        raise error_at(
            top_mark,
            "override",
            "extends",
            "`extends` cannot be set here",
            "write it in the recipe",
        )
    variables = recipe_variables(root)
    if top == "vars" and len(steps) > 1 and steps[1][0] not in variables:
        name = str(steps[1][0])
        raise error_at(steps[1][1], "variable", f"vars.{name}", *unknown_variable(name, variables))
    return _Setter(rules, replace(value, key=steps[-1][1])).set(root, steps, ())


class _Setter(NamedTuple):
    """Sets one value in a tree, making new mappings where there are none yet."""

    rules: Schema
    value: Node

    def set(
        self, node: Node | None, steps: Sequence[tuple[str | int, Mark]], path: KeyPath
    ) -> Node:
        """Return a node with the value set at `steps` below it: names with their marks."""
        if not steps:
            return self.value
        (name, mark), *rest = steps
        shown = format_path(path)
        # a list may be a block's first setting in short form: another setting is added then, or one
        # in it is set
        is_item = isinstance(name, int) or first_setting(self.rules, path) is None
        if node is not None and isinstance(node.value, list) and is_item:
            items = list(node.value)
            if not isinstance(name, int) or name >= len(items):
                hint = f"its items are 0 to {len(items) - 1}" if items else "it is empty"
                message = f"`{shown}` is a list and has no item `{name}`"
                raise error_at(mark, "override", shown, message, hint)
            items[name] = self.set(items[name], rest, (*path, name))
            return replace(node, value=items)
        if isinstance(name, int):
            hint = f"set `{shown}` itself, or name a key of it"
            raise error_at(mark, "override", shown, f"`{shown}` is no list", hint)
        if word := chosen_entry(self.rules, path, None if node is None else node.value, name):
            name, rest = word, [*steps]  # `decoding.max_length`, of whatever method is chosen
        children = self._children(node, name, mark, path)
        child = self.set(children.get(name), rest, (*path, name))
        changed = {**children, name: child}
        # `null` removes it
        if child.value is None and name in children and (*path, name) not in MEANINGFUL_NULLS:
            del changed[name]
        return replace(node or Node(None, mark, key=mark), value=changed)

    def _children(self, node: Node | None, name: str, mark: Mark, path: KeyPath) -> dict[str, Node]:
        if node is None or node.value is None:
            return {}
        if isinstance(node.value, dict):
            return node.value
        is_choice = path in CHOICE_KEYS and isinstance(node.value, str)
        if node.value == name or is_choice:  # the bare name of a block, an optimizer, ...
            return {node.value: Node({}, node.mark, key=node.mark)}
        first = first_setting(self.rules, path)
        if first is None:
            shown = format_path(path)
            message = f"`{shown}` is a single value and has no key `{name}`"
            hint = f"set `{shown}` itself"
            settings = self.rules["$defs"].get(f"block.{node.value}", {"properties": ()})[
                "properties"
            ]
            if isinstance(path[-1], int) and name in settings:  # of a block without its name
                hint = f"write `{shown}.{node.value}.{name}`"
            raise error_at(mark, "override", shown, message, hint)
        return {first: node}
