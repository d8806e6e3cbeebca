"""Reproduction of a run by `train RUN/recipe.yaml`; code and hardware in run.json.

A reproduction finds its data where the run found them, reads with the run's own tokenizer (not
every tokenizer trains to the same result twice), starts from the same initial weights, and repeats
the steps that a budget in minutes made. With the same code on the same kind of machine it ends with
the same weights, to the last bit: on a CPU, and on a GPU where `trainer.deterministic` is true. An
override that changes the fingerprint makes it another run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from composer.atomic_io import sha256_of_file
from composer.data.encoding import Data
from composer.data.pairs import Pairs
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.fingerprint import (
    current_fingerprints,
    initial_weights,
    is_recorded,
    known_changes,
    lines_sha256,
    teacher_facts,
    versions,
)
from composer.model.weights import describe_difference
from composer.processes.git import commit_around
from composer.recipe.cache import SHORT_HASH
from composer.recipe.canonical_form import block_paths
from composer.recipe.earlier_versions import changes_since
from composer.recipe.recipe import Recipe, load
from composer.recipe.registry import OWN, plug_ins
from composer.run_dir import RUNS, START_FROM, RunDir
from composer.runs.record import Commit, InitialWeights, PlugIn, Reproduces, RunRecord, Scalar
from composer.training.lightning import Trainer

HOME = Path(__file__).parents[2]


@dataclass(frozen=True)
class ReproducedRun:
    """The run that is reproduced, and its run.json."""

    run_dir: RunDir
    record: RunRecord

    def tokenizers(self, source: DataSource) -> Tokenizers | None:
        """Return the run's tokenizers; None if the data have changed. Raises RunError."""
        if not self.has_data(lines_sha256(source.recipe, pairs := source.all_pairs()), pairs):
            return None
        tokenizers = Tokenizers.load(self.run_dir.tokenizer)
        if tokenizers.sha256 != self.record.tokenizer_sha256:
            message = "this tokenizer is not the one that the run was trained with"
            raise RunError.of(
                message, "restore tokenizer.json as it was", str(self.run_dir.tokenizer)
            )
        return tokenizers

    def has_data(self, lines: str, pairs: Mapping[str, Pairs]) -> bool:
        """True if data are the run's, by `lines_sha256`, or once by the number of lines."""
        if self.record.fingerprint_parts:
            return self.record.fingerprint_parts.lines == lines
        return self.record.data.pairs == {split: len(rows) for split, rows in pairs.items()}

    def initial_run(self) -> Path | None:
        """Return the run whose weights this run started from; None for random ones."""
        weights = self.record.initial_weights
        if not weights:
            return None
        for path in self._candidate_runs(weights):
            if _matches(path, weights):
                return path
        where = f" in {self.record.start_from}" if self.record.start_from else ""
        message = (
            "the run whose weights this one started from was found neither beside it"
            f" nor{where or ' elsewhere'}"
        )
        fix = f"name the folder of that run with {START_FROM}"
        raise RunError.of(
            f"{message}; their SHA-256 is {weights.weights}", fix, str(self.run_dir.path)
        )

    def _candidate_runs(self, wanted: InitialWeights) -> Iterator[Path]:
        """Yield where the initial run was, then the runs beside this one that have its weights."""
        if self.record.start_from:
            yield Path(self.record.start_from)
        for path in sorted(self.run_dir.path.parent.glob("*/run.json")):
            try:
                weights = RunDir(path.parent).read().weights_sha256
            except RunError:
                continue
            if weights == wanted.weights:
                yield path.parent

    def comparison_record(self, recipe: Recipe, data: Data, record: RunRecord) -> Reproduces:
        """Return `reproduces` of run.json: this run, and all that is known to differ."""
        assert record.fingerprint_parts is not None  # which every training writes
        differs = []
        if not is_recorded(recipe, self.record):
            differs.append("its recipe.yaml has changed")
        if recipe.training.max_minutes is not None and self.record.planned_steps is None:
            differs.append(
                "its budget is in minutes, of whose spending it records the number of steps alone"
            )
        if teacher_facts(self.record.teacher) != teacher_facts(record.teacher):
            differs.append("its teacher had other weights")
        if not self.has_data(record.fingerprint_parts.lines, data.pairs):
            differs.append("the data are not those that it was trained on")
        elif self.record.data.sha256 not in (None, record.data.sha256):
            differs.append("its lines become other tokens here")
        differs += [
            f"since then, {change}"
            for change in changes_since(recipe.canonical, known_changes(self.record))
        ]
        differs += environment_differences(self.record, record)
        differs += [f"it was resumed with {change}" for change in self.record.resumed_with]
        folder = next(iter(record.data.folders), None)  # where the data are now
        recorded = self.record.fingerprints["run"] if self.record.fingerprints else ""
        return Reproduces(
            str(self.run_dir.path),
            None if self.record.averaged else self.record.weights_sha256,
            tuple(differs),
            current_fingerprints(recipe, self.record, folder).get("run", recorded),
        )


def find_original_run(
    recipe: Recipe, run: str | Path | None, start_from: str | Path | None
) -> ReproducedRun | None:
    """Return the run that a training of `recipe` reproduces, or None.

    It does if `recipe` is RUN/recipe.yaml without overrides that change results, unless the run
    itself is resumed (`run` is its folder) or `start_from` is not the run that it started from.
    """
    run_dir = RunDir(recipe.file.absolute().parent)
    if recipe.file.name != run_dir.recipe.name or not run_dir.record.exists():
        return None
    if run is not None and Path(run).resolve() == run_dir.path.resolve():
        return None
    record = run_dir.read()
    if record.fingerprints is None:
        return None
    if load(run_dir.recipe).fingerprints["run"] != recipe.fingerprints["run"]:
        return None
    if start_from is not None and not _matches(Path(start_from), record.initial_weights):
        return None
    return ReproducedRun(run_dir, record)


def reproduced_steps(run_dir: RunDir) -> Mapping[int, int]:
    """Return the number of steps in a run's minutes, as it estimated them after certain steps.

    A run of 0.1.0 has no estimates: its minutes made the steps at which it ended.
    """
    record = run_dir.read() if run_dir.record.exists() else RunRecord()
    if record.planned_steps is not None:
        return record.planned_steps
    return {0: record.steps} if record.steps else {}


def steps_to_repeat(record: RunRecord | None, original: ReproducedRun | None) -> Mapping[int, int]:
    """Return `reproduced_steps` of the run that a training reproduces; {} if it reproduces none."""
    if record and record.reproduces:
        return reproduced_steps(RunDir(Path(record.reproduces.run)))
    return reproduced_steps(original.run_dir) if original else {}


def default_folder(recipe: Recipe, start_from: str | Path | None, resume: bool) -> Path:
    """Return the folder of a training where none is given.

    It is that of a new run, of a reproduction, or of the run that is resumed.

    Resumed by the recipe of a run, that is a reproduction of it which has begun, or else the run
    itself.
    """
    original, own = (
        find_original_run(recipe, None, start_from),
        RunDir(recipe.file.absolute().parent),
    )
    folder = RUNS / (f"{recipe.name}-reproduction" if original else recipe.name)
    if original and folder.resolve() == own.path.resolve():
        folder = folder.with_name(f"{folder.name}-2")
    is_own = recipe.file.name == own.recipe.name and own.record.exists()
    return (
        own.path
        if resume and is_own and not (original and RunDir(folder).record.exists())
        else folder
    )


def _matches(run: Path, wanted: InitialWeights | None) -> bool:
    """True if a run has these weights and this tokenizer."""
    run_dir = RunDir(run)
    exists = run_dir.weights.is_file() and run_dir.tokenizer.is_file()
    return wanted is not None and exists and initial_weights(run_dir) == wanted


def compare_outcome(
    reproduces: Reproduces, recipe: Recipe, weights: Path, on_gpu: bool
) -> tuple[bool | None, str]:
    """Return True if a reproduction has the same weights, None without any; and a sentence."""
    run, expected = RunDir(Path(reproduces.run)), reproduces.weights_sha256
    if expected is None:
        return (
            None,
            (
                f"nothing to compare with: {run.path} had not finished when this began, or is an"
                " average"
            ),
        )
    same = f"the same weights as {run.path}, to the last bit"
    if sha256_of_file(weights) == expected:
        return True, same
    if run.weights.is_file() and sha256_of_file(run.weights) == expected:
        difference = describe_difference(run.weights, weights)
    else:
        difference = "their SHA-256 differs, and the run's weights are no longer there"
    if not difference:
        return True, f"{same}, in a file that is written differently"
    reasons = [*reproduces.differs]
    if on_gpu and recipe.trainer.deterministic is not True:
        reasons.append(
            "sums on a GPU are rounded in no fixed order without `trainer: {deterministic: true}`"
        )
    why = (
        f"that may be because: {'; '.join(reasons)}"
        if reasons
        else "no known difference explains it"
    )
    return False, f"not the same weights as {run.path}: {difference}; {why}"


def with_environment(record: RunRecord, recipe: Recipe, trainer: Trainer) -> RunRecord:
    """Return run.json with the code and the hardware of a training."""
    commit = commit_around(recipe.file.parent)
    return replace(
        record,
        versions=versions(),
        source=source_sha256(),
        plug_ins=plug_in_versions(recipe),
        machine=hardware(trainer),
        git=Commit(commit) if commit else None,
    )


@cache  # what is imported does not follow its files
def source_sha256() -> str:
    """Return the SHA-256 of this project's code: a checkout changes without its version."""
    digest = hashlib.sha256()
    for path in sorted([*HOME.glob("composer/**/*.py"), *HOME.glob("blocks/**/*.py")]):
        digest.update(f"{path.relative_to(HOME).as_posix()} {sha256_of_file(path)}\n".encode())
    return digest.hexdigest()


def plug_in_versions(recipe: Recipe) -> dict[str, PlugIn]:
    """Return the plug-ins whose blocks a recipe uses: distribution, version, SHA-256 of the module.

    Of a block of this process alone it is the SHA-256 of the class.
    """
    used = {path[-1] for path in block_paths(recipe.canonical["model"])}
    records: dict[str, PlugIn] = {}
    for word, block in OWN.items():
        if word in used:
            records[word] = {
                "from": block.origin,
                "distribution": None,
                "version": None,
                "sha256": block.sha256,
            }
    for point in plug_ins():
        if point.name in used:
            spec = importlib.util.find_spec(point.module)
            file = Path(spec.origin) if spec is not None and spec.origin else None
            records[point.name] = {
                "from": point.value,
                "distribution": point.dist.name if point.dist else None,
                "version": point.dist.version if point.dist else None,
                "sha256": sha256_of_file(file) if file is not None and file.is_file() else None,
            }
    return records


def hardware(trainer: Trainer) -> dict[str, Scalar | tuple[str, ...]]:
    """Return the hardware, and all else that changes the rounding of sums or the random numbers."""
    kind = trainer.strategy.root_device.type
    on_gpu = kind == "cuda"
    processors: list[str] = []
    with suppress(OSError):  # only Linux has the file
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processors = [
            line.partition(":")[2].strip() for line in lines if line.startswith("model name")
        ]
    return {
        "platform": " ".join((platform.system(), platform.machine(), *platform.libc_ver())).strip(),
        "cpu": processors[0] if processors else platform.processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": kind,
        "gpus": (
            tuple(torch.cuda.get_device_name(device) for device in trainer.device_ids)
            if on_gpu
            else ()
        ),
        "cuda": torch.version.cuda if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "matmul": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "processes": trainer.world_size,
    }


def environment_differences(then: RunRecord, now: RunRecord) -> list[str]:
    """Return in words the differences of the environments of two trainings.

    Versions and machines are compared if both are known.
    """
    differences = _differing(then.plug_ins, now.plug_ins)
    if then.versions and now.versions:
        differences += _differing(then.versions, now.versions)
    if then.machine and now.machine:
        differences += _differing(then.machine, now.machine)
    hashes = {"the code of seqcomposer": (then.source, now.source)}
    if then.git and now.git:
        hashes["the commit of the recipe's repository"] = then.git.commit, now.git.commit
    for name, (was, became) in hashes.items():
        if was and became and was != became:
            differences.append(f"{name}: {was[:SHORT_HASH]} there, {became[:SHORT_HASH]} here")
    return differences


def _differing(there: Mapping[str, object], here: Mapping[str, object]) -> list[str]:
    """Describe the keys in which two mappings differ."""
    texts = []
    for name in dict.fromkeys([*there, *here]):
        was, became = there.get(name), here.get(name)
        if was != became:
            texts.append(f"{name}: {_text(was)} there, {_text(became)} here")
    return texts


def _text(value: object) -> str:
    """Write a value of an environment record on one line."""
    if isinstance(value, Mapping):  # a plug-in
        sha256 = (value.get("sha256") or "")[:SHORT_HASH]
        parts = (value.get("distribution") or value.get("from"), value.get("version"), sha256)
        return " ".join(str(part) for part in parts if part)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
