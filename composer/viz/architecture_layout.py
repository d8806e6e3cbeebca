"""Layout of an architecture graph: sizes and positions of boxes, and lines of the stream.

Lengths are pixels at the picture's own size, with (0, 0) at the top left. The font has a fixed
width.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.cells import cell_len

from composer.viz.architecture_graph import MAX_LINE, Box, Graph

Point = tuple[float, float]
CELL_WIDTH, LINE_HEIGHT = 7.25, 16.0
"""Width of a character cell and height of a line of text, at 12 pixels."""
PAD, MARGIN, GAP, PART_GAP = 10.0, 20.0, 18.0, 44.0
"""Space inside a box, around the picture, between consecutive boxes, and between parts."""
JOIN_SPACE, JOIN_HEIGHT = 34.0, 20.0
"""Space at the bottom of a box for its join, and the height of the join."""
LANE, PORT, TRACK = 10.0, 12.0, 9.0
"""Distance of parallel vertical edges, of the ends of edges at one box, and of parallel horizontal
edges.
"""
STEP = 4.0
"""Grid of the heights at which edges end."""
BYPASS = 20.0
"""Space for the line around the children of a box."""
MAX_STRETCH = 340.0
"""Width up to which a block without children is stretched to its neighbours' width."""
HEADING = 52.0
"""Height of the model's name and sizes above the parts."""


class Span(NamedTuple):
    """Part of a line of text, with its CSS class."""

    style: str
    text: str


class Join(NamedTuple):
    """Node where branches, or an output and its bypass, are joined: its centre, size and label."""

    x: float
    y: float
    w: float
    h: float
    label: str


class StreamLine(NamedTuple):
    """Piece of the stream, with an arrowhead at its end or without."""

    points: Sequence[Point]
    arrowhead: bool = True


class Text(NamedTuple):
    """Line of text: its start (or, if `centered`, its centre), its baseline, and its spans."""

    x: float
    y: float
    spans: tuple[Span, ...]
    centered: bool = False
    scale: float = 1.0


@dataclass(eq=False)
class PlacedBox:
    """Box with its position, size, and the edges that end at its `left`, `right` or `bottom`.

    `lanes` is the number of vertical edges for which there is space at each side of its children,
    `tracks` that of horizontal edges above its branches.
    """

    box: Box
    parent: PlacedBox | None = None
    children: list[PlacedBox] = field(init=False)
    x: float = 0.0
    y: float = 0.0
    w: float = 0.0
    h: float = 0.0
    left: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    bottom: list[str] = field(default_factory=list)
    lanes: int = 0
    tracks: int = 0

    def __post_init__(self) -> None:
        self.children = [PlacedBox(child, self) for child in self.box.children]

    @property
    def center(self) -> float:
        """The x at which the stream enters and leaves."""
        return self.x + self.w / 2

    @property
    def text_lines(self) -> list[tuple[Span, ...]]:
        """Lines of text; where a box has children, the first line of settings follows the title."""
        box = self.box
        name = (Span("given", f" as {box.name}"),) if box.name and box.kind != "branch" else ()
        title = (Span("title", box.title), *name) if box.title else ()
        lines = list(box.lines)
        characters = sum(len(span.text) for span in title)
        if self.children and lines and characters + 2 + len(lines[0]) <= MAX_LINE + 6:
            title = (*title, Span("", f"  {lines.pop(0)}"))
        spans = (title, *((Span("", line),) for line in lines), (Span("soft", box.footer),))
        return [line for line in spans if any(span.text for span in line)]

    @property
    def padding(self) -> float:
        """Space inside the border; a sum has none, since it is in a box of its own."""
        return 0.0 if self.box.kind == "sum" else PAD

    @property
    def header_height(self) -> float:
        """Height of the text, or more if many edges end there."""
        texts = (
            2 * PAD - 4 + LINE_HEIGHT * len(self.text_lines) if self.text_lines else self.padding
        )
        return max(texts, PORT * max(len(self.left), len(self.right)) + 6)

    @property
    def footer_height(self) -> float:
        """Height below the children: a join, and the ends of edges."""
        return JOIN_SPACE * bool(self.box.join) + max(self.padding, PORT * len(self.bottom) + 2)

    @property
    def lead(self) -> float:
        """Space between the text and the first child."""
        if self.box.fork:
            return GAP / 2 + TRACK * self.tracks + GAP
        if self.children and self.children[0].box.kind == "sum":
            return 0.0
        return PAD if self.box.kind == "part" else GAP

    @property
    def child_margin(self) -> float:
        """Space at each side of the children, equal so that the stream stays in the middle."""
        return self.padding + 2 + max(BYPASS * self.box.bypass, LANE * self.lanes)

    @property
    def text_margin(self) -> float:
        """Space at each side of the text."""
        return PAD + LANE * self.lanes

    @property
    def join(self) -> Join:
        """The node at the bottom that joins the branches, or the output and its bypass."""
        y = self.y + self.h - self.footer_height + JOIN_SPACE - JOIN_HEIGHT / 2
        width = max(JOIN_HEIGHT, text_width(self.box.join) + PAD + 4)
        return Join(self.center, y, width, JOIN_HEIGHT, self.box.join)

    def texts(self) -> Iterator[Text]:
        """Yield the lines of text with their positions."""
        lines = self.text_lines
        height = self.header_height if self.children else self.h
        y = self.y + (height - LINE_HEIGHT * len(lines)) / 2 + 12
        for number, line in enumerate(lines):
            yield Text(self.x + self.text_margin, y + LINE_HEIGHT * number, line)

    def port(self, key: str) -> float:
        """Return the height at which an edge ends."""
        if key in self.bottom:
            return snap(self.y + self.h - PORT * (self.bottom.index(key) + 0.5) - 1, False)
        side = self.left if key in self.left else self.right
        height = self.header_height if self.children else self.h
        return snap(self.y + height * (side.index(key) + 1) / (len(side) + 1), key in self.left)

    def track(self, number: int, from_left: bool) -> float:
        """Return the height of a horizontal edge above the branches."""
        return snap(self.y + self.header_height + GAP / 2 + TRACK * (number + 0.5), from_left)

    def stream_lines(self) -> Iterator[StreamLine]:
        """Yield the stream through the children: from one to the next, or through all branches."""
        if not self.children:
            return
        join, last = self.join, self.children[-1]
        top, into_join = self.y + self.header_height, (join.x, join.y - join.h / 2)
        if self.box.fork:
            split, under = top + GAP / 4, max(child.y + child.h for child in self.children) + 6
            for child in self.children:
                x, start, below = (
                    child.center,
                    (self.center, top),
                    (child.center, child.y + child.h),
                )
                yield StreamLine(
                    straighten([start, (self.center, split), (x, split), (x, child.y)])
                )
                yield StreamLine(straighten([below, (x, under), (self.center, under), into_join]))
        else:
            ends = [
                (self.center, top),
                *((child.center, child.y + child.h) for child in self.children),
            ]
            for end, child in zip(ends, self.children, strict=False):
                is_start = child is self.children[0] and (
                    self.box.kind == "part" or child.box.kind == "sum"
                )
                if child.box.reads_stream and not is_start:
                    yield StreamLine((end, (child.center, child.y)))
            if self.box.join:
                yield StreamLine((ends[-1], (last.center, into_join[1])))
            elif self.box.kind != "part":
                yield StreamLine((ends[-1], (last.center, self.y + self.h)), arrowhead=False)
        if self.box.join:
            yield StreamLine(
                ((join.x, join.y + join.h / 2), (join.x, self.y + self.h)), arrowhead=False
            )
        if self.box.bypass:
            x, fork = self.x + self.padding + BYPASS / 4 + 2, top + self.lead / 2 - 4
            yield StreamLine(
                ((self.center, fork), (x, fork), (x, join.y), (join.x - join.w / 2, join.y))
            )

    def ancestors(self) -> Iterator[PlacedBox]:
        """Yield the boxes around this one, the innermost first."""
        if self.parent is not None:
            yield self.parent
            yield from self.parent.ancestors()

    def walk(self) -> Iterator[PlacedBox]:
        """Yield this box and all inside it."""
        yield self
        for child in self.children:
            yield from child.walk()

    def set_heights(self, y: float) -> None:
        """Set the top and the height of this box and of all inside it."""
        self.y, self.h = y, self.header_height
        y += self.header_height + self.lead
        for child in self.children:
            child.set_heights(y)
            y += 0.0 if self.box.fork else child.h + GAP
        if self.children:
            lowest = max(child.y + child.h for child in self.children)
            self.h = lowest + self.footer_height - self.y

    def set_least_widths(self) -> None:
        """Set the least width of this box and of all inside it."""
        for child in self.children:
            child.set_least_widths()
        texts = max(map(text_width, self.text_lines), default=0.0) + 2 * self.text_margin
        widths = [child.w for child in self.children]
        across = (
            sum(widths) + GAP * (len(widths) - 1) if self.box.fork else max(widths, default=0.0)
        )
        least = 60.0 if self.box.kind == "memory" else 120.0
        self.w = max(texts, across + 2 * self.child_margin if widths else 0.0, least)

    def stretch(self, x: float, width: float) -> None:
        """Place this box and all inside it in a column from `x`, and widen them to its width."""
        stretched = width if self.children or width <= MAX_STRETCH else max(self.w, MAX_STRETCH)
        stretched = self.w if self.box.kind == "memory" else stretched
        spare = (stretched - self.w) / max(len(self.children), 1)
        self.x, self.w = x + (width - stretched) / 2, stretched
        start, column = self.x + self.child_margin, self.w - 2 * self.child_margin
        for child in self.children:
            if self.box.fork:
                column = child.w + spare
            child.stretch(start, column)
            start += column + GAP if self.box.fork else 0.0


@dataclass
class Layout:
    """All boxes with positions; `lanes` are vertical edges beside a part, `tracks` those below."""

    graph: Graph
    parts: list[PlacedBox]
    lanes: Counter[int] = field(default_factory=Counter)
    tracks: int = 0
    width: float = 0.0
    height: float = 0.0

    def walk(self) -> Iterator[PlacedBox]:
        for part in self.parts:
            yield from part.walk()

    def track(self, number: int, start: int, stop: int) -> float:
        """Return the height of a horizontal edge below the parts between two parts."""
        lowest = max(part.y + part.h for part in self.parts[start + 1 : stop])
        return snap(lowest + PAD + TRACK * (number + 0.5), False)

    def set_widths(self) -> None:
        """Set the width and the left of every box, and the size of the picture."""
        x = MARGIN
        for number, part in enumerate(self.parts):
            part.set_least_widths()
            part.stretch(x, part.w)
            x += part.w + (
                PART_GAP + LANE * self.lanes[number] if part is not self.parts[-1] else 0.0
            )
        heading = max(text_width(self.graph.name) * 1.5, text_width(self.graph.summary))
        lowest = max(part.y + part.h for part in self.parts)
        self.width = max(x, heading + MARGIN) + MARGIN
        self.height = lowest + (PAD + TRACK * self.tracks if self.tracks else 0.0) + MARGIN


def snap(y: float, from_left: bool) -> float:
    """Return a height near y on the grid; edges from the left are half a step off."""
    odd = STEP / 2 if from_left else 0.0
    return round((y - odd) / STEP) * STEP + odd


def text_width(line: str | Iterable[Span]) -> float:
    """Return the width of a line of text."""
    text = line if isinstance(line, str) else "".join(span.text for span in line)
    return CELL_WIDTH * cell_len(text)


def straighten(points: Iterable[Point]) -> list[Point]:
    """Return the points without those at which a line does not turn."""
    corners: list[Point] = []
    for point in points:
        if corners and corners[-1] == point:
            continue
        if len(corners) > 1 and any(
            corners[-2][axis] == corners[-1][axis] == point[axis] for axis in (0, 1)
        ):
            corners[-1] = point
        else:
            corners.append(point)
    return corners
