"""The language of sweeps: every key, its type, bounds, default and meaning, said once.

As for recipes, the classes are descriptions from which the schema is generated, and only the generator imports them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from blocks.core.contract import Bounds, Kind

Trials = Annotated[int, Bounds(minimum=1, maximum=10_000)]
Steps = Annotated[int, Bounds(minimum=1, maximum=1_000_000_000)]
Reduction = Annotated[int, Bounds(minimum=2, maximum=100)]
Seed = Annotated[int, Bounds(minimum=0, maximum=4_294_967_295)]
Text = Annotated[str, Kind("text")]
Texts = Annotated[str | Sequence[str], Kind("paths")]
Name = Annotated[str, Kind("recipe_name")]
Identifier = Annotated[str, Kind("identifier")]
Open = Annotated[Any, Kind("any")]  # its shape is the schema's
Searching = Annotated[Any, Kind("choice:searches")]
Pruning = Annotated[Any, Kind("choice:prunings")]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One thing in which recipes differ: a value (`set`), blocks (`replace`) or what they extend (`extend`).

    Settings:
        set: The path of a value: `training.optimizer.adam.learning_rate`, `vars.width`.
        replace: What blocks or stack: a path (`model.decoder`, `model.encoder[0].residual`), and after it `..WORD` for
            every block of that kind below it or, where there is none, every block called so by `as`.
        with: For `replace`: what stands in its place, by labels: a block, a list of blocks, or `identity`: the block is
            taken out, and with it the `residual` around it.
        extend: Recipes that are laid over the base, by labels; each as in `base`.
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
    """Every point, in order."""


@dataclass(frozen=True, kw_only=True)
class Random:
    """Points that are drawn independently, none twice.

    Settings:
        trials: How many points.
        seed: Of the draws.
    """

    trials: Trials = 20
    seed: Seed = 1


@dataclass(frozen=True, kw_only=True)
class Tpe:
    """The tree-structured Parzen estimator (Bergstra et al. 2011): points like those that were good.

    Settings:
        trials: How many points.
        seed: Of the draws.
    """

    trials: Trials = 20
    seed: Seed = 1


@dataclass(frozen=True, kw_only=True)
class Hyperband:
    """Most trials get few steps, and of each round the best go on (Li et al. 2018).

    Settings:
        min_steps: Steps before which no trial is stopped.
        reduction: Of so many trials one goes on.
    """

    min_steps: Steps = 500
    reduction: Reduction = 3


@dataclass(frozen=True, kw_only=True)
class Median:
    """A trial stops where it is worse than the median of those before it at the same step.

    Settings:
        min_steps: Steps before which no trial is stopped.
        trials: How many trials run to their end before any is stopped.
    """

    min_steps: Steps = 500
    trials: Trials = 5


SEARCHES: dict[str, type] = {"grid": Grid, "random": Random, "tpe": Tpe}
PRUNINGS: dict[str, type] = {"hyperband": Hyperband, "median": Median}


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A seqcomposer sweep: recipes that differ along axes, and how the best of them is found.

    Settings:
        sweep: The version of the sweep language.
        name: The name of the sweep and of its runs; the file's name without it.
        description: What it is for, in a sentence.
        base: The recipe that all points change; a path beside the sweep's file, or `{pull: REF, sha256: HEX}` as in a
            recipe's `extends`.
        set: What is changed at every point: paths and values, as `key=value` on the command line.
        axes: What the points differ in, by names of letters, digits and `_`.
        where: A condition, or a list of conditions that must all hold, over the axes and the costs `parameters`,
            `flops` and `state_bytes` of a point: `parameters < 20M and flops < 2G`.
        search: In what order points are tried: grid, random or tpe.
        prune: When a trial is stopped before its budget: hyperband or median; none is without it.
        seeds: How often every point is trained: with the seeds 1 to N, or with those of a list; once without it.
        rank: Metrics as they are logged (`val/bleu`, `test/loss`), `parameters`, `flops`, `state_bytes` or `minutes`,
            each with `min` or `max`; the first decides search and pruning, the others break ties.
    """

    sweep: Literal[1]
    name: Name | None = None
    description: Text | None = None
    base: Open
    set_: Open = None
    axes: dict[Identifier, Axis]
    where: Texts | None = None
    search: Searching = "grid"
    prune: Pruning = None
    seeds: Open = None
    rank: Open = None
