"""What active memory costs beside what it cannot do without: ratios, each of two things timed in turns in one process.

    python benchmarks/active_memory.py [--rounds 15] [--device cpu] [--compile]

1. A CGRU, forwards and backwards, beside its convolutions alone.
2. A batch of short rows beside the same rows in a batch as wide as the longest of a data set.
3. A repeat as long as its rows with and without `recompute`: time, and the values that are kept for the gradients.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.cgru import Cgru
from blocks.core.contract import Block, Context, Site, Stream
from blocks.core.scope import Scope
from blocks.core.stack import Stack
from blocks.repeat import Repeat

Call = Callable[[], Any]


class Size(NamedTuple):
    """Of a CGRU and its batch."""

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


def site(size: Size, builder: Any = None) -> Site:
    """Where a grid of this size arrives, in an encoder."""
    stream = Stream(size.maps, True, columns=size.columns)
    return Site(stream, size.maps, Scope.root(stream), builder=builder)


def stacked(here: Site, blocks: Any) -> Stack:
    """Two CGRUs."""
    built: list[Block] = [Cgru(here, **settings) for settings in blocks]
    return Stack(here.stream, built, [None] * len(built))


def mask_of(size: Size, length: int, device: str) -> Tensor:
    """All of the first `length` positions are real. -> (B, T, W)"""
    mask = torch.arange(size.length, device=device) < length
    return mask[None, :, None].expand(size.rows, -1, size.columns)


class Bare(nn.Module):
    """The convolutions of a CGRU and nothing else."""

    def __init__(self, cgru: Cgru) -> None:
        super().__init__()
        self.cgru = cgru

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = x.movedim(-1, 1)
        padding = [each // 2 for each in self.cgru.kernel]
        both, new = self.cgru.both, self.cgru.new
        return F.conv2d(z, both.weight, both.bias, padding=padding), F.conv2d(z, new.weight, new.bias, padding=padding)


def cgru_and_bare(size: Size, device: str, compiled: bool) -> tuple[Call, Call]:
    """A step of both, gradients of all that they read included."""
    cgru = Cgru(site(size), kernel=size.kernel).to(device)
    bare, context = Bare(cgru), Context(mask_of(size, size.length, device), {}, {})
    block: Any = torch.compile(cgru) if compiled else cgru
    x = torch.randn(size.rows, size.length, size.columns, size.maps, device=device, requires_grad=True)
    read = [x, *cgru.parameters()]
    one = torch.randn_like(x)
    other = [torch.randn_like(each).contiguous(memory_format=torch.channels_last) for each in bare(x)]
    return (
        lambda: torch.autograd.grad(block(x, (), context)[0], read, one),
        lambda: torch.autograd.grad(bare(x), read, other),
    )


def repeat_of(size: Size, recompute: bool, device: str) -> Repeat:
    """Two CGRUs, as many times as there are positions."""
    torch.manual_seed(1)
    settings = [{"kernel": size.kernel}] * 2
    made = Repeat(site(size, stacked), times="length", stack=settings, share=True, recompute=recompute)
    return made.to(device)


def step_of(made: Repeat, size: Size, length: int, device: str) -> Call:
    """A step of training of a repeat over rows of `length` in a batch that is as wide as the size says."""
    x = torch.randn(size.rows, size.length, size.columns, size.maps, device=device)
    context = Context(mask_of(size, length, device), {}, {})

    def step() -> Any:
        y, *_ = made(x, made.start(x[:, :1], context), context)
        return torch.autograd.grad(y.sum(), list(made.parameters()))

    return step


def seconds(call: Call, device: str) -> float:
    """How long it takes: on a CPU the process's own time."""
    if device != "cpu":
        torch.cuda.synchronize()
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    call()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - began


def settle() -> None:
    """Frees a large block, as any training has: from then on the C library keeps smaller ones that are freed.

    Without it a step alone asks the system for its memory anew each time, which can cost more than its arithmetic.
    """
    torch.empty(2**22)  # 16 MiB


def in_turns(one: Call, other: Call, rounds: int, device: str) -> tuple[float, float]:
    """The medians of both."""
    pairs = [(seconds(one, device), seconds(other, device)) for _ in range(rounds + 2)][2:]
    first, second = zip(*pairs, strict=True)
    return statistics.median(first), statistics.median(second)


def kept(call: Call) -> int:
    """Bytes of the values that are kept for the gradients."""
    sizes: dict[int, int] = {}

    def note(each: Tensor) -> Tensor:
        sizes[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        return each

    with torch.autograd.graph.saved_tensors_hooks(note, lambda each: each):
        call()
    return sum(sizes.values())


def told(what: str, one: float, other: float) -> str:
    """A row of the table."""
    return f"| {what} | {1000 * one:.1f} ms | {1000 * other:.1f} ms | {one / other:.2f} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="compile the CGRU first; takes a minute or more")
    options = parser.parse_args()
    device, rounds = options.device, options.rounds
    settle()
    show = lambda line: print(line, flush=True)  # noqa: E731
    show("| what | it takes | beside | ratio |\n|---|---|---|---|")
    for size in SIZES:
        one, other = in_turns(*cgru_and_bare(size, device, options.compile), rounds, device)
        kernel = " x ".join(map(str, size.kernel))
        show(told(f"CGRU of {size.maps} maps, {size.columns} columns, {kernel}: beside its convolutions", one, other))
    small = SIZES[0]._replace(rows=16)
    short, long = small._replace(length=SHORT), small._replace(length=LONG)
    made = repeat_of(small, False, device)
    one, other = in_turns(step_of(made, short, SHORT, device), step_of(made, long, SHORT, device), rounds, device)
    show(told(f"a batch of rows of {SHORT}: beside them in a batch {LONG} wide", one, other))
    steps = [step_of(repeat_of(long, each, device), long, LONG, device) for each in (True, False)]
    one, other = in_turns(steps[0], steps[1], rounds, device)
    show(told(f"{LONG} steps with `recompute`: beside without", one, other))
    less, more = (kept(each) / 2**20 for each in steps)
    show(f"| values kept for the gradients of these | {less:.1f} MiB | {more:.1f} MiB | {less / more:.2f} |")


if __name__ == "__main__":
    main()
