"""Orthogonal edge routing for an architecture graph: edges run beside the blocks, never over a text.

Edges inside a part run down at the right of the innermost box around all their ends; those that read an encoder run
between the parts and arrive from the left. Out of a branch an edge goes up beside its blocks and across above all
branches. So an edge crosses lines and borders, and no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from composer.viz.architecture_graph import Edge
from composer.viz.architecture_layout import (
    HEADING,
    LANE,
    MARGIN,
    PAD,
    PART_GAP,
    Layout,
    PlacedBox,
    Point,
    place_horizontally,
    set_height,
    set_top,
    straighten,
)

CORNER_RADIUS = 5.0
Side = Literal["left", "right"]
Extent = tuple[float, float]
"""The heights between which a vertical edge runs."""


@dataclass(eq=False)
class End:
    """End of an edge at a box; `branches` are those that it leaves, the innermost first.

    `inside` is whether it ends at the input of the box, and so runs inside it.
    """

    placed: PlacedBox
    key: str
    branches: list[PlacedBox] = field(default_factory=list)
    inside: bool = False

    @property
    def y(self) -> float:
        return self.placed.port(self.key)


@dataclass(eq=False)
class Net:
    """Edges with one producer that share their way. `home` is the innermost box around all ends, if in one part.

    Between two parts `home` is None; `under` is then the number of the track below all parts, unless the two are
    neighbours.
    """

    kind: str
    producer: End
    readers: list[tuple[Edge, End]] = field(default_factory=list)
    home: PlacedBox | None = None
    parts: tuple[int, int] = (0, 0)
    under: int | None = None

    @property
    def reader_side(self) -> Side:
        """The side of the branches around its readers at which it runs."""
        return "left" if self.kind == "memory" else "right"

    def ends(self) -> list[tuple[End, Side]]:
        """Return the ends, each with the side of the branches around it at which its edges run."""
        return [(self.producer, "right"), *((end, self.reader_side) for _, end in self.readers)]


@dataclass
class Route:
    """Edge and its corners; `own` are those from where it leaves another edge of the same producer."""

    edge: Edge
    points: list[Point]
    own: list[Point]


@dataclass
class Lanes:
    """Numbers of lanes by box and side, or by the gap right of a part; numbers of tracks by fork."""

    beside: dict[tuple[PlacedBox, Side, Net], int] = field(default_factory=dict)
    between: dict[tuple[int, Net], int] = field(default_factory=dict)
    above: dict[tuple[PlacedBox, Side, Net], int] = field(default_factory=dict)


def route_edges(layout: Layout) -> list[Route]:
    """Place every box of a layout, and return the routes of its edges.

    Both at once, since edges take space: tracks make boxes higher, and lanes, which depend on heights, make them wider.
    """
    nets = build_nets(layout)
    lanes = Lanes()
    for net in nets:
        assign_tracks(net, lanes)
    far = [net for net in nets if net.home is None and net.parts[1] > net.parts[0] + 1]
    for number, net in enumerate(far):
        net.under = number
    layout.tracks = len(far)
    for part in layout.parts:
        set_height(part)
        set_top(part, MARGIN + HEADING)
    assign_lanes(layout, nets, lanes)
    place_horizontally(layout)
    return [route for net in nets for route in net_routes(layout, net, lanes)]


def build_nets(layout: Layout) -> list[Net]:
    """Return the nets of a layout; each end is added to its box."""
    boxes = {placed.box.key: placed for placed in layout.walk()}
    part = {placed.box.key: number for number, root in enumerate(layout.parts) for placed in root.walk()}
    nets: dict[tuple[str, bool, str, int], Net] = {}
    for edge in layout.graph.edges:
        key = (edge.producer, edge.of_input, edge.kind, part[edge.reader])
        if key not in nets:
            producer = add_producer(boxes[edge.producer], edge)
            nets[key] = Net(edge.kind, producer, parts=(part[edge.producer], part[edge.reader]))
        nets[key].readers.append((edge, add_reader(boxes[edge.reader], edge)))
    for net in nets.values():
        find_branches(net)
    return list(nets.values())


def add_producer(placed: PlacedBox, edge: Edge) -> End:
    """Return the start of the edges of a producer; of a branch, the end of its last block."""
    while placed.box.kind == "branch":
        placed = placed.children[-1]
    key = f"out {edge.kind}"
    ports = placed.right if edge.of_input or not placed.children else placed.bottom
    if key not in ports:
        ports.append(key)
    return End(placed, key, inside=edge.of_input)


def add_reader(placed: PlacedBox, edge: Edge) -> End:
    """Return the end of an edge at its reader."""
    key = f"in {edge.name}"
    if edge.kind == "memory":
        placed.left.append(key)
    else:
        placed.right.insert(0, key)
    return End(placed, key)


def find_branches(net: Net) -> None:
    """Set the home of a net, and the branches that each of its ends leaves."""
    ends = [net.producer, *(end for _, end in net.readers)]
    if net.kind != "memory":
        net.home = next(box for box in columns_around(net.producer) if all(box in columns_around(end) for end in ends))
    for end in ends:
        around = columns_around(end)
        inside = around if net.home is None else around[: around.index(net.home)]
        end.branches = [box for box in inside if box.box.kind == "branch"]


def columns_around(end: End) -> list[PlacedBox]:
    """Return the boxes around an end whose children are in one column, the innermost first."""
    own = [end.placed] if end.inside else []
    return [box for box in (*own, *end.placed.ancestors()) if not box.box.fork]


def assign_tracks(net: Net, lanes: Lanes) -> None:
    """Give a net a track above the branches of every fork that it enters or leaves."""
    for end, side in net.ends():
        for branch in end.branches:
            fork = branch.parent
            if fork is not None and (fork, side, net) not in lanes.above:
                lanes.above[fork, side, net] = fork.tracks
                fork.tracks += 1


def assign_lanes(layout: Layout, nets: Iterable[Net], lanes: Lanes) -> None:
    """Give every vertical piece a lane in which nothing else is at its heights, the short ones nearest to the boxes."""
    beside: dict[tuple[PlacedBox, Side], list[tuple[Extent, Net]]] = {}
    between: dict[int, list[tuple[Extent, Net]]] = {}
    for net in nets:
        for (placed, side), heights in heights_beside(net, lanes).items():
            beside.setdefault((placed, side), []).append(((min(heights), max(heights)), net))
        if net.home is None:
            for gap, heights in heights_between(layout, net, lanes).items():
                between.setdefault(gap, []).append(((min(heights), max(heights)), net))
    for (placed, side), pieces in beside.items():
        numbers, count = pack_lanes(pieces)
        lanes.beside |= {(placed, side, net): lane for net, lane in numbers.items()}
        if side == "left":
            placed.left_lanes = count
        else:
            placed.right_lanes = count
    for gap, pieces in between.items():
        numbers, layout.lanes[gap] = pack_lanes(pieces)
        lanes.between |= {(gap, net): lane for net, lane in numbers.items()}


def heights_beside(net: Net, lanes: Lanes) -> dict[tuple[PlacedBox, Side], list[float]]:
    """Return the heights that a net connects beside the children of each box."""
    heights: dict[tuple[PlacedBox, Side], list[float]] = {}
    for end, side in net.ends():
        y = end.y
        for branch in end.branches:
            over = track_above(branch, side, net, lanes)
            heights.setdefault((branch, side), []).extend((y, over))
            y = over
        if net.home is not None:
            heights.setdefault((net.home, "right"), []).append(y)
    return heights


def heights_between(layout: Layout, net: Net, lanes: Lanes) -> dict[int, list[float]]:
    """Return the heights that a net connects in each gap between parts."""

    def outside(end: End, side: Side) -> float:
        return track_above(end.branches[-1], side, net, lanes) if end.branches else end.y

    start, stop = net.parts
    leaves = outside(net.producer, "right")
    arrives = [outside(end, "left") for _, end in net.readers]
    if net.under is None:
        return {start: [leaves, *arrives]}
    under = layout.track(net.under, *net.parts)
    return {start: [leaves, under], stop - 1: [*arrives, under]}


def track_above(branch: PlacedBox, side: Side, net: Net, lanes: Lanes) -> float:
    """Return the height at which a net runs above a branch."""
    fork = branch.parent
    return 0.0 if fork is None else fork.track(lanes.above[fork, side, net], side == "left")


def pack_lanes(pieces: Iterable[tuple[Extent, Net]]) -> tuple[dict[Net, int], int]:
    """Return a lane for each net, and the number of lanes."""
    lanes: list[list[Extent]] = []
    numbers: dict[Net, int] = {}
    for (low, high), net in sorted(pieces, key=lambda piece: piece[0][1] - piece[0][0]):
        free = (n for n, lane in enumerate(lanes) if all(high + PAD < a or b + PAD < low for a, b in lane))
        number = next(free, len(lanes))
        if number == len(lanes):
            lanes.append([])
        lanes[number].append((low, high))
        numbers[net] = number
    return numbers, len(lanes)


def net_routes(layout: Layout, net: Net, lanes: Lanes) -> Iterator[Route]:
    """Yield the routes of a net; where several share their corners, these are the first one's own."""

    def length(path: list[Point]) -> float:
        return sum(abs(a - x) + abs(b - y) for (x, y), (a, b) in pairwise(path))

    before: list[list[Point]] = []
    for edge, end in net.readers:
        points = corners(layout, net, end, lanes)
        rests = (after_fork(points, other) for other in before)
        yield Route(edge, points, min(rests, key=length, default=points))
        before.append(points)


def corners(layout: Layout, net: Net, reader: End, lanes: Lanes) -> list[Point]:
    """Return the corners of one edge, from its producer to its reader."""
    begin = corners_outwards(net, net.producer, "right", lanes)
    finish = corners_outwards(net, reader, net.reader_side, lanes)[::-1]
    leaves, arrives = begin[-1][1], finish[0][1]
    if net.home is not None:
        x = lane_x(net.home, "right", lanes.beside[net.home, "right", net])
        middle = [(x, leaves), (x, arrives)]
    else:
        xs = [gap_x(layout, gap, lanes.between[gap, net]) for gap in heights_between(layout, net, lanes)]
        middle = [(xs[0], leaves), (xs[-1], arrives)]
        if net.under is not None:
            under = layout.track(net.under, *net.parts)
            middle = [(xs[0], leaves), (xs[0], under), (xs[-1], under), (xs[-1], arrives)]
    return straighten([*begin, *middle, *finish])


def corners_outwards(net: Net, end: End, side: Side, lanes: Lanes) -> list[Point]:
    """Return the corners of an edge from one of its ends to the outside of all branches around it."""
    placed = end.placed
    points = [(placed.x if side == "left" else placed.x + placed.w, end.y)]
    for branch in end.branches:
        x = lane_x(branch, side, lanes.beside[branch, side, net])
        points += [(x, points[-1][1]), (x, track_above(branch, side, net, lanes))]
    return points


def lane_x(placed: PlacedBox, side: Side, lane: int) -> float:
    """Return the x of a lane beside the children of a box; the first is nearest to them."""
    if side == "left":
        return placed.x + placed.child_margin - PAD - 2 - LANE * lane
    return placed.x + placed.w - placed.child_margin + PAD + 2 + LANE * lane


def gap_x(layout: Layout, gap: int, lane: int) -> float:
    """Return the x of a lane between two parts."""
    part = layout.parts[gap]
    return part.x + part.w + PART_GAP / 2 + LANE * (lane + 0.5)


def after_fork(points: list[Point], other: list[Point]) -> list[Point]:
    """Return the rest of an edge from where it leaves another; it begins a little before, for a round corner."""
    for at in range(1, len(points)):
        if at < len(other) and points[at] == other[at]:
            continue
        (x, y), (a, b) = points[at - 1], points[at]
        u, v = other[min(at, len(other) - 1)]
        same_direction = (b - y) * (v - y) > 0 if x == a == u else (a - x) * (u - x) > 0 and y == b == v
        if not same_direction:
            return points[at - 1 :]
        shared = min(abs(a - x) + abs(b - y), abs(u - x) + abs(v - y)) - CORNER_RADIUS
        share = max(shared, 0.0) / (abs(a - x) + abs(b - y))
        return [(x + share * (a - x), y + share * (b - y)), *points[at:]]
    return points[-2:]


def arrowhead(points: Sequence[Point]) -> str:
    """Return the path of the head of an arrow."""
    (x0, y0), (x, y) = points[-2:]
    dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
    bx, by = (x - 7 * dx, y - 7 * dy)
    corners = ((x, y), (bx - 3.5 * dy, by - 3.5 * dx), (bx + 3.5 * dy, by + 3.5 * dx))
    return f"M{' '.join(f'{a:g},{b:g}' for a, b in corners)} Z"


def rounded_path(points: Sequence[Point]) -> str:
    """Return the path of a line with round corners."""
    path = [f"M{points[0][0]:g},{points[0][1]:g}"]
    for (ax, ay), (bx, by), (cx, cy) in zip(points, points[1:], points[2:], strict=False):
        before, after = abs(bx - ax) + abs(by - ay), abs(cx - bx) + abs(cy - by)
        r = min(CORNER_RADIUS, before / 2, after / 2)
        if not r:
            continue
        start = (bx - r * (bx - ax) / before, by - r * (by - ay) / before)
        end = (bx + r * (cx - bx) / after, by + r * (cy - by) / after)
        path.append(f"L{start[0]:g},{start[1]:g} Q{bx:g},{by:g} {end[0]:g},{end[1]:g}")
    return " ".join([*path, f"L{points[-1][0]:g},{points[-1][1]:g}"])
