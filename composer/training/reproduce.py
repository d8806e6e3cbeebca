"""A run that is trained again: `train RUN/recipe.yaml`, and whether the same came of it.

A repeat finds its data where the run found them, reads with the run's own tokenizer (not every tokenizer is the same
when it is trained twice), begins with the weights that the run began with, and spends a budget in minutes as the run
did, step by step. Whatever changes the fingerprint makes it another run; then nothing of this is done.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer

from composer.atomic_io import sha256_of_file
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.fingerprint import InitialWeights, fingerprint_pairs, initial_weights
from composer.model.weights import describe_difference
from composer.recipe.cache import SHORT_HASH
from composer.recipe.recipe import Recipe, load
from composer.recipe.registry import plug_ins
from composer.run_dir import RunDir, versions
from composer.training.loggers import read_budget_trace

OTHER_DATA = "the data are not those that it was trained on"
OTHER_RECIPE = "its recipe.yaml was changed since it was begun, or this version of seqcomposer reads it otherwise"
IN_MINUTES = "its budget is in minutes, and how they were spent is no longer known"
ON_GPU = "sums on a GPU are rounded in no fixed order without `trainer: {deterministic: true}`"


@dataclass(frozen=True)
class ReproducedRun:
    """The run that is trained again, and its run.json."""

    folder: RunDir
    record: Mapping[str, Any]

    def place(self, runs: Path, name: str) -> Path:
        """Where the repeat goes if nobody says: beside other runs, and never into the run itself."""
        first, second = runs / f"{name}-repeat", runs / f"{name}-repeat-2"
        return second if same_directory(first, self.folder.path) else first

    def tokenizers(self, source: DataSource) -> Tokenizers | None:
        """The run's own tokenizers; None where the data are others. Raises RunError where they are not its own."""
        if fingerprint_pairs(source.recipe, source.all_pairs())["data"] != self.record["fingerprints"]["data"]:
            return None
        found = Tokenizers.load(self.folder.tokenizer)
        if found.sha256 != self.record.get("tokenizer"):
            raise RunError.of(
                "this tokenizer is not the one that the run was trained with",
                "restore tokenizer.json as it was",
                str(self.folder.tokenizer),
            )
        return found

    def beginning(self) -> Path | None:
        """The run with whose weights this one began, wherever it is now. Raises RunError where it is nowhere."""
        wanted = self.record.get("began_from")
        if not wanted:
            return None
        for place in self.near():
            if matches_initial_weights(place, wanted):
                return place
        where = f" in {self.record['start_from']}" if self.record.get("start_from") else ""
        raise RunError.of(
            f"this run began with the weights of another{where}, and that is neither there nor beside this run; "
            f"their SHA-256 is {wanted['weights']}",
            "name the folder of that run with `--from RUN`",
            str(self.folder.path),
        )

    def near(self) -> Iterator[Path]:
        """Runs that may be the one to begin with: where it was, then those beside this run that have its weights."""
        if self.record.get("start_from"):
            yield Path(self.record["start_from"])
        for path in sorted(self.folder.path.parent.glob("*/run.json")):
            try:
                known = RunDir(path.parent).read().get("weights")
            except RunError:
                continue
            if known == self.record["began_from"]["weights"]:
                yield path.parent

    def pace(self) -> dict[int, float]:
        """How fast this run spent its budget, where that is in minutes."""
        return read_budget_trace(self.folder.metrics)

    def told(self, recipe: Recipe, fingerprints: Mapping[str, str], now: Mapping[str, Any]) -> dict[str, Any]:
        """What the repeat's run.json keeps of this run; `now` is the lock of the repeat."""
        known = self.record["fingerprints"]
        differs = [OTHER_RECIPE] if known["says"] != recipe.fingerprints["run"] else []
        differs += [OTHER_DATA] if known["data"] != fingerprints["data"] else []
        differs += environment_differences(self.record, now)
        resumed = self.record.get("resumed_with") or []
        return {
            "run": str(self.folder.path),
            "fingerprint": known["run"],
            "weights": self.record.get("weights"),
            "differs": [*differs, *(f"it was resumed otherwise, {each}" for each in resumed)],
        }


def find_original_run(recipe: Recipe, run: str | Path | None, start_from: str | Path | None) -> ReproducedRun | None:
    """The run whose recipe this is, with nothing laid over it that decides; None of any other recipe.

    A run that is resumed in its own folder is none, nor one that begins with other weights than it did, nor one whose
    run.json is of an older version.
    """
    folder = RunDir(recipe.file.absolute().parent)
    if recipe.file.name != folder.recipe.name or not folder.record.exists():
        return None
    if run is not None and same_directory(Path(run), folder.path):
        return None
    record = folder.read()
    known = record.get("fingerprints")
    if not isinstance(known, dict) or "says" not in known:
        return None
    if load(folder.recipe).fingerprints["run"] != recipe.fingerprints["run"]:
        return None
    if start_from is not None and not matches_initial_weights(Path(start_from), record.get("began_from")):
        return None
    return ReproducedRun(folder, record)


def matches_initial_weights(run: Path, wanted: InitialWeights | None) -> bool:
    """Whether a run is the one to begin with."""
    folder = RunDir(run)
    there = folder.weights.is_file() and folder.tokenizer.is_file()
    return wanted is not None and there and initial_weights(folder) == wanted


def same_directory(one: Path, other: Path) -> bool:
    """Whether two paths are one folder."""
    return one.resolve() == other.resolve()


# ------------------------------------------------------------------------------------------- at the end


def compare_outcome(
    repeat_of: Mapping[str, Any], recipe: Recipe, weights: Path, on_gpu: bool
) -> tuple[bool | None, str]:
    """Whether a repeat has ended with the run's weights, None where there are none to compare with; and in words."""
    run, wanted = repeat_of["run"], repeat_of["weights"]
    if wanted is None:
        return None, f"nothing to compare with: {run} had not finished when this began"
    if sha256_of_file(weights) == wanted:
        return True, f"the same weights as {run}, to the last bit"
    difference = weight_difference(Path(run), wanted, weights)
    if not difference:
        return True, f"the same weights as {run}, to the last bit, in a file that is written otherwise"
    in_minutes = recipe.training["max_minutes"] is not None and not read_budget_trace(RunDir(Path(run)).metrics)
    reasons = [*repeat_of["differs"], *([IN_MINUTES] if in_minutes else []), *nondeterminism(recipe, on_gpu)]
    why = f"that may be because: {'; '.join(reasons)}" if reasons else "nothing is known that would explain it"
    return False, f"not the same weights as {run}: {difference}; {why}"


def weight_difference(run: Path, wanted: str, weights: Path) -> str:
    """How the weights of a repeat differ from the run's; "" where they do not."""
    theirs = RunDir(run).weights
    if not theirs.is_file() or sha256_of_file(theirs) != wanted:
        return "their SHA-256 is another, and the weights themselves are no longer there"
    return describe_difference(theirs, weights)


def nondeterminism(recipe: Recipe, on_gpu: bool) -> Iterator[str]:
    """Why the same training of the same recipe may end otherwise on the same machine."""
    if on_gpu and recipe.trainer["deterministic"] is not True:
        yield ON_GPU


HOME = Path(__file__).parents[2]
CODE = ("composer/**/*.py", "blocks/**/*.py")
CPUS = Path("/proc/cpuinfo")
OTHER_KEYS = {"source": "the code of seqcomposer", "git": "the commit of the recipe's repository"}

EnvironmentRecord = dict[str, Any]


def environment_record(recipe: Recipe, trainer: Trainer) -> EnvironmentRecord:
    """What run.json keeps of the code and of the machine."""
    return {
        "versions": versions(),
        "source": source_sha256(),
        "plug_ins": plug_in_versions(recipe),
        "machine": hardware(trainer),
        "git": git_state(recipe.file.parent),
    }


def source_sha256() -> str:
    """The fingerprint of this project's own code: a checkout changes without its version."""
    found = hashlib.sha256()
    for path in sorted(each for pattern in CODE for each in HOME.glob(pattern)):
        found.update(f"{path.relative_to(HOME).as_posix()} {sha256_of_file(path)}\n".encode())
    return found.hexdigest()


def plug_in_versions(recipe: Recipe) -> dict[str, dict[str, str | None]]:
    """The plug-ins whose blocks a recipe uses: the distribution, its version, and SHA-256 of the module's source."""
    used = set(keys_of(recipe.model))
    return {
        point.name: {"from": point.value, **distribution(point), "sha256": module_sha256(point.module)}
        for point in plug_ins()
        if point.name in used
    }


def distribution(point: Any) -> dict[str, str | None]:
    """The package that an entry point comes with."""
    return {
        "distribution": point.dist.name if point.dist else None,
        "version": point.dist.version if point.dist else None,
    }


def module_sha256(module: str) -> str | None:
    """SHA-256 of a module's source; None where it has none that can be read."""
    found = importlib.util.find_spec(module)
    file = Path(found.origin) if found is not None and found.origin else None
    return sha256_of_file(file) if file is not None and file.is_file() else None


def keys_of(value: Any) -> Iterator[str]:
    """Every key of a tree."""
    if isinstance(value, Mapping):
        yield from value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for each in inner:
        yield from keys_of(each)


def hardware(trainer: Trainer) -> dict[str, Any]:
    """What a training runs on, as far as it can change how sums are rounded or which random numbers are drawn."""
    kind = trainer.strategy.root_device.type
    on_gpu = kind == "cuda"
    return {
        "platform": " ".join((platform.system(), platform.machine(), *platform.libc_ver())).strip(),
        "cpu": cpu_name(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": kind,
        "gpus": [torch.cuda.get_device_name(each) for each in trainer.device_ids] if on_gpu else [],
        "cuda": torch.version.cuda if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "matmul": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "processes": trainer.world_size,
    }


def cpu_name() -> str:
    """The name of the processor."""
    try:
        lines = CPUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


# ------------------------------------------------------------------------------------------- how two differ


def environment_differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Where two locks differ, in words; of what one of them does not know nothing is said."""
    found = [
        f"{name}: {short_text(was)} there, {short_text(became)} here"
        for section in ("versions", "plug_ins", "machine")
        for name, was, became in changed_values(then.get(section), now.get(section))
    ]
    for key, told in OTHER_KEYS.items():
        was, became = hash_or_commit(then.get(key)), hash_or_commit(now.get(key))
        if was and became and was != became:
            found.append(f"{told}: {was[:SHORT_HASH]} there, {became[:SHORT_HASH]} here")
    return found


def changed_values(then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """The names in two mappings whose values differ, and the values."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*then, *now]):
            if then.get(name) != now.get(name):
                yield name, then.get(name), now.get(name)


def hash_or_commit(found: Any) -> str:
    """A hash, or the commit of a state of git; "" of neither."""
    if isinstance(found, Mapping):
        return str(found.get("commit"))
    return found if isinstance(found, str) else ""


def short_text(value: Any) -> str:
    """A value of a lock in a line: what of a plug-in is known, names of devices, or none."""
    if isinstance(value, Mapping):
        told = (
            value.get("distribution") or value.get("from"),
            value.get("version"),
            (value.get("sha256") or "")[:SHORT_HASH],
        )
        return " ".join(str(each) for each in told if each)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def git_state(folder: Path) -> dict[str, Any] | None:
    """Return the commit of the repository around `folder` and whether tracked files differ, or None without git."""
    commit = _git_output(folder, "rev-parse", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "dirty": bool(_git_output(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git_output(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
