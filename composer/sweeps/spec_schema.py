"""The sweep language: every key with its type, bounds, default and meaning, and the JSON Schema generated from them.

Only the generator, `seqcomposer schema --write`, imports this module, since it imports torch; `spec.load_schema` reads
the generated file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from blocks.core.contract import Bounds, Kind, LargeCount
from composer.recipe import schema_generator
from composer.recipe.cache import PIN_SCHEMA
from composer.recipe.schema_reader import IDENTIFIER, VARIABLE
from composer.recipe.sections import Identifier, RecipeName, Seed, Text

Trials = Annotated[int, Bounds(minimum=1, maximum=10_000)]
Reduction = Annotated[int, Bounds(minimum=2, maximum=100)]
Texts = Annotated[str | Sequence[str], Kind("paths")]
Open = Annotated[Any, Kind("any")]  # its shape is in AXIS_SHAPES or SWEEP_SHAPES
SearchChoice = Annotated[Any, Kind("choice:searches")]
PrunerChoice = Annotated[Any, Kind("choice:prunings")]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One dimension of the search space: a value (`set`), blocks (`replace`) or recipes over the base (`extend`).

    Settings:
        set: The path of a value: `training.optimizer.adam.learning_rate`, `vars.width`.
        replace: The blocks or the stack to replace: a path (`model.decoder`, `model.encoder[0].residual`), and after it
            `..WORD` for every block of that kind below it or, if there is none, every block named so by `as`.
        with: For `replace`: the replacements, by labels: a block, a list of blocks, or `identity`, which removes the
            block, and with it the `residual` around it.
        extend: Recipes that extend the base, by labels; each as in `base`.
        values: For `set`: the values.
        uniform: For `set`: the least and the greatest number.
        log_uniform: The same, for numbers whose logarithm is uniform.
        int: For `set`: the least and the greatest whole number.
        log_int: The same, for whole numbers whose logarithm is uniform.
        when: A condition over other axes; where it does not hold, the axis has no value and changes nothing.
        zip: Another axis with as many values; both take their first values together, their second, and so on.
    """

    set_: Text | None = None
    replace: Text | None = None
    with_: Open = None
    extend: Open = None
    values: Open = None
    uniform: Open = None
    log_uniform: Open = None
    int_: Open = None
    log_int: Open = None
    when: Text | None = None
    zip_: Text | None = None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Grid search: every point, in order."""


@dataclass(frozen=True, kw_only=True)
class Random:
    """Random search: points drawn independently, none twice.

    Settings:
        trials: The number of trials.
        seed: The seed of the draws.
    """

    trials: Trials = 20
    seed: Seed = 1


@dataclass(frozen=True, kw_only=True)
class Tpe:
    """The tree-structured Parzen estimator (Bergstra et al. 2011): points like those that were good.

    Settings:
        trials: The number of trials.
        seed: The seed of the draws.
    """

    trials: Trials = 20
    seed: Seed = 1


@dataclass(frozen=True, kw_only=True)
class Hyperband:
    """Hyperband pruning: most trials get few steps, and the best of each round go on (Li et al. 2018).

    Settings:
        min_steps: Steps before which no trial is stopped.
        reduction: The reduction factor: one trial of so many goes on.
    """

    min_steps: LargeCount = 500
    reduction: Reduction = 3


@dataclass(frozen=True, kw_only=True)
class Median:
    """Median pruning: a trial stops where it is worse than the median of earlier trials at the same step.

    Settings:
        min_steps: Steps before which no trial is stopped.
        trials: The number of trials that run to their end before any is stopped.
    """

    min_steps: LargeCount = 500
    trials: Trials = 5


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A seqcomposer sweep: a search space around a base recipe, and how it is searched.

    Settings:
        sweep: The version of the sweep language.
        name: The name of the sweep and of its runs; by default the file's name.
        description: What it is for, in a sentence.
        base: The recipe that all points change; a path beside the sweep's file, or `{pull: REF, sha256: HEX}` as in a
            recipe's `extends`.
        set: What is changed at every point: paths and values, as `key=value` on the command line.
        axes: The dimensions of the search space, by names of letters, digits and `_`.
        where: A condition, or a list of conditions that must all hold, over the axes and the costs `parameters`,
            `flops` and `state_bytes` of a point: `parameters < 20M and flops < 2G`.
        search: The search algorithm: grid, random or tpe.
        prune: When a trial is stopped early: hyperband or median; without it, never.
        seeds: Trainings of every point: with the seeds 1 to N, or with those of a list; one by default.
        rank: Metrics as they are logged (`val/bleu`, `test/loss`), `parameters`, `flops`, `state_bytes` or `minutes`,
            each with `min` or `max`; the first one is searched and pruned by, the others break ties.
    """

    sweep: Literal[1]
    name: RecipeName | None = None
    description: Text | None = None
    base: Open
    set_: Open = None
    axes: dict[Identifier, Axis]
    where: Texts | None = None
    search: SearchChoice = "grid"
    prune: PrunerChoice = None
    seeds: Open = None
    rank: Open = None


Schema = dict[str, Any]

_TEXT = {"type": "string", "minLength": 1}
_PIN = {key: value for key, value in PIN_SCHEMA.items() if key != "type"}
_RECIPE: Schema = {**_PIN, "anyOf": [_TEXT, {"type": "object"}]}
_LABELS = {"type": "object", "propertyNames": {"pattern": IDENTIFIER}, "minProperties": 1}
_NUMBERS = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
_INTEGERS = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_SCALARS = {"anyOf": [{"type": "number"}, {"type": "boolean"}, {"type": "string"}]}
_SEED_COUNT = {"type": "integer", "minimum": 1, "maximum": 1000}
_SEED = {"type": "integer", "minimum": 0, "maximum": 4_294_967_295}
_DIRECTION = {"type": "string", "enum": ["min", "max"]}
_GOAL = {"type": "object", "minProperties": 1, "additionalProperties": _DIRECTION}
AXIS_SHAPES: dict[str, Schema] = {
    "with": _LABELS,
    "extend": {**_LABELS, "additionalProperties": _RECIPE},
    "values": {"type": "array", "minItems": 1, "items": _SCALARS},
    "uniform": _NUMBERS,
    "log_uniform": _NUMBERS,
    "int": _INTEGERS,
    "log_int": _INTEGERS,
}
SWEEP_SHAPES: dict[str, Schema] = {
    "base": _RECIPE,
    "set": {"type": "object"},
    "seeds": {"anyOf": [_SEED_COUNT, {"type": "array"}], "minItems": 1, "items": _SEED},
    "rank": {"type": "array", "minItems": 1, "items": _GOAL},
}
"""The schemas of keys that are no settings of a constructor."""


def generate_schema() -> Schema:
    """Return the JSON Schema of sweeps, generated from the classes above."""
    searches: dict[str, type] = {"grid": Grid, "random": Random, "tpe": Tpe}
    pruners: dict[str, type] = {"hyperband": Hyperband, "median": Median}
    meaning = "When a trial is stopped early: its name, or with settings."
    defs = {
        **schema_generator.choice_schema(
            "searches", searches, "The search algorithm: its name, or with settings.", "search"
        ),
        **schema_generator.choice_schema("prunings", pruners, meaning, "way of pruning"),
    }
    root = schema_generator.settings_schema(Sweep, defs)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "seqcomposer sweep, version 1"}
    for keys, shapes in ((defs["axis"]["properties"], AXIS_SHAPES), (root["properties"], SWEEP_SHAPES)):
        for key, shape in shapes.items():
            keys[key] = {"description": keys[key]["description"], **shape}
    without: Schema = _without_variables({**head, "type": "object", **root, "$defs": dict(sorted(defs.items()))})
    return without


def _without_variables(value: Any) -> Any:
    """Return a schema in which nothing can be `$name`: a sweep has no variables of its own."""
    if isinstance(value, list):
        return [_without_variables(item) for item in value if item != VARIABLE]
    if not isinstance(value, dict):
        return value
    value = {key: _without_variables(child) for key, child in value.items()}
    if len(value.get("anyOf", ())) == 1:
        (only,) = value.pop("anyOf")
        value |= only
    return value
