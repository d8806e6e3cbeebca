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
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError  # early: a signal may be lost while it imports

from composer.atomic_io import atomic_write, read_text
from composer.errors import RunError
from composer.run_dir import (
    RunDir,
    checkpoint_step,
    is_locked,
    read_metrics,
    seed_dirs,
    utc_now,
)
from composer.runs.record import RunRecord
from composer.sweeps.sweep import COSTS, Point, SweepDir, format_value

Status = Literal["running", "finished", "pruned", "failed"]
"""What trial.json says: `running` until the trial has ended, whether or not a process trains it."""
State = Literal["running", "waiting", "stopped", "finished", "pruned", "failed"]
"""What people read of a trial that has not ended: a process trains it, its sweep will start one, or
neither.
"""
ENDED = ("finished", "pruned", "failed")

Cause = Literal["killed", "lost", "failed", "requested"]
"""Why a training is started again; `lost`: another process trains it."""

KILLED = (130, 137, 143)
"""Exit statuses of a killed training; a negative one means the same."""
MAX_KILLS = 5
"""Kills in a row without a new checkpoint until a training has failed, say for lack of memory."""


@dataclass(frozen=True)
class Retry:
    """A retry of a seed's training, or of a whole trial, from the checkpoint at `step`.

    `at` is the time in UTC.
    """

    cause: Cause
    error: str
    seed: int | None
    step: int
    at: str


@dataclass(frozen=True)
class TrialRecord:
    """trial.json.

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
    at_most: bool = False
    retries: tuple[Retry, ...] = ()


_ADAPTER = TypeAdapter(TrialRecord)


@dataclass(frozen=True)
class Trial(TrialRecord):
    """One trial: trial.json, with its folder and the run.json of each seed."""

    folder: Path = field(compare=False, kw_only=True)
    records: Mapping[int, RunRecord] = field(default_factory=dict, compare=False)

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


def write_trial(trial: Trial) -> None:
    """Write trial.json atomically."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    record = {key.name: getattr(trial, key.name) for key in fields(TrialRecord)}
    record["retries"] = [asdict(retry) for retry in trial.retries]
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
        record = _ADAPTER.validate_json(read_text(file), strict=True)
        if record.fingerprint != folder.name:
            raise ValueError("it is the trial of another folder")
    except (OSError, ValueError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        hint = f"remove {file}: the sweep writes it again, and trains only missing seeds"
        raise RunError.of(f"trial.json cannot be read: {reason}", hint, str(file)) from None
    return Trial(**vars(record), folder=folder, records=read_run_records(folder))


def trial_state(trial: Trial) -> State:
    """Return the status of a trial; of one that has not ended, whether a process trains it."""
    if trial.status != "running":
        return trial.status
    for seed, run in seed_dirs(trial.folder).items():
        if seed not in trial.finished_seeds and is_locked(run):
            return "running"
    return "waiting" if is_locked(RunDir(trial.folder.parents[1])) else "stopped"


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


def missing_records(home: SweepDir) -> list[str]:
    """Return a sentence for each trial's folder without trial.json, which is in no list."""
    sentences = []
    for folder in sorted(home.trials.glob("*")):
        if seed_dirs(folder) and not (folder / "trial.json").exists():
            cure = "the sweep writes it again, and trains nothing twice"
            sentences.append(f"{folder} has no trial.json, and is left out: {cure}.")
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
    """Return the record of a retry; `run` is the run folder of the retried seed."""
    checkpoints = [] if run is None else run.checkpoints.glob("step-*.ckpt")
    step = max((checkpoint_step(path) or 0 for path in checkpoints), default=0)
    return Retry(cause, error, seed, step, utc_now())


def kills_in_place(retries: Sequence[Retry], seed: int | None) -> int:
    """Return the number of a seed's last kills in a row without a new checkpoint in between."""
    own = [retry for retry in retries if retry.seed in (seed, None)]  # None: a requested one
    count = 0
    for retry in reversed(own):
        if retry.cause not in ("killed", "lost") or retry.step != own[-1].step:
            break
        count += 1
    return count


def failures(retries: Iterable[Retry]) -> int:
    """Return the number of used retries since the last `--retry`, which resets them."""
    count = 0
    for retry in retries:
        count = 0 if retry.cause == "requested" else count + (retry.cause == "failed")
    return count


def describe_retry(retries: Sequence[Retry], allowed: int) -> str:
    """Describe the last retry of a training in words."""
    last = retries[-1]
    reason = last.error.partition("\n")[0]
    if last.cause == "requested":
        return f"retried after it failed: {reason}"
    place = f"from step {last.step:,}" if last.step else "from its start"
    if last.cause == "failed":
        return f"failed, retry {failures(retries)} of {allowed}, {place}: {reason}"
    count = kills_in_place(retries, last.seed)
    limit = f", {count} of at most {MAX_KILLS} times there" if count > 1 else ""
    cause = f"killed by {reason}" if last.cause == "killed" else f"lost: {reason}"
    return f"{cause}, resumes {place}{limit}"
