"""Rules of foreign blocks: outputs are finite, and in a decoder read nothing of the future.

A plan has shapes alone. So a model with such blocks is run twice with numbers, on a few tokens of
which the last ones differ; `composer.check_block` has many laws more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blocks.core.contract import Block
from composer.checks.problem import Problem, Problems
from composer.model.builder import ASK_AUTHOR, build
from composer.model.costs import BlockFailed, attribute_failures, wrap_blocks
from composer.model.encoder_decoder import EncoderDecoder, example_ids, example_sources
from composer.recipe.recipe import Recipe
from composer.recipe.registry import OWN, plug_ins

POSITIONS, SAME = 6, 3
"""Tokens of each run, and those at the beginning that are the same in both."""
MOST_PARAMETERS = 20_000_000
"""Of a model that is made for this alone, in a fraction of a second; a training looks at its own,
of any size.
"""
LEAST_CHANGE = 1e-3
"""Change of an output, against the largest, that is no rounding in 32 bits."""


class Call(NamedTuple):
    """The input and the output of a call of a block."""

    block: Block
    x: Tensor  # (1, T, D), of a grid (1, T, W, D)
    y: Tensor  # (1, T', D'), of a grid (1, T', W', D')


def foreign_words() -> set[str]:
    """Return the words of all blocks that are not of this project."""
    return {*OWN, *(point.name for point in plug_ins())}


def values(model: EncoderDecoder) -> Problems:
    """No foreign block gives NaN, or reads the future in the decoder; the first is at fault.

    model: One with numbers; its mode stays as it is, and so do the random numbers of the process.
    """
    words = foreign_words()
    blocks = [block for block in model.modules() if isinstance(block, Block)]
    if not any(str(block.path[-1]) in words for block in blocks if block.path):
        return
    target = example_ids(model, POSITIONS)
    with_other_future = target.clone()
    with_other_future[:, SAME:] = model.vocabulary - 1
    try:
        with torch.random.fork_rng(devices=[]):
            first_calls, second_calls = calls_of(model, target), calls_of(model, with_other_future)
    except BlockFailed as failed:
        yield Problem(failed.code, failed.block.path or ("model",), failed.message, failed.fix)
        return
    in_decoder = {id(block) for block in model.decoder.modules()}
    # a loop may end earlier in one of them
    for first, second in zip(first_calls, second_calls, strict=False):
        path, word = first.block.path, str(first.block.path[-1])
        if word not in words or first.block is not second.block:
            continue
        if first.x.isfinite().all() and not first.y.isfinite().all():
            message = f"`{word}` gives NaN or infinite numbers where finite ones arrive"
            yield Problem("block", path, message, ASK_AUTHOR)
            return
        if id(first.block) in in_decoder and does_read_future(first, second):
            message = (
                f"a decoder may not read the future, and `{word}` does: its output at the first"
                f" {SAME} positions depends on those after them"
            )
            yield Problem("causality", path, message, f"put it into an encoder, or {ASK_AUTHOR}")
            return


def calls_of(model: EncoderDecoder, target: Tensor) -> list[Call]:
    """Return the calls of every block of a recipe, inner ones first. target: (1, T)"""
    calls: list[Call] = []

    def recorded(block: Block, name: str) -> Callable[..., Any]:
        call = attribute_failures(block, name)

        def run(x: Tensor, *rest: Any) -> Any:
            result = call(x, *rest)
            if name == "forward" and block.path:
                calls.append(Call(block, x, result[0]))
            return result

        return run

    is_training = model.training
    torch.manual_seed(0)
    with torch.no_grad(), wrap_blocks(model.eval(), recorded):
        model(example_sources(model, POSITIONS), target)
    model.train(is_training)
    return calls


def does_read_future(first: Call, second: Call) -> bool:
    """True if the first outputs of a block differ although its first inputs are the same."""
    if not first.x.shape[1] == first.y.shape[1] == POSITIONS:
        return False  # in a loop over positions nothing of the future is there
    return not changed(first.x, second.x) and changed(first.y, second.y)


def changed(first: Tensor, second: Tensor) -> bool:
    """True if the first positions of two streams differ by more than rounding."""
    difference = (first[:, :SAME] - second[:, :SAME]).abs().max()
    return bool(difference > LEAST_CHANGE * first.abs().max())


def planned_values(recipe: Recipe, vocabularies: Mapping[str, int], parameters: int) -> Problems:
    """The same of a model that is made for this with memory, if it is small."""
    if parameters > MOST_PARAMETERS or not foreign_words():
        return
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        yield from values(build(recipe, vocabularies))
