"""Layout of an architecture graph: sizes and positions of its boxes, and the lines of the stream through them.

Lengths are pixels at the picture's own size, with (0, 0) at the top left. The font has a fixed width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.cells import cell_len

from composer.viz.architecture_graph import MAX_LINE, Box, Graph

Point = tuple[float, float]
CELL_WIDTH, LINE_HEIGHT = 7.25, 16.0
"""Width of a character cell and height of a line of text, at 12 pixels."""
PAD, MARGIN, GAP = 10.0, 20.0, 18.0
"""Space inside a box, around the picture, and between consecutive boxes."""
BOTTOM_PAD = 10.0
JOIN_SPACE, JOIN_HEIGHT = 34.0, 20.0
"""Space at the bottom of a box for its join, and the height of the join."""
LANE, PORT, TRACK = 10.0, 12.0, 9.0
"""Distance of parallel vertical edges, of the ends of edges at one box, and of parallel horizontal edges."""
STEP = 4.0
"""Grid of the heights at which edges end."""
BYPASS = 20.0
"""Space for the line around the children of a box."""
MAX_STRETCH = 340.0
"""Width up to which a block without children is stretched to its neighbours' width."""
PART_GAP = 44.0
HEADING = 52.0
"""Height of the model's name and sizes above the parts."""


class Span(NamedTuple):
    """Part of a line of text, with its CSS class."""

    style: str
    text: str


@dataclass(eq=False)
class PlacedBox:
    """Box with its position, size, and the keys of the edges that end at its `left`, `right` or `bottom`.

    `left_lanes` and `right_lanes` are the numbers of vertical edges beside its children, `tracks` that of horizontal
    edges above its branches.
    """

    box: Box
    parent: PlacedBox | None
    children: list[PlacedBox] = field(default_factory=list)
    x: float = 0.0
    y: float = 0.0
    w: float = 0.0
    h: float = 0.0
    left: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)
    bottom: list[str] = field(default_factory=list)
    left_lanes: int = 0
    right_lanes: int = 0
    tracks: int = 0

    @property
    def center(self) -> float:
        """The x at which the stream enters and leaves."""
        return self.x + self.w / 2

    @property
    def text_lines(self) -> list[tuple[Span, ...]]:
        """Lines of text; where a box has children, the first line of settings stands beside the title."""
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
    def header_height(self) -> float:
        """Height of the text, or more if many edges end there."""
        texts = 2 * PAD - 4 + LINE_HEIGHT * len(self.text_lines) if self.text_lines else PAD
        return max(texts, PORT * max(len(self.left), len(self.right)) + 6)

    @property
    def footer_height(self) -> float:
        """Height below the children: a join, and the ends of edges."""
        join = JOIN_SPACE * bool(self.box.join)
        return max(BOTTOM_PAD + join, PORT * len(self.bottom) + 2 + join)

    @property
    def child_margin(self) -> float:
        """Space at each side of the children; equal at both sides, so that the stream stays in the middle."""
        return PAD + 2 + max(BYPASS * self.box.bypass, LANE * self.left_lanes, LANE * self.right_lanes)

    @property
    def text_margin(self) -> float:
        """Space at each side of the text."""
        return PAD + max(LANE * self.left_lanes, LANE * self.right_lanes)

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


@dataclass
class Layout:
    """All boxes with their positions. `lanes` are the vertical edges right of each part, `tracks` those below all."""

    graph: Graph
    parts: list[PlacedBox]
    lanes: list[int] = field(init=False)
    tracks: int = 0
    width: float = 0.0
    height: float = 0.0

    def __post_init__(self) -> None:
        self.lanes = [0] * len(self.parts)

    def walk(self) -> Iterator[PlacedBox]:
        for part in self.parts:
            yield from part.walk()

    def bottom(self, first: int = 0, stop: int | None = None) -> float:
        """Return the lowest end of some parts."""
        return max(part.y + part.h for part in self.parts[first:stop])

    def track(self, number: int, start: int, stop: int) -> float:
        """Return the height of a horizontal edge below the parts between two parts."""
        return snap(self.bottom(start + 1, stop) + PAD + TRACK * (number + 0.5), False)


def wrap_box(box: Box, parent: PlacedBox | None) -> PlacedBox:
    """Return a box and all inside it, not yet placed."""
    placed = PlacedBox(box, parent)
    placed.children = [wrap_box(child, placed) for child in box.children]
    return placed


def set_height(placed: PlacedBox) -> None:
    """Set the height of a box and of all inside it."""
    for child in placed.children:
        set_height(child)
    heights = [child.h for child in placed.children]
    if not heights:
        placed.h = placed.header_height
    elif placed.box.fork:
        placed.h = placed.header_height + lead(placed) + max(heights) + placed.footer_height
    else:
        gaps = GAP * (len(heights) - 1)
        placed.h = placed.header_height + lead(placed) + sum(heights) + gaps + placed.footer_height


def lead(placed: PlacedBox) -> float:
    """Return the space between the text of a box and its first child."""
    if placed.box.fork:
        return GAP / 2 + TRACK * placed.tracks + GAP
    return PAD if placed.box.kind == "part" else GAP


def set_top(placed: PlacedBox, y: float) -> None:
    """Set the top of a box and of all inside it."""
    placed.y = y
    y += placed.header_height + lead(placed)
    for child in placed.children:
        set_top(child, y)
        y += 0.0 if placed.box.fork else child.h + GAP


def place_horizontally(layout: Layout) -> None:
    """Set the width and the left of every box, and the size of the picture."""
    x = MARGIN
    for part, lanes in zip(layout.parts, layout.lanes, strict=True):
        set_width(part)
        set_left(part, x, part.w)
        x += part.w + (PART_GAP + LANE * lanes if part is not layout.parts[-1] else 0.0)
    heading = max(text_width(layout.graph.name) * 1.5, text_width(layout.graph.summary))
    layout.width = max(x, heading + MARGIN) + MARGIN
    layout.height = layout.bottom() + (PAD + TRACK * layout.tracks if layout.tracks else 0.0) + MARGIN


def set_width(placed: PlacedBox) -> None:
    """Set the least width of a box and of all inside it."""
    for child in placed.children:
        set_width(child)
    texts = max((text_width(line) for line in placed.text_lines), default=0.0) + 2 * placed.text_margin
    widths = [child.w for child in placed.children]
    across = sum(widths) + GAP * (len(widths) - 1) if placed.box.fork else max(widths, default=0.0)
    least = 60.0 if placed.box.kind == "memory" else 120.0
    placed.w = max(texts, across + 2 * placed.child_margin if widths else 0.0, least)


def set_left(placed: PlacedBox, x: float, width: float) -> None:
    """Set the left of a box and of all inside it, in a column of that width, and stretch it to the column."""
    stretched = width if placed.children or width <= MAX_STRETCH else max(placed.w, MAX_STRETCH)
    stretched = placed.w if placed.box.kind == "memory" else stretched
    placed.x, placed.w, natural = x + (width - stretched) / 2, stretched, placed.w
    start, column = placed.x + placed.child_margin, placed.w - 2 * placed.child_margin
    if not placed.box.fork:
        for child in placed.children:
            set_left(child, start, column)
        return
    spare = (stretched - natural) / max(len(placed.children), 1)
    for child in placed.children:
        column = child.w + spare
        set_left(child, start, column)
        start += column + GAP


def snap(y: float, from_left: bool) -> float:
    """Return a height near y on the grid; edges from the left are half a step off, so that they never meet others."""
    odd = STEP / 2 if from_left else 0.0
    return round((y - odd) / STEP) * STEP + odd


def text_width(line: str | Iterable[Span]) -> float:
    """Return the width of a line of text."""
    text = line if isinstance(line, str) else "".join(span.text for span in line)
    return CELL_WIDTH * cell_len(text)


@dataclass(frozen=True)
class StreamLine:
    """Piece of the stream, with an arrowhead at its end or without."""

    points: Sequence[Point]
    arrowhead: bool = True


@dataclass(frozen=True)
class Join:
    """Node where branches, or an output and its bypass, are joined: its centre, size and label."""

    x: float
    y: float
    w: float
    h: float
    label: str


def join_of(placed: PlacedBox) -> Join:
    """Return the join at the bottom of a box."""
    y = placed.y + placed.h - placed.footer_height + JOIN_SPACE - JOIN_HEIGHT / 2
    width = max(JOIN_HEIGHT, text_width(placed.box.join) + PAD + 4)
    return Join(placed.center, y, width, JOIN_HEIGHT, placed.box.join)


def stream_lines(layout: Layout) -> Iterator[StreamLine]:
    """Yield all lines of the stream."""
    for placed in layout.walk():
        if placed.children and placed.box.fork:
            yield from stream_through_branches(placed)
        elif placed.children:
            yield from stream_through_stack(placed)


def stream_through_stack(placed: PlacedBox) -> Iterator[StreamLine]:
    """Yield the stream through consecutive boxes, and around them where there is a bypass."""
    last = placed.children[-1]
    top = placed.y + placed.header_height
    is_part = placed.box.kind == "part"
    starts = [] if is_part else [(placed.center, top)]
    starts += [(child.center, child.y + child.h) for child in placed.children[:-1]]
    for start, child in zip(starts, placed.children[is_part:], strict=True):
        if child.box.reads_stream:
            yield StreamLine((start, (child.center, child.y)))
    if is_part:
        return
    end = placed.y + placed.h
    if not placed.box.join:
        yield StreamLine(((last.center, last.y + last.h), (last.center, end)), arrowhead=False)
        return
    join = join_of(placed)
    yield StreamLine(((last.center, last.y + last.h), (last.center, join.y - join.h / 2)))
    yield StreamLine(((join.x, join.y + join.h / 2), (join.x, end)), arrowhead=False)
    if placed.box.bypass:
        x, fork = placed.x + PAD / 2 + BYPASS / 2 + 2, top + lead(placed) / 2 - 4
        yield StreamLine(((placed.center, fork), (x, fork), (x, join.y), (join.x - join.w / 2, join.y)))


def stream_through_branches(placed: PlacedBox) -> Iterator[StreamLine]:
    """Yield the stream into branches and out of them."""
    x, top, join = placed.center, placed.y + placed.header_height, join_of(placed)
    split = top + GAP / 4
    under = max(child.y + child.h for child in placed.children) + 6
    for child in placed.children:
        below, into_join = child.y + child.h, (x, join.y - join.h / 2)
        yield StreamLine(straighten([(x, top), (x, split), (child.center, split), (child.center, child.y)]))
        yield StreamLine(straighten([(child.center, below), (child.center, under), (x, under), into_join]))
    yield StreamLine(((x, join.y + join.h / 2), (x, placed.y + placed.h)), arrowhead=False)


def straighten(points: Iterable[Point]) -> list[Point]:
    """Return the points without those at which a line does not turn."""
    corners: list[Point] = []
    for point in points:
        if corners and corners[-1] == point:
            continue
        if len(corners) > 1 and any(corners[-2][axis] == corners[-1][axis] == point[axis] for axis in (0, 1)):
            corners[-1] = point
        else:
            corners.append(point)
    return corners
