"""Faults and warnings of an axis's values, found at few points and without planning models."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from composer.errors import Fault, RecipeError, fault_at
from composer.recipe import schema_generator
from composer.recipe.schema_reader import Schema
from composer.recipe.yaml_reader import Node, reachable
from composer.sweeps.progress import with_progress
from composer.sweeps.selectors import block_name, block_settings, inserted_blocks
from composer.sweeps.substitution import apply_point
from composer.sweeps.sweep import (
    Axis,
    Point,
    Sweep,
    Value,
    combinations,
    dependencies,
    same_value,
)

MAX_TRIED = 256
"""Most combinations of axes that are searched for one where a `when` holds."""


def value_faults(sweep: Sweep) -> set[Fault]:
    """Return the faults of a sweep's values and blocks by the recipe language.

    Each value is tried at two points, with the first values of the other axes and with their last.
    A fault at both is the value's; a fault at all points that were tried is the base's.
    """
    own: set[Fault] = set()
    everywhere: set[Fault] | None = None
    for axis in sweep.axes:
        for value in with_progress(axis.labels or axis.ends, f"read values of `{axis.name}`"):
            faults = [_point_faults(sweep, point) for point in _probes(sweep, axis, value)]
            if faults:
                common = set.intersection(*faults)
                own |= {fault for fault in common if fault.file == str(sweep.file)}
                everywhere = common if everywhere is None else everywhere & common
    return own | (everywhere or set())


def _probes(sweep: Sweep, axis: Axis, value: Value) -> Iterator[Point]:
    """Yield the two points at which an axis has a value, or none if it never has it."""
    names = reachable([axis], {other.name: other for other in sweep.axes}, dependencies)
    values = {other.name: other.labels or other.ends for other in sweep.axes if other.name in names}
    for end in (0, -1):
        others = {other.name: other.ends[end] for other in sweep.axes}
        for combination in islice(combinations(values), MAX_TRIED):
            point = sweep.complete(others | combination | {axis.name: value})
            if axis.name in point and same_value(point[axis.name], value):
                yield point
                break


def _point_faults(sweep: Sweep, point: Point) -> set[Fault]:
    # jsonschema takes a tenth of a second to import
    from composer.recipe.validation import schema_faults

    try:
        return set(schema_faults(apply_point(sweep, point), schema_generator.load()))
    except RecipeError as error:
        return set(error.faults)


@lru_cache(maxsize=8)
def default_warnings(sweep: Sweep) -> tuple[Fault, ...]:
    """Return a warning if `model.dropout` reaches some of an axis's replacements, not others."""
    rules = schema_generator.load()
    try:
        root = apply_point(sweep, sweep.probe_points()[0])
    except RecipeError:
        return ()
    dropout = root.value["model"].value.get("dropout") if "model" in root.value else None
    if dropout is None or not dropout.value:
        return ()
    warnings = []
    for axis in sweep.axes:
        if axis.kind != "replace":
            continue
        reached, others = [], []
        for label, node in zip(axis.labels or (), axis.choices, strict=True):
            blocks = inserted_blocks(node, rules)
            if any(_drops(block, rules) for block in blocks):
                reached.append(label)
            elif any(block_name(block) != "identity" for block in blocks):
                others.append((label, node))
        for label, node in others if reached else ():
            message = f"`model.dropout` reaches `{reached[0]}` and not `{label}`, which then differ"
            message += " in more than blocks"
            hint = f"put `- dropout` behind the blocks of `{label}`, or `dropout: 0` at those of"
            hint += f" `{reached[0]}`"
            path = f"axes.{axis.name}.with.{label}"
            warnings.append(fault_at(node.place, "default", path, message, hint).as_warning())
    return tuple(warnings)


def _drops(block: Node, rules: Schema) -> bool:
    """True if a block drops values, by its own dropout or by the model's."""
    name, own = block_name(block), block_settings(block).get("dropout")
    settings = rules["$defs"].get(f"block.{name}", {}).get("properties", {})
    return name == "dropout" or ("dropout" in settings and (own is None or own.value != 0))
