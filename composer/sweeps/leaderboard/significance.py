"""Statistics of a sweep's scores: differences from the best trial, effects of each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from composer.sweeps.sweep import ERROR_RATE

MIN_DF = 3
"""Degrees of freedom from which the residuals of the model estimate its error."""
MAX_PRIOR = 500.0
"""Half the degrees of freedom above which variances count as equal."""
TOLERANCE = 1e-7
ROUNDING = 1e-12
"""Relative difference of scores that is rounding."""

Scores = Mapping[int, float]
"""The score of a trial by seed."""
Groups = Mapping[str, Sequence[int]]
"""The indices of the trials with each value of an axis, without those where it is inactive."""
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
    """Return the noise between seeds, without the common effect of a seed if trials share seeds."""
    df = np.array([len(scores) - 1 for scores in trials], dtype=float)
    if len(trials) > 1 and all(scores.keys() == trials[0].keys() for scores in trials):
        seeds = [*trials[0]]
        table = np.array([[*map(scores.__getitem__, seeds)] for scores in trials])
        residuals = table - table.mean(axis=1, keepdims=True)
        residuals -= residuals.mean(axis=0)
        squares = (residuals**2).sum(axis=1) * len(trials) / (len(trials) - 1)
        total = (len(trials) - 1) * df[0]
    else:
        squares = np.array([np.var([*scores.values()]) for scores in trials]) * (df + 1)
        total = df.sum()
    return SeedNoise(squares / np.maximum(df, 1), df, float(total))


def moderate(noise: SeedNoise) -> tuple[Array, float]:
    """Shrink variances towards a common one; also return the added degrees of freedom (Smyth 2004).

    The more alike the trials' variances, the stronger: a few seeds alone say little of each.
    """
    known = noise.df > 0
    half, common = noise.df[known] / 2, noise.pooled
    if common == 0 or known.sum() < 2:
        return np.full(len(noise.df), common), np.inf
    logs = np.log(np.maximum(noise.variances[known], 1e-5 * common))
    logs = logs - special.digamma(half) + np.log(half)
    spread = logs.var(ddof=1) - _trigamma(half).mean()
    if spread <= _trigamma(MAX_PRIOR):
        return np.full(len(noise.df), common), np.inf
    prior = optimize.brentq(lambda x: _trigamma(x) - spread, 1e-4, MAX_PRIOR)
    centre = np.exp(logs.mean() + special.digamma(prior) - np.log(prior))
    return (2 * prior * centre + noise.df * noise.variances) / (2 * prior + noise.df), 2 * prior


def _trigamma(x: Array | float) -> Array:
    return np.asarray(special.zeta(2, x))  # equals `polygamma(1, x)`, ten times as fast


def _p_values(gaps: Array, errors: Array, df: Array | float) -> Array:
    """Return two-sided p-values of t-tests; a gap without an error is certain."""
    statistics = np.divide(gaps, errors, out=np.where(gaps > 0, np.inf, 0), where=errors > 0)
    return np.asarray(2 * special.stdtr(df, -statistics))


def p_values_to_best(trials: Sequence[Scores]) -> list[float] | None:
    """Return p-values of the differences from the first, the best; None if no trial has two seeds.

    Moderated t-tests, paired over seeds if all trials have the same ones. The best is chosen by the
    same scores, and may be any of them, so p-values are corrected for all pairs (Bonferroni).
    """
    noise = seed_noise(trials)
    if noise.total_df == 0:
        return None
    means = np.array([np.mean([*scores.values()]) for scores in trials])
    variances, prior_df = moderate(noise)
    mean_variances = variances / (noise.df + 1)
    is_equal = np.isclose(means, means[0], rtol=TOLERANCE**2, atol=0)
    gaps = np.where(is_equal, 0, np.abs(means - means[0]))
    errors = np.sqrt(mean_variances + mean_variances[0])
    df = np.minimum(prior_df + np.minimum(noise.df, noise.df[0]), noise.total_df)
    pairs = max(1.0, len(trials) * (len(trials) - 1) / 2)
    return np.minimum(1, _p_values(gaps, errors, df) * pairs).tolist()


@dataclass
class ValueEffect:
    """The effect of a value: its mean, adjusted for the other axes, and its difference.

    The difference from the reference has a 95 % `interval` and a `p_value`, corrected for all
    differences of the sweep (Holm). All are None if the design cannot tell; the reference itself
    has only a mean.
    """

    value: str
    trials: int
    mean: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None

    @property
    def is_reference(self) -> bool:
        """True if the other values are compared with this one."""
        return self.mean is not None and self.difference is None


@dataclass(frozen=True)
class Contributions:
    """The additive model of the scores: the effects of the values of each axis.

    `df` are the degrees of freedom of the intervals, 0 without any. `by_seeds`: they are estimated
    from the noise between seeds alone. `additivity` is the p-value of the model's residuals given
    that noise.
    """

    effects: Mapping[str, Sequence[ValueEffect]]
    df: float
    by_seeds: bool
    additivity: float | None


def fit_contributions(axes: Mapping[str, Groups], trials: Sequence[Scores]) -> Contributions:
    """Fit an additive model of the axes, as factors, to the trials' means by least squares.

    If trials have different seeds, their means are over the seeds that all have, and the noise
    between seeds is that of the trials with several.

    Columns of an axis are centred over the trials in which it is active, and 0 in the others: if an
    axis decides whether another is active, its effect is that at the other's average.
    """
    axes = {axis: groups for axis, groups in axes.items() if len(groups) > 1}
    shared = set(trials[0]).intersection(*trials) or set().union(*trials)
    scores = [[score for seed, score in trial.items() if seed in shared] for trial in trials]
    means = np.array([np.mean(trial) for trial in scores])
    counts = np.array([len(trial) for trial in scores])
    columns = [_columns(groups, len(trials)) for groups in axes.values()]
    design = np.column_stack([np.ones(len(trials)), *columns])
    inverse = np.linalg.pinv(design, rcond=TOLERANCE)
    coefficients, row_space = inverse @ means, inverse @ design
    free = len(trials) - round(float(np.trace(row_space)))
    squares = float(((means - design @ coefficients) ** 2).sum())
    noise = seed_noise([trial for trial in trials if len(trial) > 1] or trials)
    by_seeds = noise.total_df > 0 and free < MIN_DF
    df = noise.total_df if by_seeds else float(free)
    mean_variances = noise.pooled / counts if by_seeds else squares / max(free, 1)
    covariance = (inverse * mean_variances) @ inverse.T
    null_space = np.eye(len(row_space)) - row_space
    effects: dict[str, list[ValueEffect]] = {}
    start = 1
    for axis, groups in axes.items():
        part = slice(start, start := start + len(groups))
        separable = _separable(null_space[part])
        fitted = (coefficients[part], covariance[part, part])
        effects[axis] = _value_effects(groups, separable, means, *fitted, df)
    additivity = None
    if noise.total_df and free and noise.pooled > (ROUNDING * np.abs(means).max()) ** 2:
        ratio = squares / free / (noise.pooled / counts).mean()
        additivity = float(special.fdtrc(free, noise.total_df, ratio))
    every = chain.from_iterable(effects.values())
    _correct([effect for effect in every if effect.p_value is not None])
    return Contributions(effects, df, by_seeds, additivity)


def _columns(groups: Groups, num_trials: int) -> Array:
    columns = np.zeros((num_trials, len(groups)))
    for column, members in enumerate(groups.values()):
        columns[list(members), column] = 1
    active = columns.sum(axis=1, keepdims=True)
    return columns - active * (columns.sum(axis=0) / active.sum())


def _separable(null_rows: Array) -> list[int]:
    """Return the largest set of values whose differences the design determines, the first if tied.

    null_rows: The axis's rows of the projection on the null space of the design, which are equal
    for such values.
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
    """Return the effects of an axis's values; the first separable one is the reference."""
    effects = [ValueEffect(value, len(members)) for value, members in groups.items()]
    if len(separable) == 1:
        return effects
    members = [*groups.values()]
    trials = [*chain.from_iterable(members[value] for value in separable)]
    weights = [len(members[value]) for value in separable]
    centre = means[trials].mean() - np.average(coefficients[separable], weights=weights)
    adjusted = centre + coefficients
    reference, *others = separable
    differences = coefficients - coefficients[reference]
    differences[np.abs(differences) <= ROUNDING * np.abs(adjusted)] = 0
    variances = covariance.diagonal() + covariance[reference, reference]
    errors = np.sqrt(np.maximum(variances - 2 * covariance[:, reference], 0))
    margins = errors * special.stdtrit(df, 1 - ERROR_RATE / 2)
    p_values = _p_values(np.abs(differences), errors, df)
    effects[reference].mean = float(adjusted[reference])
    for value in others:
        effect, difference, margin = effects[value], float(differences[value]), margins[value]
        effect.mean, effect.difference = float(adjusted[value]), difference
        if df:
            effect.interval = (difference - float(margin), difference + float(margin))
            effect.p_value = float(p_values[value])
    return effects


def _correct(effects: Sequence[ValueEffect]) -> None:
    """Correct the p-values of these differences for all of them (Holm)."""
    p_values = np.array([effect.p_value for effect in effects], dtype=float)
    order = p_values.argsort()
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(effects), 0, -1))
    for index, p_value in zip(order, np.minimum(1, stepped), strict=True):
        effects[index].p_value = float(p_value)
