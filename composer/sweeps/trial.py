"""A trial of a sweep: a point that was started, its trial.json, the runs of its seeds, and their
retries.

A training that was killed goes on from its last checkpoint, however often: on machines that are
taken away that is no fault of its own. Only where it was killed MAX_KILLS times in a row without a
new checkpoint has it failed. A failed one is tried again as often as the sweep's `retries` say, and
once more for each `sweep --retry`.
"""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from composer.atomic_io import atomic_write, parse_json, read_text
from composer.errors import RunError
from composer.run_dir import RunDir, checkpoint_step, read_metrics, seed_dirs, utc_now
from composer.runs.record import RunRecord  # early: a signal may be lost while it is imported
from composer.sweeps.sweep import COSTS, Point, SweepDir, format_value

Status = Literal["running", "finished", "pruned", "failed"]
ENDED = ("finished", "pruned", "failed")

Retry = Mapping[str, Any]
"""Why a training was started again: `cause`, `seed`, `step` (of the last checkpoint), `error`, `at`
(UTC).
"""
RETRY_TYPES: Mapping[str, Any] = {
    "cause": str,
    "seed": int | None,
    "step": int,
    "error": str,
    "at": str,
}
Cause = Literal["killed", "failed", "requested"]

KILLED = (130, 137, 143)
"""Exit statuses of a training that somebody else ended; a negative one says the same."""
MAX_KILLS = 5
"""Kills in a row without a new checkpoint after which a training has failed: too little memory
kills it for ever.
"""


@dataclass(frozen=True)
class Trial:
    """One trial: a point that was started, as in trial.json, with its directory and the run.json of
    each seed.

    `value` is the mean over seeds of the first goal. `pruned_at` is the step at which pruning was
    decided, which is never taken back. `error` is what a failed training printed last. `at_most`:
    the costs are upper bounds. `retries` say why a training was started again, each time that it
    was.
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
        """Whether it has finished, or one of its seeds has and others are still to be trained."""
        return self.status == "finished" or (self.status == "running" and bool(self.finished_seeds))

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
    record = json.dumps(
        {key: getattr(trial, key) for key in TRIAL_KEYS}, indent=2, ensure_ascii=False
    )
    atomic_write(trial.folder / "trial.json", f"{record}\n".encode())


def read_trials(folder: Path) -> list[Trial]:
    """Return every trial of a sweep's directory, in the order in which they were suggested. Raises
    RunError.
    """
    trials = [read_trial(path.parent) for path in SweepDir(folder).trials.glob("*/trial.json")]
    return sorted(trials, key=lambda trial: trial.number)


def read_trial(folder: Path) -> Trial:
    """Return the trial in a directory. Raises RunError if trial.json is damaged."""
    file = folder / "trial.json"
    try:
        record = parse_json(read_text(file))
        records = [(record, TRIAL_TYPES), *((retry, RETRY_TYPES) for retry in record["retries"])]
        are_typed = all(
            isinstance(one[key], kind) for one, types in records for key, kind in types.items()
        )
        if not (
            are_typed
            and record["fingerprint"] == folder.name
            and record["status"] in ("running", *ENDED)
        ):
            raise ValueError("a value in it is of another type")
        values = {key: record[key] for key in TRIAL_KEYS} | {"retries": tuple(record["retries"])}
        return Trial(**values, folder=folder, records=read_run_records(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = (
            f"remove {file}: the sweep then writes it again, and trains only the seeds that are"
            " missing"
        )
        raise RunError.of(f"trial.json cannot be read: {error!r}", hint, str(file)) from None


def read_run_records(folder: Path) -> dict[int, RunRecord]:
    """Return the run.json of each seed in a trial's directory."""
    return {seed: run.read() for seed, run in seed_dirs(folder).items() if run.record.exists()}


def read_log(trial: Trial, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a seed's metrics.jsonl; none before it has started."""
    return read_metrics(RunDir(trial.run(seed)).metrics)


def final_score(trial: Trial, seed: int, metric: str) -> float | None:
    """Return the result of a seed: a cost of the plan, or a score in run.json; None where that is
    no finite number.
    """
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
    """Return a sentence for each finished seed whose weights are not there any more."""
    runs = [
        (trial.run(seed), trial.records[seed]) for trial in trials for seed in trial.finished_seeds
    ]
    lost = [
        run for run, record in runs if record.weights_sha256 and not RunDir(run).weights.exists()
    ]
    cure = "put them back, or remove this folder: the sweep trains it again"
    return [f"the weights of {run} are gone; {cure}" for run in lost]


def exit_status(statuses: Iterable[Status]) -> int:
    """Return how a sweep ends with trials of these statuses: 1 where one has failed or none has
    finished, else 0.
    """
    counted = {*statuses}
    return int("failed" in counted or "finished" not in counted)


def describe_point(point: Point) -> str:
    """Return a trial's point as `train` takes it: `encoder=attention rate=0.001`."""
    return (
        " ".join(f"{name}={format_value(value)}" for name, value in point.items())
        or "the base alone"
    )


def killed_by(status: int) -> str:
    """Return the signal that ended a training, by its exit status; "" if none did."""
    if status >= 0 and status not in KILLED:
        return ""
    number = -status if status < 0 else status - 128
    return (
        signal.Signals(number).name if number in list(signal.Signals) else f"exit status {status}"
    )


def retry_record(
    cause: Cause, error: str, run: RunDir | None = None, seed: int | None = None
) -> Retry:
    """Return what trial.json says of a retry; `run` is the run folder of the seed that is started
    again.
    """
    steps = (
        [checkpoint_step(path) or 0 for path in run.checkpoints.glob("step-*.ckpt")]
        if run is not None
        else []
    )
    return {
        "cause": cause,
        "seed": seed,
        "step": max(steps, default=0),
        "error": error,
        "at": utc_now(),
    }


def kills_in_place(retries: Sequence[Retry]) -> int:
    """Return how often in a row, up to now, a training was killed without a new checkpoint in
    between.
    """
    places = [(retry["cause"], retry["seed"], retry["step"]) for retry in reversed(retries)]
    here = ("killed", *places[0][1:]) if places else ()
    return sum(1 for _ in takewhile(lambda place: place == here, places))


def failures(retries: Iterable[Retry]) -> int:
    """Return how many retries of the sweep's `retries` are used up; `--retry` gives all of them
    again.
    """
    count = 0
    for retry in retries:
        count = 0 if retry["cause"] == "requested" else count + (retry["cause"] == "failed")
    return count


def describe_retry(retries: Sequence[Retry], allowed: int) -> str:
    """Say in words why a training is started again, by the last of its retries."""
    last = retries[-1]
    lines = str(last["error"]).splitlines() or [""]
    if last["cause"] == "requested":
        return f"tried again; it had failed: {lines[0]}"
    place = f"from step {last['step']:,}" if last["step"] else "from its beginning"
    if last["cause"] == "failed":
        return f"failed, retry {failures(retries)} of {allowed}, {place}: {lines[0]}"
    count = kills_in_place(retries)
    limit = f", {count} times there, of at most {MAX_KILLS}" if count > 1 else ""
    return f"killed by {lines[0]}, goes on {place}{limit}"
