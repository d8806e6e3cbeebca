"""Sites and contexts without the composer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from blocks.core.contract import Block, BlockError, Context, Named, Output, Site, State, Stream
from blocks.core.scope import Scope
from blocks.core.stack import Stack
from blocks.identity import Identity


class NoNumbersFromPython(TorchFunctionMode):
    """Refuses tensors made of Python's numbers: a GPU waits for each to be copied."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        assert function not in (torch.tensor, torch.as_tensor), (
            "a tensor is made of Python's numbers"
        )
        return function(*args, **(kwargs or {}))


def stack_of(site: Site, blocks: Sequence[Any]) -> Stack:
    """A builder: blocks are {"block": Class, "as": name, setting: value ...}."""
    built, names, stream = [], [], site.stream
    for written in blocks:
        settings = dict(written)
        block, name = settings.pop("block"), settings.pop("as", None)
        built.append(block(replace(site, stream=stream), **settings))
        names.append(name)
        if name is not None:
            site.names.define(name, Named(built[-1].out, built[-1].state_kind))
        stream = built[-1].out
    return Stack(site.stream, built, names)


def dry_stack_of(site: Site, blocks: Sequence[Any]) -> Stack:
    """The same on the meta device, where a block that is refused has a stand-in."""

    def stand_in(block: Any) -> Any:
        def make(site: Site, **settings: Any) -> Block:
            try:
                return block(site, **settings)
            except BlockError:
                return Identity(site)

        return make

    with torch.device("meta"):
        return stack_of(
            site, [{**written, "block": stand_in(written["block"])} for written in blocks]
        )


def site_of(
    width: int,
    *,
    causal: str = "",
    model: int | None = None,
    memories: dict[str, Named] | None = None,
) -> Site:
    """A site where a sequence `width` wide arrives; `model` is model.width."""
    memories = memories or {}
    encoders = [name for name in memories if "." not in name]
    stream = Stream(width)
    return Site(
        stream,
        model or width,
        Scope.root(stream),
        memories,
        encoders,
        causal,
        (),
        stack_of,
        dry_stack_of,
    )


def grid_site(
    width: int, columns: int, *, causal: str = "", model: int | None = None, **beside: Stream
) -> Site:
    """A site where a grid arrives; `beside` are streams that can be read by name."""
    stream = Stream(width, True, columns=columns)
    names = Scope.root(stream)
    for name, item in beside.items():
        names.define(name, Named(item))
    return replace(site_of(width, causal=causal, model=model), stream=stream, names=names)


def cells_of(columns: int, *lengths: int) -> Tensor:
    """(B, T, W) for rows of these lengths, every column real."""
    return mask_of(*lengths)[..., None].expand(-1, -1, columns)


def context_of(mask: Tensor, memories: dict[str, Output] | None = None, **board: Tensor) -> Context:
    """A context with `mask`, and `board` as named outputs at the same positions."""
    return Context(
        mask, {name: Output(states, mask) for name, states in board.items()}, memories or {}
    )


def mask_of(*lengths: int) -> Tensor:
    """(B, T) for rows of these lengths."""
    return torch.arange(max((1, *lengths))) < torch.tensor(lengths)[:, None]


def run(
    block: Block, x: Tensor, mask: Tensor | None = None, **memories: Output
) -> tuple[Tensor, State]:
    """The block over whole rows, from its own start."""
    mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    context = context_of(mask, memories, input=x)
    y, state, *_ = block(x, block.start(x[:, :1], context), context)
    return y, state


def leaves(state: State) -> list[Tensor]:
    """The tensors of a state."""
    return (
        [state] if isinstance(state, Tensor) else [leaf for part in state for leaf in leaves(part)]
    )


def close(a: Any, b: Any) -> None:
    """Equal up to rounding: tensors or states."""
    for left, right in zip(leaves(a), leaves(b), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)


def keeps_chunks(block: Block, x: Tensor, lengths: Sequence[int]) -> None:
    """Rows cut into chunks, each padded where the other row goes on, equal each row alone: outputs
    and last state.
    """
    for row, length in enumerate(lengths):
        alone, last = run(block, x[row : row + 1, : max(length, 1)], mask_of(length))
        together, state = _chunked(block, x, lengths, row)
        close(together, alone[0, :length])
        close(tuple(leaf[row : row + 1] for leaf in leaves(state)), tuple(leaves(last)))


def in_pieces(block: Block, x: Tensor, lengths: Sequence[int], row: int) -> Tensor:
    """The outputs of a row whose neighbours pause where it goes on, and go on where it pauses."""
    taken, outputs = [0] * len(lengths), []
    state = block.start(x[:, :1], context_of(mask_of(1, 1, 1)))
    while taken != [*lengths]:
        sizes = [
            min(length - done, (3 * len(outputs) + 2 * item) % 4)
            for item, (length, done) in enumerate(zip(lengths, taken, strict=True))
        ]
        chunk = torch.full((len(lengths), max(1, *sizes), x.shape[-1]), 5.0)
        for item, size in enumerate(sizes):
            chunk[item, :size] = x[item, taken[item] : taken[item] + size]
            taken[item] += size
        y, state, *_ = block(
            chunk, state, context_of(torch.arange(chunk.shape[1]) < torch.tensor(sizes)[:, None])
        )
        outputs.append(y[row, : sizes[row]])
    return torch.cat(outputs)


def _chunked(block: Block, x: Tensor, lengths: Sequence[int], row: int) -> tuple[Tensor, State]:
    taken, outputs = [0] * len(lengths), []
    state = block.start(x[:, :1], context_of(torch.ones(len(lengths), 1, dtype=torch.bool)))
    for sizes in _cuts(lengths):
        width = max(1, *sizes)
        chunk = torch.full((len(lengths), width, x.shape[-1]), 7.0, dtype=x.dtype)
        for item, size in enumerate(sizes):
            chunk[item, :size] = x[item, taken[item] : taken[item] + size]
            taken[item] += size
        mask = torch.arange(width) < torch.tensor(sizes)[:, None]
        y, state, *_ = block(chunk, state, context_of(mask))
        outputs.append(y[row, : sizes[row]])
    return torch.cat(outputs), state


def _cuts(lengths: Sequence[int]) -> list[list[int]]:
    """Chunks of every kind: several positions, single ones, rows that are empty."""
    pattern, left, cuts = [3, 0, 1, 2, 1], list(lengths), []
    while any(left):
        sizes = [min(rest, pattern[(len(cuts) + 2 * row) % 5]) for row, rest in enumerate(left)]
        left = [rest - size for rest, size in zip(left, sizes, strict=True)]
        cuts.append(sizes)
    return cuts
