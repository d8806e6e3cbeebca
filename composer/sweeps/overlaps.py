"""Two axes that change the same at one point, and what to write in their place: a label never switches an axis off."""

from __future__ import annotations

from composer.errors import KeyPath, RecipeError, error_at, format_path
from composer.recipe.schema_reader import flow_text, quote_all
from composer.recipe.yaml_reader import reachable
from composer.sweeps.sweep import Axis, Sweep, Value, dependencies

MAX_VALUES = 20
"""How many values a fix lists."""


def overlap_error(sweep: Sweep, axis: Axis, other: Axis, path: KeyPath) -> RecipeError:
    """Return the error of two axes that change what is at a path, where both have a value."""
    message = f"`{axis.name}` and `{other.name}` both {axis.kind} `{format_path(path)}`"
    for one, leader in ((axis, other), (other, axis)):
        if one.when is not None and leader.name in one.when.names:
            message += f": `{leader.name}` does so at each of its {'labels' if leader.kind == 'replace' else 'values'}"
    hint = f"{_join_axes(sweep, axis, other)}; or {_exclude(sweep, axis, other)}"
    return error_at(axis.target.mark, "overlap", f"axes.{axis.name}.{axis.kind}", message, hint)


def _join_axes(sweep: Sweep, axis: Axis, other: Axis) -> str:
    """Return how one axis is made of two."""
    needed = any({axis.name, other.name} & dependencies(one) for one in sweep.axes if one not in (axis, other))
    if axis.labels is None or other.labels is None or needed or axis.zipped or other.zipped:
        return "make one axis of them"
    if axis.kind == "set":
        values = list(dict.fromkeys((*other.labels, *axis.labels)))
        if other.when is not None or len(values) > MAX_VALUES:
            return f"write the values of both at one of them, and remove `{axis.name}`"
        joined = f"{other.name}: {{set: {other.target.value}, values: {flow_text(values)}}}"
        return f"write `{joined}`, and remove `{axis.name}`"
    inner, outer = sorted((axis, other), key=_breadth)
    labels = quote_all(str(label) for label in inner.labels or ())
    if inner.target.value == outer.target.value:
        return f"write the labels {labels} into the `with` of `{outer.name}`, and remove `{inner.name}`"
    labels = f"a label for each of {labels}, with all of `{outer.target.value}`"
    return f"give `{outer.name}` {labels}, and remove `{inner.name}`"


def _breadth(axis: Axis) -> tuple[int, int]:
    """Return what sorts an axis that replaces less before one that replaces more around it."""
    head, *words = axis.target.value.split("..")
    return -len(words), -len(head)


def _exclude(sweep: Sweep, axis: Axis, other: Axis) -> str:
    """Return how never more than one of two axes has a value: by `when` at both, or at the later one alone."""
    named = {one.name: one for one in sweep.axes}
    if other.when is not None and axis.when is None and axis.name not in reachable([other], named, dependencies):
        return f"write `when: {other.name} == none` at `{axis.name}`"
    free = (one for one in sweep.axes if one not in (axis, other) and not dependencies(one))
    if third := next((one for one in free if len(one.labels or ()) > 1), None):
        label = _condition_text(third.ends[0])
        one, rest = (f"`when: {third.name} {sign} {label}`" for sign in ("==", "!="))
        return f"let `{third.name}` choose between them: {one} at `{other.name}`, {rest} at `{axis.name}`"
    return "let a third axis choose between them, by `when` at both"


def _condition_text(value: Value) -> str:
    """Return a value as a condition names it."""
    return f'"{value}"' if isinstance(value, str) else flow_text(value)
