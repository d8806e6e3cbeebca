"""Command-line overrides, `key=value`: they set what a recipe can say; items of lists by their index."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from composer.errors import Fault, RecipeError, did_you_mean, format_path
from composer.recipe.interpolation import recipe_variables, variables_hint
from composer.recipe.node import COMMAND_LINE, Mark, Node, fault_at, nesting_depth
from composer.recipe.yaml_reader import MAX_DEPTH, parse_value

Steps = tuple[str | int, ...]
FirstSetting = Callable[[Steps], str | None]
"""Returns the first setting of the block, optimizer, ... at a path; None if there is none."""

EXAMPLE = "write, for example, `training.max_steps=100`"


class PathStep(NamedTuple):
    """One step of a path, and where it begins and ends in the text."""

    name: str | int
    begin: int
    end: int


class _Step(NamedTuple):
    name: str | int
    mark: Mark


_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_-]*)|\.([0-9]{1,6})(?![A-Za-z0-9_-])|\[([0-9]{1,6})\]")


def parse_path(text: str) -> tuple[list[PathStep], int]:
    """Return the steps of a path such as `model.encoder.0.repeat` or `model.encoder[0]`, and where they end."""
    steps: list[PathStep] = []
    end = 0
    while end < len(text):
        match = _STEP.match(text, end)
        if match is None or (end == 0) != (match.group()[0] not in ".["):
            break
        name, *index = match.groups()
        begin = end + (match.group()[0] in ".[")
        steps.append(PathStep(name if name is not None else int(index[0] or index[1]), begin, match.end()))
        end = match.end()
    return steps, end


def apply_overrides(root: Node, overrides: Sequence[str], first: FirstSetting) -> Node:
    """Return the recipe with `key=value` settings laid over it, in their order. Raise RecipeError with all faults."""
    faults: list[Fault] = []
    for text in [overrides] if isinstance(overrides, str) else overrides:
        key, equals, _ = text.partition("=")
        mark = Mark(COMMAND_LINE, 1, 1, max(1, len(key)), text)
        try:
            if not equals:
                raise _override_error(mark, "", f"`{text}` is not KEY=VALUE", EXAMPLE)
            root = apply_override(root, key, mark, parse_value(text, len(key) + 1), first)
        except RecipeError as error:
            faults.extend(error.faults)
    if faults:
        raise RecipeError(faults)
    return root


def apply_override(root: Node, key: str, mark: Mark, value: Node, first: FirstSetting) -> Node:
    """Return the recipe with one value at the path `key`, which is written at `mark`. Raise RecipeError."""
    steps = _parse_key(key, mark)
    if len(steps) + nesting_depth(value) > MAX_DEPTH:
        raise _override_error(mark, "", f"this is nested deeper than {MAX_DEPTH} levels", "say it in the recipe")
    _check_target(root, steps)
    return _Setter(first, replace(value, key=steps[-1].mark)).set(root, steps, ())


def _override_error(mark: Mark, path: str, message: str, hint: str) -> RecipeError:
    return RecipeError([fault_at(mark, "override", path, message, hint)])


def _parse_key(key: str, mark: Mark) -> list[_Step]:
    parts, end = parse_path(key)
    if end < len(key):
        rest = mark._replace(column=mark.column + end, length=len(key) - end)
        hint = "write keys and list indices with dots: `model.encoder.0.repeat.times=2`"
        raise _override_error(rest, "", f"`{key}` is no path to a key", hint)
    if not parts or len(parts) > MAX_DEPTH:
        raise _override_error(mark, "", "there is no such key", EXAMPLE)
    column = mark.column
    return [_Step(name, mark._replace(column=column + begin, length=end - begin)) for name, begin, end in parts]


def _check_target(root: Node, steps: list[_Step]) -> None:
    if steps[0].name == "extends":
        raise _override_error(steps[0].mark, "extends", "`extends` cannot be set here", "write it in the recipe")
    variables = recipe_variables(root)
    if steps[0].name == "vars" and len(steps) > 1 and steps[1].name not in variables:
        name, mark = str(steps[1].name), steps[1].mark
        message = f"there is no variable `{name}`{did_you_mean(name, variables)}"
        raise RecipeError([fault_at(mark, "variable", f"vars.{name}", message, variables_hint(variables))])


class _Setter(NamedTuple):
    """Sets one value in a tree, making new mappings where there are none yet."""

    first: FirstSetting
    value: Node

    def set(self, node: Node | None, steps: list[_Step], path: Steps) -> Node:
        """Return a node with the value set at `steps` below it."""
        if not steps:
            return self.value
        step = steps[0]
        if node is not None and isinstance(node.value, list):
            return self._set_in_list(node, steps, path)
        if isinstance(step.name, int):
            raise _override_error(step.mark, format_path(path), f"`{format_path(path)}` is no list", "name a key")
        children = self._children(node, step, path)
        child = self.set(children.get(step.name), steps[1:], (*path, step.name))
        return replace(node or Node(None, step.mark, key=step.mark), value=_with_child(children, step.name, child))

    def _set_in_list(self, node: Node, steps: list[_Step], path: Steps) -> Node:
        step, count = steps[0], len(node.value)
        first = self.first(path)
        if isinstance(step.name, str) and first is not None:
            # the list is a block's first setting in short form: another setting is added, or one in it is set
            children = {first: node}
            child = self.set(children.get(step.name), steps[1:], (*path, step.name))
            return replace(node, value=_with_child(children, step.name, child))
        if not isinstance(step.name, int) or step.name >= count:
            hint = f"its items are 0 to {count - 1}" if count else "it is empty"
            message = f"`{format_path(path)}` is a list and has no item `{step.name}`"
            raise _override_error(step.mark, format_path(path), message, hint)
        items = list(node.value)
        items[step.name] = self.set(items[step.name], steps[1:], (*path, step.name))
        return replace(node, value=items)

    def _children(self, node: Node | None, step: _Step, path: Steps) -> dict[str, Node]:
        if node is None or node.value is None:
            return {}
        if isinstance(node.value, dict):
            return node.value
        if node.value == step.name:  # a block's bare name
            return {str(step.name): Node({}, node.mark, key=node.mark)}
        first = self.first(path)
        if first is None:
            message = f"`{format_path(path)}` is a single value and has no key `{step.name}`"
            raise _override_error(step.mark, format_path(path), message, f"set `{format_path(path)}` itself")
        return {first: node}


def _with_child(children: dict[str, Node], name: str, child: Node) -> dict[str, Node]:
    """Return the children with one more; `null` removes what is there."""
    if child.value is None and name in children:
        return {key: node for key, node in children.items() if key != name}
    return {**children, name: child}
