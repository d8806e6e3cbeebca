"""Key-value caches that grow with every step: no step copies what came before, and no state that
was kept changes.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROOM = 16
"""Positions by which a cache grows; each step reads all of it anyway, so a copy every so many steps
is cheap.
"""
SMALL = 1 << 15
"""Numbers below which a copy costs less than to find the room for them."""


class Cache:
    """Memory behind a tensor, longer than that along one dimension; `used` is how much of it some
    tensor shows.
    """

    def __init__(self, memory: Tensor, dim: int, used: int) -> None:
        self.memory, self.dim, self.used = memory, dim, used

    def first(self, length: int) -> Tensor:
        """Return a view of the first `length` positions, which knows the cache."""
        view = self.memory.narrow(self.dim, 0, length)
        view.cache = self  # type: ignore[attr-defined]
        return view


def append(before: Tensor, new: Tensor, dim: int) -> Tensor:
    """Return `torch.cat((before, new), dim)`; without gradients, write `new` into room that was
    left behind `before`.

    Room is written to once, so that whoever keeps `before` may go on from it again: then it is
    copied.
    """
    # first: comparing a size would fix it there
    must_copy = torch.is_grad_enabled() or torch.compiler.is_compiling()
    if must_copy or before.numel() < SMALL or before.dtype is not new.dtype:
        return torch.cat((before, new), dim)
    length, total = before.shape[dim], before.shape[dim] + new.shape[dim]
    cache = getattr(before, "cache", None)
    if cache is None or cache.used != length or total > cache.memory.shape[dim]:
        shape = [*before.shape]
        shape[dim] = (total // ROOM + 1) * ROOM
        cache = Cache(before.new_empty(shape), dim, length)
        cache.first(length).copy_(before)
    cache.memory.narrow(dim, length, new.shape[dim]).copy_(new)
    cache.used = total
    return cache.first(total)


def take_rows(leaf: Tensor, rows: Tensor) -> Tensor:
    """Return `leaf[rows]`, with room behind it where there was some."""
    cache = getattr(leaf, "cache", None)
    if cache is None or torch.is_grad_enabled():
        return leaf.index_select(0, rows)
    # the room as well: rows without gaps between them are copied many times faster
    length = leaf.shape[cache.dim]
    return Cache(cache.memory.index_select(0, rows), cache.dim, length).first(length)
