"""Run directory: layout, run.json, metrics.jsonl, checkpoint files and the lock against a second training."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from composer.atomic_io import (
    NO_WAIT,
    atomic_write,
    is_hash,
    is_temporary,
    lock,
    parse_json,
    read_text,
    remove_temporaries,
    sha256_of_file,
    try_lock,
)
from composer.errors import RunError, os_error_hint, os_error_reason
from composer.formatting import null_where_not_finite
from composer.suggest import suggest_file

if TYPE_CHECKING:
    from torch import Tensor

RUNS = Path("runs")
"""Parent of run folders by default."""
LOCK = ".lock"
RESUME = "`--resume` (in Python `resume=True`)"
OTHER_RUN = "`--run DIR` (in Python `run=DIR`)"
START_FROM = "`--from RUN` (in Python `start_from=RUN`)"
"""How errors name these arguments, for the command line and for Python."""
HASHED = {"recipe_sha256": "recipe.yaml", "tokenizer_sha256": "tokenizer.json", "weights_sha256": "model.safetensors"}
"""Files whose SHA-256 is in run.json, by its key there."""
RESULTS, RESULTS_SHA256 = ("scores", "signatures", "by_length"), "results_sha256"
"""What run.json says of the final weights, and its SHA-256 in run.json; runs of 0.1.0 have none."""
UNVERIFIED = "SEQCOMPOSER_UNVERIFIED"
"""Environment variable: set to 1, runs are opened although their files are not those of the training."""
REQUIRED_KEYS = ("status", "fingerprints", "data", "tokenizer_sha256", "vocabularies", "parameters", "wandb_id")
"""Keys that run.json has from its first moment, and that a resumed training reads."""
MODULE_PREFIX = "model."
"""Prefix that the LightningModule gives the names of the model's weights."""


def is_verifying() -> bool:
    """Return whether runs are refused whose parts are not those of the training."""
    return os.environ.get(UNVERIFIED, "0") in ("", "0")


def with_results_sha256(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run.json with the SHA-256 of the results in it, and without one where there are none."""
    others = {key: value for key, value in record.items() if key != RESULTS_SHA256}
    results = null_where_not_finite({key: record[key] for key in RESULTS if key in record})
    text = json.dumps(results, sort_keys=True)
    return others | {RESULTS_SHA256: hashlib.sha256(text.encode()).hexdigest()} if results else others


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
        """Return the run whose recipe a file is; None where it is that of no run."""
        run = cls(file.parent)
        return run if file.name == run.recipe.name and run.record.is_file() else None

    def hypotheses(self, split: str) -> Path:
        """Return the file of a split's lines as the final weights decode them."""
        return self.path / f"hypotheses.{split}.jsonl"

    def is_empty(self) -> bool:
        """Return whether there is nothing yet; the lock and temporary files of killed processes do not count."""
        return not self.path.exists() or all(one.name == LOCK or is_temporary(one) for one in self.path.iterdir())

    def read(self) -> dict[str, Any]:
        """Return run.json. Raises RunError if there is none, it cannot be read, or is not what a training writes."""
        try:
            record = parse_json(read_text(self.record, 1 << 24))
        except (FileNotFoundError, NotADirectoryError):
            raise self.missing_record() from None
        except OSError as error:
            message, fix = f"run.json cannot be read: {os_error_reason(error)}", "restore it, or check its permissions"
            raise RunError.of(message, fix, str(self.record)) from None
        except ValueError as error:
            raise self.invalid_record(f"run.json cannot be read: {error}") from None
        if not isinstance(record, dict):
            raise self.invalid_record("run.json is not a JSON object")
        for key, value in record.items():
            if not RECORD.get(key, is_plain_data)(value):
                raise self.invalid_record(f"in run.json `{key[:100]}` is not what a training writes")
        recorded = record.get(RESULTS_SHA256)
        if recorded is not None and is_verifying() and with_results_sha256(record).get(RESULTS_SHA256) != recorded:
            message = f"the scores in run.json are not those that the training wrote: see its `{RESULTS_SHA256}`"
            fix = f"put the file back as it was; `evaluate` with {UNVERIFIED}=1 measures them again"
            raise RunError.of(message, fix, str(self.record))
        return record

    def missing_record(self) -> RunError:
        """Return the error of a path that is no run folder; of a folder with runs in it, it names one."""
        if runs := sorted(run for at in ("seed-*", "trials/*/seed-*") for run in self.path.glob(f"{at}/run.json")):
            what = "a whole sweep" if (self.path / "sweep.json").exists() else "one run for each seed"
            return RunError.of(f"this folder holds {what}", f"name a run in it: `{runs[0].parent}`", str(self.path))
        close = None if self.path.exists() else suggest_file(self.record, Path())
        guess = f"; did you mean `{Path(close).parent}`?" if close else ""
        reason = "not a run folder: it " + ("has no run.json" if self.path.exists() else f"is not there{guess}")
        reason = "a file, and a run is a folder" if self.path.is_file() else reason
        fix = "name a folder that `seqcomposer train` has written; a training needs an empty one, or none"
        return RunError.of(f"this is {reason}", fix, str(self.path))

    def invalid_record(self, message: str) -> RunError:
        """Return the error of a run.json that no training writes."""
        # a training writes run.json atomically, so a broken one was edited
        fix = f"put back the file as it was, or begin a new run with {OTHER_RUN}; no training leaves it like this"
        return RunError.of(message, fix, str(self.record))

    def write(self, record: Mapping[str, Any]) -> None:
        """Write run.json atomically, with the SHA-256 of its results."""
        text = json.dumps(null_where_not_finite(with_results_sha256(record)), indent=2, ensure_ascii=False)
        atomic_write(self.record, f"{text}\n".encode())

    def update(self, **changes: Any) -> dict[str, Any]:
        """Set some keys of run.json, and return all of it."""
        self.write(record := with_results_sha256(self.read() | changes))
        return record


def find_run(reference: str | os.PathLike[str]) -> Path:
    """Return the folder of a run that is named by its path or, of a sweep's trial, by `SWEEP#RANK`.

    Every command and function that takes a run names it by this. A path need not exist. Raises RunError where the sweep
    has no such trial, and RecipeError where its file cannot be read.
    """
    text = os.fspath(reference)
    if "#" not in text or os.path.exists(text):
        return Path(text)
    from composer.sweeps.leaderboard import find_trial_run  # late, from above: only a leaderboard knows ranks

    return find_trial_run(text) or Path(text)


def recorded_data(folder: Path) -> Path | None:
    """Return where the training of a run folder looked up its data first, if that is there; None of other folders."""
    run = RunDir(folder)
    recorded = run.read().get("data", {}).get("folders", []) if run.record.exists() else []
    return next((Path(path) for path in recorded if os.path.isdir(path)), None)


def recorded_vocabularies(record: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the vocabulary sizes in a run.json, or None if one of them is not a size."""
    sizes: dict[str, int] | None = record.get("vocabularies")
    return sizes if sizes and all(size > 0 for size in sizes.values()) else None


def seed_dirs(folder: Path) -> dict[int, RunDir]:
    """Return the run folders of several seeds of a recipe, `seed-N` in a folder, by N in order."""
    runs = {path.name.removeprefix("seed-"): RunDir(path) for path in folder.glob("seed-*") if path.is_dir()}
    return {int(seed): runs[seed] for seed in sorted(filter(str.isdecimal, runs), key=int)}


def is_trial_run(run: RunDir) -> bool:
    """Return whether a run folder is that of a seed of a sweep's trial, where it counts on the leaderboard."""
    return (run.path.absolute().parent / "trial.json").is_file()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl, [] if there is none. Lines that a crash has cut off are skipped."""
    rows = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else ():
        with suppress(ValueError):
            row = parse_json(line)
            if mapping_of(_is_metric, "step")(row) and is_count(row["step"]):
                rows.append(row)
    return rows


# ------------------------------------------------------------------------------------------- forms of what is read

MAX_TEXT, MAX_INTEGER, MAX_DEPTH = 4000, 1 << 63, 8
MAX_RECIPE_DEPTH = 200
"""Of the canonical recipe, which may be nested three times as deep as what is written."""

Check = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    """Return whether a value is a text that is not too long."""
    return isinstance(value, str) and len(value) <= MAX_TEXT


def is_count(value: Any) -> bool:
    """Return whether a value is an integer from 0 on."""
    return type(value) is int and 0 <= value < MAX_INTEGER  # no bool


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < MAX_INTEGER)


def _is_steps(value: Any) -> bool:
    return mapping_of(is_count)(value) and all(step.isdecimal() and len(step) < 16 for step in value)


def _is_metric(value: Any) -> bool:
    return value is None or _is_number(value) or (isinstance(value, list) and all(map(_is_number, value)))


def _is_scalar(value: Any) -> bool:
    return value is None or _is_bool(value) or _is_number(value) or is_text(value)


def is_plain_data(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Return whether a value is made of scalars, lists and mappings, nested no deeper than `depth`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return _is_scalar(value)
    return depth > 0 and all((is_text(key) or is_count(key)) and is_plain_data(item, depth - 1) for key, item in items)


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def mapping_of(check: Check = _is_scalar, *required: str, **checks: Check) -> Check:
    """Make a check of a mapping with at least the keys `required`; values whose key is not in `checks` pass `check`."""
    return lambda value: (
        isinstance(value, dict)
        and all(is_text(key) and checks.get(key, check)(item) for key, item in value.items())
        and all(key in value for key in required)
    )


_REPRODUCES = {"run": is_text, "fingerprint": is_hash, "weights_sha256": _optional(is_hash), "message": is_text}
_REPRODUCES |= {"differs": _list_of(is_text), "same": _optional(_is_bool)}
_SCORES = dict.fromkeys(("bleu", "exact_match", "positional_accuracy", "bits"), _is_number)
RECORD: Mapping[str, Check] = {
    **dict.fromkeys(("name", "status", "started_at", "ended_at", "wandb_id"), is_text),
    **dict.fromkeys(("seed", "parameters", "steps"), is_count),
    **dict.fromkeys(("minutes", "epochs"), _is_number),
    **dict.fromkeys(("source", "weights_sha256", "recipe_sha256", RESULTS_SHA256), _optional(is_hash)),
    "hypotheses_sha256": mapping_of(is_hash),
    **dict.fromkeys(("versions", "signatures"), mapping_of(is_text)),
    "fingerprints": mapping_of(is_hash, "model", "data", "run", "recipe", version=is_text),
    "fingerprint_parts": mapping_of(
        is_count, "lines", "processes", lines=is_hash, processes=is_count, training_changes=_list_of(is_text)
    ),
    "canonical": lambda value: isinstance(value, dict) and is_plain_data(value, MAX_RECIPE_DEPTH),
    "plug_ins": mapping_of(mapping_of(_optional(is_text))),
    "machine": mapping_of(gpus=_list_of(is_text)),
    "git": _optional(mapping_of(_is_scalar, "commit", commit=is_text, dirty=_is_bool)),
    "start_from": _optional(is_text),
    "initial_weights": _optional(mapping_of(is_hash, "weights", "tokenizer")),
    "transferred": _optional(mapping_of(mapping_of(is_count), "taken", "new")),
    "reproduces": _optional(mapping_of(_is_scalar, "run", "weights_sha256", "differs", **_REPRODUCES)),
    "resumed_with": _list_of(is_text),
    "budgets": _list_of(mapping_of(_is_number, until_step=is_count, validated=_is_bool)),
    "recipe_budget": _optional(mapping_of(_is_number)),
    "planned_steps": _is_steps,
    "finished_early": _is_bool,
    "data": mapping_of(
        folders=_list_of(is_text),
        pairs=mapping_of(is_count),
        train_pairs_used=is_count,
        sha256=_optional(is_hash),
        val_sha256=_optional(is_hash),
        val_unknown=_optional(_is_number),
    ),
    "metrics": _optional(mapping_of(is_text, "names", "bleu_tokenizer", "left_out", names=_list_of(is_text))),
    "tokenizer_sha256": is_hash,
    "vocabularies": mapping_of(is_count),
    "checkpoints_used": mapping_of(_is_scalar, "how", "checkpoints", how=is_text, checkpoints=_list_of(is_text)),
    "scores": mapping_of(_optional(_is_number)),
    "by_length": mapping_of(_list_of(mapping_of(_is_scalar, "lines", lines=is_count, **_SCORES))),
}
"""Checks of run.json by key; a missing key is not missed here, and other keys may hold any plain data."""


# ------------------------------------------------------------------------------------------- checkpoint files, lock


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
    """Return whether a checkpoint has the SHA-256 with which it was written."""
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


def read_checkpoint(path: Path, map_location: Any = "cpu", mmap: bool = False) -> dict[str, Any]:
    """Return the content of a checkpoint; with mmap its tensors stay on disk until they are used.

    Checkpoints hold plain types and tensors only, so they load with `weights_only` and cannot execute code. Raises
    RunError if the file is damaged, or not a checkpoint.
    """
    import torch

    if not is_intact(path):
        raise RunError.of("this checkpoint is damaged", "remove it: the one before it is used then", str(path))
    try:
        content: dict[str, Any] = torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # a malicious pickle can fail in any way, though every byte could be read
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
    """Return the model's weights in a checkpoint, by their names in the model: their average with `training.ema`."""
    content = read_checkpoint(path)
    state, callbacks = content.get("state_dict"), content.get("callbacks")
    if not isinstance(state, dict):
        raise invalid_checkpoint(path, "it has no `state_dict`")
    averages = callbacks.get("WeightAverage") if isinstance(callbacks, dict) else None
    average = averages.get("average", {}) if isinstance(averages, dict) else {}
    named = {name.removeprefix(MODULE_PREFIX): it for name, it in state.items() if name.startswith(MODULE_PREFIX)}
    return {name: average[name].to(value.dtype) if name in average else value for name, value in named.items()}


def checkpoint_history(path: Path) -> list[dict[str, float]]:
    """Return the scores of every validation before a checkpoint, each with its `step`. Raises RunError."""
    callbacks = read_checkpoint(path, mmap=True).get("callbacks")
    state = callbacks.get("TrainingLoopCallback") if isinstance(callbacks, dict) else None
    history: list[dict[str, float]] | None = state.get("history") if isinstance(state, dict) else None
    if not _list_of(mapping_of(_is_number, "step"))(history) or history is None:
        raise invalid_checkpoint(path, "it has no `history` of validations")
    return history


def check_writable(run_dir: RunDir, resume: bool) -> None:
    """Raise RunError if a training may not write into `run_dir`; create and change nothing."""
    path = str(run_dir.path)
    if run_dir.path.exists() and not run_dir.path.is_dir():
        raise RunError.of("a run needs a folder, and this is a file", f"name another with {OTHER_RUN}", path)
    if run_dir.is_empty():
        return
    if not resume:
        fix = f"continue the run in it with {RESUME}, name another folder with {OTHER_RUN}, or remove it"
        raise RunError.of("this folder is not empty", fix, path)
    record = run_dir.read()
    if missing := [key for key in REQUIRED_KEYS if key not in record]:
        raise run_dir.invalid_record(f"run.json has no `{missing[0]}` as a training writes it")


def locked(
    run_dir: RunDir, holder: str = "training", fix: str = f"wait for it, or name another with {OTHER_RUN}"
) -> IO[str]:
    """Create the folder, lock it until the returned file is closed, and remove temporary files of killed runs.

    Forked children release the lock. Raises RunError, which names the `holder`, if another process holds it, or if the
    folder cannot be written.
    """
    path = str(run_dir.path)
    try:
        run_dir.path.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(run_dir.path / LOCK, os.O_WRONLY | os.O_CREAT | NO_WAIT, 0o666), "a")
        try:
            lock(file)
            remove_temporaries(run_dir.path)
            remove_temporaries(run_dir.checkpoints)
        except OSError:
            file.close()
            raise
    except BlockingIOError:
        raise RunError.of(f"another {holder} is writing into this folder", fix, path) from None
    except OSError as error:
        message = f"this folder cannot be written: {os_error_reason(error)}"
        raise RunError.of(message, f"{os_error_hint(error)}, or name another with {OTHER_RUN}", path) from None
    return file


def is_locked(run_dir: RunDir) -> bool | None:
    """Return whether a training holds a run folder; None where this system has no locks."""
    try:
        with (run_dir.path / LOCK).open() as file:
            return False if try_lock(file, exclusive=False) else None  # NFS gives it also to who may only read
    except OSError as error:  # no file: the run has not started, or this is the copy of one
        return isinstance(error, BlockingIOError)


def utc_now() -> str:
    """Return the time in UTC, in ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
