"""Caches are appended to in place, and what was kept never changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from blocks.core import kv_cache


@pytest.fixture(autouse=True)
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "SMALL", 0)


@torch.inference_mode()
def test_appending_copies_nothing_until_the_room_is_full() -> None:
    pieces = list(torch.randn(100, 2, 3, 1, 4))
    grown, places = pieces[0], set[int]()
    for piece in pieces[1:]:
        grown = kv_cache.append(grown, piece, 2)
        places.add(grown.data_ptr())
    assert torch.equal(grown, torch.cat(pieces, 2))
    assert len(places) == 7  # of 16, 32, ... and 112 positions


@torch.inference_mode()
def test_what_was_kept_is_gone_on_from_twice() -> None:
    first, one, two = torch.randn(3, 2, 1, 4)
    state = kv_cache.append(first, one, 1)
    after, again = kv_cache.append(state, one, 1), kv_cache.append(state, two, 1)
    assert torch.equal(state, torch.cat((first, one), 1))
    assert torch.equal(after, torch.cat((first, one, one), 1))
    assert torch.equal(again, torch.cat((first, one, two), 1))


@torch.inference_mode()
@pytest.mark.parametrize("length", [1, 31, 32, 40])
def test_reordered_rows_have_room_of_their_own(length: int) -> None:
    first, new, rows = torch.randn(3, length, 2), torch.randn(3, 1, 2), torch.tensor([2, 0, 0, 1])
    grown = kv_cache.append(first, new, 1)
    reordered = kv_cache.take_rows(grown, rows)
    after, other = kv_cache.append(reordered, new[rows], 1), kv_cache.append(grown, new, 1)
    assert after.data_ptr() == reordered.data_ptr()
    assert torch.equal(after, other[rows])
    assert torch.equal(reordered, grown[rows])


def test_gradients_flow_through_copies() -> None:
    before, new = torch.randn(1, 2, requires_grad=True), torch.randn(1, 1)
    kv_cache.append(kv_cache.append(before, new, 1), new, 1).sum().backward()
    assert torch.equal(before.grad if isinstance(before.grad, Tensor) else new, torch.ones(1, 2))


@torch.inference_mode()
@pytest.mark.parametrize(
    "types", [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32)]
)
def test_other_types_are_promoted_as_torch_does(types: tuple[torch.dtype, torch.dtype]) -> None:
    """Under autocast a state may begin in one type and go on in another."""
    before, new = (torch.randn(2, 3).to(kind) for kind in types)
    grown = kv_cache.append(kv_cache.append(before, before, 1), new, 1)
    expected = torch.cat((before, before, new), 1)
    assert grown.dtype is expected.dtype
    assert torch.equal(grown, expected)
