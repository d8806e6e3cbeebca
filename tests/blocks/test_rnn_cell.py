"""`rnn_cell` makes one step of an `rnn` from any state, and refuses a state that does not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from blocks.core.contract import BlockError, Named, Site, Stream
from blocks.rnn import Rnn
from blocks.rnn_cell import RnnCell
from tests.blocks.single_block import close, context_of, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "rnn_cell": (
        {"state": "earlier"},
        {"state": "encoder.summary", "reset": "after"},
        {"state": "narrow", "cell": "tanh"},
    ),
}
"""Settings with which the laws are checked, by block."""


def site_with_state(width: int) -> Site:
    """Return a decoder's site where 3 features arrive and `state` is `width` wide."""
    site = site_of(3, causal="a decoder", model=4)
    site.names.define("state", Named(Stream(width)))
    return site


@pytest.mark.parametrize(
    "settings", [{"cell": "gru"}, {"cell": "gru", "reset": "after"}, {"cell": "tanh"}]
)
def test_a_step_from_the_output_before_is_a_step_of_an_rnn(settings: dict[str, Any]) -> None:
    rnn, cell = (
        Rnn(site_with_state(4), **settings),
        RnnCell(site_with_state(4), state="state", **settings),
    )
    cell.layer.load_state_dict(rnn.layers[0].state_dict())
    x, mask = torch.randn(3, 5, 3), mask_of(5, 3, 0)
    expected, _ = run(rnn, x, mask)
    before = F.pad(expected, (0, 0, 1, 0))[:, :-1]  # zeros, then what the rnn made one step before
    y, _ = cell(x, (), context_of(mask, state=before))
    close(y[mask], expected[mask])


def test_the_state_before_the_first_position_is_what_prev_reads() -> None:
    cell = RnnCell(site_with_state(4), state="state", initial_state="learned")
    x = torch.randn(2, 1, 3)
    assert torch.equal(
        cell.initial_output(x, cell.start(x, context_of(mask_of(1, 1))))[1, 0],
        cell.initial.learned[0],
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 4}, "`state` is 5 wide, and the state after it 4"),
        ({"cell": "tanh", "reset": "after"}, "`tanh` has no reset gate"),
        ({"state": "stat"}, "`stat`"),
    ],
)
def test_conflicting_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BlockError, match=message):
        RnnCell(site_with_state(5), **{"state": "state", **settings})
