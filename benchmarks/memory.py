"""Speed of the `ntm` memory against its matrix products alone, and against the paper's equations
written as a loop.

    python -m benchmarks.memory [--rounds 20] [--steps 8] [--device cpu]

A step is one position of the whole batch, forward and backward, with one read and one write head.
The matrix products are those that any implementation needs: similarity of keys and slots, erase and
add, read, and their gradients, each a separate call. Rounds alternate in one process and the
fastest counts; on a CPU the time is CPU time, which other load disturbs less.
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
from composer.inference.freed_memory import keep_freed_memory

WIDTH = 100
SIZES = ((32, 128, 20), (128, 128, 20), (32, 512, 64), (128, 512, 64))
"""Batch size, slots, slot width."""
Run = Callable[[], None]


def ntm_block(batch: int, slots: int, width: int, steps: int) -> Run:
    """Return a step of the block, all positions in one call."""
    stream = Stream(WIDTH)
    ntm = Ntm(Site(stream, WIDTH, Scope.root(stream)), slots=slots, slot_width=width)
    x = torch.randn(batch, steps, WIDTH, requires_grad=True)
    context = Context(torch.ones(batch, steps, dtype=torch.bool), {}, {})

    def run() -> None:
        y, _ = ntm(x, ntm.start(x[:, :1], context), context)
        torch.autograd.grad(y.sum(), [x, *ntm.parameters()])

    return run


def equations_as_loop(batch: int, slots: int, width: int, steps: int) -> Run:
    """Return a step of equations 2 to 9 as a loop over positions and heads, with gradients by
    autograd.
    """
    x = torch.randn(batch, steps, WIDTH, requires_grad=True)
    maps = torch.nn.ModuleList(
        [torch.nn.Linear(WIDTH, size) for size in (width + 6, 3 * width + 6)]
    )

    def address(numbers: Tensor, memory: Tensor, w: Tensor) -> Tensor:
        key, (beta, gate), shift = (
            torch.tanh(numbers[:, :width]),
            numbers[:, width : width + 2].split(1, 1),
            numbers[:, -4:],
        )
        similarity = F.cosine_similarity(torch.tanh(key)[:, None], memory, dim=-1)  # (B, N)
        content = (F.softplus(beta) * similarity).softmax(-1)
        gated = torch.sigmoid(gate) * content + (1 - torch.sigmoid(gate)) * w
        s = shift[:, :3].softmax(-1)
        moved = gated.roll(-1, 1) * s[:, :1] + gated * s[:, 1:2] + gated.roll(1, 1) * s[:, 2:]
        sharp = (moved + 1e-16) ** (1 + F.softplus(shift[:, 3:]))
        return sharp / sharp.sum(-1, keepdim=True)

    def run() -> None:
        memory, reads = torch.full((batch, slots, width), 1e-6), []
        reading = writing = F.one_hot(torch.zeros(batch, dtype=torch.long), slots).float()
        for one in x.unbind(1):
            read_numbers, write_numbers = maps[0](one), maps[1](one)
            reading = address(read_numbers, memory, reading)
            writing = address(write_numbers[:, : width + 6], memory, writing)
            erase, add = write_numbers[:, width + 6 :].chunk(2, 1)
            memory = memory * (1 - writing[:, :, None] * torch.sigmoid(erase)[:, None])
            memory = memory + writing[:, :, None] * torch.tanh(add)[:, None]
            reads.append((reading[:, :, None] * memory).sum(1))
        torch.autograd.grad(torch.stack(reads).sum(), [x, *maps.parameters()])

    return run


def matrix_products(batch: int, slots: int, width: int, steps: int) -> Run:
    """Return a step of four matrix products and their eight gradients."""
    keys, memory = torch.randn(batch, 2, width), torch.randn(batch, slots, width)
    writing, reading = torch.rand(batch, slots, 1), torch.rand(batch, 1, slots)
    inputs = [
        tensor.requires_grad_()
        for tensor in (keys, memory, writing, reading, torch.randn(batch, 1, width))
    ]

    def run() -> None:
        for _ in range(steps):
            products = [
                keys @ memory.mT,
                writing @ inputs[4],
                writing @ inputs[4],
                reading @ memory,
            ]
            torch.autograd.grad(products, inputs, [tensor.detach() for tensor in products])

    return run


def seconds(run: Run, device: str) -> float:
    """Return the duration of a call: CPU time on a CPU, else wall time with synchronisation."""
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
    """Print a row for each size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.manual_seed(1)
    print(
        "batch  slots  products     block        loop   block/products  loop/block   (ms per step)"
    )
    for batch, slots, width in SIZES:
        with torch.device(arguments.device):
            sides = (matrix_products, ntm_block, equations_as_loop)
            runs = [side(batch, slots, width, arguments.steps) for side in sides]
            rounds = [
                [seconds(run, arguments.device) for run in runs]
                for _ in range(arguments.rounds + 1)
            ][1:]
        products, block, loop = (
            1e3 * min(times) / arguments.steps for times in zip(*rounds, strict=True)
        )
        print(
            f"{batch:5} {slots:4}x{width:<3} {products:8.3f}  {block:8.3f}    {loop:8.3f}   "
            f" {block / products:8.2f}  {loop / block:15.2f}"
        )


if __name__ == "__main__":
    main()
