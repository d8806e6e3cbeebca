"""A leaderboard as plain data, as `leaderboard --json` prints it."""

from __future__ import annotations

from typing import Any

from composer.sweeps.axis_effects import Contribution, contributions
from composer.sweeps.leaderboard import EXACT, Board, Entry


def as_json(board: Board) -> dict[str, Any]:
    """All of a leaderboard but the curves."""
    return {
        "name": board.name,
        "rank": [{goal.metric: goal.direction} for goal in board.goals],
        "axes": [*board.axes, *board.same],
        "trials": [*map(trial_of, board.entries)],
        "contributions": [*map(contribution_of, contributions(board))],
    }


def trial_of(entry: Entry) -> dict[str, Any]:
    """One trial. Numbers that are the same for every seed stand by themselves, the others under `measured`."""
    trial = entry.trial
    measures = {
        name: {"mean": each.mean, "spread": each.spread, "seeds": {str(seed): x for seed, x in each.values.items()}}
        for name, each in entry.measured.items()
        if name not in EXACT
    }
    return {
        "rank": entry.rank,
        "number": trial.number,
        "fingerprint": trial.fingerprint,
        "point": dict(trial.point),
        "status": trial.status,
        "pruned_at": trial.pruned_at,
        "error": trial.error,
        "alike": entry.is_alike,
        **{name: round(entry.measured[name].mean) for name in EXACT},
        "tokens_per_second": entry.tokens_per_second,
        "measured": measures,
        "folder": str(trial.folder),
    }


def contribution_of(found: Contribution) -> dict[str, Any]:
    """What one axis contributes to the first goal."""
    choices = [
        {"choice": each.name, "trials": each.trials, "mean": each.mean, "spread": each.spread} for each in found.choices
    ]
    return {"axes": [found.axis, *found.beside], "share": found.share, "chance": found.chance, "choices": choices}
