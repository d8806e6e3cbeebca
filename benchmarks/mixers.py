"""How long blocks with an outer-product state take, how that grows with the length, and what a
decoding step costs.

    python -m benchmarks.mixers [--tables steps lengths decoding]

Batch 4, width 512, 8 heads, float32, one thread; seconds are the least of several runs. Three
tables: 1,024 positions, forward and backward, of the scan alone and of a decoder's block, against a
loop over the positions in the scan's place; the exponent of that time in the length, up to 16,384
in one row; and the time of one token, with the bytes of state, after prefixes of several lengths,
with self-attention beside it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from blocks.core.contract import Block, Context, Site, State, Stream
from blocks.core.outer_product_state import scan_outer_products, step_outer_product
from blocks.core.scope import Scope
from blocks.gated_linear_attention import GatedLinearAttention
from blocks.linear_attention import LinearAttention
from blocks.mamba2 import Mamba2
from blocks.mlstm import Mlstm
from blocks.retention import Retention
from blocks.self_attention import SelfAttention
from composer.model.encoder_decoder import state_bytes

BATCH, WIDTH, HEADS, LENGTH = 4, 512, 8, 1024
LENGTHS = (1024, 2048, 4096, 8192, 16384)
PREFIXES = (16, 256, 1024, 4096)
TOKENS = 50
MIXERS: dict[str, tuple[type[Block], dict[str, Any]]] = {
    "linear_attention": (LinearAttention, {}),
    "retention": (Retention, {}),
    "gated_linear_attention": (GatedLinearAttention, {}),
    "mamba2": (Mamba2, {"head_width": 2 * WIDTH // HEADS}),
    "mlstm": (Mlstm, {}),
}


def build(kind: type[Block], settings: dict[str, Any]) -> Block:
    """Build a decoder's block."""
    torch.manual_seed(1)
    stream = Stream(WIDTH)
    return kind(
        Site(stream, WIDTH, Scope.root(stream), causal="a decoder"), heads=HEADS, **settings
    )


def context_of(x: Tensor) -> Context:
    """Return a context in which every position is real."""
    return Context(torch.ones(x.shape[:2], dtype=torch.bool), {}, {})


def run(block: Block, x: Tensor, state: State = None) -> tuple[Tensor, State]:
    """Run a block from a state, or from its start."""
    context = context_of(x)
    y, after, *_ = block(x, block.start(x[:, :1], context) if state is None else state, context)
    return y, after


def loop_over_positions(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor, **settings: object
) -> tuple[Tensor, Tensor]:
    """Compute what `scan_outer_products` does as the equation is written."""
    length, outputs = query.shape[-2], []
    parts = (
        x.expand(*x.shape[:-2], length, -1).split(1, -2) for x in (query, key, value, log_decay)
    )
    for q, k, v, a in zip(*parts, strict=True):
        y, state = step_outer_product(q, k, v, a, state)
        outputs.append(y)
    return torch.cat(outputs, -2), state


@contextmanager
def looping(kind: type[Block]) -> Iterator[None]:
    """Put the loop in place of the scan while entered."""
    module: Any = import_module(kind.__module__)
    scan, module.scan_outer_products = module.scan_outer_products, loop_over_positions
    try:
        yield
    finally:
        module.scan_outer_products = scan


def least_seconds(call: Callable[[], object], times: int) -> float:
    """Return the least processor time of several calls, the first of which is not counted."""
    call()
    seconds = []
    for _ in range(times):
        begin = time.process_time()
        call()
        seconds.append(time.process_time() - begin)
    return min(seconds)


def train_seconds(block: Block, length: int, batch: int = BATCH, times: int = 3) -> float:
    """Return the seconds of a forward and a backward pass."""
    x = torch.randn(batch, length, WIDTH, requires_grad=True)
    weight = torch.randn(batch, length, WIDTH)
    return least_seconds(lambda: run(block, x)[0].backward(weight), times)


def scan_seconds(scan: Callable[..., tuple[Tensor, Tensor]], decays: int, times: int) -> float:
    """Return the seconds of a forward and a backward pass of the scan alone, with so many decays a
    head.
    """
    head = WIDTH // HEADS
    sizes = (head, head, head, decays)
    query, key, value, u = (
        torch.randn(BATCH, HEADS, LENGTH, size, requires_grad=True) for size in sizes
    )
    weight, state = torch.randn(BATCH, HEADS, LENGTH, head), torch.zeros(BATCH, HEADS, head, head)

    def both_passes() -> None:
        y, _ = scan(query, key, value, torch.nn.functional.logsigmoid(u), state)
        y.backward(weight)

    return least_seconds(both_passes, times)


def print_steps() -> None:
    """Print the scan against the loop, alone and in the blocks."""
    print(f"\nforward and backward, {BATCH} x {LENGTH}         scan       loop   ratio")
    for name, decays in {
        "scan alone, a decay a head": 1,
        "scan alone, a decay a feature": WIDTH // HEADS,
    }.items():
        scan = scan_seconds(scan_outer_products, decays, 5)
        loop = scan_seconds(loop_over_positions, decays, 2)
        print(f"{name:<32} {scan:8.2f} s {loop:8.2f} s {loop / scan:7.1f}", flush=True)
    for name, (kind, settings) in MIXERS.items():
        block = build(kind, settings)
        scan = train_seconds(block, LENGTH)
        with looping(kind):
            loop = train_seconds(block, LENGTH, times=1)
        print(f"{name:<32} {scan:8.2f} s {loop:8.2f} s {loop / scan:7.1f}", flush=True)


def print_lengths() -> None:
    """Print the exponent of the time in the length, by least squares of the logarithms."""
    print(
        "\nforward and backward, one row  "
        + "".join(f"{length:>9}" for length in LENGTHS)
        + "  exponent"
    )
    for name, (kind, settings) in MIXERS.items():
        block = build(kind, settings)
        seconds = [train_seconds(block, length, batch=1, times=2) for length in LENGTHS]
        print(
            f"{name:<31}" + "".join(f"{s:7.2f} s" for s in seconds) + f"{exponent(seconds):10.2f}",
            flush=True,
        )


def exponent(seconds: list[float]) -> float:
    """Return the slope of log seconds over log length."""
    x, y = ([math.log(value) for value in values] for values in (LENGTHS, seconds))
    return statistics.linear_regression(x, y).slope


def print_decoding() -> None:
    """Print the time per token and the bytes of state per row, by the length of the prefix."""
    print(
        "\nmilliseconds a token of 4 rows, KiB of state a row, after  "
        + "".join(f"{n:>18}" for n in PREFIXES)
    )
    attention: tuple[type[Block], dict[str, Any]] = (SelfAttention, {})
    for name, (kind, settings) in {**MIXERS, "self_attention": attention}.items():
        block = build(kind, settings)
        cells = [decode(block, prefix) for prefix in PREFIXES]
        row = "".join(f"{1e3 * seconds:8.2f} {size / 1024:9.0f}" for seconds, size in cells)
        print(f"{name:<59}{row}", flush=True)


@torch.inference_mode()
def decode(block: Block, prefix: int) -> tuple[float, float]:
    """Return the seconds of a token, and the bytes of a row's state, after a prefix."""
    _, state = run(block, torch.randn(BATCH, prefix, WIDTH))
    token = torch.randn(BATCH, 1, WIDTH)

    def write() -> None:
        after = state
        for _ in range(TOKENS):
            _, after = run(block, token, after)

    return least_seconds(write, 3) / TOKENS, state_bytes(state) / BATCH


TABLES = {"steps": print_steps, "lengths": print_lengths, "decoding": print_decoding}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    torch.set_num_threads(1)
    for table in parser.parse_args().tables:
        TABLES[table]()
