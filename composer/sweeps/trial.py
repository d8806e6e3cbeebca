"""A trial of a sweep: a point that was started, its trial.json, and the runs of its seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from composer.atomic_io import atomic_write, parse_json, read_text
from composer.errors import RunError
from composer.run_dir import RunDir, read_metrics, seed_dirs
from composer.sweeps.retries import RETRY_TYPES, Retry
from composer.sweeps.sweep import COSTS, Point, SweepDir, format_value

Status = Literal["running", "finished", "pruned", "failed"]
ENDED = ("finished", "pruned", "failed")


@dataclass(frozen=True)
class Trial:
    """One trial: a point that was started, as in trial.json, with its directory and the run.json of each seed.

    `value` is the mean over seeds of the first goal. `pruned_at` is the step at which pruning was decided, which is
    never taken back. `error` is what a failed training printed last. `at_most`: the costs are upper bounds. `retries`
    say why a training was started again, each time that it was.
    """

    number: int
    point: Point
    fingerprint: str
    parameters: int
    flops: int
    state_bytes: int
    status: Status = "running"
    value: float | None = None
    pruned_at: int | None = None
    error: str | None = None
    folder: Path = field(compare=False, kw_only=True)
    seeds: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, compare=False)
    at_most: bool = False
    retries: tuple[Retry, ...] = ()

    @property
    def finished_seeds(self) -> list[int]:
        """The seeds whose training has finished, in order."""
        return [seed for seed, record in sorted(self.seeds.items()) if record.get("status") == "finished"]

    @property
    def recipe(self) -> Path:
        """The recipe of the point: resolved, and runnable as it is."""
        return self.folder / "recipe.yaml"

    def run(self, seed: int) -> Path:
        """Return the run folder of a seed."""
        return self.folder / f"seed-{seed}"

    def log(self, seed: int) -> Path:
        """Return the file of what the training of a seed printed."""
        return self.folder / f"seed-{seed}.log"


TRIAL_KEYS = tuple(key.name for key in fields(Trial) if key.name not in ("folder", "seeds"))
"""The keys of trial.json."""
TRIAL_TYPES: dict[str, Any] = {**dict.fromkeys(("number", *COSTS), int), "point": dict, "fingerprint": str}
TRIAL_TYPES |= {"value": float | int | None, "pruned_at": int | None, "error": str | None, "at_most": bool}


def write_trial(trial: Trial) -> None:
    """Write trial.json atomically."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    record = json.dumps({key: getattr(trial, key) for key in TRIAL_KEYS}, indent=2, ensure_ascii=False)
    atomic_write(trial.folder / "trial.json", f"{record}\n".encode())


def read_trials(folder: Path) -> list[Trial]:
    """Return every trial of a sweep's directory, in the order in which they were suggested. Raises RunError."""
    trials = [read_trial(path.parent) for path in SweepDir(folder).trials.glob("*/trial.json")]
    return sorted(trials, key=lambda trial: trial.number)


def read_trial(folder: Path) -> Trial:
    """Return the trial in a directory. Raises RunError if trial.json is damaged."""
    file = folder / "trial.json"
    try:
        record = parse_json(read_text(file))
        records = [(record, TRIAL_TYPES), *((retry, RETRY_TYPES) for retry in record["retries"])]
        are_typed = all(isinstance(one[key], kind) for one, types in records for key, kind in types.items())
        if not (are_typed and record["fingerprint"] == folder.name and record["status"] in ("running", *ENDED)):
            raise ValueError("a value in it is of another type")
        values = {key: record[key] for key in TRIAL_KEYS} | {"retries": tuple(record["retries"])}
        return Trial(**values, folder=folder, seeds=read_run_records(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = f"remove {file}: the sweep then writes it again, and trains only the seeds that are missing"
        raise RunError.of(f"trial.json cannot be read: {error!r}", hint, str(file)) from None


def read_run_records(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the run.json of each seed in a trial's directory."""
    return {seed: run.read() for seed, run in seed_dirs(folder).items() if run.record.exists()}


def read_log(trial: Trial, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a seed's metrics.jsonl; none before it has started."""
    return read_metrics(RunDir(trial.run(seed)).metrics)


def final_score(trial: Trial, seed: int, metric: str) -> float | None:
    """Return the result of a seed: a cost of the plan, or a score in run.json; None where that is no finite number."""
    if metric in COSTS:
        return float(getattr(trial, metric))
    record = trial.seeds.get(seed, {})
    scores = record if metric == "minutes" else record.get("scores") or {}
    return finite(scores.get(metric))


def finite(value: Any) -> float | None:
    """Return a finite number, or None for everything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def describe_point(trial: Trial) -> str:
    """Return a trial's point as `train` takes it: `encoder=attention rate=0.001`."""
    return " ".join(f"{name}={format_value(value)}" for name, value in trial.point.items()) or "the base alone"
