"""Cost of active memory: time ratios of two variants, each pair timed alternately in one process.

    python -m benchmarks.active_memory [--rounds 15] [--device cpu] [--compile]

1. A CGRU, forward and backward, against its convolutions alone.
2. A batch of short rows against the same rows padded to the longest of a data set.
3. A repeat with `times: length`, with and without `recompute`: time, and bytes saved for the
backward pass.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.memory import seconds
from blocks.cgru import Cgru
from blocks.core.contract import Block, Context, Site, Stream
from blocks.core.scope import Scope
from blocks.core.stack import Stack
from blocks.repeat import Repeat

Call = Callable[[], Any]


class Size(NamedTuple):
    """Sizes of a CGRU and of its batch."""

    maps: int
    columns: int
    kernel: tuple[int, int]
    rows: int
    length: int


SIZES = (
    Size(24, 4, (3, 3), 32, 21),  # Kaiser & Sutskever 2016
    Size(96, 1, (3, 1), 32, 21),  # Freivalds & Liepins 2018
    Size(128, 4, (3, 3), 32, 20),
    Size(512, 4, (3, 3), 4, 20),  # Kaiser & Bengio 2016
)
SHORT, LONG = 10, 40


def grid_site(size: Size, builder: Any = None) -> Site:
    """Return a site of an encoder at which a grid of this size arrives."""
    stream = Stream(size.maps, True, columns=size.columns)
    return Site(stream, size.maps, Scope.root(stream), builder=builder)


def build_stack(site: Site, blocks: Any) -> Stack:
    """Build a stack of CGRUs."""
    cgrus: list[Block] = [Cgru(site, **settings) for settings in blocks]
    return Stack(site.stream, cgrus, [None] * len(cgrus))


def mask_of(size: Size, length: int, device: str) -> Tensor:
    """Return a mask of which the first `length` positions are real. -> (B, T, W)"""
    mask = torch.arange(size.length, device=device) < length
    return mask[None, :, None].expand(size.rows, -1, size.columns)


class Bare(nn.Module):
    """The two convolutions of a CGRU without anything else."""

    def __init__(self, cgru: Cgru) -> None:
        super().__init__()
        self.cgru = cgru

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = x.movedim(-1, 1)
        padding = [size // 2 for size in self.cgru.kernel]
        both, new = self.cgru.both, self.cgru.new
        return F.conv2d(z, both.weight, both.bias, padding=padding), F.conv2d(
            z, new.weight, new.bias, padding=padding
        )


def cgru_and_bare(size: Size, device: str, compiled: bool) -> tuple[Call, Call]:
    """Return a step of both, with the gradients of all inputs and parameters."""
    cgru = Cgru(grid_site(size), kernel=size.kernel).to(device)
    bare, context = Bare(cgru), Context(mask_of(size, size.length, device), {}, {})
    block: Any = torch.compile(cgru) if compiled else cgru
    x = torch.randn(
        size.rows, size.length, size.columns, size.maps, device=device, requires_grad=True
    )
    inputs = [x, *cgru.parameters()]
    one = torch.randn_like(x)
    other = [
        torch.randn_like(output).contiguous(memory_format=torch.channels_last) for output in bare(x)
    ]
    return (
        lambda: torch.autograd.grad(block(x, (), context)[0], inputs, one),
        lambda: torch.autograd.grad(bare(x), inputs, other),
    )


def build_repeat(size: Size, recompute: bool, device: str) -> Repeat:
    """Build a repeat of two CGRUs with as many iterations as positions."""
    torch.manual_seed(1)
    settings = [{"kernel": size.kernel}] * 2
    block = Repeat(
        grid_site(size, build_stack),
        times="length",
        stack=settings,
        share=True,
        recompute=recompute,
    )
    return block.to(device)


def training_step(block: Repeat, size: Size, length: int, device: str) -> Call:
    """Return a training step of a repeat on rows of `length`, padded to the length of `size`."""
    x = torch.randn(size.rows, size.length, size.columns, size.maps, device=device)
    context = Context(mask_of(size, length, device), {}, {})

    def step() -> Any:
        y, *_ = block(x, block.start(x[:, :1], context), context)
        return torch.autograd.grad(y.sum(), list(block.parameters()))

    return step


def warm_up_allocator() -> None:
    """Free a large block, as any training does: from then on the C library keeps freed memory.

    Without it, a single step requests its memory from the system each time, which can cost more
    than its arithmetic.
    """
    torch.empty(2**22)  # 16 MiB


def time_pair(one: Call, other: Call, rounds: int, device: str) -> tuple[float, float]:
    """Return the median duration of both."""
    pairs = [(seconds(one, device), seconds(other, device)) for _ in range(rounds + 2)][2:]
    first, second = zip(*pairs, strict=True)
    return statistics.median(first), statistics.median(second)


def saved_bytes(call: Call) -> int:
    """Return the bytes saved for the backward pass."""
    sizes: dict[int, int] = {}

    def record_size(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record_size, lambda tensor: tensor):
        call()
    return sum(sizes.values())


def format_row(label: str, one: float, other: float) -> str:
    return f"| {label} | {1000 * one:.1f} ms | {1000 * other:.1f} ms | {one / other:.2f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--compile", action="store_true", help="compile the CGRU first; takes a minute or more"
    )
    options = parser.parse_args()
    device, rounds = options.device, options.rounds
    warm_up_allocator()
    show = lambda line: print(line, flush=True)  # noqa: E731
    show("| comparison | first | second | ratio |\n|---|---|---|---|")
    for size in SIZES:
        one, other = time_pair(*cgru_and_bare(size, device, options.compile), rounds, device)
        kernel = " x ".join(map(str, size.kernel))
        label = (
            f"CGRU of {size.maps} maps, {size.columns} columns, {kernel} against its convolutions"
        )
        show(format_row(label, one, other))
    small = SIZES[0]._replace(rows=16)
    short, long = small._replace(length=SHORT), small._replace(length=LONG)
    block = build_repeat(small, False, device)
    steps = [training_step(block, size, SHORT, device) for size in (short, long)]
    one, other = time_pair(steps[0], steps[1], rounds, device)
    show(format_row(f"rows of {SHORT}, padded to {SHORT} against {LONG}", one, other))
    steps = [
        training_step(build_repeat(long, recompute, device), long, LONG, device)
        for recompute in (True, False)
    ]
    one, other = time_pair(steps[0], steps[1], rounds, device)
    show(format_row(f"{LONG} steps with `recompute` against without", one, other))
    less, more = (saved_bytes(recompute) / 2**20 for recompute in steps)
    show(
        f"| bytes saved for their backward pass | {less:.1f} MiB | {more:.1f} MiB |"
        f" {less / more:.2f} |"
    )


if __name__ == "__main__":
    main()
