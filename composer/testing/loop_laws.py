"""The law of `recurrent`: what is lifted out of its loop gives what it would give inside, gradients too."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from blocks.recurrent import Recurrent
from composer.model.encoder_decoder import EncoderDecoder
from composer.testing.harness import Case, distance, draw, run
from composer.testing.model_laws import TOLERANCE, broken, sentences
from composer.testing.model_laws import expect_equal as expect_equal_logits
from composer.testing.tensor_compare import expect_equal

Module = TypeVar("Module", bound=nn.Module)


def lifting(case: Case) -> None:
    """A block that holds a `recurrent` gives the same, gradients too, when nothing is lifted out of the loop."""
    block, given = case.exact(), draw(case)
    slow = everything_looped(block)
    if slow is None:
        return
    lifted, looped = run(block, given).y, run(slow, given).y
    expect_equal(case, "lifting", lifted[given.mask], looped[given.mask], "lifted, against looped")
    for (name, _), mine, theirs in zip(
        block.named_parameters(), gradients(block, lifted[given.mask]), gradients(slow, looped[given.mask]), strict=True
    ):
        expect_equal(case, "lifting", mine, theirs, f"the gradient of `{name}`, lifted against looped")


def model_lifting(model: EncoderDecoder) -> None:
    """A model gives the same logits and gradients when nothing is lifted out of its loops."""
    slow = everything_looped(model)
    if slow is None:
        return
    pairs = sentences(model)
    with torch.enable_grad():
        lifted, looped = model(*pairs)[pairs.target != 0], slow(*pairs)[pairs.target != 0]
        expect_equal_logits("lifting", lifted, looped, "lifted, against looped")
        for (name, _), mine, theirs in zip(
            model.named_parameters(), gradients(model, lifted), gradients(slow, looped), strict=True
        ):
            if distance(mine, theirs) > TOLERANCE:
                broken("lifting", f"the gradient of `{name}` differs by {distance(mine, theirs):.3g}")


def everything_looped(module: Module) -> Module | None:
    """A copy in which every `recurrent` runs all of its stack position by position; None where there is none."""
    slow = copy.deepcopy(module)
    found = [each for each in slow.modules() if isinstance(each, Recurrent)]
    for each in found:
        each.first, each.stop = 0, len(each.stack.inner())
    return slow if found else None


def gradients(module: nn.Module, made: Tensor) -> Sequence[Tensor]:
    """Of a sum of everything with different weights, for every parameter."""
    weight = torch.randn(made.shape, generator=torch.Generator().manual_seed(4), dtype=made.dtype)
    parameters = list(module.parameters())
    return torch.autograd.grad((made * weight).sum(), parameters, materialize_grads=True) if parameters else ()
