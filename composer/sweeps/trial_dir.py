"""The folder of a sweep: what lies where, what is known of each trial, and whose sweep it is."""

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
    """Paths inside a sweep's folder. Nothing is made by making one of these."""

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
    """One point that was begun: trial.json, where it lies, and the run.json of each seed that has one.

    `value` is the mean over the seeds of what the sweep ranks by first; `pruned_at` the step at which it was decided
    that the trial shall end, which is never taken back; `error` what a failed one said last.
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
        """The run folder of a seed."""
        return self.folder / f"seed-{seed}"

    def log(self, seed: int) -> Path:
        """What the training of a seed has printed."""
        return self.folder / f"seed-{seed}.log"


TRIAL_KEYS = tuple(each.name for each in fields(Trial) if each.name not in ("folder", "seeds"))
"""The keys of trial.json."""


# ------------------------------------------------------------------------------------------- trials


def write_trial(trial: Trial) -> None:
    """Writes trial.json, whole or not at all."""
    trial.folder.mkdir(parents=True, exist_ok=True)
    kept = {key: getattr(trial, key) for key in TRIAL_KEYS}
    atomic_write(trial.folder / "trial.json", (json.dumps(kept, indent=2, ensure_ascii=False) + "\n").encode())


def read_trials(folder: Path) -> list[Trial]:
    """Every trial of a sweep's folder, in the order in which they were asked. Raises RunError."""
    found = [read_trial(path.parent) for path in SweepDir(folder).trials.glob("*/trial.json")]
    return sorted(found, key=lambda trial: trial.number)


def read_trial(folder: Path) -> Trial:
    """The trial in a folder. Raises RunError where trial.json is not as it was written."""
    file = folder / "trial.json"
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        trial = Trial(**{key: kept[key] for key in TRIAL_KEYS}, folder=folder, seeds=read_run_records(folder))
        if not is_well_formed(trial):
            raise ValueError("a value in it is of another type")
        return trial
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = f"remove the folder {folder}: the sweep then runs this point again"
        raise RunError.of(f"trial.json cannot be read: {error!r}", fix, str(file)) from None


def is_well_formed(trial: Trial) -> bool:
    """Whether what was read is what `write_trial` writes, as far as others count on it."""
    counts = (trial.number, trial.parameters, trial.flops, trial.state_bytes)
    maybe = ((trial.value, int | float), (trial.pruned_at, int), (trial.error, str))
    return (
        all(isinstance(count, int) for count in counts)
        and isinstance(trial.point, dict)
        and trial.fingerprint == trial.folder.name
        and trial.status in ("running", *ENDED)
        and all(value is None or isinstance(value, kind) for value, kind in maybe)
    )


def read_run_records(folder: Path) -> dict[int, dict[str, Any]]:
    """The run.json of each seed in a trial's folder."""
    numbered = {path.name.removeprefix("seed-"): RunDir(path) for path in folder.glob("seed-*") if path.is_dir()}
    begun = {number: run for number, run in numbered.items() if number.isdecimal() and run.record.exists()}
    return {int(number): begun[number].read() for number in sorted(begun, key=int)}


def final_score(trial: Trial, seed: int, metric: str) -> float | None:
    """What a seed of a trial came to in `metric`: of a plan, of run.json, or of the last row that has it."""
    if metric in COSTS:
        return float(getattr(trial, metric))
    record = trial.seeds.get(seed, {})
    known = record if metric == "minutes" else record.get("scores", {})
    if isinstance(known.get(metric), int | float):
        return float(known[metric])
    rows = RunDir(trial.run(seed)).metrics
    logged = [row[metric] for row in read_metrics(rows) if metric in row]
    return float(logged[-1]) if logged and logged[-1] is not None else None


# ------------------------------------------------------------------------------------------- whose sweep it is


def check_resumable(folder: SweepDir, sweep: Sweep) -> None:
    """Raises RunError where this sweep may not be run in `folder`; writes nothing."""
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError.of(
            "a sweep needs a folder, and this is a file", "name another with `--run DIR`", str(folder.path)
        )
    if RunDir(folder.path).is_empty():
        return
    if not folder.record.exists():
        message = "this folder is not empty, and no sweep has written it"
        raise RunError.of(message, "name another with `--run DIR`", str(folder.path))
    known = read_sweep_record(folder)
    if known.get("fingerprint") != sweep.fingerprint:
        told = "; ".join(describe_changes(known, describe_parts(sweep)))
        fix = "name another folder with `--run DIR`, or write the sweep as it was"
        raise RunError.of(f"this folder is of another sweep: {told}", fix, str(folder.path))
    if (shrunk := shrink_message(known.get("grown", {}), grown(sweep))) is not None:
        raise RunError.of(shrunk, "write it as it was, or name another folder with `--run DIR`", str(folder.path))


def write_sweep_record(folder: SweepDir, sweep: Sweep) -> None:
    """Writes what a sweep's folder holds from its first moment, and again where it grew; `sweep.json` comes last."""
    if folder.record.exists() and read_sweep_record(folder).get("grown") == grown(sweep):
        return
    folder.trials.mkdir(parents=True, exist_ok=True)
    atomic_write(folder.sweep, sweep.file.read_bytes())
    record = {
        "name": sweep.name,
        "fingerprint": sweep.fingerprint,
        "file": str(sweep.file.absolute()),
        "base": str(sweep.base.absolute()),
        "parts": describe_parts(sweep),
        "grown": grown(sweep),
    }
    atomic_write(folder.record, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())


def read_sweep_record(folder: SweepDir) -> dict[str, Any]:
    """sweep.json. Raises RunError."""
    try:
        record = json.loads(folder.record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fix = "name a folder that `seqcomposer sweep` has written"
        raise RunError.of(f"sweep.json cannot be read: {error}", fix, str(folder.record)) from None
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        raise RunError.of("sweep.json is not as a sweep has written it", "put it back as it was", str(folder.record))
    return record


def describe_parts(sweep: Sweep) -> dict[str, str]:
    """What a sweep is made of, each part in a line: so that two of them can be told apart in words."""
    told = {f"axis `{axis.name}`": describe_range(axis) for axis in sweep.axes}
    told["`search`"] = " ".join(str(each) for each in (sweep.search.kind, sweep.search.trials, sweep.search.seed))
    told["`prune`"] = "none" if sweep.prune is None else str(sweep.prune)
    told["`seeds`"] = ", ".join(map(str, sweep.seeds))
    told["`rank`"] = ", ".join(f"{goal.metric} {goal.direction}" for goal in sweep.rank)
    return told


def grown(sweep: Sweep) -> dict[str, Any]:
    """What may be more when a sweep goes on: trials, and seeds after those that there were."""
    return {"trials": sweep.search.trials, "seeds": [*sweep.seeds]}


def shrink_message(known: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What is less than it was, in words."""
    trials, seeds = known.get("trials"), known.get("seeds", [])
    if trials is not None and now["trials"] < trials:
        return f"`search` had {trials} trials here and now has {now['trials']}; there may be more, not fewer"
    if now["seeds"][: len(seeds)] != seeds:
        told = " and ".join(
            f"{word} {', '.join(map(str, each))}" for word, each in (("were", seeds), ("are", now["seeds"]))
        )
        return f"`seeds` {told}; others may come after them, and none may go"
    return None


def describe_range(axis: Axis) -> str:
    """What an axis ranges over."""
    if axis.labels is not None:
        return ", ".join(map(str, axis.labels))
    return f"{'log ' if axis.log else ''}{'int ' if axis.whole else ''}{axis.low} to {axis.high}"


def describe_changes(known: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """How the sweep of a folder differs from one that is to be run there."""
    then = known.get("parts", {})
    told = [
        f"{key} was {then.get(key, 'not there')} and is {now.get(key, 'not there')}"
        for key in dict.fromkeys([*then, *now])
        if then.get(key) != now.get(key)
    ]
    return told or [f"its base recipe, `set`, `with`, `when` or `where` was another ({known.get('file')})"]
