"""`source_state` by hand: the memory's states at the same positions, in a decoder chunk after
chunk.
"""

from __future__ import annotations

import pytest
import torch

from blocks.core.contract import BlockError, Named, Output, Stream
from blocks.source_state import SourceState
from tests.blocks.single_block import close, context_of, mask_of, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "source_state": ({}, {"from": "encoder.earlier"}),
}
"""Settings with which the laws are checked, by block."""

LENGTHS = (3, 1, 0)
STATES = torch.arange(1.0, 10.0).view(3, 3, 1).double()
MEMORY = Output(STATES, mask_of(*LENGTHS))


def block(causal: str = "") -> SourceState:
    return SourceState(site_of(2, causal=causal, memories={"other": Named(Stream(1))}))


def test_reads_the_state_of_the_same_position_and_zeros_beyond() -> None:
    mask = mask_of(5, 2, 4)
    x = torch.randn(3, 5, 2)
    context = context_of(mask, {"other": MEMORY})
    y, _ = block()(x, torch.zeros(3, dtype=torch.long), context)
    close(y[..., 0], torch.tensor([[1.0, 2, 3, 0, 0], [4, 0, 0, 0, 0], [0, 0, 0, 0, 0]]))


def test_decoding_continues_at_the_position_of_each_row() -> None:
    module = block("a decoder")
    x = torch.randn(3, 2, 2)
    state = module.start(x, context_of(mask_of(2, 2, 2)))
    _, state = module(x, state, context_of(mask_of(1, 0, 2), {"other": MEMORY}))
    y, state = module(x, state, context_of(mask_of(2, 2, 2), {"other": MEMORY}))
    close(y[..., 0], torch.tensor([[2.0, 3], [4, 0], [0, 0]]))
    assert state.tolist() == [3, 2, 4]


def test_in_an_encoder_it_replaces_the_stream() -> None:
    module = block()
    assert module.out == Stream(1)


@pytest.mark.parametrize(
    ("stream", "code"),
    [(Stream(3, length_ratio=Stream(3).length_ratio * 0), "length"), (Stream(3, True), "kind")],
)
def test_a_memory_without_positions_to_follow_is_refused(stream: Stream, code: str) -> None:
    with pytest.raises(BlockError) as refused:
        SourceState(site_of(2, memories={"other": Named(stream)}))
    assert (refused.value.setting, refused.value.code) == ("from", code)
    assert refused.value.fix.text
