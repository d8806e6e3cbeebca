"""What each axis contributes to a sweep's first goal: the mean of each of its choices over all the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pvariance, stdev

from composer.sweeps.leaderboard import EXACT, Board, Entry

RANGES = 4
"""Into how many ranges, with equally many trials each, an axis of many numbers is cut."""
Value = str | int | float | bool


@dataclass(frozen=True)
class Choice:
    """The trials that have one choice of an axis, or one range of its numbers: mean and spread of their means."""

    name: str
    trials: int
    mean: float
    spread: float | None


@dataclass(frozen=True)
class Contribution:
    """An axis over the ranked trials in which it is active; `beside` it those that take their values with it.

    `share`: of the variance of their means, what lies between the choices (eta squared); None where it says nothing:
    with one choice, with no variance, or where no choice has two trials. `chance`: the share that an axis without any
    effect has on average, (choices - 1) / (trials - 1), where the trials' values are in any order.
    """

    axis: str
    choices: Sequence[Choice]
    share: float | None
    beside: Sequence[str] = ()

    @property
    def trials(self) -> int:
        return sum(each.trials for each in self.choices)

    @property
    def chance(self) -> float | None:
        return None if self.share is None else (len(self.choices) - 1) / (self.trials - 1)


def contributions(board: Board) -> list[Contribution]:
    """Every axis that some ranked trial has, in the sweep's order; zipped ones once, by the name of the first."""
    metric = board.goals[0].metric
    found = []
    for axis in (each for each in board.axes if each not in board.zipped):
        active = sorted((each for each in board.ranked if axis in each.trial.point), key=lambda each: each.trial.number)
        groups = grouped(axis, active)
        means = {name: [each.measured[metric].mean for each in group] for name, group in groups.items()}
        if means:
            beside = [each for each in board.zipped if leader(board, each) == axis]
            choices = [choice(name, values) for name, values in means.items()]
            found.append(Contribution(axis, choices, share(means), beside))
    return found


def telling(board: Board) -> list[Contribution]:
    """The axes of which there is more to tell than the table of the trials does; none of what is known beforehand."""
    return [] if board.goals[0].metric in EXACT else [each for each in contributions(board) if each.share is not None]


def leader(board: Board, axis: str) -> str:
    """The axis that says which values a zipped one takes, be it zipped to it through others."""
    while axis in board.zipped:
        axis = board.zipped[axis]
    return axis


def choice(name: str, values: Sequence[float]) -> Choice:
    """What came of the trials that have a choice."""
    return Choice(name, len(values), fmean(values), stdev(values) if len(values) > 1 else None)


def share(means: dict[str, list[float]]) -> float | None:
    """Eta squared: the variance between groups over the whole variance."""
    every = [value for group in means.values() for value in group]
    whole = pvariance(every)
    if whole == 0.0 or len(means) < 2 or len(means) == len(every):
        return None
    between = pvariance([fmean(group) for group in means.values() for _ in group])
    return min(1.0, between / whole)


# ------------------------------------------------------------------------------------------- groups


def grouped(axis: str, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries by their choice on an axis; numbers in their order, and in ranges where there are many."""
    values = [entry.trial.point[axis] for entry in entries]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        entries = sorted(entries, key=lambda entry: float(entry.trial.point[axis]))
        if len(set(values)) > 2 * RANGES:
            return in_ranges(axis, entries)
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(shown(entry.trial.point[axis]), []).append(entry)
    return groups


def in_ranges(axis: str, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries in the order of an axis, cut into ranges with as many trials each, as far as that goes."""
    ends = [len(entries) * part // RANGES for part in range(RANGES + 1)]
    groups: dict[str, list[Entry]] = {}
    for start, end in pairwise(ends):
        part = entries[start:end]
        name = f"{shown(part[0].trial.point[axis])} to {shown(part[-1].trial.point[axis])}"
        groups.setdefault(name, []).extend(part)
    return groups


def shown(value: Value) -> str:
    """A choice as it is named."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
