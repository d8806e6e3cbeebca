"""Where the stream of a picture runs: down from box to box, into branches and out of them, and around what is added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from composer.viz.architecture.edge_routing import Point, straight
from composer.viz.architecture.layout import BYPASS, GAP, JOIN, PAD, Figure, Placed, lead, written

ROUND = 20.0
"""The height of what brings together."""


@dataclass(frozen=True)
class Line:
    """A stretch of the stream; `ends` is whether it ends with an arrowhead."""

    points: Sequence[Point]
    ends: bool = True


@dataclass(frozen=True)
class Join:
    """Where branches, or what was made and what went around it, come together: its middle, its size and its word."""

    x: float
    y: float
    w: float
    h: float
    word: str


def joins(figure: Figure) -> Iterator[Join]:
    """Everything that brings together."""
    return (join_of(placed) for placed in figure.all() if placed.box.join)


def join_of(placed: Placed) -> Join:
    """What brings together what stands in a box."""
    y = placed.y + placed.h - placed.foot + JOIN - ROUND / 2
    return Join(placed.middle, y, max(ROUND, written(placed.box.join) + PAD + 4), ROUND, placed.box.join)


def streams(figure: Figure) -> Iterator[Line]:
    """The whole stream."""
    for placed in figure.all():
        if placed.inner and placed.box.fork:
            yield from forked(placed)
        elif placed.inner:
            yield from followed(placed)


def followed(placed: Placed) -> Iterator[Line]:
    """The stream through boxes that follow each other."""
    first, last = placed.inner[0], placed.inner[-1]
    top = placed.y + placed.head
    if placed.box.kind != "part":
        yield from into(placed.middle, top, first)
    for one, other in zip(placed.inner, placed.inner[1:], strict=False):
        yield from into(one.middle, one.y + one.h, other)
    if placed.box.kind == "part":
        return
    end = placed.y + placed.h
    if not placed.box.join:
        yield Line(((last.middle, last.y + last.h), (last.middle, end)), ends=False)
        return
    join = join_of(placed)
    yield Line(((last.middle, last.y + last.h), (last.middle, join.y - join.h / 2)))
    yield Line(((join.x, join.y + join.h / 2), (join.x, end)), ends=False)
    if placed.box.bypass:
        x, fork = placed.x + PAD / 2 + BYPASS / 2 + 2, top + lead(placed) / 2 - 4
        yield Line(((placed.middle, fork), (x, fork), (x, join.y), (join.x - join.w / 2, join.y)))


def into(x: float, y: float, box: Placed) -> Iterator[Line]:
    """The stream to a box, unless that does not read it."""
    if box.box.hears:
        yield Line(((x, y), (box.middle, box.y)))


def forked(placed: Placed) -> Iterator[Line]:
    """The stream into branches and out of them."""
    x, top, join = placed.middle, placed.y + placed.head, join_of(placed)
    split = top + GAP / 4
    under = max(each.y + each.h for each in placed.inner) + 6
    for each in placed.inner:
        below = each.y + each.h
        yield Line(straight([(x, top), (x, split), (each.middle, split), (each.middle, each.y)]))
        yield Line(straight([(each.middle, below), (each.middle, under), (x, under), (x, join.y - join.h / 2)]))
    yield Line(((x, join.y + join.h / 2), (x, placed.y + placed.h)), ends=False)
