"""The commonest mistakes of a first block, each told in the terms of the contract with what to
write.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blocks.core.contract import Block, Context, Count, Site, State
from composer.testing import LawError, check_block


class Linear(Block):
    """A block without a state."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.out = site.sequence("linear")
        self.map = nn.Linear(self.out.width, self.out.width)

    def forward(self, x: Tensor, state: State, context: Context) -> Any:
        return self.map(x), ()


class TakesXAlone(Linear):
    def forward(self, x: Tensor) -> Any:  # type: ignore[override]
        return self.map(x)


class TakesNoContext(Linear):
    def forward(self, x: Tensor, state: State) -> Any:  # type: ignore[override]
        return self.map(x), state


class ReturnsATensor(Linear):
    def forward(self, x: Tensor, state: State, context: Context) -> Any:
        return self.map(x)


class ReturnsOne(Linear):
    def forward(self, x: Tensor, state: State, context: Context) -> Any:
        return (self.map(x),)


class StartsWithNone(Linear):
    def start(self, x: Tensor, context: Context) -> State:
        return None


class EndsWithNone(Linear):
    def forward(self, x: Tensor, state: State, context: Context) -> Any:
        return self.map(x), None


class StartsWithAList(Linear):
    def start(self, x: Tensor, context: Context) -> State:
        return [x.new_zeros(len(x), 1)]


class StartsWithAMapping(Linear):
    def start(self, x: Tensor, context: Context) -> State:
        return {"sum": x.new_zeros(len(x), 1)}


class StartTakesXAlone(Linear):
    def start(self, x: Tensor) -> State:  # type: ignore[override]
        return ()


class BatchSecond(Linear):
    def start(self, x: Tensor, context: Context) -> State:
        return x.new_zeros(1, len(x), self.out.width)


class OneForAllRows(Linear):
    def start(self, x: Tensor, context: Context) -> State:
        return torch.zeros(())


class TwiceAsWide(Linear):
    def forward(self, x: Tensor, state: State, context: Context) -> Any:
        return torch.cat([self.map(x), x], -1), ()


class ForgetsTheFeatures(Linear):
    def forward(self, x: Tensor, state: State, context: Context) -> Any:
        return self.map(x).mean(-1), ()


class AddsInPlace(Linear):
    def forward(self, x: Tensor, state: State, context: Context) -> Any:
        x += 1.0
        return self.map(x), ()


class CountsInPlace(Linear):
    def start(self, x: Tensor, context: Context) -> State:
        return x.new_zeros(len(x), 1)

    def forward(self, x: Tensor, state: State, context: Context) -> Any:
        state.add_(1.0)
        return self.map(x), state


class StopsInside(Linear):
    def forward(self, x: Tensor, state: State, context: Context) -> Any:
        return self.map(x[:, :, :2]), ()


class HasNoSite(Linear):
    def __init__(self, *, heads: Count = 8) -> None:
        nn.Module.__init__(self)


class TakesSettingsByPosition(Linear):
    def __init__(self, site: Site, heads: int) -> None:
        super().__init__(site)


class StopsInTheConstructor(Linear):
    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.map = nn.Linear(site.d_model, 3)  # type: ignore[attr-defined]


MISTAKES: tuple[tuple[type[Block], str, str], ...] = (
    (
        TakesXAlone,
        "does not take what it is given",
        "write `def forward(self, x, state, context)`, and return `y, state`",
    ),
    (
        TakesNoContext,
        "does not take what it is given",
        "write `def forward(self, x, state, context)`",
    ),
    (
        ReturnsATensor,
        "`forward` returns a tensor alone",
        "return `y, state`, `()` where the block keeps nothing",
    ),
    (ReturnsOne, "`forward` returns a tuple of 1", "return `y, state`"),
    (
        StartsWithNone,
        "`start` returns None as the state",
        "return `()` where the block keeps nothing",
    ),
    (
        EndsWithNone,
        "`forward` returns None as the state",
        "return `()` where the block keeps nothing",
    ),
    (StartsWithAList, "`start` returns a list", "a state is a tensor, or a tuple of states"),
    (StartsWithAMapping, "`start` returns a dict", "a state is a tensor, or a tuple of states"),
    (StartTakesXAlone, "does not take what it is given", "write `def start(self, x, context)`"),
    (BatchSecond, "of shape (1, 5, 12) for 5 rows", "the batch comes first"),
    (OneForAllRows, "of shape () for 5 rows", "the batch comes first"),
    (TwiceAsWide, "returns 24 features, and `self.out` has 12", "map it back to 12"),
    (ForgetsTheFeatures, "an output of shape (5, 7)", "its shape is (B, T, D)"),
    (AddsInPlace, "`forward` changes x in place", "`x = x + y` for `x += y`"),
    (CountsInPlace, "`forward` changes its state in place", "make a new tensor"),
    (StopsInside, "`forward` stops with RuntimeError", "test_form.py, line "),
    (HasNoSite, "its constructor takes no site", "the site first, the settings by name"),
    (
        TakesSettingsByPosition,
        "its constructor takes `heads` by position",
        "write the settings after `*`",
    ),
    (StopsInTheConstructor, "its constructor stops with AttributeError", "test_form.py, line "),
)


@pytest.mark.parametrize(
    ("block", "what", "write"), MISTAKES, ids=[block.__name__ for block, *_ in MISTAKES]
)
def test_a_mistake_is_reported_with_what_to_write(
    block: type[Block], what: str, write: str
) -> None:
    with pytest.raises(LawError) as broken:
        check_block(block, compiles=False)
    assert what in broken.value.detail
    assert write in broken.value.detail


def test_a_block_without_a_state_is_one() -> None:
    check_block(Linear, compiles=False)


def test_a_law_that_is_excepted_is_not_told_by_another() -> None:
    check_block(TwiceAsWide, compiles=False, exceptions={"shapes": "it is tried"})
