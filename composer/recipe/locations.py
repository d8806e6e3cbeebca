"""Where a setting of the canonical recipe stands in the recipe's files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from composer.errors import KeyPath
from composer.recipe.schema_reader import Schema, first_setting, is_block_path
from composer.recipe.yaml_reader import Node


class Location(NamedTuple):
    """The node of a setting and its path as written.

    A default is not written: its node is then the nearest one around it.
    """

    node: Node
    path: KeyPath
    is_written: bool = True


def locate(root: Node, rules: Schema, path: KeyPath) -> Location:
    """Return the location of a path of the canonical recipe whose text is `root`."""
    node = root
    steps: KeyPath = ()
    for index, step in enumerate(path):
        child = _child(node, step)
        if child is not None:
            node, steps = child, (*steps, step)
        elif not _is_short_form(rules, node, step, path[:index]):
            default = _model_default(root, rules, path[: index + 1])
            return default or Location(node, steps, is_written=False)
    return Location(node, steps)


def explicit_defaults(root: Node, rules: Schema) -> Iterator[KeyPath]:
    """Yield the paths of the defaults of blocks, and of `dropout`, that `model` has."""
    for name, node in root.value["model"].value.items():
        path: KeyPath = ("model", name)
        is_of_block = f"defaults.{name}" in rules["$defs"]
        if is_of_block and isinstance(node.value, dict):
            for setting in node.value:
                yield (*path, setting)
        elif is_of_block or name == "dropout":
            yield path


def _is_short_form(rules: Schema, node: Node, step: str | int, path: KeyPath) -> bool:
    """True if a node stands for its own part: a bare name, a first setting, a list's only item."""
    if isinstance(node.value, dict) or node.value == path[-1]:
        return False
    return node.value == step or step in (0, first_setting(rules, path))


def _model_default(root: Node, rules: Schema, path: KeyPath) -> Location | None:
    """Return the location under `model` of a block's setting that the block itself does not set."""
    if len(path) < 3 or not is_block_path(path[:-1]):
        return None
    block, setting = path[-2:]
    model = root.value["model"].value
    defaults = model.get(block)
    if defaults is not None and isinstance(setting, str) and block != "dropout":
        child = _child(defaults, setting)
        if child is not None:
            return Location(child, ("model", block, setting))
        if _is_short_form(rules, defaults, setting, ("model", block)):
            return Location(defaults, ("model", block))
    if "dropout" in model and (setting == "dropout" or (block, setting) == ("dropout", "rate")):
        return Location(model["dropout"], ("model", "dropout"))
    return None


def _child(node: Node, step: str | int) -> Node | None:
    if isinstance(node.value, dict):
        return node.value.get(step)
    is_item = isinstance(node.value, list) and isinstance(step, int) and step < len(node.value)
    return node.value[step] if is_item else None
