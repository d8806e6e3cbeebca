"""FLOPs and state bytes of a model on the meta device; finds the block that fails there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from blocks.core.contract import Block
from blocks.core.recurrence import RecurrentLayer
from composer.errors import BlockCodeErrors, error_of_code
from composer.model.builder import ASK_AUTHOR
from composer.model.ctc import ctc_of
from composer.model.encoder_decoder import (
    EncoderDecoder,
    example_ids,
    example_sources,
    is_state,
    state_bytes,
)
from composer.model.meta_device import MetaCache

TOKENS = 32
"""Source and target tokens of the pair for which FLOPs and state bytes are given."""
MOST_CALLS = 100_000
"""Calls of blocks for one pair: a model with more would train for ever."""


class BlockFailed(Exception):
    """A block cannot compute with its input, or its output is not the stream it promised."""

    def __init__(
        self, block: Block, message: str, fix: str = ASK_AUTHOR, code: str = "block"
    ) -> None:
        super().__init__(message)
        self.block, self.message, self.fix, self.code = block, message, fix, code


class Costs(NamedTuple):
    """FLOPs of blocks, bytes of their last states, and the first row of each parameter, by ids."""

    flops: Counter[int]
    state_bytes: Counter[int]
    owners: dict[int, str]


def steps_as_rows(layer: RecurrentLayer) -> Callable[..., Any]:
    """Return `forward` of a recurrent layer with positions as rows of one step: the same FLOPs."""
    forward = layer.forward

    def step(x: Tensor, state: tuple[Tensor, ...], mask: Tensor) -> Any:
        before = tuple(leaf.repeat_interleave(x.shape[1], 0) for leaf in state)
        y, after = forward(x.flatten(0, 1)[:, None], before, mask.flatten()[:, None])  # (B T, 1, D)
        return y.view(*x.shape[:2], -1), tuple(leaf[: len(x)] for leaf in after)

    return step


def measure_costs(model: EncoderDecoder) -> tuple[Costs, int]:
    """Return the costs of blocks, embeddings and output, and the model's FLOPs.

    Raises BlockFailed if a block fails, or if there are too many calls.
    """
    costs = Costs(Counter(), Counter(), {})
    model.eval()
    cache, calls = MetaCache(), count()

    def metered(block: Block, name: str) -> Callable[..., Any]:
        call = attribute_failures(block, name)

        def run(*args: Any) -> Any:
            if block.path and next(calls) >= MOST_CALLS:
                message = (
                    f"more than {MOST_CALLS:,} steps are taken for one pair of {TOKENS} tokens"
                )
                raise BlockFailed(block, message, "repeat less often, or fewer blocks", "size")
            before = cache.flops
            result = call(*args)
            costs.flops[id(block)] += cache.flops - before
            # a block may run many times: in a loop from the state that it left, in a shared repeat
            # from another one
            if name == "forward":
                costs.state_bytes[id(block)] += state_bytes(result[1]) - state_bytes(args[1])
            elif name == "start":
                costs.state_bytes[id(block)] += state_bytes(result)
            return result

        return run

    embeddings = {model.embedding, *(encoder.embedding for encoder in model.readers().values())}
    ctc = ctc_of(model)
    # by which they are called beside `forward`
    methods: list[tuple[nn.Module, str]] = [(model.output, "cost")]
    methods += [(ctc, name) for name in ("start", "step") if ctc is not None]
    for part, name in methods:
        setattr(part, name, counted(part, getattr(part, name), costs, cache))
    for part in filter(None, {model.output, *embeddings} - {ctc}):
        part.register_forward_pre_hook(
            lambda part, _: costs.flops.subtract({id(part): cache.flops})
        )
        part.register_forward_hook(lambda part, *_: costs.flops.update({id(part): cache.flops}))
    with cache, torch.no_grad(), wrap_blocks(model, metered):
        ids = example_ids(model, TOKENS)
        model(example_sources(model, TOKENS), ids, answer=ids)
    for part, name in methods:
        delattr(part, name)
    model.train()
    return costs, cache.flops


def counted(
    part: nn.Module, call: Callable[..., object], costs: Costs, cache: MetaCache
) -> Callable[..., Any]:
    """Return a method of a part that adds its FLOPs to the costs."""

    def run(*args: Any) -> Any:
        before = cache.flops
        result = call(*args)
        costs.flops[id(part)] += cache.flops - before
        return result

    return run


@contextmanager
def wrap_blocks(
    model: nn.Module, wrap: Callable[[Block, str], Callable[..., object]]
) -> Iterator[None]:
    """Replace methods of every block by `wrap` of them, and recurrent steps by rows.

    Forward hooks do not serve: `start` and `mask` have none, and a hook does not see that a call
    raises.
    """
    methods: list[tuple[nn.Module, str, Callable[..., Any]]] = []
    for module in model.modules():
        if isinstance(module, Block):
            methods += [(module, name, wrap(module, name)) for name in ("start", "forward", "mask")]
        elif isinstance(module, RecurrentLayer):
            methods.append((module, "forward", steps_as_rows(module)))
    for module, name, method in methods:
        # set on the instance, so that it is found before the class's own and can be removed again
        setattr(module, name, method)
    try:
        yield
    finally:
        for module, name, _ in methods:
            delattr(module, name)


def attribute_failures(block: Block, name: str) -> Callable[..., Any]:
    """Return a block's method that raises BlockFailed for the innermost block that fails."""
    call = getattr(block, name)

    def checked(x: Tensor, *rest: Any) -> object:
        try:
            result = call(x, *rest)
        except BlockCodeErrors as error:  # a plug-in's block may raise anything
            if not block.path or isinstance(error, BlockFailed):
                raise
            message = (
                f"`{block.path[-1]}` fails where {tuple(x.shape)} arrives: {error_of_code(error)}"
            )
            raise BlockFailed(block, message, failure_hint(block, x)) from error
        if block.path and (violation := contract_violation(block, name, x, result)):
            raise BlockFailed(block, violation, failure_hint(block, x))
        return result

    return checked


def failure_hint(block: Block, x: Tensor) -> str:
    """Return the fix for a block that fails on x: perhaps it was never meant for grids."""
    if x.dim() != 4:
        return ASK_AUTHOR
    return (
        f"put `- select_column: 0`, `- sum_columns` or `- flatten` before it; its author refuses a"
        f" grid with "
        f'`self.out = site.sequence("{block.path[-1]}")`'
    )


def contract_violation(block: Block, name: str, x: Tensor, result: Any) -> str:
    """Say how a method's result breaks the contract or the block's promise; "" if it does not."""
    word, out = block.path[-1], block.out
    if name == "mask":
        return "" if isinstance(result, Tensor) else f"`mask` of `{word}` returns no tensor"
    if name == "start":
        if is_state(result):
            return ""
        return f"`start` of `{word}` returns neither a tensor nor a tuple of tensors"
    # combinators return their named outputs too
    is_step = isinstance(result, tuple) and 2 <= len(result) <= 3 and isinstance(result[0], Tensor)
    if not (
        is_step
        and is_state(result[1])
        and all(isinstance(outputs, Mapping) for outputs in result[2:])
    ):
        return (
            f"`forward` of `{word}` does not return its output and its state after, tensors or"
            " tuples of them"
        )
    if result[0].shape[2:] != ((out.columns, out.width) if out.grid else (out.width,)):
        return (
            f"`{word}` says that it leaves {out.described}, {out.width} wide, and leaves"
            f" {tuple(result[0].shape)}"
        )
    rows, positions = expected_positions(block, x)
    if result[0].shape[:2] == (rows, positions):
        return ""
    return (
        f"`{word}` says that it leaves {rows} x {positions} positions, and leaves"
        f" {tuple(result[0].shape[:2])}"
    )


def expected_positions(block: Block, x: Tensor) -> tuple[int, int]:
    """Return the numbers of rows and positions of a block's output, by its `mask`.

    Raises BlockFailed if that fails.
    """
    if type(block).mask is Block.mask:
        return x.shape[0], x.shape[1]
    mask = block.mask(
        torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    )  # (B, T') or (B, T', W')
    return mask.shape[0], mask.shape[1]
