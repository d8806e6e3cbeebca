"""Orthogonal edge routing for an architecture graph: edges run beside the blocks.

Edges inside a part run down at the right of the innermost box around all their ends; those that
read an encoder run between the parts and arrive from the left. Out of a branch an edge goes up
beside its blocks and across above all branches. So an edge crosses lines and borders, and no text.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
    straighten,
)

CORNER_RADIUS = 5.0
Side = Literal["left", "right"]
Aisle = tuple[PlacedBox, Side] | int
"""Where vertical edges run: at a side of the children of a box, or in the gap right of the part of
that number.
"""


@dataclass(eq=False)
class End:
    """End of an edge at a box; `branches` are those that it leaves, the innermost first.

    `of_input` is whether it ends at the input of the box, and so runs inside it.
    """

    placed: PlacedBox
    key: str
    side: Side
    of_input: bool = False
    branches: list[PlacedBox] = field(default_factory=list)

    @property
    def y(self) -> float:
        return self.placed.port(self.key)

    @property
    def columns(self) -> list[PlacedBox]:
        """The boxes around it whose children are in one column, the innermost first."""
        boxes = [*([self.placed] if self.of_input else []), *self.placed.ancestors()]
        return [box for box in boxes if not box.box.fork]


@dataclass(eq=False)
class Net:
    """Edges of one producer on a shared way, with a lane in each aisle and a track in each fork.

    `home` is the innermost box around all ends, if in one part. Between two parts it is None;
    `under` is then the number of the track below all parts, unless the two are neighbours.
    """

    kind: str
    parts: tuple[int, int]
    producer: End
    readers: list[tuple[Edge, End]] = field(default_factory=list)
    home: PlacedBox | None = None
    under: int | None = None
    lanes: dict[Aisle, int] = field(default_factory=dict)
    tracks: dict[tuple[PlacedBox, Side], int] = field(default_factory=dict)

    @property
    def ends(self) -> list[End]:
        return [self.producer, *(end for _, end in self.readers)]

    @property
    def gaps(self) -> tuple[int, int]:
        """The gaps between parts in which it leaves its producer and arrives at its readers."""
        start, stop = self.parts
        return start, start if self.under is None else stop - 1

    def track_above(self, branch: PlacedBox, side: Side) -> float:
        """Return the height at which it runs above a branch."""
        fork = branch.parent
        return 0.0 if fork is None else fork.track(self.tracks[fork, side], side == "left")


class Route(NamedTuple):
    """Edge and its corners, which edges of one producer share as far as their way is the same."""

    edge: Edge
    points: list[Point]


def route_edges(layout: Layout) -> list[Route]:
    """Place every box of a layout, and return the routes of its edges.

    Both at once, since edges take space: tracks make boxes higher, and lanes, which depend on
    heights, make them wider.
    """
    nets = build_nets(layout)
    for net in nets:
        assign_tracks(net)
    far = [net for net in nets if net.home is None and net.parts[1] > net.parts[0] + 1]
    for number, net in enumerate(far):
        net.under = number
    layout.tracks = len(far)
    for part in layout.parts:
        part.set_heights(MARGIN + HEADING)
    assign_lanes(layout, nets)
    layout.set_widths()
    return [Route(edge, corners(layout, net, end)) for net in nets for edge, end in net.readers]


def build_nets(layout: Layout) -> list[Net]:
    """Return the nets of a layout; each end is added to its box."""
    boxes = {placed.box.key: placed for placed in layout.walk()}
    part = {
        placed.box.key: number for number, root in enumerate(layout.parts) for placed in root.walk()
    }
    nets: dict[tuple[str, bool, str, int], Net] = {}
    for edge in layout.graph.edges:
        key = (edge.producer, edge.of_input, edge.kind, part[edge.reader])
        if key not in nets:
            producer, port = boxes[edge.producer], f"out {edge.kind}"
            while producer.box.kind == "branch":  # its output is that of its last block
                producer = producer.children[-1]
            ports = producer.right if edge.of_input or not producer.children else producer.bottom
            if port not in ports:
                ports.append(port)
            start = End(producer, port, "right", edge.of_input)
            nets[key] = Net(edge.kind, (part[edge.producer], part[edge.reader]), start)
        reader, port = boxes[edge.reader], f"in {edge.name}"
        if edge.kind == "memory":
            reader.left.append(port)
        else:
            reader.right.insert(0, port)
        nets[key].readers.append(
            (edge, End(reader, port, "left" if edge.kind == "memory" else "right"))
        )
    return list(nets.values())


def assign_tracks(net: Net) -> None:
    """Set the home of a net, the branches that it leaves, and its tracks above forks."""
    if net.kind != "memory":
        net.home = next(
            box for box in net.producer.columns if all(box in end.columns for end in net.ends)
        )
    for end in net.ends:
        inside = end.columns if net.home is None else end.columns[: end.columns.index(net.home)]
        end.branches = [box for box in inside if box.box.kind == "branch"]
        for branch in end.branches:
            fork = branch.parent
            if fork is not None and (fork, end.side) not in net.tracks:
                net.tracks[fork, end.side] = fork.tracks
                fork.tracks += 1


def assign_lanes(layout: Layout, nets: Iterable[Net]) -> None:
    """Give every vertical piece a free lane, the shortest nearest to the boxes."""
    pieces: dict[Aisle, list[tuple[float, float, Net]]] = defaultdict(list)
    for net in nets:
        for aisle, heights in connected_heights(layout, net).items():
            pieces[aisle].append((min(heights), max(heights), net))
    for aisle, in_aisle in pieces.items():
        lanes: list[list[tuple[float, float]]] = []
        for low, high, net in sorted(in_aisle, key=lambda piece: piece[1] - piece[0]):
            free = (
                n
                for n, lane in enumerate(lanes)
                if all(high + PAD < a or b + PAD < low for a, b in lane)
            )
            number = net.lanes[aisle] = next(free, len(lanes))
            if number == len(lanes):
                lanes.append([])
            lanes[number].append((low, high))
        if isinstance(aisle, int):
            layout.lanes[aisle] = len(lanes)
        else:
            aisle[0].lanes = max(aisle[0].lanes, len(lanes))


def connected_heights(layout: Layout, net: Net) -> dict[Aisle, list[float]]:
    """Return the heights that a net connects in each aisle."""
    heights: dict[Aisle, list[float]] = defaultdict(list)
    for end in net.ends:
        y = end.y
        for branch in end.branches:
            above = net.track_above(branch, end.side)
            heights[branch, end.side] += [y, above]
            y = above
        gap = net.gaps[end is not net.producer]
        heights[gap if net.home is None else (net.home, "right")].append(y)
    if net.under is not None:
        for gap in net.gaps:
            heights[gap].append(layout.track(net.under, *net.parts))
    return heights


def corners(layout: Layout, net: Net, reader: End) -> list[Point]:
    """Return the corners of one edge, from its producer to its reader."""
    begin, finish = corners_outwards(net, net.producer), corners_outwards(net, reader)[::-1]
    leaves, arrives = begin[-1][1], finish[0][1]
    if net.home is not None:
        x = lane_x(net, net.home, "right")
        return straighten([*begin, (x, leaves), (x, arrives), *finish])
    parts = [layout.parts[gap] for gap in net.gaps]
    lanes = [PART_GAP / 2 + LANE * (net.lanes[gap] + 0.5) for gap in net.gaps]
    first, last = (part.x + part.w + lane for part, lane in zip(parts, lanes, strict=True))
    middle = [(first, leaves), (last, arrives)]
    if net.under is not None:
        under = layout.track(net.under, *net.parts)
        middle[1:1] = [(first, under), (last, under)]
    return straighten([*begin, *middle, *finish])


def corners_outwards(net: Net, end: End) -> list[Point]:
    """Return the corners of an edge from one end to the outside of all branches around it."""
    placed = end.placed
    points = [(placed.x if end.side == "left" else placed.x + placed.w, end.y)]
    for branch in end.branches:
        x = lane_x(net, branch, end.side)
        points += [(x, points[-1][1]), (x, net.track_above(branch, end.side))]
    return points


def lane_x(net: Net, placed: PlacedBox, side: Side) -> float:
    """Return the x of a net's lane beside the children of a box, the first nearest to them."""
    outwards = placed.child_margin - PAD - 2 - LANE * net.lanes[placed, side]
    return placed.x + outwards if side == "left" else placed.x + placed.w - outwards


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
