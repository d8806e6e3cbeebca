"""Every recipe at a small size, loss and gradients, in float32 and under bf16 autocast against
float64 on the CPU.

An error may be a few times that of the CPU in the same type. TensorFloat-32 is off.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu import FAILED, OK, Outcome, Settings
from benchmarks.gpu.compare import FLOORS, Numbers, describe_faults, without_chance
from composer.model import output_heads
from composer.model.output_heads import sample_ids
from composer.training.module import Seq2SeqModule
from tests.laws.on_two_devices import Step, module_of, pairs_of, results, share_of
from tests.laws.test_recipes import HOME, RECIPES, name

SMALL_SAMPLE = 15
ROWS = (0, 1, 2, 3)


def cases(settings: Settings) -> list[str]:
    return [name(path) for path in RECIPES][:: SMALL_SAMPLE if settings.small else 1]


def run(recipe: str, settings: Settings) -> Outcome:
    module = without_chance(module_of(HOME / f"{recipe}.yaml"))
    batch = share_of(pairs_of(module), ROWS, 0, 1)
    exact = numbers(copy.deepcopy(module).double(), batch, "cpu")
    faults = []
    for dtype in FLOORS:
        cpu = numbers(copy.deepcopy(module), batch, "cpu", dtype)
        there = numbers(copy.deepcopy(module), batch, settings.device, dtype)
        faults += describe_faults(dtype, there, cpu, exact)
    return Outcome(FAILED if faults else OK, "\n".join(faults))


def numbers(
    module: Seq2SeqModule, batch: dict[str, Any], device: str, dtype: torch.dtype | None = None
) -> Numbers:
    """Return the loss and all gradients of one batch on a device, under autocast for bfloat16."""
    on_device = {key: move(value, device) for key, value in batch.items()}
    autocast = (
        torch.autocast(torch.device(device).type, dtype)
        if dtype is torch.bfloat16
        else nullcontext()
    )
    module = module.to(device).train()
    with autocast, mock.patch.object(output_heads, "sample_ids", sample_ids_on_cpu):
        (result,) = results(module, Step(module), [on_device], 1)
    return {"loss": [result.pop("loss")], "gradients": list(result.values())}


def sample_ids_on_cpu(
    samples: int, vocabulary: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the samples of a sampled softmax on the CPU, whose numbers those of a GPU are not."""
    ids, tau = sample_ids(samples, vocabulary, torch.device("cpu"))
    return ids.to(device), tau.to(device)


def move(value: Any, device: str) -> Any:
    """Return a tensor, or a mapping of tensors, on the device; anything else as it is."""
    if isinstance(value, dict):
        return {key: move(inner, device) for key, inner in value.items()}
    return value.to(device) if isinstance(value, torch.Tensor) else value
