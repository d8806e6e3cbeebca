"""The directory of a sweep: its owner, its record of the sweep's file, its lock."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.atomic_io import atomic_write, remove_temporaries
from composer.errors import RunError
from composer.fingerprint import describe_differences, setting_differences
from composer.recipe.earlier_versions import TRAINING_CHANGES
from composer.recipe.fingerprints import FINGERPRINT_VERSION
from composer.recipe.recipe import default_name
from composer.recipe.yaml_reader import read, to_data
from composer.run_dir import RUNS, RunDir, is_locked, locked
from composer.sweeps.goals import read_goals
from composer.sweeps.spec import deciding_settings, without_nulls
from composer.sweeps.sweep import Goal, Sweep, SweepDir, Value, read_sweep_record


def find_sweep(path: Path, run: Path | None = None) -> SweepDir:
    """Return the directory of a sweep, given it or the sweep's file, run in `run` or runs/NAME.

    Raises RunError if no sweep has run there, RecipeError if the file cannot be read.
    """
    folder = run or path
    if not folder.is_dir() and run is None:
        sweep = to_data(read(path, str(path), "sweep"))
        folder = RUNS / str(sweep.get("name") or default_name(path))
    home = SweepDir(folder)
    if not home.record.exists():
        hint = "name the folder that `seqcomposer sweep` has written: runs/NAME, or that of `--run`"
        raise RunError.of("no sweep has run here", hint, str(folder))
    return home


@dataclass(frozen=True)
class RankedSweep:
    """The part of a sweep that its leaderboard needs, read from the sweep's folder.

    `labels` are the values of every axis in the file's order, none of a range; `zipped` maps each
    zipped axis to the one it follows.
    """

    name: str
    rank: tuple[Goal, ...]
    labels: Mapping[str, tuple[Value, ...]]
    zipped: Mapping[str, str]
    tune: tuple[str, ...]


def read_ranked_sweep(folder: SweepDir) -> RankedSweep:
    """Read the sweep of a folder as it was run; its file may have changed since.

    Raises RecipeError or RunError if a file in the folder is damaged.
    """
    root = without_nulls(read(folder.sweep, str(folder.sweep)))
    labels: dict[str, tuple[Value, ...]] = {}
    zipped: dict[str, str] = {}
    for name, node in root.value["axes"].value.items():
        keys = to_data(without_nulls(node))
        labels[name] = tuple(keys.get("values") or keys.get("with") or keys.get("extend") or ())
        if "zip" in keys:
            zipped[name] = keys["zip"]
    tune = tuple(to_data(root.value["tune"])) if "tune" in root.value else ()
    name = read_sweep_record(folder)["name"]
    return RankedSweep(name, read_goals(root), labels, zipped, tune)


def check_resumable(folder: SweepDir, sweep: Sweep) -> None:
    """Raise RunError if this sweep may not be run in a directory; write nothing."""
    path, other = str(folder.path), "name another with `--run DIR`"
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError.of("a sweep needs a folder, and this is a file", other, path)
    if RunDir(folder.path).is_empty():
        return
    if not folder.record.exists() and is_file_of(folder.sweep, sweep):
        return  # sweep.json is lost, and is written again
    if not folder.record.exists():
        raise RunError.of("this folder is not empty, and was not written by a sweep", other, path)
    record = read_sweep_record(folder)
    if record.get("trained_by", {}) != trained_by():
        message = "this sweep was started by another version, whose trials have other names or are"
        message += " trained differently"
        hint = "start it anew with `--run DIR`, or finish it with that version"
        raise RunError.of(message, hint, path)
    if record.get("fingerprint") != sweep.fingerprint:
        hint = "name another folder with `--run DIR`, or restore what has changed"
        settings = deciding_settings(sweep, sweep.search)
        changes = describe_differences(setting_differences(record.get("settings", {}), settings))
        raise RunError.of(f"this folder belongs to another sweep: {changes}", hint, path)
    shrunk = shrink_message(record.get("growable", {}), growable_parts(sweep))
    if shrunk is not None:
        hint = "write it as it was, or name another folder with `--run DIR`"
        raise RunError.of(shrunk, hint, path)


def is_file_of(file: Path, sweep: Sweep) -> bool:
    """True if a file is a copy of the sweep's own."""
    return file.is_file() and file.read_bytes() == sweep_text(sweep)


def sweep_text(sweep: Sweep) -> bytes:
    """Return the text of the sweep's file."""
    return sweep.file.read_bytes() if sweep.text is None else sweep.text.encode()


def write_sweep_record(folder: SweepDir, sweep: Sweep, num_trials: int) -> str:
    """Write sweep.json and sweep.yaml, unless they are up to date; return the study's name."""
    parts = {"growable": growable_parts(sweep), "num_trials": num_trials, "retries": sweep.retries}
    before = read_sweep_record(folder) if folder.record.exists() else {}
    # studies of many sweeps share a database; those of earlier versions have no name of their own
    earlier = sweep.fingerprint[:12] if before else f"{sweep.name}-{secrets.token_hex(6)}"
    study = str(before.get("study", earlier))
    if folder.sweep.exists() and parts.items() <= before.items():
        return study
    files = {"file": str(sweep.file.absolute()), "base": str(sweep.base.absolute())}
    record = {
        "name": sweep.name,
        "fingerprint": sweep.fingerprint,
        "study": study,
        **files,
        **parts,
    }
    record |= {"settings": deciding_settings(sweep, sweep.search), "trained_by": trained_by()}
    # first: its presence marks the directory of a sweep
    atomic_write(folder.record, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())
    atomic_write(folder.sweep, sweep_text(sweep))
    return study


def trained_by() -> dict[str, Any]:
    """Return the versions that decide names and trainings of trials; sweep.json of 0.1.0 has none.

    Trials of one sweep must agree in them.
    """
    return {"fingerprints": FINGERPRINT_VERSION, "training_changes": sorted(TRAINING_CHANGES)}


def growable_parts(sweep: Sweep) -> dict[str, Any]:
    """Return the settings that a resumed sweep may change; trials and seeds may only grow."""
    settings = to_data(sweep.root)
    parts = {"trials": sweep.search.trials, "seeds": [*sweep.seeds]}
    return parts | {key: settings.get(key) for key in ("seeds_where", "tune")}


def shrink_message(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a message if a resumed sweep has fewer trials or seeds than before."""
    trials, seeds = before.get("trials"), before.get("seeds", [])
    if trials is not None and now["trials"] < trials:
        return f"`search` had {trials} trials here and now has {now['trials']}; it can only grow"
    if now["seeds"][: len(seeds)] != seeds:
        old, new = ", ".join(map(str, seeds)), ", ".join(map(str, now["seeds"]))
        return f"`seeds` were {old} and are {new}; seeds can only be appended"
    return None


@contextmanager
def lock_sweep(home: SweepDir) -> Iterator[None]:
    """Lock the directory against other sweeps. Raises RunError, which says who holds it."""
    with locked(RunDir(home.path), "sweep", "wait until it ends, or end it"):
        for trial in home.trials.glob("*"):
            remove_temporaries(trial)
        yield


def check_locks(home: SweepDir) -> None:
    """Raise RunError where the file system has no locks: two machines could train one trial."""
    if is_locked(RunDir(home.path)) is None:
        message = "this file system has no locks, so only this machine can train in it"
        hint = "omit `--slurm` and `--ray`, or name a folder on another file system: `--run DIR`"
        raise RunError.of(message, hint, str(home.path))
