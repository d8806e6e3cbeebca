"""How long linear recurrences take, forward and backward, against a loop over the positions; by
hand.

    python -m benchmarks.scans

Batch 4, width 512, length 1,024, float32, one thread: the least processor time of several runs
each.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import Block, Context, Site, Stream
from blocks.core.linear_recurrence import linear_recurrence
from blocks.core.scope import Scope
from blocks.core.selective_scan import Selection, selective_scan
from blocks.long_conv import LongConv
from blocks.mamba import Mamba
from blocks.rg_lru import RgLru
from blocks.rnn import Rnn
from blocks.slstm import Slstm

BATCH, WIDTH, LENGTH, STATE = 4, 512, 1024, 16


def loop(a: Tensor, b: Tensor, before: Tensor) -> Tensor:
    """Run y_t = a_t y_(t-1) + b_t as it is written."""
    y = []
    for gain, entering in zip(a.unbind(1), b.unbind(1), strict=True):
        before = gain * before + entering
        y.append(before)
    return torch.stack(y, 1)


def selective_loop(selection: Selection, rate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Run the recurrence of a selective state space position by position."""
    outputs = []
    for dt, u, into, out in zip(*(x.unbind(1) for x in selection), strict=True):
        state = (dt[..., None] * rate).exp() * state + u[..., None] * into[:, None]
        outputs.append((state * out[:, None]).sum(-1))
    return torch.stack(outputs, 1), state


def least_seconds(run: Callable[[], Tensor], times: int = 5) -> tuple[float, float]:
    """Return the least seconds of a forward pass, and of one with its backward pass."""
    forward, both = [], []
    for _ in range(times):
        start = time.process_time()
        y = run()
        forward.append(time.process_time() - start)
        y.sum().backward()
        both.append(time.process_time() - start)
    return min(forward), min(both)


def report(name: str, run: Callable[[], Tensor], times: int = 5) -> None:
    """Print one row."""
    forward, both = least_seconds(run, times)
    print(
        f"{name:<40} {1e3 * forward:8.1f} ms forward {1e3 * both:8.1f} ms with backward", flush=True
    )


def compare_recurrences() -> None:
    """Time the recurrence of rg_lru and min_gru, and that of mamba, against their loops."""
    a, b = torch.rand(BATCH, LENGTH, WIDTH), torch.randn(BATCH, LENGTH, WIDTH)
    before = torch.zeros(BATCH, WIDTH)
    for x in (a, b):
        x.requires_grad_()
    report("linear recurrence, loop", lambda: loop(a, b, before))
    report("linear recurrence", lambda: linear_recurrence(a, b, before))
    inner = 2 * WIDTH
    wide = [torch.randn(BATCH, LENGTH, inner).requires_grad_() for _ in range(2)]
    narrow = [torch.randn(BATCH, LENGTH, STATE).requires_grad_() for _ in range(2)]
    selection = Selection(F.softplus(wide[0].detach()).requires_grad_(), wide[1], *narrow)
    rate, state = -torch.rand(inner, STATE), torch.zeros(BATCH, inner, STATE)
    report("selective scan, loop", lambda: selective_loop(selection, rate, state)[0], 2)
    report(
        "selective scan", lambda: selective_scan(selection, rate.mT.contiguous(), state.mT)[0], 2
    )


def time_blocks() -> None:
    """Time each block as a decoder's."""
    stream = Stream(WIDTH)
    site = Site(stream, WIDTH, Scope.root(stream), causal="a decoder")
    blocks = {
        "rnn: lstm": Rnn(site),
        "rnn: min_gru": Rnn(site, cell="min_gru"),
        "rg_lru": RgLru(site),
    }
    blocks |= {"long_conv": LongConv(site), "mamba": Mamba(site), "slstm": Slstm(site)}
    x = torch.randn(BATCH, LENGTH, WIDTH)
    context = Context(torch.ones(BATCH, LENGTH, dtype=torch.bool), {}, {})
    for name, block in blocks.items():
        report(name, run_block(block, x, context), 2)


def run_block(block: Block, x: Tensor, context: Context) -> Callable[[], Tensor]:
    """Return the function that runs a block from its start."""
    return lambda: block(x, block.start(x[:, :1], context), context)[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    compare_recurrences()
    time_blocks()
