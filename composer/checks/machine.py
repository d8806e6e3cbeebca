"""Rules of a recipe and this machine: missing parts, processes, engines, int8, slow bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch

from blocks.core.fixes import Fix, Remove, Set, write
from composer.checks.problem import Problem, Problems, warning
from composer.formatting import count_noun
from composer.metrics.bleu import TOKENIZER_PACKAGES, is_downloaded
from composer.model.footprint import Sizes, checkpoint_bytes, training_device, weight_bytes
from composer.model.machine import (
    PROGRAMS,
    available_memory,
    missing_packages,
    multiplies_bfloat16,
    runs_on_cpu,
    visible_cpus,
)
from composer.recipe.recipe import Recipe
from composer.recipe.training_sections import Trainer

BLEU_TOKENIZER = ("evaluation", "bleu_tokenizer")
FEW_PROCESSES, PROCESSES_OF_CPU = 16, 4
"""Processes of a training that any machine runs, and how many for each of its CPUs."""


def speed(recipe: Recipe) -> Problems:
    """No CPU trains in bfloat16 that computes in it number by number."""
    precision = str(recipe.training.precision)
    if (
        not precision.startswith("bf16")
        or not runs_on_cpu(recipe.trainer.accelerator)
        or multiplies_bfloat16()
    ):
        return
    message = (
        f"this CPU multiplies no matrices in bfloat16: `{precision}` is many times slower than `32`"
        " on it"
    )
    path = ("training", "precision")
    yield warning("slow", path, message, write(path, 32, ", or train on a GPU"))


def processes(recipe: Recipe) -> Problems:
    """There are no more processes than the CPUs of this machine have a use for."""
    devices, workers, cpus = _devices_here(recipe.trainer), recipe.training.workers, visible_cpus()
    total, most = devices * (1 + workers), max(FEW_PROCESSES, PROCESSES_OF_CPU * cpus)
    if total > most:
        message = (
            f"{count_noun(devices, 'device')} with {count_noun(workers, 'worker')} each would be"
            f" {total:,} processes, and {most} are the most on {count_noun(cpus, 'CPU')}"
        )
        path, fewer = ("trainer", "devices"), most // (1 + workers)
        if workers > devices or not fewer:
            path, fewer = ("training", "workers"), max(0, most // devices - 1)
        yield Problem("bound", path, message, write(path, fewer, " or fewer" if fewer > 1 else ""))


def _devices_here(trainer: Trainer) -> int:
    """Return the number of devices of this machine that train."""
    if isinstance(trainer.devices, tuple):
        return len(trainer.devices)
    if trainer.devices == "auto":
        return 1 if runs_on_cpu(trainer.accelerator) else max(1, torch.cuda.device_count())
    return trainer.devices


def int8(recipe: Recipe) -> Problems:
    """No GPU is to decode in int8."""
    if recipe.decoding.precision != "int8":
        return
    from composer.inference.run import device_for  # late: most recipes do without

    if device_for(recipe).type == "cuda":
        path = (*recipe.decoding.at, "precision")
        yield Problem(
            "conflict", path, "a GPU decodes in `float32` or `bfloat16`", write(path, "bfloat16")
        )


def engine(recipe: Recipe) -> Problems:
    """The engine that decodes has its packages."""
    path = (*recipe.decoding.at, "engine")
    if recipe.decoding.engine == "onnxruntime" and (missing := missing_packages(PROGRAMS)):
        fix = Fix(f"run `pip install {' '.join(PROGRAMS)}`, or write `torch`", Set(path, "torch"))
        yield Problem("package", path, f"`onnxruntime` needs the package `{missing[0]}`", fix)


def optimizer(recipe: Recipe) -> Problems:
    """The optimizer has its package."""
    chosen = recipe.training.optimizer
    if missing := missing_packages(chosen.packages):
        fix = Fix(f"run `pip install {missing[0]}`, or write another optimizer")
        message = f"`{chosen.word}` needs the package `{missing[0]}`"
        yield Problem("package", chosen.at, message, fix)


def bleu_package(recipe: Recipe) -> Problems:
    """The tokenizer of BLEU has its package."""
    word = recipe.evaluation.bleu_tokenizer
    module, package = TOKENIZER_PACKAGES.get(word, ("", ""))
    if module and not find_spec(module):
        fix = Fix(f"pip install '{package}', or write `char`", Set(BLEU_TOKENIZER, "char"))
        yield Problem("package", BLEU_TOKENIZER, f"`{word}` needs the package `{package}`", fix)


def bleu_download(recipe: Recipe) -> Problems:
    """BLEU's tokenizer is installed before the first evaluation, which would download it."""
    word = recipe.evaluation.bleu_tokenizer
    if word == "flores200" and find_spec("sentencepiece") and not is_downloaded(word):
        fix = Fix("train with a network, or write `char`", Set(BLEU_TOKENIZER, "char"))
        yield warning("download", BLEU_TOKENIZER, f"the first evaluation downloads `{word}`", fix)


def quota(recipe: Recipe, sizes: Sizes) -> Problems:
    """The checkpoints that a training needs at once fit into their quota."""
    gib, average = recipe.training.checkpoints_gib, recipe.training.average_checkpoints
    count = max(2, average + 1) + 1  # the best and the last ones, while another is written
    size = checkpoint_bytes(recipe, sizes) / 2**30
    if gib is None or count * size <= gib:
        return
    message = (
        f"a training needs room for {count} checkpoints, and each takes about {1.1 * size:.3g} GiB"
    )
    path = ("training", "checkpoints_gib")
    yield Problem(
        "quota",
        path,
        message,
        Fix(f"write {1.1 * count * size:.3g} or more, or remove it", Remove(path)),
    )


def memory(recipe: Recipe, sizes: Sizes) -> Problems:
    """The parameters, and what training computes of each, fit into memory."""
    needed = weight_bytes(recipe, sizes)
    on_gpu = training_device(recipe) == "cuda"
    available = torch.cuda.get_device_properties(0).total_memory if on_gpu else available_memory()
    if (
        needed <= available
        or recipe.trainer.strategy == "fsdp"
        or recipe.trainer.accelerator in ("mps", "tpu")
    ):
        return
    message = (
        f"{sizes.parameters:,} parameters with gradients and optimizer take {needed / 2**30:,.3g}"
        " GiB, "
    )
    message += f"and there are {available / 2**30:.3g} GiB of memory"
    hint = "make the model smaller: fewer or narrower blocks, a smaller vocabulary"
    yield Problem("memory", ("model", "width"), message, hint)


RULES: Sequence[Callable[[Recipe], Problems]] = (
    processes,
    int8,
    engine,
    optimizer,
    bleu_package,
)
"""What this machine does not train; `quota` and `memory` also need the sizes of the model."""
WARNINGS: Sequence[Callable[[Recipe], Problems]] = (speed, bleu_download)
"""What it does slowly, or not without a network."""
