"""Statistics of the scores of a sweep: differences from its best trial, and what each axis
contributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from composer.sweeps.sweep import ERROR_RATE

MIN_DF = 3
"""Degrees of freedom from which the trials' own deviations from the model are a measure of its
error.
"""
MAX_PRIOR = 500.0
"""Half the degrees of freedom from which variances are taken to be equal."""
TOLERANCE = 1e-7
ROUNDING = 1e-12
"""Part of a score below which a difference is rounding."""

Scores = Mapping[int, float]
"""The score of a trial by seed."""
Array = NDArray[np.float64]


class SeedNoise(NamedTuple):
    """The variance between seeds of each trial, its degrees of freedom, and those of all trials."""

    variances: Array
    df: Array
    total_df: float

    @property
    def pooled(self) -> float:
        """The common variance."""
        return float(np.average(self.variances, weights=self.df))


def seed_noise(trials: Sequence[Scores]) -> SeedNoise:
    """Return the noise between seeds, without what a seed does to all trials if these have the same
    seeds.
    """
    counts = np.array([len(scores) for scores in trials], dtype=float)
    if len(trials) > 1 and all(scores.keys() == trials[0].keys() for scores in trials):
        table = np.array([[scores[seed] for seed in trials[0]] for scores in trials])
        residuals = table - table.mean(axis=1, keepdims=True)
        residuals -= residuals.mean(axis=0)
        squares = (residuals**2).sum(axis=1) * len(trials) / (len(trials) - 1)
        total = (len(trials) - 1) * (counts[0] - 1)
    else:
        squares = np.array([np.var([*scores.values()]) for scores in trials]) * counts
        total = (counts - 1).sum()
    return SeedNoise(squares / np.maximum(counts - 1, 1), counts - 1, float(total))


def moderate(noise: SeedNoise) -> tuple[Array, float]:
    """Return variances drawn towards a common one, and the degrees of freedom that this adds (Smyth
    2004).

    The more alike the trials' variances, the more of them is common: a few seeds alone say little
    of each.
    """
    known = noise.df > 0
    half, common = noise.df[known] / 2, noise.pooled
    if common == 0 or known.sum() < 2:
        return np.full(len(noise.df), common), np.inf
    logs = (
        np.log(np.maximum(noise.variances[known], 1e-5 * common))
        - special.digamma(half)
        + np.log(half)
    )
    spread = logs.var(ddof=1) - _trigamma(half).mean()
    if spread <= _trigamma(MAX_PRIOR):
        return np.full(len(noise.df), common), np.inf
    prior = optimize.brentq(lambda x: _trigamma(x) - spread, 1e-4, MAX_PRIOR)
    centre = np.exp(logs.mean() + special.digamma(prior) - np.log(prior))
    return (2 * prior * centre + noise.df * noise.variances) / (2 * prior + noise.df), 2 * prior


def _trigamma(x: Array | float) -> Array:
    return np.asarray(special.zeta(2, x))  # what `polygamma(1, x)` computes, at a tenth of its time


def p_values_to_best(trials: Sequence[Scores]) -> list[float] | None:
    """Return the p-value of each trial's difference from the first, the best; None if no trial has
    two seeds.

    Moderated t-tests, paired over seeds where all trials have the same ones. The best is chosen by
    the same scores, and so may be any of them: p-values are corrected for all pairs (Bonferroni).
    """
    noise = seed_noise(trials)
    if noise.total_df == 0:
        return None
    means = np.array([np.mean([*scores.values()]) for scores in trials])
    variances, prior_df = moderate(noise)
    mean_variances = variances / (noise.df + 1)
    gaps = np.where(
        np.isclose(means, means[0], rtol=TOLERANCE**2, atol=0), 0, np.abs(means - means[0])
    )
    errors = np.sqrt(mean_variances + mean_variances[0])
    statistics = np.divide(gaps, errors, out=np.where(gaps > 0, np.inf, 0), where=errors > 0)
    df = np.minimum(prior_df + np.minimum(noise.df, noise.df[0]), noise.total_df)
    pairs = max(1.0, len(trials) * (len(trials) - 1) / 2)
    return [float(p) for p in np.minimum(1, 2 * special.stdtr(df, -statistics) * pairs)]


@dataclass(frozen=True)
class ValueEffect:
    """What a value of an axis does: its mean, adjusted for the other axes, and its difference from
    the reference.

    `interval` is the difference's, of 95 %; `p_value` is corrected for all differences of the sweep
    (Holm). All are None where the design cannot tell; of the reference itself the last three are.
    """

    value: str
    trials: int
    mean: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None

    @property
    def is_reference(self) -> bool:
        """Whether the other values are compared with this one."""
        return self.mean is not None and self.difference is None


@dataclass(frozen=True)
class Contributions:
    """The additive model of the scores: the effects of each axis's values; what the design cannot
    separate has none.

    `df` are the degrees of freedom of the intervals, 0 without any. `by_seeds` says that they are
    of the noise between seeds alone. `additivity` is the p-value of the model: of deviations as
    large as those of the trials by seeds alone.
    """

    effects: Mapping[str, Sequence[ValueEffect]]
    df: float
    by_seeds: bool
    additivity: float | None


Groups = Mapping[str, Sequence[int]]
"""The numbers of the trials that have each value of an axis; those in which it is not active are in
none.
"""


def fit_contributions(axes: Mapping[str, Groups], trials: Sequence[Scores]) -> Contributions:
    """Fit an additive model of the axes, each a factor, to the trials' means over seeds, by least
    squares.

    Where trials have different seeds, their means are over those that all have, and the noise
    between seeds is that of the trials with several.

    Columns of an axis are centred over the trials in which it is active, and 0 in the others: an
    effect of an axis that decides whether another is active is the one at the other's average.
    """
    axes = {axis: groups for axis, groups in axes.items() if len(groups) > 1}
    shared = set(trials[0]).intersection(*trials) or set().union(*trials)
    scores = [[score for seed, score in trial.items() if seed in shared] for trial in trials]
    means, counts = (
        np.array([np.mean(one) for one in scores]),
        np.array([len(one) for one in scores]),
    )
    design = np.column_stack(
        [np.ones(len(trials)), *(_columns(groups, len(trials)) for groups in axes.values())]
    )
    inverse = np.linalg.pinv(design, rcond=TOLERANCE)
    coefficients, row_space = inverse @ means, inverse @ design
    free = len(trials) - round(float(np.trace(row_space)))
    squares = float(((means - design @ coefficients) ** 2).sum())
    noise = seed_noise([trial for trial in trials if len(trial) > 1] or trials)
    by_seeds = noise.total_df > 0 and free < MIN_DF
    df = noise.total_df if by_seeds else float(free)
    mean_variances = (
        noise.pooled / counts if by_seeds else np.full(len(trials), squares / max(free, 1))
    )
    covariance = (inverse * mean_variances) @ inverse.T
    effects: dict[str, list[ValueEffect]] = {}
    start = 1
    for axis, groups in axes.items():
        part = slice(start, start := start + len(groups))
        separable = _separable(np.eye(len(row_space))[part] - row_space[part])
        effects[axis] = _value_effects(
            groups, separable, means, coefficients[part], covariance[part, part], df
        )
    additivity = None
    if noise.total_df and free and noise.pooled > (ROUNDING * np.abs(means).max()) ** 2:
        ratio = squares / free / (noise.pooled / counts).mean()
        additivity = float(special.fdtrc(free, noise.total_df, ratio))
    return Contributions(_corrected(effects), df, by_seeds, additivity)


def _columns(groups: Groups, num_trials: int) -> Array:
    columns = np.zeros((num_trials, len(groups)))
    for column, members in enumerate(groups.values()):
        columns[list(members), column] = 1
    active = columns.sum(axis=1, keepdims=True)
    return columns - active * (columns.sum(axis=0) / active.sum())


def _separable(null_rows: Array) -> list[int]:
    """Return the largest set of values, the earliest of several, whose differences the design
    determines.

    null_rows: The axis's rows of the projection on what the design leaves open; it is equal for
    such values.
    """
    is_equal = np.abs(null_rows[:, None] - null_rows).max(axis=-1) <= TOLERANCE
    classes = is_equal.argmax(axis=1).tolist()  # the first that is equal
    largest = max(classes, key=classes.count)
    return [value for value, first in enumerate(classes) if first == largest]


def _value_effects(
    groups: Groups,
    separable: Sequence[int],
    means: Array,
    coefficients: Array,
    covariance: Array,
    df: float,
) -> list[ValueEffect]:
    """Return the effects of an axis's values, of which the first separable one is the reference."""
    effects = [ValueEffect(value, len(members)) for value, members in groups.items()]
    if len(separable) == 1:
        return effects
    members = [*groups.values()]
    centre = means[[trial for value in separable for trial in members[value]]].mean()
    centre -= np.average(
        coefficients[separable], weights=[len(members[value]) for value in separable]
    )
    first, *others = separable
    effects[first] = replace(effects[first], mean=float(centre + coefficients[first]))
    for value in others:
        mean, difference = (
            float(centre + coefficients[value]),
            float(coefficients[value] - coefficients[first]),
        )
        if abs(difference) <= ROUNDING * abs(mean):
            difference = 0.0
        effects[value] = replace(effects[value], mean=mean, difference=difference)
        if df:
            variance = (
                covariance[value, value] + covariance[first, first] - 2 * covariance[value, first]
            )
            error = float(np.sqrt(max(variance, 0)))
            margin = error * float(special.stdtrit(df, 1 - ERROR_RATE / 2))
            p_value = (
                2 * float(special.stdtr(df, -abs(difference) / error))
                if error
                else float(difference == 0)
            )
            interval = (difference - margin, difference + margin)
            effects[value] = replace(effects[value], interval=interval, p_value=p_value)
    return effects


def _corrected(effects: Mapping[str, Sequence[ValueEffect]]) -> dict[str, list[ValueEffect]]:
    """Return the effects with their p-values corrected for all of them (Holm)."""
    p_values = sorted(
        effect.p_value
        for values in effects.values()
        for effect in values
        if effect.p_value is not None
    )
    weighted = (
        p_value * left for p_value, left in zip(p_values, range(len(p_values), 0, -1), strict=True)
    )
    corrected: dict[float | None, float] = dict(
        zip(p_values, accumulate(weighted, max), strict=True)
    )

    def correct(effect: ValueEffect) -> ValueEffect:
        return (
            effect
            if effect.p_value is None
            else replace(effect, p_value=min(1.0, corrected[effect.p_value]))
        )

    return {axis: [*map(correct, values)] for axis, values in effects.items()}
