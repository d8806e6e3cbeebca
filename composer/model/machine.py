"""What this machine has, as far as this process may use it: CPUs, GPUs, memory and packages."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import torch

from composer.errors import RunError

PROGRAMS = ("onnx", "onnxscript", "onnxruntime")
"""Packages that make and run the programs of a model."""
NVIDIA_GPUS = Path("/proc/driver/nvidia/gpus")


def visible_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that a process of this environment may use."""
    if (devices := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [device.strip() for device in devices.split(",") if device.strip() not in ("", "-1")]
    return [str(number) for number, _ in enumerate(NVIDIA_GPUS.glob("*"))]


def runs_on_cpu(accelerator: str) -> bool:
    """True if a training with this `trainer.accelerator` runs on the CPU of this machine."""
    has_gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    return accelerator == "cpu" or (accelerator == "auto" and not has_gpu)


def multiplies_bfloat16() -> bool:
    """True if oneDNN multiplies matrices in bfloat16 on this CPU, as it does with AVX-512."""
    # a build of PyTorch without oneDNN lacks the operator, too
    return torch.backends.mkldnn.is_available() and bool(
        torch.ops.mkldnn._is_mkldnn_bf16_supported()
    )


@cache
def available_memory() -> float:
    """Return the bytes of memory of this machine or container; infinity if unknown."""
    try:
        memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            return min(memory, float(file.read()))
    except (OSError, ValueError):  # no container, or one without a limit: `max`
        return memory


def missing_packages(names: Sequence[str]) -> list[str]:
    """Return the packages that are not installed."""
    return [name for name in names if find_spec(name) is None]


def require_packages(names: Sequence[str]) -> None:
    """Raise RunError if a package is not installed."""
    if missing := missing_packages(names):
        message = f"the package `{missing[0]}` is not installed"
        raise RunError.of(message, f"run `pip install {' '.join(names)}`")
