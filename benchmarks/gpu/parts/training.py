"""Training of a 61 M Transformer: tokens per second beside a loop by hand, both as they are and
compiled.
"""

from __future__ import annotations

from functools import partial

from benchmarks.gpu import Outcome, Settings
from benchmarks.gpu.loops import (
    PRECISIONS,
    Loop,
    Side,
    compare,
    ours,
    ours_compiled,
    plain,
    size_of,
    transformer_flops,
)
from benchmarks.gpu.models import plain_transformer

SIDES: dict[str, Side] = {
    "ours": ours,
    "by hand": partial(plain, build=plain_transformer),
    "ours compiled": ours_compiled,
    "by hand compiled": partial(plain, build=plain_transformer, compiled=True),
}
TARGETS = {
    ("ours compiled", "by hand compiled"): 0.95,
    ("ours", "by hand"): 1.0,
    ("ours", "by hand compiled"): 0.95,
}


def cases(settings: Settings) -> list[str]:
    return ["bf16-mixed"] if settings.small else list(PRECISIONS)[::-1]


def run(precision: str, settings: Settings) -> Outcome:
    size = size_of(settings)
    quick = {name: side for name, side in SIDES.items() if "compiled" not in name}
    targets = {
        pair: target
        for pair, target in TARGETS.items()
        if not settings.small or set(pair) <= set(quick)
    }
    loop = Loop("transformer", size, precision, settings)
    return compare(loop, quick if settings.small else SIDES, targets, transformer_flops(size))
