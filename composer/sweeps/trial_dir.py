"""The directory of a sweep: its layout, trial.json of each trial, and whether a sweep may be resumed in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from composer.atomic_io import atomic_write
from composer.errors import RunError
from composer.run_dir import RunDir, read_metrics
from composer.sweeps.axes import COSTS, Axis, Point, Sweep

Status = Literal["running", "finished", "pruned", "failed"]
ENDED = ("finished", "pruned", "failed")


@dataclass(frozen=True)
class SweepDir:
    """Paths inside a sweep's directory. Creating one of these creates no files."""

    path: Path

    @property
    def sweep(self) -> Path:
        return self.path / "sweep.yaml"

    @property
    def record(self) -> Path:
        return self.path / "sweep.json"

    @property
    def study(self) -> Path:
        return self.path / "study.db"

    @property
    def trials(self) -> Path:
        return self.path / "trials"


@dataclass(frozen=True)
class Trial:
    """One trial: a point that was started, as in trial.json, with its directory and the run.json of each seed.

    `value` is the mean over seeds of the first goal. `pruned_at` is the step at which pruning was decided, which is
    never taken back. `error` is what a failed training printed last.
    """

    number: int
    point: Point
    fingerprint: str
    parameters: int
    flops: int
    state_bytes: int
    status: Status
    value: float | None
    pruned_at: int | None
    error: str | None
    folder: Path = field(compare=False)
    seeds: Mapping[int, Mapping[str, Any]] = field(default_factory=dict, compare=False)

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


# ------------------------------------------------------------------------------------------- trials


def write_trial(trial: Trial) -> None:
    """Write trial.json atomically."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    _write_json(trial.folder / "trial.json", {key: getattr(trial, key) for key in TRIAL_KEYS})


def _write_json(file: Path, record: Mapping[str, Any]) -> None:
    atomic_write(file, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())


def read_trials(folder: Path) -> list[Trial]:
    """Return every trial of a sweep's directory, in the order in which they were suggested. Raises RunError."""
    trials = [read_trial(path.parent) for path in SweepDir(folder).trials.glob("*/trial.json")]
    return sorted(trials, key=lambda trial: trial.number)


def read_trial(folder: Path) -> Trial:
    """Return the trial in a directory. Raises RunError if trial.json is damaged."""
    file = folder / "trial.json"
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
        trial = Trial(**{key: record[key] for key in TRIAL_KEYS}, folder=folder, seeds=read_run_records(folder))
        if not is_well_formed(trial):
            raise ValueError("a value in it is of another type")
        return trial
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = f"remove the folder {folder}: the sweep then runs this point again"
        raise RunError.of(f"trial.json cannot be read: {error!r}", hint, str(file)) from None


def is_well_formed(trial: Trial) -> bool:
    """Return whether the values of a trial have the types that others rely on."""
    counts = (trial.number, trial.parameters, trial.flops, trial.state_bytes)
    optional = ((trial.value, int | float), (trial.pruned_at, int), (trial.error, str))
    return (
        all(isinstance(count, int) for count in counts)
        and isinstance(trial.point, dict)
        and trial.fingerprint == trial.folder.name
        and trial.status in ("running", *ENDED)
        and all(value is None or isinstance(value, kind) for value, kind in optional)
    )


def read_run_records(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the run.json of each seed in a trial's directory."""
    runs = {path.name.removeprefix("seed-"): RunDir(path) for path in folder.glob("seed-*") if path.is_dir()}
    started = {int(seed): run for seed, run in runs.items() if seed.isdecimal() and run.record.exists()}
    return {seed: started[seed].read() for seed in sorted(started)}


def read_log(trial: Trial, seed: int) -> list[dict[str, Any]]:
    """Return the rows of a seed's metrics.jsonl; none before it has started."""
    return read_metrics(RunDir(trial.run(seed)).metrics)


def final_score(trial: Trial, seed: int, metric: str) -> float | None:
    """Return the result of a seed: a cost of the plan, a score in run.json, or the last one logged."""
    if metric in COSTS:
        return float(getattr(trial, metric))
    record = trial.seeds.get(seed, {})
    scores = record if metric == "minutes" else record.get("scores", {})
    if isinstance(scores.get(metric), int | float):
        return float(scores[metric])
    logged = [row[metric] for row in read_log(trial, seed) if metric in row]
    return float(logged[-1]) if logged and logged[-1] is not None else None


# ------------------------------------------------------------------------------------------- resuming


def check_resumable(folder: SweepDir, sweep: Sweep) -> None:
    """Raise RunError if this sweep may not be run in a directory; write nothing."""
    path, other = str(folder.path), "name another with `--run DIR`"
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError.of("a sweep needs a folder, and this is a file", other, path)
    if RunDir(folder.path).is_empty():
        return
    if not folder.record.exists():
        raise RunError.of("this folder is not empty, and no sweep has written it", other, path)
    record = read_sweep_record(folder)
    if record.get("fingerprint") != sweep.fingerprint:
        hint = "name another folder with `--run DIR`, or write the sweep as it was"
        message = "; ".join(describe_changes(record, describe_parts(sweep)))
        raise RunError.of(f"this folder is of another sweep: {message}", hint, path)
    if (shrunk := shrink_message(record.get("growable", {}), growable_parts(sweep))) is not None:
        raise RunError.of(shrunk, "write it as it was, or name another folder with `--run DIR`", path)


def write_sweep_record(folder: SweepDir, sweep: Sweep) -> None:
    """Write sweep.yaml and sweep.json into a new directory, and again if trials or seeds were added."""
    if folder.record.exists() and read_sweep_record(folder).get("growable") == growable_parts(sweep):
        return
    folder.trials.mkdir(parents=True, exist_ok=True)
    atomic_write(folder.sweep, sweep.file.read_bytes())
    record = {
        "name": sweep.name,
        "fingerprint": sweep.fingerprint,
        "file": str(sweep.file.absolute()),
        "base": str(sweep.base.absolute()),
        "parts": describe_parts(sweep),
        "growable": growable_parts(sweep),
    }
    _write_json(folder.record, record)  # last, since its presence says that the directory is a sweep's


def read_sweep_record(folder: SweepDir) -> dict[str, Any]:
    """Return sweep.json. Raises RunError if it is damaged."""
    try:
        record = json.loads(folder.record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        hint = "name a folder that `seqcomposer sweep` has written"
        raise RunError.of(f"sweep.json cannot be read: {error}", hint, str(folder.record)) from None
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        raise RunError.of("sweep.json is not as a sweep has written it", "put it back as it was", str(folder.record))
    return record


def describe_parts(sweep: Sweep) -> dict[str, str]:
    """Return each part of a sweep in a line of text, to say in words what differs between two of them."""
    parts = {f"axis `{axis.name}`": describe_range(axis) for axis in sweep.axes}
    parts["`search`"] = f"{sweep.search.kind} {sweep.search.trials} {sweep.search.seed}"
    parts["`prune`"] = "none" if sweep.pruner is None else str(sweep.pruner)
    parts["`seeds`"] = ", ".join(map(str, sweep.seeds))
    parts["`rank`"] = ", ".join(f"{goal.metric} {goal.direction}" for goal in sweep.rank)
    return parts


def growable_parts(sweep: Sweep) -> dict[str, Any]:
    """Return what a resumed sweep may have more of: trials, and seeds after the earlier ones."""
    return {"trials": sweep.search.trials, "seeds": [*sweep.seeds]}


def shrink_message(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return what a resumed sweep has less of than before, in words."""
    trials, seeds = before.get("trials"), before.get("seeds", [])
    if trials is not None and now["trials"] < trials:
        return f"`search` had {trials} trials here and now has {now['trials']}; there may be more, not fewer"
    if now["seeds"][: len(seeds)] != seeds:
        old, new = (", ".join(map(str, numbers)) for numbers in (seeds, now["seeds"]))
        return f"`seeds` were {old} and are {new}; others may come after them, and none may go"
    return None


def describe_range(axis: Axis) -> str:
    """Return the values of an axis in words."""
    if axis.labels is not None:
        return ", ".join(map(str, axis.labels))
    return f"{'log ' if axis.log else ''}{'int ' if axis.integer else ''}{axis.low} to {axis.high}"


def describe_changes(record: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Return how a sweep differs from the one that a directory belongs to, part by part."""
    before = record.get("parts", {})
    changes = [
        f"{key} was {before.get(key, 'not there')} and is {now.get(key, 'not there')}"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]
    return changes or [f"its base recipe, `set`, `with`, `when` or `where` was another ({record.get('file')})"]
