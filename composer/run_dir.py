"""Run directory: layout, run.json, metrics.jsonl, checkpoint files, and the lock of a training."""

from __future__ import annotations

import datetime
import json
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from composer.atomic_io import (
    NO_WAIT,
    atomic_write,
    is_temporary,
    lock,
    parse_json,
    read_text,
    remove_temporaries,
    sha256_of_file,
    try_lock,
)
from composer.errors import FolderLocked, RunError, os_error_hint, os_error_reason
from composer.runs.adapters import merge_adapters
from composer.runs.forms import is_history, is_metrics_row
from composer.suggest import suggest_file

if TYPE_CHECKING:
    from torch import Tensor

    from composer.runs.record import RunRecord

RUNS = Path("runs")
"""Parent of run folders by default."""
LOCK = ".lock"
RESUME = "`--resume` (in Python `resume=True`)"
OTHER_RUN = "`--run DIR` (in Python `run=DIR`)"
START_FROM = "`--from RUN` (in Python `start_from=RUN`)"
"""How errors name these arguments, for the command line and for Python."""
UNVERIFIED = "SEQCOMPOSER_UNVERIFIED"
"""Environment variable: with 1, runs are opened although files have changed since the training."""
REQUIRED_KEYS = (
    "status",
    "fingerprints",
    "data",
    "tokenizer_sha256",
    "vocabularies",
    "parameters",
    "wandb_id",
)
"""Keys that run.json has from its first moment, and that a resumed training reads."""
MODULE_PREFIX = "model."
"""Prefix that the LightningModule gives the names of the model's weights."""


def is_verifying() -> bool:
    """True if runs are refused whose files have changed since the training."""
    return os.environ.get(UNVERIFIED, "0") in ("", "0")


@dataclass
class RunDir:
    """Paths inside a run folder. Creating one of these creates no file."""

    path: Path

    def __post_init__(self) -> None:
        self.recipe = self.path / "recipe.yaml"
        self.record = self.path / "run.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.weights = self.path / "model.safetensors"

    @classmethod
    def of_recipe(cls, file: Path) -> RunDir | None:
        """Return the run to which a recipe file belongs; None if it belongs to none."""
        run = cls(file.parent)
        return run if file.name == run.recipe.name and run.record.is_file() else None

    def hypotheses(self, split: str) -> Path:
        """Return the path of a split's lines as decoded with the final weights."""
        return self.path / f"hypotheses.{split}.jsonl"

    def is_empty(self) -> bool:
        """True if there is nothing but the lock and temporary files of killed processes."""
        if not self.path.exists():
            return True
        return all(path.name == LOCK or is_temporary(path) for path in self.path.iterdir())

    def read(self) -> RunRecord:
        """Return run.json. Raises RunError if it is missing, unreadable, or not a training's."""
        # late: pydantic takes a tenth of a second to import, and most commands open no run
        from composer.runs.record import WrongKey, parse_record, results_sha256

        try:
            text = read_text(self.record, 1 << 24)
            data = parse_json(text)
            if not isinstance(data, dict):
                raise self.invalid_record("run.json is not a JSON object")
            record = parse_record(text)
        except (FileNotFoundError, NotADirectoryError):
            raise self.missing_record() from None
        except OSError as error:
            message = f"run.json cannot be read: {os_error_reason(error)}"
            fix = "restore it, or check its permissions"
            raise RunError.of(message, fix, str(self.record)) from None
        except WrongKey as key:
            message = f"in run.json `{key}` is not what a training writes"
            raise self.invalid_record(message) from None
        except ValueError as error:  # no JSON, or such as half of a surrogate pair
            raise self.invalid_record(f"run.json cannot be read: {error}") from None
        recorded = data.get("results_sha256")
        if recorded is not None and is_verifying() and results_sha256(data) != recorded:
            message = (
                "the scores in run.json are not those that the training wrote: see its"
                " `results_sha256`"
            )
            fix = f"put the file back as it was; `evaluate` with {UNVERIFIED}=1 measures them again"
            raise RunError.of(message, fix, str(self.record))
        return record

    def missing_record(self) -> RunError:
        """Return the error of a path that is no run folder; it names a run in it or near it."""
        path = str(self.path)
        runs = [*self.path.glob("seed-*/run.json"), *self.path.glob("trials/*/seed-*/run.json")]
        if runs:
            noun = "one run for each seed"
            if (self.path / "sweep.json").exists():
                noun = "a whole sweep"
            fix = f"name a run in it: `{min(runs).parent}`"
            return RunError.of(f"this folder holds {noun}", fix, path)
        if self.path.is_file():
            reason = "a file, and a run is a folder"
        elif self.path.exists():
            reason = "not a run folder: it has no run.json"
        else:
            close = suggest_file(self.record, Path())
            guess = f"; did you mean `{Path(close).parent}`?" if close else ""
            reason = f"not a run folder: it is not there{guess}"
        fix = (
            "name a folder that `seqcomposer train` has written; a training needs an empty one, or"
            " none"
        )
        return RunError.of(f"this is {reason}", fix, path)

    def invalid_record(self, message: str) -> RunError:
        """Return the error of a run.json that no training writes."""
        # a training writes run.json atomically, so a broken one was edited
        fix = (
            f"put back the file as it was, or begin a new run with {OTHER_RUN}; no training leaves"
            " it like this"
        )
        return RunError.of(message, fix, str(self.record))

    def write(self, record: RunRecord) -> None:
        """Write run.json atomically, with the SHA-256 of its results."""
        text = json.dumps(record.as_data(), indent=2, ensure_ascii=False)
        atomic_write(self.record, f"{text}\n".encode())


def find_run(reference: str | os.PathLike[str]) -> Path:
    """Return the folder of a run from its path or, of a sweep's trial, from `SWEEP#RANK`.

    Every command and function that takes a run uses this. A path need not exist. Raises RunError if
    the sweep has no such trial, and RecipeError if its file cannot be read.
    """
    text = os.fspath(reference)
    if "#" not in text or os.path.exists(text):
        return Path(text)
    # late, from above: only a leaderboard knows ranks
    from composer.sweeps.leaderboard.run_references import find_trial_run

    return find_trial_run(text) or Path(text)


def recorded_data(folder: Path) -> Path | None:
    """Return the first data folder of a run that exists; None of a folder that is no run."""
    run = RunDir(folder)
    recorded = run.read().data.folders if run.record.exists() else ()
    return next((Path(path) for path in recorded if os.path.isdir(path)), None)


def seed_dirs(folder: Path) -> dict[int, RunDir]:
    """Return the run folders `seed-N` in a folder, by N in order."""
    runs = {}
    for path in folder.glob("seed-*"):
        seed = path.name.removeprefix("seed-")
        if path.is_dir() and seed.isdecimal():
            runs[int(seed)] = RunDir(path)
    return dict(sorted(runs.items()))


def is_trial_run(run: RunDir) -> bool:
    """True if a run is a seed of a sweep's trial, where it counts on the leaderboard."""
    return (run.path.absolute().parent / "trial.json").is_file()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl, [] if there is none; cut lines of a crash are skipped."""
    rows = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        with suppress(ValueError):
            row = parse_json(line)
            if is_metrics_row(row):
                rows.append(row)
    return rows


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint after `step` steps."""
    return folder / f"step-{step:08d}.ckpt"


def checkpoint_step(path: Path) -> int | None:
    """Return the step in the name of a checkpoint of a run; None for any other file."""
    match = re.fullmatch(r"step-(\d{8,})\.ckpt", path.name)
    return int(match[1]) if match else None


def checksum_path(path: Path) -> Path:
    """Return the path of a checkpoint's SHA-256, a file in the format of `sha256sum`."""
    return path.with_name(f"{path.name}.sha256")


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, oldest first, damaged ones among them."""
    return sorted(path for path in folder.glob("step-*.ckpt") if checkpoint_step(path) is not None)


def is_intact(path: Path) -> bool:
    """True if a checkpoint has the SHA-256 with which it was written."""
    with suppress(OSError, IndexError, ValueError):
        return read_text(checksum_path(path)).split()[0] == sha256_of_file(path)
    return False


def latest_checkpoint(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """Return the newest intact checkpoint, or None; warn of each newer one that is damaged."""
    for path in reversed(list_checkpoints(folder)):
        if is_intact(path):
            return path
        warn(f"{path} is damaged and is passed over")
    return None


def read_checkpoint(path: Path, map_location: Any = "cpu", mmap: bool = False) -> dict[str, object]:
    """Return the content of a checkpoint; with mmap its tensors stay on disk until they are used.

    Checkpoints hold plain types and tensors only, so they load with `weights_only` and cannot
    execute code. Raises RunError if the file is damaged, or not a checkpoint.
    """
    import torch

    if not is_intact(path):
        raise RunError.of(
            "this checkpoint is damaged", "remove it: the one before it is used then", str(path)
        )
    try:
        content: dict[str, Any] = torch.load(
            path, map_location=map_location, weights_only=True, mmap=mmap
        )
    except torch.OutOfMemoryError:
        raise
    except (
        Exception
    ) as error:  # a malicious pickle can fail in any way, though every byte could be read
        raise invalid_checkpoint(path, str(error)) from None
    if not isinstance(content, dict):
        raise invalid_checkpoint(path, f"it holds a {type(content).__name__}")
    return content


def invalid_checkpoint(path: Path, reason: str) -> RunError:
    """Return the error for an intact file that is not a checkpoint."""
    reason = reason.strip().partition("\n")[0]
    message = f"this is no checkpoint of a training, and nothing of it was executed: {reason}"
    return RunError.of(message, "remove it: the one before it is used then", str(path))


def checkpoint_weights(path: Path) -> dict[str, Tensor]:
    """Return the model's weights in a checkpoint by name; their average, where one is kept.

    Those of adapters are merged into the matrices beside which they were trained.
    """
    content = read_checkpoint(path)
    state, callbacks = content.get("state_dict"), content.get("callbacks")
    if not isinstance(state, dict):
        raise invalid_checkpoint(path, "it has no `state_dict`")
    averages = callbacks.get("WeightAverage") if isinstance(callbacks, dict) else None
    average = averages.get("average", {}) if isinstance(averages, dict) else {}
    weights = {}
    for name, value in state.items():
        if name.startswith(MODULE_PREFIX):
            own = name.removeprefix(MODULE_PREFIX)
            weights[own] = average[own].to(value.dtype) if own in average else value
    return merge_adapters(weights)


def checkpoint_history(path: Path) -> list[dict[str, float]]:
    """Return the scores of each validation before a checkpoint, with its step. Raises RunError."""
    callbacks = read_checkpoint(path, mmap=True).get("callbacks")
    state = callbacks.get("TrainingLoopCallback") if isinstance(callbacks, dict) else None
    history = state.get("history") if isinstance(state, dict) else None
    if not is_history(history):
        raise invalid_checkpoint(path, "it has no `history` of validations")
    return history


def check_writable(run_dir: RunDir, resume: bool) -> None:
    """Raise RunError if a training may not write into `run_dir`; create and change nothing."""
    path = str(run_dir.path)
    if run_dir.path.exists() and not run_dir.path.is_dir():
        raise RunError.of(
            "a run needs a folder, and this is a file", f"name another with {OTHER_RUN}", path
        )
    if run_dir.is_empty():
        return
    if not resume:
        fix = (
            f"continue the run in it with {RESUME}, name another folder with {OTHER_RUN}, or"
            " remove it"
        )
        raise RunError.of("this folder is not empty", fix, path)
    from composer.runs.record import RunRecord  # late: see `RunDir.read`

    record, unset = run_dir.read(), RunRecord()
    for key in REQUIRED_KEYS:
        if getattr(record, key) == getattr(unset, key):
            raise run_dir.invalid_record(f"run.json has no `{key}` as a training writes it")


def locked(
    run_dir: RunDir,
    holder: str = "training",
    fix: str = f"wait for it, or name another with {OTHER_RUN}",
) -> IO[str]:
    """Create and lock the folder until the returned file is closed; remove temporary files in it.

    Forked children release the lock. Raises FolderLocked, which names the `holder`, if another
    process holds it, and RunError if the folder cannot be written.
    """
    path = str(run_dir.path)
    try:
        run_dir.path.mkdir(parents=True, exist_ok=True)
        # not truncated: its holder has written who it is
        handle = os.open(run_dir.path / LOCK, os.O_RDWR | os.O_CREAT | NO_WAIT, 0o666)
        file = os.fdopen(handle, "r+", encoding="utf-8", errors="replace")
        try:
            lock(file)
            file.truncate()
            file.write(f"process {os.getpid()} on {socket.gethostname()}, since {utc_now()}")
            file.flush()
            remove_temporaries(run_dir.path)
            remove_temporaries(run_dir.checkpoints)
        except BlockingIOError:
            who = file.readline().strip()
            file.close()
            message = f"another {holder} is writing into this folder"
            raise FolderLocked.of(f"{message}: {who}" if who else message, fix, path) from None
        except OSError:
            file.close()
            raise
    except OSError as error:
        message = f"this folder cannot be written: {os_error_reason(error)}"
        raise RunError.of(
            message, f"{os_error_hint(error)}, or name another with {OTHER_RUN}", path
        ) from None
    return file


def is_locked(run_dir: RunDir) -> bool | None:
    """True if a training holds a run folder; None where this system has no locks."""
    try:
        with (run_dir.path / LOCK).open() as file:
            # NFS gives it also to who may only read
            return False if try_lock(file, exclusive=False) else None
    except OSError as error:  # no file: the run has not started, or this is the copy of one
        return isinstance(error, BlockingIOError)


def utc_now() -> str:
    """Return the time in UTC, in ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
