"""What a recipe asks for that this machine cannot do, int8 or a compiled step, or does slowly: bfloat16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from composer.errors import Fault, KeyPath
from composer.model.builder import build, vocabulary_bounds
from composer.model.machine import multiplies_bfloat16, runs_on_cpu
from composer.recipe.recipe import Recipe


def speed_warnings(recipe: Recipe) -> Iterator[Fault]:
    """Yield a warning of a training in bfloat16 on a CPU that computes in it number by number."""
    precision = str(recipe.training["precision"])
    if not precision.startswith("bf16") or not runs_on_cpu(recipe.trainer["accelerator"]) or multiplies_bfloat16():
        return
    message = f"this CPU multiplies no matrices in bfloat16: `{precision}` is many times slower than `32` on it"
    hint = "write `precision: 32`, or train on a GPU"
    yield recipe.fault("slow", ("training", "precision"), message, hint).as_warning()


def int8_faults(recipe: Recipe) -> Iterator[Fault]:
    """Yield the fault of decoding in int8 where a GPU is to decode."""
    ((method, settings),) = recipe.decoding.items()
    if settings["precision"] != "int8":
        return
    from composer.inference.run import device_for  # late: most recipes do without

    if device_for(recipe).type == "cuda":
        message, hint = "a GPU decodes in `float32` or `bfloat16`", "write `precision: bfloat16`"
        yield recipe.fault("conflict", ("decoding", method, "precision"), message, hint)


def compile_faults(recipe: Recipe) -> Iterator[Fault]:
    """Yield the fault of a decoding step to be compiled that cannot be: of this model, or without a compiler."""
    sections: dict[KeyPath, Mapping[str, Any]] = {("decoding",): recipe.decoding}
    sections[("training", "validation_sample", "decoding")] = recipe.training["validation_sample"]["decoding"]
    for path, decoding in sections.items():
        ((method, settings),) = decoding.items()
        if not settings.get("compile"):
            continue
        from composer.inference.compiled_step import ON_GPU, compilation_problem  # late: it imports PyTorch's compiler
        from composer.inference.run import device_for

        on_gpu = device_for(recipe).type == "cuda"
        problem = ON_GPU if on_gpu else compilation_problem(lambda: build(recipe, vocabulary_bounds(recipe)))
        if problem:
            yield recipe.fault("conflict", (*path, method, "compile"), problem, "remove `compile`")
