"""What blocks that are not of this project compute: finite numbers, and in a decoder nothing of the
future.

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
    """What a block was given, and what it left."""

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
    words, blocks = (
        foreign_words(),
        [block for block in model.modules() if isinstance(block, Block) and block.path],
    )
    if not words.intersection(str(block.path[-1]) for block in blocks):
        return
    target = example_ids(model, POSITIONS)
    other = target.clone()
    other[:, SAME:] = model.vocabulary - 1
    try:
        with torch.random.fork_rng(devices=[]):
            # a loop may end earlier
            pairs = [*zip(calls_of(model, target), calls_of(model, other), strict=False)]
    except BlockFailed as failed:
        yield Problem(failed.code, failed.block.path or ("model",), failed.message, failed.fix)
        return
    in_decoder = {id(block) for block in model.decoder.modules()}
    for one, two in pairs:
        if str(one.block.path[-1]) not in words or one.block is not two.block:
            continue
        path, word = one.block.path, one.block.path[-1]
        if one.x.isfinite().all() and not one.y.isfinite().all():
            message = f"`{word}` gives NaN or infinite numbers where finite ones arrive"
            yield Problem("block", path, message, ASK_AUTHOR)
            return
        if id(one.block) in in_decoder and does_read_future(one, two):
            message = (
                f"a decoder may not read the future, and `{word}` does: what it leaves of the first"
                f" {SAME} "
            )
            message += "positions depends on those after them"
            yield Problem("causality", path, message, f"put it into an encoder, or {ASK_AUTHOR}")
            return


def calls_of(model: EncoderDecoder, target: Tensor) -> list[Call]:
    """Return what every block of a recipe was given and left, inner ones first, for these tokens.
    target: (1, T)
    """
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


def does_read_future(one: Call, two: Call) -> bool:
    """Return whether a block's first outputs differ although what it was given first is the same."""
    if not one.x.shape[1] == one.y.shape[1] == POSITIONS:
        return False  # in a loop over positions nothing of the future is there
    return not changed(one.x, two.x) and changed(one.y, two.y)


def changed(one: Tensor, other: Tensor) -> bool:
    """Return whether the first positions of two streams differ by more than rounding."""
    difference = (one[:, :SAME] - other[:, :SAME]).abs().max()
    return bool(difference > LEAST_CHANGE * one.abs().max())


def planned_values(recipe: Recipe, vocabularies: Mapping[str, int], parameters: int) -> Problems:
    """The same of a model that is made for this with memory, if it is small."""
    if parameters > MOST_PARAMETERS or not foreign_words():
        return
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)
        yield from values(build(recipe, vocabularies))
