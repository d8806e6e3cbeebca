"""A trial of a sweep: a started point, its trial.json, the runs of its seeds, and their retries.

A killed training resumes from its last checkpoint, however often, since a preempted machine is no
fault of its own. It has failed if it was killed MAX_KILLS times in a row without a new checkpoint.
A failed one is retried as often as the sweep's `retries` say, and once more for each `sweep
--retry`.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from composer.atomic_io import atomic_write, parse_json, read_text
from composer.errors import RunError
from composer.run_dir import (
    RunDir,
    checkpoint_step,
    is_locked,
    read_metrics,
    seed_dirs,
    utc_now,
)
from composer.runs.record import RunRecord  # early: a signal may be lost while it is imported
from composer.sweeps.leases import is_claimed
from composer.sweeps.sweep import COSTS, Point, SweepDir, format_value

Status = Literal["running", "finished", "pruned", "failed"]
"""What trial.json says: `running` until the trial has ended, whether or not a process trains it."""
State = Literal["running", "stopped", "finished", "pruned", "failed"]
"""What people read: `stopped` of a trial that has not ended and that no process trains."""
ENDED = ("finished", "pruned", "failed")

Retry = Mapping[str, Any]
"""Reason of a retry: `cause`, `seed`, `step` (of the last checkpoint), `error`, `at` (UTC)."""
RETRY_TYPES: Mapping[str, Any] = {
    "cause": str,
    "seed": int | None,
    "step": int,
    "error": str,
    "at": str,
}
Cause = Literal["killed", "failed", "requested"]

KILLED = (130, 137, 143)
"""Exit statuses of a killed training; a negative one means the same."""
MAX_KILLS = 5
"""Kills in a row without a new checkpoint until a training has failed, say for lack of memory."""


@dataclass(frozen=True)
class Trial:
    """One trial: trial.json, with its directory and the run.json of each seed.

    `value` is the mean over seeds of the first goal. `pruned_at` is the step at which pruning was
    decided, which is final. `error` is the last output of a failed training. `at_most`: the costs
    are upper bounds. `retries` has the reason of each retry.
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
    records: Mapping[int, RunRecord] = field(default_factory=dict, compare=False)
    at_most: bool = False
    retries: tuple[Retry, ...] = ()

    @property
    def finished_seeds(self) -> list[int]:
        """The seeds whose training has finished, in order."""
        return [seed for seed, record in sorted(self.records.items()) if record.is_finished]

    @property
    def has_scores(self) -> bool:
        """True if it has finished, or at least one of its seeds has while it runs."""
        return self.status == "finished" or (self.status == "running" and bool(self.finished_seeds))

    @property
    def recipe(self) -> Path:
        """The recipe of the point: resolved, and runnable as it is."""
        return self.folder / "recipe.yaml"

    def run(self, seed: int) -> Path:
        """Return the run folder of a seed."""
        return self.folder / f"seed-{seed}"

    def log(self, seed: int) -> Path:
        """Return the log file of the training of a seed."""
        return self.folder / f"seed-{seed}.log"


TRIAL_KEYS = tuple(key.name for key in fields(Trial) if key.name not in ("folder", "records"))
"""The keys of trial.json."""
TRIAL_TYPES: dict[str, Any] = {
    **dict.fromkeys(("number", *COSTS), int),
    "point": dict,
    "fingerprint": str,
}
TRIAL_TYPES |= {
    "value": float | int | None,
    "pruned_at": int | None,
    "error": str | None,
    "at_most": bool,
}


def write_trial(trial: Trial) -> None:
    """Write trial.json atomically."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    record = {key: getattr(trial, key) for key in TRIAL_KEYS}
    text = json.dumps(record, indent=2, ensure_ascii=False)
    atomic_write(trial.folder / "trial.json", f"{text}\n".encode())


def read_trials(folder: Path) -> list[Trial]:
    """Read every trial of a sweep's directory, in the order of suggestion. Raises RunError."""
    trials = [read_trial(path.parent) for path in SweepDir(folder).trials.glob("*/trial.json")]
    return sorted(trials, key=lambda trial: trial.number)


def read_trial(folder: Path) -> Trial:
    """Read the trial in a directory. Raises RunError if trial.json is damaged."""
    file = folder / "trial.json"
    try:
        record = parse_json(read_text(file))
        _check_types(record, TRIAL_TYPES)
        for retry in record["retries"]:
            _check_types(retry, RETRY_TYPES)
        if record["fingerprint"] != folder.name or record["status"] not in ("running", *ENDED):
            raise ValueError("its fingerprint or status is not that of a trial")
        values = {key: record[key] for key in TRIAL_KEYS} | {"retries": tuple(record["retries"])}
        return Trial(**values, folder=folder, records=read_run_records(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = f"remove {file}: the sweep writes it again, and trains only missing seeds"
        raise RunError.of(f"trial.json cannot be read: {error!r}", hint, str(file)) from None


def trial_state(trial: Trial) -> State:
    """Return the status of a trial, or `stopped` if it has not ended and no process trains it."""
    if trial.status != "running" or is_claimed(trial.folder):
        return trial.status
    # the training of a sweep that was killed may run for a while
    for seed, run in seed_dirs(trial.folder).items():
        if seed not in trial.finished_seeds and is_locked(run):
            return "running"
    return "stopped"


def _check_types(record: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError if a value is missing or of another type."""
    for key, kind in types.items():
        if not isinstance(record[key], kind):
            raise ValueError(f"`{key}` is of another type")


def read_run_records(folder: Path) -> dict[int, RunRecord]:
    """Return the run.json of each seed in a trial's directory."""
    return {seed: run.read() for seed, run in seed_dirs(folder).items() if run.record.exists()}


def read_log(trial: Trial, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a seed's metrics.jsonl; none before it has started."""
    return read_metrics(RunDir(trial.run(seed)).metrics)


def final_score(trial: Trial, seed: int, metric: str) -> float | None:
    """Return a cost of the plan, or a score in a seed's run.json; None if it is not finite."""
    if metric in COSTS:
        return float(getattr(trial, metric))
    record = trial.records.get(seed)
    if record is None:
        return None
    return finite(record.minutes if metric == "minutes" else record.scores.get(metric))


def finite(value: Any) -> float | None:
    """Return a finite number, or None for everything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def missing_weights(trials: Iterable[Trial]) -> list[str]:
    """Return a sentence for each finished seed whose weights are missing."""
    cure = "put them back, or remove this folder: the sweep trains it again"
    sentences = []
    for trial in trials:
        for seed in trial.finished_seeds:
            run = trial.run(seed)
            if trial.records[seed].weights_sha256 and not RunDir(run).weights.exists():
                sentences.append(f"the weights of {run} are gone; {cure}")
    return sentences


def exit_status(statuses: Iterable[Status]) -> int:
    """Return the exit status of a sweep: 1 if a trial failed or none finished, else 0."""
    counted = {*statuses}
    return int("failed" in counted or "finished" not in counted)


def describe_point(point: Point) -> str:
    """Return a trial's point as `train` takes it: `encoder=attention rate=0.001`."""
    values = [f"{name}={format_value(value)}" for name, value in point.items()]
    return " ".join(values) or "the base alone"


def killed_by(status: int) -> str:
    """Return the signal that ended a training, by its exit status; "" if none did."""
    if status >= 0 and status not in KILLED:
        return ""
    number = -status if status < 0 else status - 128
    if number not in list(signal.Signals):
        return f"exit status {status}"
    return signal.Signals(number).name


def retry_record(
    cause: Cause, error: str, run: RunDir | None = None, seed: int | None = None
) -> Retry:
    """Return the entry of a retry in trial.json; `run` is the run folder of the retried seed."""
    checkpoints = [] if run is None else run.checkpoints.glob("step-*.ckpt")
    step = max((checkpoint_step(path) or 0 for path in checkpoints), default=0)
    return {"cause": cause, "seed": seed, "step": step, "error": error, "at": utc_now()}


def kills_in_place(retries: Sequence[Retry]) -> int:
    """Return the number of last kills in a row without a new checkpoint in between."""
    count = 0
    for retry in reversed(retries):
        if retry["cause"] != "killed":
            break
        if (retry["seed"], retry["step"]) != (retries[-1]["seed"], retries[-1]["step"]):
            break
        count += 1
    return count


def failures(retries: Iterable[Retry]) -> int:
    """Return the number of used retries since the last `--retry`, which resets them."""
    count = 0
    for retry in retries:
        count = 0 if retry["cause"] == "requested" else count + (retry["cause"] == "failed")
    return count


def describe_retry(retries: Sequence[Retry], allowed: int) -> str:
    """Describe the last retry of a training in words."""
    last = retries[-1]
    lines = str(last["error"]).splitlines() or [""]
    if last["cause"] == "requested":
        return f"retried after it failed: {lines[0]}"
    place = f"from step {last['step']:,}" if last["step"] else "from its start"
    if last["cause"] == "failed":
        return f"failed, retry {failures(retries)} of {allowed}, {place}: {lines[0]}"
    count = kills_in_place(retries)
    limit = f", killed {count} times there, of at most {MAX_KILLS}" if count > 1 else ""
    return f"killed by {lines[0]}, resumes {place}{limit}"
