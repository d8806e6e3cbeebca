"""The memory of `ntm` beside its bare matrix products, and beside a loop written as the paper's equations stand.

    python benchmarks/memory.py [--rounds 20] [--steps 8] [--device cpu]

A step is one position of the whole batch, forward and backward, one head that reads and one that writes. The bare
products are those that no form of it can do without: the likeness of keys and slots, what is erased and what is added,
and what is read, with their gradients, each a call of its own. Interleaved rounds in one process, of which the fastest
counts; on a CPU it is the processor's time, so that a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from blocks.core.contract import Context, Site, Stream
from blocks.core.scope import Scope
from blocks.ntm import Ntm
from composer.training.setup import keep_freed_memory

WIDTH = 100
SIZES = ((32, 128, 20), (128, 128, 20), (32, 512, 64), (128, 512, 64))
"""Rows of a batch, slots, and the width of a slot."""
Run = Callable[[], None]


def ours(batch: int, slots: int, width: int, steps: int) -> Run:
    """The block, all positions in one call."""
    stream = Stream(WIDTH)
    ntm = Ntm(Site(stream, WIDTH, Scope.root(stream)), slots=slots, slot_width=width)
    x = torch.randn(batch, steps, WIDTH, requires_grad=True)
    context = Context(torch.ones(batch, steps, dtype=torch.bool), {}, {})

    def run() -> None:
        y, _ = ntm(x, ntm.start(x[:, :1], context), context)
        torch.autograd.grad(y.sum(), [x, *ntm.parameters()])

    return run


def as_written(batch: int, slots: int, width: int, steps: int) -> Run:
    """Equations 2 to 9 as a person would write them down: a position and a head at a time, gradients by autograd."""
    x = torch.randn(batch, steps, WIDTH, requires_grad=True)
    maps = torch.nn.ModuleList([torch.nn.Linear(WIDTH, size) for size in (width + 6, 3 * width + 6)])

    def place(numbers: Tensor, memory: Tensor, w: Tensor) -> Tensor:
        key, (beta, gate), shift = (
            torch.tanh(numbers[:, :width]),
            numbers[:, width : width + 2].split(1, 1),
            numbers[:, -4:],
        )
        alike = F.cosine_similarity(torch.tanh(key)[:, None], memory, dim=-1)  # (B, N)
        content = (F.softplus(beta) * alike).softmax(-1)
        gated = torch.sigmoid(gate) * content + (1 - torch.sigmoid(gate)) * w
        s = shift[:, :3].softmax(-1)
        moved = gated.roll(-1, 1) * s[:, :1] + gated * s[:, 1:2] + gated.roll(1, 1) * s[:, 2:]
        sharp = (moved + 1e-16) ** (1 + F.softplus(shift[:, 3:]))
        return sharp / sharp.sum(-1, keepdim=True)

    def run() -> None:
        memory, reads = torch.full((batch, slots, width), 1e-6), []
        reading = writing = F.one_hot(torch.zeros(batch, dtype=torch.long), slots).float()
        for one in x.unbind(1):
            asked, told = maps[0](one), maps[1](one)
            reading, writing = place(asked, memory, reading), place(told[:, : width + 6], memory, writing)
            erase, add = told[:, width + 6 :].chunk(2, 1)
            memory = memory * (1 - writing[:, :, None] * torch.sigmoid(erase)[:, None])
            memory = memory + writing[:, :, None] * torch.tanh(add)[:, None]
            reads.append((reading[:, :, None] * memory).sum(1))
        torch.autograd.grad(torch.stack(reads).sum(), [x, *maps.parameters()])

    return run


def bare(batch: int, slots: int, width: int, steps: int) -> Run:
    """Four matrix products a step, and their eight gradients."""
    keys, memory = torch.randn(batch, 2, width), torch.randn(batch, slots, width)
    writing, reading = torch.rand(batch, slots, 1), torch.rand(batch, 1, slots)
    inputs = [each.requires_grad_() for each in (keys, memory, writing, reading, torch.randn(batch, 1, width))]

    def run() -> None:
        for _ in range(steps):
            made = [keys @ memory.mT, writing @ inputs[4], writing @ inputs[4], reading @ memory]
            torch.autograd.grad(made, inputs, [each.detach() for each in made])

    return run


def seconds(run: Run, device: str) -> float:
    """How long it takes: the processor's time on a CPU, else until the device is done."""
    if device == "cpu":
        since = time.process_time()
        run()
        return time.process_time() - since
    torch.cuda.synchronize()
    since = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - since


def main() -> None:
    """Prints a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(1)
    print("batch  slots      bare      ours  as written   ours/bare  as written/ours   (ms a step)")
    for batch, slots, width in SIZES:
        with torch.device(arguments.device):
            runs = [make(batch, slots, width, arguments.steps) for make in (bare, ours, as_written)]
            rounds = [[seconds(run, arguments.device) for run in runs] for _ in range(arguments.rounds + 1)][1:]
        products, block, loop = (1e3 * min(each) / arguments.steps for each in zip(*rounds, strict=True))
        print(
            f"{batch:5} {slots:4}x{width:<3} {products:8.3f}  {block:8.3f}    {loop:8.3f}    {block / products:8.2f}"
            f"  {loop / block:15.2f}"
        )


if __name__ == "__main__":
    main()
