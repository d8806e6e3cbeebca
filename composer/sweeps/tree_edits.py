"""The recipe of one point: the base, with what the point's axes change in it.

In this order: recipes that extend the base, `set`, all replacements at once, the axes that set values, the command
line, and the variables at last. So blocks that replace others may use the base's variables, which an axis may set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from composer.errors import Fault, RecipeError, did_you_mean
from composer.recipe import schema
from composer.recipe.inheritance import merge
from composer.recipe.interpolation import substitute
from composer.recipe.node import Node, fault_at
from composer.recipe.overrides import FirstSetting, apply_override, apply_overrides
from composer.recipe.recipe import first_setting
from composer.sweeps.axes import Axis, Sweep, Value
from composer.sweeps.substitution import (
    Change,
    Found,
    everything,
    find,
    name_of,
    overlap,
    replaced,
    selector,
    shown,
    word_of,
)

Chosen = Sequence[tuple[Axis, Value]]


def edited(sweep: Sweep, point: Mapping[str, Value], more: Sequence[str] = ()) -> Node:
    """The resolved mapping of a point, `key=value` settings laid over it. Raises RecipeError."""
    rules = schema.load()
    first: FirstSetting = lambda place: first_setting(rules, place)  # noqa: E731
    chosen = [(axis, point[axis.name]) for axis in sweep.axes if axis.name in point]
    root = settled(sweep.root, extended(sweep.base_root, chosen), first)
    root = replaced(root, changes(root, chosen, rules), rules)
    for axis, value in chosen:
        if axis.kind == "set" and axis.target is not None:
            root = laid(root, axis.target, axis.choice(value), f"axes.{axis.name}.set", first)
    return substitute(apply_overrides(root, [*sweep.overrides, *more], first))


def extended(base: Node, chosen: Chosen) -> Node:
    """The base with the recipes laid over it that the point's axes name."""
    for axis, value in chosen:
        if axis.kind == "extend":
            base = merge(base, axis.choice(value))
    return base


def settled(sweep: Node, root: Node, first: FirstSetting) -> Node:
    """The base with what is `set` at every point."""
    written = sweep.value.get("set")
    for key, value in written.value.items() if written is not None and written.value else ():
        target = Node(key, value.place, quoted=value.place.text[value.place.column - 1 :][:1] in ('"', "'"))
        root = laid(root, target, value, f"set.{key}", first)
    return root


def laid(root: Node, target: Node, value: Node, path: str, first: FirstSetting) -> Node:
    """One value at the path that `target` says."""
    mark = target.mark._replace(column=target.mark.column + target.quoted, length=max(1, len(target.value)))
    try:
        return apply_override(root, target.value, mark, value, first)
    except RecipeError as error:
        raise RecipeError(
            [each if each.path else fault_at(mark, each.code, path, each.message, each.hint) for each in error.faults]
        ) from None


def changes(root: Node, chosen: Chosen, rules: dict[str, Any]) -> list[Change]:
    """What the axes of a point replace. Raises RecipeError where one replaces nothing, or two replace the same."""
    replacing = [(axis, value) for axis, value in chosen if axis.kind == "replace"]
    found = {axis.name: matches(root, axis, rules) for axis, _ in replacing}
    for index, (axis, _) in enumerate(replacing):
        if not found[axis.name]:
            raise RecipeError([nothing_found(root, axis, rules)])
        for other, _ in replacing[:index]:
            both = overlap(found[axis.name], found[other.name])
            if both is not None:
                raise RecipeError([_twice(axis, other, both)])
    return [Change(found[axis.name], axis.choice(value)) for axis, value in replacing]


def matches(root: Node, axis: Axis, rules: dict[str, Any]) -> list[Found]:
    """What an axis replaces in a recipe."""
    assert axis.target is not None
    wanted = selector(axis.target.value)
    return [] if wanted is None else find(root, wanted, rules)


def nothing_found(root: Node, axis: Axis, rules: dict[str, Any]) -> Fault:
    """The fault of an axis that replaces nothing."""
    assert axis.target is not None
    here = list(everything(root, rules))
    *_, word = axis.target.value.split("..")
    if word == axis.target.value:
        paths = [shown(each) for each in here]
        close, hint = (
            did_you_mean(word, paths),
            "the stacks are " + ", ".join(shown(each) for each in here if each.is_stack),
        )
    else:
        names = sorted({word_of(each.node) for each in here if not each.is_stack})
        called = sorted({name_of(each.node) for each in here if not each.is_stack} - {""})
        close, hint = did_you_mean(word, [*names, *called]), f"the model has the blocks {', '.join(names)}"
        hint += f"; called by `as`: {', '.join(called)}" if called else ""
    message = f"`{axis.target.value}` matches nothing in the base{close}"
    return fault_at(axis.target.mark, "selector", f"axes.{axis.name}.replace", message, hint)


def _twice(axis: Axis, other: Axis, both: tuple[str | int, ...]) -> Fault:
    assert axis.target is not None
    where = shown(Found(both, axis.target, is_stack=False))
    message = f"`{axis.name}` and `{other.name}` both replace `{where}`"
    hint = f"make one axis of them, or let `when` say at which labels of `{other.name}` this one is active"
    return fault_at(axis.target.mark, "overlap", f"axes.{axis.name}.replace", message, hint)
