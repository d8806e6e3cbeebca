"""Training of the same Transformer beside Hugging Face's Marian and a model with fairseq's
attention, in bf16-mixed.

All have our batches, a fused Adam and the same loop by hand. `separate attention` is the plain
model with matrix products and a softmax in place of a fused kernel, as fairseq 0.12 has it; it is
not fairseq.
"""

from __future__ import annotations

from functools import partial

from benchmarks.bare import SeparateAttention
from benchmarks.gpu import Outcome, Settings
from benchmarks.gpu.loops import (
    Loop,
    Side,
    compare,
    ours,
    ours_compiled,
    plain,
    size_of,
    transformer_flops,
)
from benchmarks.gpu.models import Logits, marian, plain_transformer

PEERS: dict[str, Side] = {
    "Marian of Hugging Face": partial(plain, build=lambda size: Logits(marian(size))),
    "separate attention": partial(
        plain, build=partial(plain_transformer, attention=SeparateAttention)
    ),
}
SIDES: dict[str, Side] = {"ours": ours, **PEERS}
FULL_SIDES: dict[str, Side] = {**SIDES, "ours compiled": ours_compiled}


def cases(settings: Settings) -> list[str]:
    return ["bf16-mixed"]


def run(precision: str, settings: Settings) -> Outcome:
    sides = SIDES if settings.small else FULL_SIDES
    targets = {(name, peer): 1.5 for name in sides if name.startswith("ours") for peer in PEERS}
    size = size_of(settings)
    return compare(
        Loop("transformer", size, precision, settings), sides, targets, transformer_flops(size)
    )
