"""Every block in float32 and bfloat16 against float64 on the CPU: outputs, states, gradients.

The weights and inputs are rounded first, so that what differs is the arithmetic. An error may be a
few times that of the CPU in the same type. TensorFloat-32 is off.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.gpu import FAILED, OK, Outcome, Settings
from benchmarks.gpu.compare import FLOORS, Numbers, describe_faults, without_chance
from blocks.core.contract import Block, Output
from composer.model.encoder_decoder import state_leaves
from composer.recipe.registry import blocks
from composer.testing import PLACES, Case
from composer.testing.harness import COLUMNS, Batch, cast_batch, map_tensors, random_batch
from composer.testing.harness import run as run_block
from tests.laws.test_blocks import VARIANTS

SMALL_SAMPLE = 9


def cases(settings: Settings) -> list[str]:
    return sorted(VARIANTS)[:: SMALL_SAMPLE if settings.small else 1]


def law_cases(name: str, small: bool) -> Iterator[Case]:
    """Yield the places of a block with each of the settings that its own tests use."""
    for settings in VARIANTS[name][: 1 if small else None]:
        for place in PLACES:
            for columns in (0, COLUMNS):
                case = Case(blocks()[name], settings, place, columns=columns)
                if case.refusal() is None:
                    yield case


def run(name: str, settings: Settings) -> Outcome:
    faults, count = [], 0
    for case in law_cases(name, settings.small):
        for dtype in FLOORS:
            count += 1
            where = f"{case.place}{', grid' if case.columns else ''} {dict(case.settings)}"
            faults += [f"{fault} ({where})" for fault in compare_case(case, dtype, settings.device)]
    return Outcome(FAILED if faults else OK, "\n".join(faults) or f"{count} comparisons")


def compare_case(case: Case, dtype: torch.dtype, device: str) -> list[str]:
    # cuDNN computes gradients of recurrent layers in training mode alone
    block = without_chance(case.build()).train().to(dtype)
    batch = cast_batch(random_batch(case), dtype)
    exact = numbers(copy.deepcopy(block).double(), cast_batch(batch, torch.float64))
    cpu = numbers(copy.deepcopy(block), batch)
    there = numbers(
        copy.deepcopy(block).to(device), map_tensors(batch, lambda leaf: leaf.to(device))
    )
    return describe_faults(dtype, there, cpu, exact)


def numbers(block: Block, batch: Batch) -> Numbers:
    """Return the real outputs, the last state and the gradients of a weighted sum of outputs."""
    x = batch.x.detach().clone().requires_grad_()
    made = run_block(
        block, batch._replace(x=x, board={**batch.board, "input": Output(x, batch.mask)})
    )
    states = [leaf for leaf in state_leaves(made.state) if leaf.is_floating_point()]
    return {"outputs": [made.real], "states": states, "gradients": gradients(block, x, made.real)}


def gradients(block: Block, x: Tensor, y: Tensor) -> list[Tensor]:
    inputs = [tensor for tensor in (x, *block.parameters()) if tensor.requires_grad]
    if not y.requires_grad:
        return []
    weight = torch.linspace(-1.0, 1.0, y.numel(), dtype=torch.float64).reshape(y.shape).to(y)
    return list(torch.autograd.grad((y * weight).sum(), inputs, materialize_grads=True))
