"""What this machine cannot do of a recipe: int8, too many processes; and what is slow: bfloat16."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from composer.errors import Fault
from composer.formatting import count_noun
from composer.model.machine import multiplies_bfloat16, runs_on_cpu, visible_cpus
from composer.recipe.recipe import Recipe
from composer.recipe.training_sections import Trainer

FEW_PROCESSES, PROCESSES_OF_CPU = 16, 4
"""Processes of a training that any machine runs, and how many for each of its CPUs."""


def speed_warnings(recipe: Recipe) -> Iterator[Fault]:
    """Yield a warning of a training in bfloat16 on a CPU that computes in it number by number."""
    precision = str(recipe.training.precision)
    if not precision.startswith("bf16") or not runs_on_cpu(recipe.trainer.accelerator) or multiplies_bfloat16():
        return
    message = f"this CPU multiplies no matrices in bfloat16: `{precision}` is many times slower than `32` on it"
    hint = "write `precision: 32`, or train on a GPU"
    yield recipe.fault("slow", ("training", "precision"), message, hint).as_warning()


def process_faults(recipe: Recipe) -> Iterator[Fault]:
    """Yield the fault of more processes on this machine than its CPUs have a use for."""
    devices, workers, cpus = _devices_here(recipe.trainer), recipe.training.workers, visible_cpus()
    total, most = devices * (1 + workers), max(FEW_PROCESSES, PROCESSES_OF_CPU * cpus)
    if total > most:
        message = (
            f"{count_noun(devices, 'device')} with {count_noun(workers, 'worker')} each would be {total:,} processes, "
            f"and {most} are the most on {count_noun(cpus, 'CPU')}"
        )
        path, fewer = ("trainer", "devices"), most // (1 + workers)
        if workers > devices or not fewer:
            path, fewer = ("training", "workers"), max(0, most // devices - 1)
        hint = f"write `{path[-1]}: {fewer}`{' or fewer' if fewer > 1 else ''}"
        yield recipe.fault("bound", path, message, hint)


def _devices_here(trainer: Trainer) -> int:
    """Return how many devices of this machine train."""
    if isinstance(trainer.devices, tuple):
        return len(trainer.devices)
    if trainer.devices == "auto":
        return 1 if runs_on_cpu(trainer.accelerator) else max(1, torch.cuda.device_count())
    return trainer.devices


def int8_faults(recipe: Recipe) -> Iterator[Fault]:
    """Yield the fault of decoding in int8 where a GPU is to decode."""
    if recipe.decoding.precision != "int8":
        return
    from composer.inference.run import device_for  # late: most recipes do without

    if device_for(recipe).type == "cuda":
        message, hint = "a GPU decodes in `float32` or `bfloat16`", "write `precision: bfloat16`"
        yield recipe.fault("conflict", (*recipe.decoding.at, "precision"), message, hint)
