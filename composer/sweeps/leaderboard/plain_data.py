"""The leaderboard as plain data: every number but the curves, and every sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from composer.sweeps.leaderboard.board import Leaderboard, Measurement, TrialResult
from composer.sweeps.leaderboard.tables import effect_table, spent, trial_table
from composer.sweeps.sweep import COSTS


def leaderboard_json(board: Leaderboard) -> dict[str, object]:
    """Return a leaderboard without its curves as plain data."""
    trials, effects = trial_table(board), effect_table(board)
    return {
        "name": board.name,
        "rank": [{goal.metric: goal.direction} for goal in board.goals],
        "axes": [*board.axes],
        "trials": [_result(result) for result in board.results],
        "notes": [*trials.notes, *trials.method, *effects.notes, *effects.method],
        "contributions": board.contributions and asdict(board.contributions),
    }


def _result(result: TrialResult) -> dict[str, object]:
    """Return one trial: costs as numbers, metrics under `measured` with the value of each seed."""
    trial, measured = result.trial, {**result.measured}
    costs = {cost: measured.pop(cost) for cost in COSTS}
    return {
        "rank": result.rank,
        "number": trial.number,
        "fingerprint": trial.fingerprint,
        "point": trial.point,
        "status": result.state,
        "pruned_at": trial.pruned_at,
        "error": trial.error,
        "alike": None if result.p_value is None else result.is_alike,
        "p_value": result.p_value,
        "better": result.better and result.better.fingerprint,
        **{cost: round(measurement.mean) for cost, measurement in costs.items()},
        "at_most": [cost for cost, measurement in costs.items() if measurement.at_most],
        "steps": _by_seed(spent(result, "steps")),
        "epochs": _by_seed(spent(result, "epochs")),
        "measured": {metric: _measurement(of_seeds) for metric, of_seeds in measured.items()},
        "folder": str(trial.folder),
    }


def _measurement(measurement: Measurement) -> dict[str, object]:
    seeds = _by_seed(measurement.values)
    return {"mean": measurement.mean, "spread": measurement.spread, "seeds": seeds}


def _by_seed(values: Mapping[int, float]) -> dict[str, float]:
    return {str(seed): value for seed, value in values.items()}
