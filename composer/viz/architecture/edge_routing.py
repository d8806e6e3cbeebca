"""Where the arrows of a picture run: beside the blocks, never over them.

What is read inside one part runs down at the right of the innermost box that has all who make and read it; what an
encoder leaves runs between the parts and comes from the left. From a branch an arrow goes up beside its blocks, and
across above all branches. So an arrow crosses lines and borders, and no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from composer.viz.architecture.graph import Read
from composer.viz.architecture.layout import BETWEEN, LANE, PAD, Figure, Placed, set_heights, set_widths

TURN = 5.0
"""How round the corners of arrows are."""
Point = tuple[float, float]
Side = Literal["left", "right"]


@dataclass(eq=False)
class End:
    """An end of an arrow at a box; `way` are the boxes beside whose blocks it runs, from the inside to the outside.

    `inside` is whether it ends at what enters the box, and so runs in it.
    """

    placed: Placed
    key: str
    way: list[Placed] = field(default_factory=list)
    inside: bool = False

    @property
    def y(self) -> float:
        return self.placed.port(self.key)


@dataclass(eq=False)
class Net:
    """All arrows that bring the same from one place, and share their way. `home` is the box that has all their ends.

    `home` is None of what goes from a part to another; `across` is then the number of the way below all parts, if the
    two are not neighbours.
    """

    how: str
    maker: End
    readers: list[tuple[Read, End]] = field(default_factory=list)
    home: Placed | None = None
    parts: tuple[int, int] = (0, 0)
    across: int | None = None


@dataclass
class Route:
    """An arrow and its corners; `own` are those that no other arrow of the same maker has before it."""

    read: Read
    points: list[Point]
    own: list[Point]


@dataclass
class Lanes:
    """Who runs where: the number of a lane by the box and its side, or by the gap after a part; tracks by the fork."""

    beside: dict[tuple[Placed, Side, Net], int] = field(default_factory=dict)
    between: dict[tuple[int, Net], int] = field(default_factory=dict)
    above: dict[tuple[Placed, Side, Net], int] = field(default_factory=dict)


def routes(figure: Figure) -> list[Route]:
    """Gives every box of a picture its place; all arrows, with theirs."""
    nets = nets_of(figure)
    lanes = Lanes()
    for net in nets:
        count_tracks(net, lanes)
    far = [net for net in nets if net.home is None and net.parts[1] > net.parts[0] + 1]
    for number, net in enumerate(far):
        net.across = number
    figure.tracks = len(far)
    set_heights(figure)
    choose_lanes(figure, nets, lanes)
    set_widths(figure)
    return [route for net in nets for route in drawn(figure, net, lanes)]


# ------------------------------------------------------------------------------------------- what belongs together


def nets_of(figure: Figure) -> list[Net]:
    """The arrows of a picture, those together that share their way; each end gets a place at its box."""
    boxes = {placed.box.key: placed for placed in figure.all()}
    part = {placed.box.key: number for number, each in enumerate(figure.parts) for placed in each.all()}
    nets: dict[tuple[str, bool, str, int], Net] = {}
    for read in figure.scene.reads:
        key = (read.maker, read.entering, read.how, part[read.reader])
        if key not in nets:
            maker = made_at(boxes[read.maker], read)
            nets[key] = Net(read.how, maker, parts=(part[read.maker], part[read.reader]))
        nets[key].readers.append((read, read_at(boxes[read.reader], read)))
    for net in nets.values():
        find_ways(net)
    return list(nets.values())


def made_at(placed: Placed, read: Read) -> End:
    """Where the arrows begin of what a box makes; of a branch, at the end of its last block."""
    while placed.box.kind == "branch":
        placed = placed.inner[-1]
    key = f"out {read.how}"
    ports = placed.right if read.entering or not placed.inner else placed.tail
    if key not in ports:
        ports.append(key)
    return End(placed, key, inside=read.entering)


def read_at(placed: Placed, read: Read) -> End:
    """Where an arrow ends."""
    key = f"in {read.name}"
    if read.how == "memory":
        placed.left.append(key)
    else:
        placed.right.insert(0, key)
    return End(placed, key)


def find_ways(net: Net) -> None:
    """Says beside which boxes the arrows run."""
    ends = [net.maker, *(end for _, end in net.readers)]
    if net.how != "memory":
        net.home = next(box for box in columns(net.maker) if all(box in columns(end) for end in ends))
    for end in ends:
        inside = [] if net.home is None else list(columns(end))
        around = inside[: inside.index(net.home)] if net.home is not None else list(columns(end))
        end.way = [box for box in around if box.box.kind == "branch"]


def columns(end: End) -> list[Placed]:
    """The boxes around an end whose blocks stand below each other, from the inside."""
    own = [end.placed] if end.inside else []
    return [box for box in (*own, *end.placed.around()) if not box.box.fork]


def sides(net: Net) -> list[tuple[End, Side]]:
    """The ends of a net, and at which side of the branches around them their arrows run."""
    return [(net.maker, "right"), *((end, "left" if net.how == "memory" else "right") for _, end in net.readers)]


# ------------------------------------------------------------------------------------------- lanes and tracks


def count_tracks(net: Net, lanes: Lanes) -> None:
    """Gives a net its height above the branches of every fork that it enters or leaves."""
    for end, side in sides(net):
        for branch in end.way:
            fork = branch.parent
            if fork is not None and (fork, side, net) not in lanes.above:
                lanes.above[fork, side, net] = fork.tracks
                fork.tracks += 1


def choose_lanes(figure: Figure, nets: Iterable[Net], lanes: Lanes) -> None:
    """Gives every stretch that runs down a lane in which nothing else is there, short ones near the boxes."""
    beside: dict[tuple[Placed, Side], list[tuple[float, float, Net]]] = {}
    between: dict[int, list[tuple[float, float, Net]]] = {}
    for net in nets:
        for (placed, side), heights in stretches(net, lanes).items():
            beside.setdefault((placed, side), []).append((min(heights), max(heights), net))
        if net.home is None:
            for gap, heights in crossings(figure, net, lanes).items():
                between.setdefault(gap, []).append((min(heights), max(heights), net))
    for (placed, side), taken in beside.items():
        found, count = packed(taken)
        lanes.beside |= {(placed, side, net): lane for net, lane in found.items()}
        if side == "left":
            placed.lanes_left = count
        else:
            placed.lanes_right = count
    for gap, taken in between.items():
        found, figure.lanes[gap] = packed(taken)
        lanes.between |= {(gap, net): lane for net, lane in found.items()}


def stretches(net: Net, lanes: Lanes) -> dict[tuple[Placed, Side], list[float]]:
    """Every box beside whose blocks a net runs down, and the heights that it connects there."""
    found: dict[tuple[Placed, Side], list[float]] = {}
    for end, side in sides(net):
        y = end.y
        for branch in end.way:
            over = above(branch, side, net, lanes)
            found.setdefault((branch, side), []).extend((y, over))
            y = over
        if net.home is not None:
            found.setdefault((net.home, "right"), []).append(y)
    return found


def crossings(figure: Figure, net: Net, lanes: Lanes) -> dict[int, list[float]]:
    """The gaps between parts in which a net runs down, and the heights that it connects there."""
    start, stop = net.parts
    leaves = outermost(net.maker, "right", net, lanes)
    arrives = [outermost(end, "left", net, lanes) for _, end in net.readers]
    if net.across is None:
        return {start: [leaves, *arrives]}
    under = figure.track(net.across, *net.parts)
    return {start: [leaves, under], stop - 1: [*arrives, under]}


def outermost(end: End, side: Side, net: Net, lanes: Lanes) -> float:
    """The height at which an arrow leaves the part in which one of its ends is."""
    return above(end.way[-1], side, net, lanes) if end.way else end.y


def above(branch: Placed, side: Side, net: Net, lanes: Lanes) -> float:
    """The height at which a net runs across above a branch."""
    fork = branch.parent
    return 0.0 if fork is None else fork.track(lanes.above[fork, side, net], side == "left")


def packed(taken: Iterable[tuple[float, float, Net]]) -> tuple[dict[Net, int], int]:
    """A lane for each net, and how many there are."""
    rows: list[list[tuple[float, float]]] = []
    found: dict[Net, int] = {}
    for low, high, net in sorted(taken, key=lambda each: each[1] - each[0]):
        free = (n for n, row in enumerate(rows) if all(high + PAD < a or b + PAD < low for a, b in row))
        lane = next(free, len(rows))
        if lane == len(rows):
            rows.append([])
        rows[lane].append((low, high))
        found[net] = lane
    return found, len(rows)


# ------------------------------------------------------------------------------------------- corners


def corners(figure: Figure, net: Net, reader: End, lanes: Lanes) -> list[Point]:
    """The corners of one arrow, from who makes to who reads."""
    begin = outwards(net, net.maker, "right", lanes)
    side: Side = "left" if net.how == "memory" else "right"
    finish = outwards(net, reader, side, lanes)[::-1]
    leaves, arrives = begin[-1][1], finish[0][1]
    if net.home is not None:
        x = lane_x(net.home, "right", lanes.beside[net.home, "right", net])
        middle = [(x, leaves), (x, arrives)]
    else:
        xs = [between_x(figure, gap, lanes.between[gap, net]) for gap in crossings(figure, net, lanes)]
        middle = [(xs[0], leaves), (xs[-1], arrives)]
        if net.across is not None:
            under = figure.track(net.across, *net.parts)
            middle = [(xs[0], leaves), (xs[0], under), (xs[-1], under), (xs[-1], arrives)]
    return straight([*begin, *middle, *finish])


def outwards(net: Net, end: End, side: Side, lanes: Lanes) -> list[Point]:
    """The corners of an arrow from one of its ends to the outside of all branches around it."""
    placed = end.placed
    points = [(placed.x if side == "left" else placed.x + placed.w, end.y)]
    for branch in end.way:
        x = lane_x(branch, side, lanes.beside[branch, side, net])
        points += [(x, points[-1][1]), (x, above(branch, side, net, lanes))]
    return points


def lane_x(placed: Placed, side: Side, lane: int) -> float:
    """Where a lane is from the left; the first is nearest to the blocks."""
    if side == "left":
        return placed.x + placed.room - PAD - 2 - LANE * lane
    return placed.x + placed.w - placed.room + PAD + 2 + LANE * lane


def between_x(figure: Figure, gap: int, lane: int) -> float:
    """Where a lane between two parts is from the left."""
    part = figure.parts[gap]
    return part.x + part.w + BETWEEN / 2 + LANE * (lane + 0.5)


def drawn(figure: Figure, net: Net, lanes: Lanes) -> Iterator[Route]:
    """The arrows of a net; what several share, only the first has for its own."""
    before: list[list[Point]] = []
    for read, end in net.readers:
        points = corners(figure, net, end, lanes)
        yield Route(read, points, min((rest(points, other) for other in before), key=extent, default=points))
        before.append(points)


def rest(points: list[Point], other: list[Point]) -> list[Point]:
    """The end of an arrow from where it leaves another one; it begins a little before, to turn like that."""
    for at in range(1, len(points)):
        if at < len(other) and points[at] == other[at]:
            continue
        (x, y), (a, b) = points[at - 1], points[at]
        u, v = other[min(at, len(other) - 1)]
        along = (b - y) * (v - y) > 0 if x == a == u else (a - x) * (u - x) > 0 and y == b == v
        if not along:
            return points[at - 1 :]
        shared = min(abs(a - x) + abs(b - y), abs(u - x) + abs(v - y)) - TURN
        far = max(shared, 0.0) / (abs(a - x) + abs(b - y))
        return [(x + far * (a - x), y + far * (b - y)), *points[at:]]
    return points[-2:]


def extent(points: list[Point]) -> float:
    """How long an arrow is."""
    return sum(abs(a - x) + abs(b - y) for (x, y), (a, b) in pairwise(points))


def straight(points: Iterable[Point]) -> list[Point]:
    """Corners without those at which nothing turns."""
    kept: list[Point] = []
    for point in points:
        if kept and kept[-1] == point:
            continue
        if len(kept) > 1 and (kept[-2][0] == kept[-1][0] == point[0] or kept[-2][1] == kept[-1][1] == point[1]):
            kept[-1] = point
        else:
            kept.append(point)
    return kept
