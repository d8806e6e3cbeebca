"""Where the boxes of a picture are: heights from the texts and the arrows that end at them, then widths, then places.

All lengths are pixels of a picture that is shown at its own size. Letters are those of a fixed-width font.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from composer.viz.architecture.graph import Box, Scene
from composer.viz.architecture.labels import LONGEST

LETTER, LINE = 7.25, 16.0
"""How wide a letter is and how high a line, at 12 pixels."""
PAD, MARGIN, GAP = 10.0, 20.0, 18.0
"""Inside a box, around the picture, and between boxes that follow each other."""
TAIL = 10.0
"""Below what stands in a box."""
JOIN = 34.0
"""The height of what brings branches together."""
LANE, PORT, TRACK = 10.0, 12.0, 9.0
"""Between arrows that run down side by side, that end at one box, and that run across side by side."""
STEP = 4.0
"""The grid of the heights at which arrows end."""
BYPASS = 20.0
"""The room of the line that goes around."""
WIDEST = 340.0
"""How wide a single block becomes only because what stands above or below it is wide."""
BETWEEN = 44.0
"""Between the parts of a picture."""
HEADING = 52.0
"""The height of the name and the sizes above all."""


class Run(NamedTuple):
    """A part of a line of text that looks alike."""

    look: str
    text: str


@dataclass(eq=False)
class Placed:
    """A box, where it is, and what ends at it: `left`, `right` and `tail` are the arrows at its sides, by their keys.

    `lanes_left` and `lanes_right` are how many arrows run down in it beside its blocks, `tracks` how many run across
    above its branches.
    """

    box: Box
    parent: Placed | None
    inner: list[Placed] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0
    w: float = 0.0
    h: float = 0.0
    left: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    lanes_left: int = 0
    lanes_right: int = 0
    tracks: int = 0

    @property
    def middle(self) -> float:
        """Where the stream enters and leaves it."""
        return self.x + self.w / 2

    @property
    def texts(self) -> list[tuple[Run, ...]]:
        """What is written in it, line by line; of what has others in it, its settings stand beside its name."""
        box = self.box
        given = (Run("given", f" as {box.name}"),) if box.name and box.kind != "branch" else ()
        title = (Run("title", box.title), *given) if box.title else ()
        lines = list(box.lines)
        if self.inner and lines and length(title) + 2 + len(lines[0]) <= LONGEST + 6:
            title = (*title, Run("", f"  {lines.pop(0)}"))
        every = (title, *((Run("", each),) for each in lines), (Run("soft", box.foot),))
        return [line for line in every if length(line)]

    @property
    def head(self) -> float:
        """The height of what is written in it, or more if many arrows end there."""
        texts = 2 * PAD - 4 + LINE * len(self.texts) if self.texts else PAD
        return max(texts, PORT * max(len(self.left), len(self.right)) + 6)

    @property
    def foot(self) -> float:
        """The height of what comes after the things in it."""
        return max(TAIL + JOIN * bool(self.box.join), PORT * len(self.tail) + 2 + JOIN * bool(self.box.join))

    @property
    def room(self) -> float:
        """What is left free at each side of the things in it, the same at both: the stream then stays in the middle."""
        return PAD + 2 + max(BYPASS * self.box.bypass, LANE * self.lanes_left, LANE * self.lanes_right)

    @property
    def indent(self) -> float:
        """What is left free at each side of what is written in it."""
        return PAD + max(LANE * self.lanes_left, LANE * self.lanes_right)

    def port(self, key: str) -> float:
        """The height at which an arrow ends at its side."""
        if key in self.tail:
            return snapped(self.y + self.h - PORT * (self.tail.index(key) + 0.5) - 1, False)
        side = self.left if key in self.left else self.right
        high = self.head if self.inner else self.h
        return snapped(self.y + high * (side.index(key) + 1) / (len(side) + 1), key in self.left)

    def track(self, number: int, comes: bool) -> float:
        """The height at which an arrow runs across above the branches, to them from the left or at the right."""
        return snapped(self.y + self.head + GAP / 2 + TRACK * (number + 0.5), comes)

    def around(self) -> Iterator[Placed]:
        """What it stands in, from the inside."""
        if self.parent is not None:
            yield self.parent
            yield from self.parent.around()

    def all(self) -> Iterator[Placed]:
        """It, and all that stands in it."""
        yield self
        for each in self.inner:
            yield from each.all()


@dataclass
class Figure:
    """All boxes with their places. `lanes` are how many arrows run down after each part, `tracks` across below all."""

    scene: Scene
    parts: list[Placed]
    lanes: list[int] = field(default_factory=list)
    tracks: int = 0
    width: float = 0.0
    height: float = 0.0

    def all(self) -> Iterator[Placed]:
        """All boxes."""
        for part in self.parts:
            yield from part.all()

    def bottom(self, first: int = 0, stop: int | None = None) -> float:
        """Where the lowest part ends, of all or of some."""
        return max(part.y + part.h for part in self.parts[first:stop])

    def track(self, number: int, start: int, stop: int) -> float:
        """The height at which an arrow runs across below the parts between two."""
        return snapped(self.bottom(start + 1, stop) + PAD + TRACK * (number + 0.5), False)


def figure_of(scene: Scene) -> Figure:
    """The boxes of a picture, without places."""
    parts = [planted(part, None) for part in scene.parts]
    return Figure(scene, parts, [0] * len(parts))


def planted(box: Box, parent: Placed | None) -> Placed:
    """A box and all in it, without places."""
    placed = Placed(box, parent)
    placed.inner = [planted(each, placed) for each in box.inner]
    return placed


# ------------------------------------------------------------------------------------------- down


def set_heights(figure: Figure) -> None:
    """Says of every box where it is from above, and how high."""
    for part in figure.parts:
        measure_height(part)
        set_top(part, MARGIN + HEADING)


def measure_height(placed: Placed) -> None:
    """How high a box is, with all in it."""
    for each in placed.inner:
        measure_height(each)
    if not placed.inner:
        placed.h = placed.head
    elif placed.box.fork:
        placed.h = placed.head + lead(placed) + max(each.h for each in placed.inner) + placed.foot
    else:
        gaps = GAP * (len(placed.inner) - 1)
        placed.h = placed.head + lead(placed) + sum(each.h for each in placed.inner) + gaps + placed.foot


def lead(placed: Placed) -> float:
    """Between what is written in a box and the first thing in it."""
    if placed.box.fork:
        return GAP / 2 + TRACK * placed.tracks + GAP
    return PAD if placed.box.kind == "part" else GAP


def set_top(placed: Placed, y: float) -> None:
    """Puts a box, and all in it, where it is from above."""
    placed.y = y
    y += placed.head + lead(placed)
    for each in placed.inner:
        set_top(each, y)
        y += 0.0 if placed.box.fork else each.h + GAP


# ------------------------------------------------------------------------------------------- across


def set_widths(figure: Figure) -> None:
    """Says of every box where it is from the left, and how wide; and how large the picture is."""
    x = MARGIN
    for part, lanes in zip(figure.parts, figure.lanes, strict=True):
        measure_width(part)
        set_left(part, x, part.w)
        x += part.w + (BETWEEN + LANE * lanes if part is not figure.parts[-1] else 0.0)
    told = max(written(figure.scene.name) * 1.5, written(figure.scene.about))
    figure.width = max(x, told + MARGIN) + MARGIN
    figure.height = figure.bottom() + (PAD + TRACK * figure.tracks if figure.tracks else 0.0) + MARGIN


def measure_width(placed: Placed) -> None:
    """How wide a box must be, with all in it."""
    for each in placed.inner:
        measure_width(each)
    texts = max((written(text) for text in placed.texts), default=0.0) + 2 * placed.indent
    inner = [each.w for each in placed.inner]
    across = sum(inner) + GAP * (len(inner) - 1) if placed.box.fork else max(inner, default=0.0)
    placed.w = max(texts, across + 2 * placed.room if inner else 0.0, least(placed))


def least(placed: Placed) -> float:
    """How wide a box is at least."""
    return 60.0 if placed.box.kind == "memory" else 120.0


def set_left(placed: Placed, x: float, width: float) -> None:
    """Puts a box, and all in it, where it is from the left, in a column of that width."""
    wide = width if placed.inner or width <= WIDEST else max(placed.w, WIDEST)
    wide = placed.w if placed.box.kind == "memory" else wide
    placed.x, placed.w, natural = x + (width - wide) / 2, wide, placed.w
    start, room = placed.x + placed.room, placed.w - 2 * placed.room
    if not placed.box.fork:
        for each in placed.inner:
            set_left(each, start, room)
        return
    spare = (wide - natural) / max(len(placed.inner), 1)
    for each in placed.inner:
        grown = each.w + spare
        set_left(each, start, grown)
        start += grown + GAP


def snapped(y: float, comes: bool) -> float:
    """A height near y: what comes from the left and what leaves to the right, side by side, never meet at one."""
    odd = STEP / 2 if comes else 0.0
    return round((y - odd) / STEP) * STEP + odd


def written(line: str | Iterable[Run]) -> float:
    """How wide a line is."""
    text = line if isinstance(line, str) else "".join(run.text for run in line)
    return LETTER * sum(2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text)


def length(line: Iterable[Run]) -> int:
    """How many letters a line has."""
    return sum(len(run.text) for run in line)
