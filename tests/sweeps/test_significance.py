"""The statistics of a sweep against planted effects: how often intervals hold them, and how often
they see others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from composer.sweeps.leaderboard.significance import (
    ERROR_RATE,
    Contributions,
    Groups,
    Scores,
    fit_contributions,
    p_values_to_best,
    seed_noise,
)

Rng = np.random.Generator
Points = Sequence[dict[str, str]]
EFFECTS = {
    "encoder": {"a": 0.0, "b": 1.0, "c": -2.0},
    "decoder": {"x": 0.0, "y": 0.5},
    "norm": {"pre": 0.0, "post": 3.0},
}
NO_EFFECTS = {axis: dict.fromkeys(values, 0.0) for axis, values in EFFECTS.items()}


def grid(*axes: str) -> Points:
    """Every combination of the values of axes."""
    points: list[dict[str, str]] = [{}]
    for axis in axes:
        points = [{**point, axis: value} for point in points for value in EFFECTS[axis]]
    return points


def drawn_at_random(count: int) -> Callable[[Rng], Points]:
    return lambda rng: [
        {axis: rng.choice([*values]) for axis, values in EFFECTS.items()} for _ in range(count)
    ]


def groups_of(points: Points) -> dict[str, Groups]:
    """The numbers of the trials that have each value of each axis."""
    axes = dict.fromkeys(axis for point in points for axis in point)
    members = {
        axis: {
            value: [n for n, p in enumerate(points) if p.get(axis) == value]
            for value in EFFECTS[axis]
        }
        for axis in axes
    }
    return {
        axis: {value: some for value, some in values.items() if some}
        for axis, values in members.items()
    }


def run_trials(
    rng: Rng,
    effects: dict[str, dict[str, float]],
    points: Points,
    seeds: int | tuple[int, ...],
    of_points: float,
) -> list[Scores]:
    """Scores of an additive model with a deviation of each point, of each seed, and noise."""
    counts = (seeds,) if isinstance(seeds, int) else seeds
    of_seeds = rng.normal(size=max(counts))
    trials = []
    for point, count in zip(points, cycle(counts), strict=False):
        mean = sum(effects[axis][value] for axis, value in point.items()) + of_points * rng.normal()
        trials.append(
            dict(enumerate((mean + of_seeds[:count] + 0.5 * rng.normal(size=count)).tolist()))
        )
    return trials


def hits(fitted: Contributions, effects: dict[str, dict[str, float]]) -> list[bool]:
    """Of each interval, whether it holds the planted difference."""
    covered = []
    for axis, values in fitted.effects.items():
        (reference,) = [item.value for item in values if item.is_reference] or [""]
        for item in values:
            if item.interval is not None:
                low, high = item.interval
                covered.append(low <= effects[axis][item.value] - effects[axis][reference] <= high)
    return covered


DESIGNS = {
    "a grid with one seed": (lambda _: grid("encoder", "decoder", "norm"), 1, 0.5),
    "a grid with seeds": (lambda _: grid("encoder", "norm"), 3, 0.0),
    "a grid whose points deviate": (lambda _: grid("encoder", "decoder", "norm"), 3, 1.0),
    "one axis with seeds": (lambda _: grid("encoder"), 3, 0.0),
    "points at random": (drawn_at_random(16), 1, 0.7),
    "points at random with seeds": (drawn_at_random(12), 2, 0.7),
    "a grid of which some points have seeds": (
        lambda _: grid("encoder", "decoder", "norm"),
        (3, 1, 1),
        0.5,
    ),
    "a grid of which an axis decides who has seeds": (
        lambda _: grid("encoder", "decoder", "norm"),
        (3, 1),
        0.0,
    ),
}
"""Points, their number of seeds, or those of one point after another, and how far they deviate."""


def simulate(
    name: str, effects: dict[str, dict[str, float]], seed: int, sweeps: int = 400
) -> Iterator[Contributions]:
    """Run sweeps of a design in which the axes do what is planted, and fit each."""
    points_of, seeds, of_points = DESIGNS[name]
    rng = np.random.default_rng(seed)
    for _ in range(sweeps):
        points = points_of(rng)
        yield fit_contributions(
            groups_of(points), run_trials(rng, effects, points, seeds, of_points)
        )


@pytest.mark.parametrize("name", DESIGNS)
def test_intervals_hold_planted_effects_as_often_as_is_stated(name: str) -> None:
    covered = [hit for fitted in simulate(name, EFFECTS, seed=1) for hit in hits(fitted, EFFECTS)]
    assert 0.90 <= fmean(covered) <= 0.97


def test_intervals_hold_where_a_search_looks_where_scores_were_good() -> None:
    """After ten points at random, three of four values are those that were best on their axis so
    far.
    """
    rng = np.random.default_rng(7)
    covered = []
    for _ in range(200):
        points: list[dict[str, str]] = []
        trials: list[Scores] = []
        while len(points) < 25:
            point = {axis: str(rng.choice([*values])) for axis, values in EFFECTS.items()}
            for axis, members in groups_of(points).items() if len(points) >= 10 else ():
                if rng.random() < 0.75:
                    point[axis] = max(
                        members, key=lambda value: fmean(trials[n][0] for n in members[value])
                    )
            points.append(point)
            trials += run_trials(rng, EFFECTS, [point], 1, 1.0)
        covered += hits(fit_contributions(groups_of(points), trials), EFFECTS)
    assert 0.90 <= fmean(covered) <= 0.97


@pytest.mark.parametrize("name", DESIGNS)
def test_axes_without_effect_are_seldom_seen(name: str) -> None:
    alarms = []
    for fitted in simulate(name, NO_EFFECTS, seed=2):
        p_values = [
            item.p_value
            for values in fitted.effects.values()
            for item in values
            if item.p_value is not None
        ]
        alarms.append(min(p_values, default=1.0) < ERROR_RATE)
    assert fmean(alarms) <= allowed(400)


def allowed(repetitions: int) -> float:
    """The share that an event of the stated rate exceeds in one of a thousand such tests."""
    return float(stats.binom.ppf(0.999, repetitions, ERROR_RATE)) / repetitions


NOISE: dict[str, Callable[[Rng, int], np.ndarray]] = {
    "equal": lambda _, trials: np.ones(trials),
    "of one half a tenth": lambda _, trials: np.where(np.arange(trials) < trials // 2, 1.0, 0.1),
    "of one half a fifth, mixed": lambda _, trials: np.where(np.arange(trials) % 2, 1.0, 0.2),
    "of each its own": lambda rng, trials: np.exp(0.7 * rng.normal(size=trials)),
}


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("trials", [4, pytest.param(12, marks=pytest.mark.exhaustive), 30])
def test_a_trial_as_good_as_the_best_is_seldom_left_unmarked(
    trials: int, seeds: int, noise: str
) -> None:
    """Half of the trials are equally good, and the others worse; the best by its scores is any of
    them.
    """
    rng = np.random.default_rng(3)
    alarms = []
    for _ in range(300):
        means = np.where(np.arange(trials) < trials // 2, 0.0, -1.0)
        spread = NOISE[noise](rng, trials)
        scores = (
            means[:, None]
            + spread[:, None] * rng.normal(size=(trials, seeds))
            + rng.normal(size=seeds)
        )
        order = np.argsort(-scores.mean(axis=1))
        p_values = p_values_to_best([dict(enumerate(row)) for row in scores[order].tolist()])
        assert p_values is not None
        unmarked = np.array(p_values) < ERROR_RATE
        alarms.append(bool((unmarked & (means[order] >= means[order[0]])).any()))
    assert fmean(alarms) <= allowed(300)


def test_structures_that_were_tuned_by_the_same_scores_are_seldom_told_apart() -> None:
    """Each of ten equal structures is the best of three equal trials."""
    rng = np.random.default_rng(6)
    alarms = []
    for _ in range(300):
        scores = rng.normal(size=(10, 3, 4)) + rng.normal(size=4)
        tuned = [rates[rates.mean(axis=1).argmax()] for rates in scores]
        best_first = sorted(tuned, key=lambda row: -row.mean())
        alarms.append(
            min(p_values_to_best([dict(enumerate(row)) for row in best_first]) or [1.0])
            < ERROR_RATE
        )
    assert fmean(alarms) <= allowed(300)


@pytest.mark.parametrize("seeds", [3, 5])
def test_clear_differences_are_seen(seeds: int) -> None:
    rng = np.random.default_rng(4)
    seen = []
    for _ in range(50):
        scores = (
            np.linspace(0, -60, 12)[:, None]
            + rng.normal(size=(12, seeds))
            + 9 * rng.normal(size=seeds)
        )
        p_values = p_values_to_best([dict(enumerate(row)) for row in scores.tolist()])
        assert p_values is not None
        seen.append(fmean(p < ERROR_RATE for p in p_values[1:]))
    assert fmean(seen) > 0.9


def test_two_trials_are_compared_by_the_paired_t_test() -> None:
    one, other = [3.0, 5.0, 4.2, 9.0], [2.5, 4.9, 3.0, 8.8]
    p_values = p_values_to_best([dict(enumerate(one)), dict(enumerate(other))])
    assert p_values == pytest.approx([1.0, stats.ttest_rel(one, other).pvalue])


def test_trials_of_other_seeds_are_compared_unpaired() -> None:
    one, other = [3.0, 5.0, 4.2, 9.0], [2.5, 4.9, 3.0, 8.8]
    noise = seed_noise([dict(enumerate(one)), dict(enumerate(other, start=9))])
    assert noise.variances.tolist() == pytest.approx([np.var(one, ddof=1), np.var(other, ddof=1)])
    assert noise.total_df == 6


def test_nothing_is_known_of_one_seed_and_all_of_equal_scores() -> None:
    assert p_values_to_best([{1: 3.0}, {1: 2.0}]) is None
    assert p_values_to_best([{1: 3.0, 2: 3.0}, {1: 3.0, 2: 3.0}, {1: 2.0, 2: 2.0}]) == [
        1.0,
        1.0,
        0.0,
    ]


def test_one_axis_is_compared_by_a_t_test() -> None:
    rng = np.random.default_rng(5)
    one, other = rng.normal(size=5), rng.normal(size=4) + 1
    scores = [{1: float(value)} for value in (*one, *other)]
    fitted = fit_contributions({"encoder": {"a": range(5), "b": range(5, 9)}}, scores)
    wanted = stats.ttest_ind(other, one)
    (_, b) = fitted.effects["encoder"]
    assert b.p_value == pytest.approx(wanted.pvalue)
    assert b.interval == pytest.approx(tuple(wanted.confidence_interval(0.95)))


@pytest.mark.parametrize("seeds", [1, 3])
def test_what_rounding_leaves_is_no_effect(seeds: int) -> None:
    points = grid("encoder", "decoder")
    equal = fit_contributions(groups_of(points), [dict.fromkeys(range(seeds), 1.0) for _ in points])
    effects = [
        effect
        for values in equal.effects.values()
        for effect in values
        if effect.p_value is not None
    ]
    assert effects
    assert {(effect.difference, effect.p_value) for effect in effects} == {(0.0, 1.0)}
    means = [sum(EFFECTS[axis][value] for axis, value in point.items()) for point in points]
    additive = fit_contributions(
        groups_of(points), [dict.fromkeys(range(seeds), 0.1 * mean) for mean in means]
    )
    assert additive.additivity is None, (
        "seeds that agree to the last bit show no noise to compare with"
    )
