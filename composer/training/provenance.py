"""The lock of a run: the code and the machine that it was trained with, and how others differ.

With the same fingerprint and the same lock a training ends with the same weights, to the last bit, on a CPU and, where
`trainer.deterministic` is true, on a GPU.
"""

from __future__ import annotations

import hashlib
import importlib.util
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer

from composer.atomic_io import sha256_of_file
from composer.recipe.cache import SHORT_HASH
from composer.recipe.recipe import Recipe
from composer.recipe.registry import plug_ins
from composer.run_dir import git_state, versions

HOME = Path(__file__).parents[2]
CODE = ("composer/**/*.py", "blocks/**/*.py")
CPUS = Path("/proc/cpuinfo")
TOLD = {"source": "the code of seqcomposer", "git": "the commit of the recipe's repository"}

EnvironmentRecord = dict[str, Any]


def environment_record(recipe: Recipe, trainer: Trainer) -> EnvironmentRecord:
    """What run.json keeps of the code and of the machine."""
    return {
        "versions": versions(),
        "source": source(),
        "plug_ins": plug_ins_of(recipe),
        "machine": machine(trainer),
        "git": git_state(recipe.file.parent),
    }


def source() -> str:
    """The fingerprint of this project's own code: a checkout changes without its version."""
    found = hashlib.sha256()
    for path in sorted(each for pattern in CODE for each in HOME.glob(pattern)):
        found.update(f"{path.relative_to(HOME).as_posix()} {sha256_of_file(path)}\n".encode())
    return found.hexdigest()


def plug_ins_of(recipe: Recipe) -> dict[str, dict[str, str | None]]:
    """The plug-ins whose blocks a recipe uses: the distribution, its version, and SHA-256 of the module's source."""
    used = set(words(recipe.model))
    return {
        point.name: {"from": point.value, **distribution(point), "sha256": code_of(point.module)}
        for point in plug_ins()
        if point.name in used
    }


def distribution(point: Any) -> dict[str, str | None]:
    """The package that an entry point comes with."""
    return {
        "distribution": point.dist.name if point.dist else None,
        "version": point.dist.version if point.dist else None,
    }


def code_of(module: str) -> str | None:
    """SHA-256 of a module's source; None where it has none that can be read."""
    found = importlib.util.find_spec(module)
    file = Path(found.origin) if found is not None and found.origin else None
    return sha256_of_file(file) if file is not None and file.is_file() else None


def words(value: Any) -> Iterator[str]:
    """Every key of a tree."""
    if isinstance(value, Mapping):
        yield from value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for each in inner:
        yield from words(each)


def machine(trainer: Trainer) -> dict[str, Any]:
    """What a training runs on, as far as it can change how sums are rounded or which random numbers are drawn."""
    kind = trainer.strategy.root_device.type
    on_gpu = kind == "cuda"
    return {
        "platform": " ".join((platform.system(), platform.machine(), *platform.libc_ver())).strip(),
        "cpu": cpu(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "device": kind,
        "gpus": [torch.cuda.get_device_name(each) for each in trainer.device_ids] if on_gpu else [],
        "cuda": torch.version.cuda if on_gpu else None,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "matmul": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "processes": trainer.world_size,
    }


def cpu() -> str:
    """The name of the processor."""
    try:
        lines = CPUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


# ------------------------------------------------------------------------------------------- how two differ


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Where two locks differ, in words; of what one of them does not know nothing is said."""
    found = [
        f"{name}: {brief(was)} there, {brief(became)} here"
        for section in ("versions", "plug_ins", "machine")
        for name, was, became in changed(then.get(section), now.get(section))
    ]
    for key, told in TOLD.items():
        was, became = value_of(then.get(key)), value_of(now.get(key))
        if was and became and was != became:
            found.append(f"{told}: {was[:SHORT_HASH]} there, {became[:SHORT_HASH]} here")
    return found


def changed(then: Any, now: Any) -> Iterator[tuple[str, Any, Any]]:
    """The names in two mappings whose values differ, and the values."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for name in dict.fromkeys([*then, *now]):
            if then.get(name) != now.get(name):
                yield name, then.get(name), now.get(name)


def value_of(found: Any) -> str:
    """A hash, or the commit of a state of git; "" of neither."""
    if isinstance(found, Mapping):
        return str(found.get("commit"))
    return found if isinstance(found, str) else ""


def brief(value: Any) -> str:
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
