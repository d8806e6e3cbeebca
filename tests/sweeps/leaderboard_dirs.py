"""Sweep directories as the scheduler leaves them (trials, seeds' run.json and metrics.jsonl),
without training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.metrics.table import training_key
from composer.sweeps.leaderboard.board import Leaderboard, open_leaderboard
from composer.sweeps.trial import Trial, write_trial

BEST_AND_SMALL = ({"val/bleu": "max"}, {"parameters": "min"})


def begun(
    folder: Path,
    rank: Sequence[Mapping[str, str]] = BEST_AND_SMALL,
    axes: Sequence[str] | Mapping[str, Mapping[str, Any]] = ("encoder", "rate"),
    tune: Sequence[str] = (),
) -> Path:
    """A sweep's folder without trials; axes by their names, or with what the sweep says of them."""
    (folder / "trials").mkdir(parents=True)
    sweep = {
        "sweep": 1,
        "axes": axes if isinstance(axes, Mapping) else {axis: {} for axis in axes},
        "rank": [*rank],
    }
    sweep |= {"tune": [*tune]} if tune else {}
    (folder / "sweep.yaml").write_text(json.dumps(sweep), encoding="utf-8")
    (folder / "sweep.json").write_text(json.dumps({"name": "mixes"}), encoding="utf-8")
    return folder


def read_board(folder: Path) -> Leaderboard:
    """The leaderboard of a folder."""
    return open_leaderboard(folder)


def trial(
    folder: Path,
    number: int,
    scores: Mapping[int, float | None] | Sequence[float] = (),
    status: str = "finished",
    metric: str = "val/bleu",
    parameters: int = 1000,
    flops: int = 5000,
    point: Mapping[str, Any] | None = None,
    pruned_at: int | None = None,
    error: str | None = None,
) -> Path:
    """A trial whose seeds, counted from 1 where no number is given, have come to these scores."""
    seeds = dict(scores) if isinstance(scores, Mapping) else dict(enumerate(scores, start=1))
    fingerprint = f"{number:012x}"
    home = folder / "trials" / fingerprint
    chosen = {"encoder": f"e{number}"} if point is None else dict(point)
    costs = (parameters, flops, 64)
    write_trial(
        Trial(number, chosen, fingerprint, *costs, status, None, pruned_at, error, folder=home)
    )
    (home / "recipe.yaml").write_text("recipe: 1\n", encoding="utf-8")
    for seed, value in seeds.items():
        ran(home / f"seed-{seed}", metric, value, status)
    return home


def ran(run: Path, metric: str, value: float | None, status: str) -> None:
    """A run folder: two validations, the second with the score."""
    run.mkdir()
    record = {
        "status": status,
        "minutes": 2.0,
        **({"scores": {metric: value}} if status == "finished" else {}),
    }
    (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
    rows = [
        {"step": 10, "minutes": 1.0, training_key(metric): 1.0, "val/loss": 4.0},
        {"step": 20, "minutes": 2.0, training_key(metric): value, "val/loss": 3.0},
    ]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8"
    )


def numbers(found: Leaderboard) -> list[tuple[int, int | None]]:
    """Each entry's number and rank, in order."""
    return [(entry.trial.number, entry.rank) for entry in found.results]
