"""Comparisons that end in a LawError with the numbers: of tensors, of states, and of what follows a state."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from blocks.core.contract import Block, State
from composer.testing.harness import LENGTHS, Case, Given, Made, distance, draw, leaves, rows, run

TOLERANCE = 1e-8


def expect_equal(case: Case, law: str, mine: Tensor, theirs: Tensor, told: str) -> None:
    """Raises LawError where two tensors differ, with the numbers."""
    if mine.shape != theirs.shape:
        case.broken(law, f"{told}: the shape is {tuple(mine.shape)}, and should be {tuple(theirs.shape)}")
    if mine.numel() == 0 or (gap := distance(mine, theirs)) <= TOLERANCE:
        return
    if not math.isfinite(gap):
        case.broken(law, f"{told}: not finite")
    where = divmod_all(int((mine.double() - theirs.double()).abs().argmax()), mine.shape)
    case.broken(law, f"{told}: differs by {gap:.3g} at {list(where)}")


def divmod_all(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of the element number `flat`."""
    index: list[int] = []
    for size in reversed(shape):
        flat, inner = divmod(flat, size)
        index.insert(0, inner)
    return tuple(index)


def following(case: Case, given: Given) -> Given:
    """Three more positions after a batch, over the same memories."""
    return draw(case, (3,) * len(given.x), seed=9)._replace(memories=given.memories)


def expect_same_state(case: Case, law: str, block: Block, given: Given, mine: State, theirs: State, told: str) -> None:
    """Two states are the same where all that follows is; leaf by leaf too, where they have the same shapes."""
    future = following(case, given)
    after, expected = run(block, future, mine).y, run(block, future, theirs).y
    expect_equal(case, law, after, expected, f"{told}, what follows the last state")
    pairs = list(zip(leaves(mine), leaves(theirs), strict=True))
    if all(one.shape == other.shape for one, other in pairs):
        for one, other in pairs:
            expect_equal(case, law, one, other, f"{told}, a leaf of the last state")


def expect_continues(
    case: Case, law: str, block: Block, given: Given, row: int, state: State, single: Made | None
) -> None:
    """What follows the state of a row in a batch is what follows the row alone (from `start` for no `single`)."""
    future = following(case, given)
    mine = run(block, future, state).y[row]
    theirs = run(block, rows(future, [row]), None if single is None else single.state).y[0]
    expect_equal(case, law, mine, theirs, f"what follows row {row} of {LENGTHS[row]} positions, against the row alone")
