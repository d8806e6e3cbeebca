"""The folder of a run: what lies where, who may write there, and what run.json says."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from composer.atomic_io import atomic_write, is_temporary, remove_temporaries
from composer.errors import RunError, os_error_hint, os_error_reason

PACKAGES = (
    "seqcomposer",
    "torch",
    "pytorch-lightning",
    "numpy",
    "tokenizers",
    "datasets",
    "num2words",
    "safetensors",
    "sacrebleu",
    "wandb",
)
RUNS = Path("runs")
"""Where a run goes if nobody says."""
LOCK = ".lock"
REQUIRED_KEYS: Mapping[str, type] = {
    "status": str,
    "fingerprints": dict,
    "data": dict,
    "tokenizer": str,
    "vocabularies": dict,
    "parameters": int,
    "wandb": str,
}
"""What run.json has from its first moment, and what a training that goes on reads of it."""


@dataclass(frozen=True)
class RunDir:
    """Paths inside a run folder. Nothing is made by making one of these."""

    path: Path

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        return self.path / "model.safetensors"

    def is_empty(self) -> bool:
        """Whether nothing is here yet, not even the folder; a file that was cut off while it was written is nothing."""
        if not self.path.exists():
            return True
        return all(entry.name == LOCK or is_temporary(entry) for entry in self.path.iterdir())

    def read(self) -> dict[str, Any]:
        """run.json. Raises RunError where there is none, or it cannot be read."""
        try:
            record = json.loads(self.record.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError.of(
                "this is not a run folder: it has no run.json",
                "name a folder that `seqcomposer train` has written; a training needs an empty one, or none",
                str(self.path),
            ) from None
        except NotADirectoryError:
            message = "this is a file, and a run is a folder"
            raise RunError.of(message, "name the folder that `seqcomposer train` has written", str(self.path)) from None
        except OSError as error:
            message = f"run.json cannot be read: {os_error_reason(error)}"
            raise RunError.of(message, "ask for the right to read it", str(self.record)) from None
        except ValueError as error:
            raise self.unreadable(f"run.json cannot be read: {error}") from None
        if not isinstance(record, dict):
            raise self.unreadable("run.json is not a JSON object")
        return record

    def begun(self) -> dict[str, Any]:
        """run.json of a run that is to go on. Raises RunError also where something in it is missing."""
        record = self.read()
        for key, kind in REQUIRED_KEYS.items():
            if not isinstance(record.get(key), kind):
                raise self.unreadable(f"run.json has no `{key}` as a training writes it")
        if not isinstance(record["fingerprints"].get("run"), str):
            raise self.unreadable("run.json has no `fingerprints.run` as a training writes it")
        return record

    def unreadable(self, message: str) -> RunError:
        """A run.json that somebody has changed: a training writes it whole or not at all."""
        fix = "put back the file as it was, or begin a new run with `--run DIR`; no training leaves it like this"
        return RunError.of(message, fix, str(self.record))

    def write(self, record: Mapping[str, Any]) -> None:
        """Writes run.json, whole or not at all."""
        atomic_write(self.record, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())

    def update(self, **changes: Any) -> dict[str, Any]:
        """Changes some keys of run.json; the whole of it."""
        record = self.read() | changes
        self.write(record)
        return record


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl, [] if there is none. Lines that a crash has cut off are skipped."""
    rows = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def recorded_vocabularies(record: Mapping[str, Any]) -> dict[str, int] | None:
    """The sizes of the vocabularies that a run.json tells; None where something in it is no size."""
    found = record.get("vocabularies")
    return found if isinstance(found, dict) and all(type(size) is int and size > 0 for size in found.values()) else None


def check_writable(folder: RunDir, resume: bool) -> None:
    """Raises RunError where a training may not write into `folder`; makes and changes nothing."""
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError.of("a run needs a folder, and this is a file", "name another with `--run DIR`", str(folder.path))
    if folder.is_empty():
        return
    if not resume:
        raise RunError.of(
            "this folder is not empty",
            "continue the run in it with `--resume`, name another folder with `--run DIR`, or remove it",
            str(folder.path),
        )
    folder.begun()


def locked(folder: RunDir) -> IO[str]:
    """Makes the folder and holds it until the returned file is closed; removes what killed runs left half written.

    Raises RunError where another run holds it.
    """
    file = acquire_lock(folder)
    try:
        remove_temporaries(folder.path)
        remove_temporaries(folder.checkpoints)
    except OSError as error:
        file.close()
        raise not_writable(folder, error) from None
    return file


def acquire_lock(folder: RunDir) -> IO[str]:
    """The open file that holds the folder for this process alone: what it forks does not hold it longer."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        file = (folder.path / LOCK).open("a")
    except OSError as error:
        raise not_writable(folder, error) from None
    try:
        import fcntl
    except ImportError:  # the system has no such locks
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunError.of(
            "another training is writing into this folder",
            "wait for it, or name another with `--run DIR`",
            str(folder.path),
        ) from None
    except OSError:  # a file system without locks
        pass
    os.register_at_fork(after_in_child=partial(release, weakref.ref(file)))
    return file


def not_writable(folder: RunDir, error: OSError) -> RunError:
    """A folder that is read-only, full, or somebody else's, in words."""
    message = f"this folder cannot be written: {os_error_reason(error)}"
    return RunError.of(message, f"{os_error_hint(error)}, or name another with `--run DIR`", str(folder.path))


def release(file: weakref.ref[IO[str]]) -> None:
    """Closes a file, if it is still there: a lock lasts until the last process that has inherited it is gone."""
    if (still := file()) is not None:
        still.close()


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that decide what a run does."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def git_state(folder: Path) -> dict[str, Any] | None:
    """The commit of the repository around `folder`, and whether files differ from it; None without a repository."""
    commit = _git_output(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "dirty": bool(_git_output(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git_output(folder: Path, *words: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def utc_now() -> str:
    """The time, as run.json has it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
