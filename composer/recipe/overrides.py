"""`key=value` from the command line: sets what a recipe can say, lists by index."""

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
"""The first setting of the block, optimizer, ... that stands at a path; None where there is none."""


class _Step(NamedTuple):
    name: str | int
    mark: Mark


_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_-]*)|\.([0-9]{1,6})(?![A-Za-z0-9_-])|\[([0-9]{1,6})\]")


class PathStep(NamedTuple):
    """One step of a path, and from where to where it stands in the text."""

    name: str | int
    begin: int
    end: int


def parse_path(text: str) -> tuple[list[PathStep], int]:
    """The steps of a path such as `model.encoder.0.repeat` or `model.encoder[0]`, and how far the text is one."""
    parts: list[PathStep] = []
    end = 0
    while end < len(text):
        found = _STEP.match(text, end)
        if found is None or (end == 0) != (found.group()[0] not in ".["):
            break
        name, *index = found.groups()
        begin = end + (found.group()[0] in ".[")
        parts.append(PathStep(name if name is not None else int(index[0] or index[1]), begin, found.end()))
        end = found.end()
    return parts, end


def apply_overrides(root: Node, settings: Sequence[str], first: FirstSetting) -> Node:
    """The recipe with `key=value` settings laid over it, in their order. Raises RecipeError with all faults."""
    faults: list[Fault] = []
    for setting in [settings] if isinstance(settings, str) else settings:
        try:
            root = _apply_text(root, setting, first)
        except RecipeError as error:
            faults.extend(error.faults)
    if faults:
        raise RecipeError(faults)
    return root


def _apply_text(root: Node, setting: str, first: FirstSetting) -> Node:
    key, equals, _ = setting.partition("=")
    whole = Mark(COMMAND_LINE, 1, 1, max(1, len(key)), setting)
    if not equals:
        raise _override_error(
            whole, "", f"`{setting}` is not KEY=VALUE", "write, for example, `training.max_steps=100`"
        )
    return apply_override(root, key, whole, parse_value(setting, len(key) + 1), first)


def apply_override(root: Node, key: str, whole: Mark, value: Node, first: FirstSetting) -> Node:
    """The recipe with one value at the path `key`, which stands at `whole`. Raises RecipeError."""
    steps = _marked_steps(key, whole)
    if len(steps) + nesting_depth(value) > MAX_DEPTH:
        raise _override_error(whole, "", f"this is nested deeper than {MAX_DEPTH} levels", "say it in the recipe")
    _check_target(root, steps)
    return _Setter(first, replace(value, key=steps[-1].mark)).set(root, steps, ())


def _override_error(mark: Mark, path: str, message: str, hint: str) -> RecipeError:
    return RecipeError([fault_at(mark, "override", path, message, hint)])


def _marked_steps(key: str, whole: Mark) -> list[_Step]:
    found, end = parse_path(key)
    if end < len(key):
        mark = whole._replace(column=whole.column + end, length=len(key) - end)
        hint = "write keys and list indices with dots: `model.encoder.0.repeat.times=2`"
        raise _override_error(mark, "", f"`{key}` is no path to a key", hint)
    steps = [
        _Step(each.name, whole._replace(column=whole.column + each.begin, length=each.end - each.begin))
        for each in found
    ]
    if not steps or len(steps) > MAX_DEPTH:
        raise _override_error(whole, "", "there is no such key", "write, for example, `training.max_steps=100`")
    return steps


def _check_target(root: Node, steps: list[_Step]) -> None:
    top = steps[0].name
    if top == "extends":
        raise _override_error(steps[0].mark, "extends", "`extends` cannot be set here", "write it in the recipe")
    variables = recipe_variables(root)
    if top == "vars" and len(steps) > 1 and steps[1].name not in variables:
        name = str(steps[1].name)
        mark = steps[1].mark
        raise RecipeError(
            [
                fault_at(
                    mark,
                    "variable",
                    f"vars.{name}",
                    f"there is no variable `{name}`{did_you_mean(name, variables)}",
                    variables_hint(variables),
                )
            ]
        )


class _Setter(NamedTuple):
    """Sets one value in a tree, making new mappings where there are none yet."""

    first: FirstSetting
    value: Node

    def set(self, node: Node | None, steps: list[_Step], path: Steps) -> Node:
        if not steps:
            return self.value
        step = steps[0]
        if node is not None and isinstance(node.value, list):
            return self._in_list(node, steps, path)
        if isinstance(step.name, int):
            raise _override_error(step.mark, format_path(path), f"`{format_path(path)}` is no list", "name a key")
        children = self._children(node, step, path)
        child = self.set(children.get(step.name), steps[1:], (*path, step.name))
        place = node or Node(None, step.mark, key=step.mark)
        return replace(place, value=_with(children, step.name, child))

    def _in_list(self, node: Node, steps: list[_Step], path: Steps) -> Node:
        step, count = steps[0], len(node.value)
        first = self.first(path)
        if isinstance(step.name, str) and first is not None:
            return replace(node, value=self._beside(node, first, steps, path))
        if not isinstance(step.name, int) or step.name >= count:
            last = f"its items are 0 to {count - 1}" if count else "it is empty"
            message = f"`{format_path(path)}` is a list and has no item `{step.name}`"
            raise _override_error(step.mark, format_path(path), message, last)
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

    def _beside(self, node: Node, first: str, steps: list[_Step], path: Steps) -> dict[str, Node]:
        """A list that stands for a block's first setting, with another setting beside it, or something set in it."""
        name = str(steps[0].name)
        children = {first: node}
        return _with(children, name, self.set(children.get(name), steps[1:], (*path, name)))


def _with(children: dict[str, Node], name: str, child: Node) -> dict[str, Node]:
    """The children with one more; `null` removes what is there."""
    if child.value is None and name in children:
        return {key: node for key, node in children.items() if key != name}
    return {**children, name: child}
