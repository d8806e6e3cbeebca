"""A sweep's pictures: quality against cost with the Pareto front, and the trials' curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from composer.sweeps.axes import Goal
from composer.sweeps.leaderboard import EXACT, AxisEffect, Entry, Leaderboard, minimised
from composer.sweeps.tables import average, brief, is_share, named, point_of, title
from composer.viz.html import Markup, join, short_number, tag
from composer.viz.svg_charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Point,
    Scale,
    foot,
    frame,
    level,
    linear,
    logarithm,
    number,
    powers,
    spread,
    thinned,
    ticks,
    values_of_scale,
)

WIDE = 20.0
"""From which ratio of the largest to the smallest an axis is logarithmic."""
TOLD = 8
"""Curves at most that have a colour and a name."""
MANY = 60
"""Trials above which only those of the front show their spread."""
BAR = 36.0
"""How much room the bar of an axis has."""
EDGE = 0.05
"""Room around the points, as a share of the field."""

STYLE = """
.chart a { cursor: pointer; }
.trials { font-size: 0.875rem; }
.trials td { white-space: nowrap; }
.files { margin-left: 0.75rem; }
.trials tr:target { background: var(--panel); }
.trial { fill: var(--panel); stroke: var(--soft); stroke-width: 1.5; }
.trial.front { fill: var(--c0); stroke: var(--c0); }
.front-line { fill: none; stroke: var(--c0); stroke-width: 1.5; stroke-dasharray: 4 3; }
.spread { stroke: var(--soft); }
.other { stroke: var(--soft); stroke-width: 1; opacity: 0.4; }
.wide { max-width: 36rem; }
.chart .key { white-space: normal; }
.chart svg { overflow: visible; }
.times { font-size: 10px; fill: var(--soft); }
.chance { stroke: var(--c1); stroke-width: 2; }
header, main, footer { max-width: 100rem; }
:root { --c2: #15803d; --c3: #9333ea; --c4: #1b1e23; --c5: #0891b2; --c6: #db2777; --c7: #8a6d00; }
@media (prefers-color-scheme: dark) {
  :root { --c2: #5fd08a; --c3: #c79bff; --c4: #e7e9ed; --c5: #5bd0e6; --c6: #ff8fc0; --c7: #f0c75e; }
}
"""
STYLE += "".join(
    f".curve.c{place} {{ stroke-dasharray: 6 3; }}\n.key.c{place}::before {{ border-top-style: dashed; }}\n"
    for place in range(TOLD // 2, TOLD)
)
STYLE += "".join(
    f".c{place} {{ stroke: var(--c{place}); }}\n.key.c{place}::before {{ border-color: var(--c{place}); }}\n"
    for place in range(2, TOLD)
)
"""What these pictures need beyond what every page has."""


class Place(NamedTuple):
    """A trial in the picture of quality against cost. `spread` is of its quality."""

    entry: Entry
    cost: float
    quality: float
    spread: float
    is_front: bool


# ------------------------------------------------------------------------------------------- quality against cost


def costs(board: Leaderboard) -> list[Goal]:
    """What quality is drawn against: the further goals, then parameters and FLOPs; the first goal is the quality."""
    wanted = {goal.metric: goal for goal in [Goal("parameters", "min"), Goal("flops", "min")]}
    found = {goal.metric: goal for goal in board.goals[1:]} | {
        name: goal for name, goal in wanted.items() if name not in {each.metric for each in board.goals}
    }
    return [goal for name, goal in found.items() if name != board.goals[0].metric]


def front(entries: Sequence[Entry], quality: Goal, cost: Goal) -> set[str]:
    """The fingerprints of the Pareto front: the trials than which none is better in one and as good in the other."""
    order = sorted(entries, key=lambda entry: (minimised(entry, cost), minimised(entry, quality)))
    found: set[str] = set()
    best, at = math.inf, math.inf
    for entry in order:
        value, paid = minimised(entry, quality), minimised(entry, cost)
        if value < best or (value == best and paid == at):
            found.add(entry.trial.fingerprint)
            best, at = value, paid
    return found


def places(board: Leaderboard, cost: Goal) -> list[Place]:
    """The ranked trials that have a number for the cost, the cheapest first."""
    quality = board.goals[0]
    entries = [entry for entry in board.ranked if cost.metric in entry.measured]
    best = front(entries, quality, cost)
    found = [
        Place(
            entry,
            entry.measured[cost.metric].mean,
            entry.measured[quality.metric].mean,
            entry.measured[quality.metric].spread or 0.0,
            entry.trial.fingerprint in best,
        )
        for entry in entries
    ]
    return sorted(found, key=lambda each: (each.cost, each.quality))


def against(board: Leaderboard, cost: Goal) -> Markup:
    """Quality against one cost; nothing where no trial has both."""
    found = places(board, cost)
    if not found:
        return Markup("")
    quality = title(board.goals[0].metric)
    right, across = scale([each.cost for each in found], LEFT, WIDTH - RIGHT)
    up, upright = scale(
        [value for each in found for value in (each.quality - each.spread, each.quality + each.spread)],
        HEIGHT - BOTTOM,
        TOP,
        may_be_logarithmic=False,
    )
    spots = gathered(found, right, up)
    inner = [
        tag("title", {}, f"{quality} against {title(cost.metric)}, {len(found)} trials. {best_of(board, found)}"),
        *(level(up(mark), mark_of(board.goals[0].metric, mark)) for mark in upright),
        *(foot(right(mark), mark_of(cost.metric, mark)) for mark in across),
        foot((LEFT + WIDTH - RIGHT) / 2, title(cost.metric), line=1),
        *(marked(board, cost, spot, right, up, len(found) <= MANY) for spot in spots if not spot[0].is_front),
        stairs([(right(each.cost), up(each.quality)) for each in found if each.is_front]),
        *(marked(board, cost, spot, right, up, True) for spot in spots if spot[0].is_front),
    ]
    key = join([tag("span", {"class": "key c0"}, "Pareto front"), f"{len(found)} finished trials"])
    return frame(f"{quality} against {title(cost.metric)}", key, inner)


def best_of(board: Leaderboard, found: Sequence[Place]) -> str:
    """The front in words, for who does not see it."""
    names = [point_of(each.entry, board.axes) or each.entry.trial.fingerprint for each in found if each.is_front]
    return f"On the front: {'; '.join(names)}."


def scale(
    values: Sequence[float], start: float, end: float, may_be_logarithmic: bool = True
) -> tuple[Scale, list[float]]:
    """From values to places with room at both ends, and the marks of the axis."""
    low, high = min(values), max(values)
    if may_be_logarithmic and low > 0 and high > WIDE * low:
        room = (high / low) ** EDGE
        low, high = low / room, high * room
        return logarithm(low, high, start, end), powers(low, high)
    low, high = spread(low, high)
    room = (high - low) * EDGE
    low, high = low - room, high + room
    return linear(low, high, start, end), ticks(low, high)


def mark_of(metric: str, value: float) -> str:
    """A number at an axis."""
    if is_share(metric):
        return f"{100 * value:.3g}%"
    return brief(value) if metric in EXACT else number(value)


def stairs(points: Sequence[Point]) -> Markup:
    """The front, from its cheapest point to its dearest: what a price buys, up to where the next price buys more."""
    (x, y), *rest = points
    path = f"M{short_number(x)},{short_number(y)}" + "".join(f"H{short_number(x)}V{short_number(y)}" for x, y in rest)
    return tag("path", {"class": "front-line", "d": path})


def gathered(found: Sequence[Place], right: Scale, up: Scale) -> list[list[Place]]:
    """The trials by where their dots are, so that none hides another; those of the front before others."""
    spots: dict[tuple[int, int], list[Place]] = {}
    for each in sorted(found, key=lambda each: not each.is_front):
        spots.setdefault((round(right(each.cost)), round(up(each.quality))), []).append(each)
    return [*spots.values()]


def said_of(board: Leaderboard, cost: Goal, each: Place) -> str:
    """A dot in words."""
    quality = board.goals[0].metric
    return (
        f"#{each.entry.rank} {point_of(each.entry, board.axes)}: {title(quality)} "
        f"{average(quality, each.entry.measured[quality])}, {title(cost.metric)} "
        f"{average(cost.metric, each.entry.measured[cost.metric])}"
    )


def marked(board: Leaderboard, cost: Goal, spot: Sequence[Place], right: Scale, up: Scale, whiskers: bool) -> Markup:
    """A dot, with its spread where there is room for it, which leads to its trial's row of the table; of several trials
    in one place the first, with their number beside it."""
    each = spot[0]
    x, y = right(each.cost), up(each.quality)
    told = "\n".join(said_of(board, cost, every) for every in spot)
    low, high = up(each.quality - each.spread), up(each.quality + each.spread)
    bar = f"M{short_number(x)},{short_number(low)}V{short_number(high)}"
    dot = tag(
        "circle",
        {"class": "trial front" if each.is_front else "trial", "cx": x, "cy": y, "r": 4.0},
        tag("title", {}, told),
    )
    whisker = tag("path", {"class": "spread", "d": bar}) if whiskers and each.spread else Markup("")
    times = [tag("text", {"class": "times", "x": x + 5, "y": y - 5}, f"{len(spot)}")] if spot[1:] else []
    return tag("a", {"href": f"#trial-{each.entry.trial.fingerprint}"}, whisker, dot, *times)


# ------------------------------------------------------------------------------------------- shares


def shares(found: Sequence[AxisEffect]) -> Markup:
    """The share of the variance of each axis whose share is known, and what chance alone would give it."""
    known = [(named(each), each.share, each.chance or 0.0) for each in found if each.share is not None]
    rows = join(bar(at, *each) for at, each in enumerate(known))
    told = ", ".join(f"{name} {share:.0%} (by chance {chance:.0%})" for name, share, chance in known)
    box = f"0 0 {short_number(WIDTH)} {short_number(BAR * len(known) + 4)}"
    drawing = tag("svg", {"viewBox": box, "role": "img"}, tag("title", {}, f"Share of the variance: {told}."), rows)
    keys = [tag("span", {"class": "key c0"}, "share"), tag("span", {"class": "key c1"}, "by chance")]
    return tag(
        "figure", {"class": "chart"}, tag("figcaption", {}, tag("b", {}, "Share of the variance"), *keys), drawing
    )


def bar(at: int, name: str, share: float, chance: float) -> Markup:
    """One axis: its name and its share above a bar, upon which a line says what chance would give."""
    top = BAR * at + 18.0
    return join(
        [
            tag("text", {"x": 0, "y": top - 5}, name),
            tag("text", {"class": "left", "x": WIDTH, "y": top - 5}, f"{share:.0%}"),
            tag("rect", {"class": "bar", "x": 0.0, "y": top, "width": WIDTH * share, "height": 10.0}),
            tag("path", {"class": "chance", "d": f"M{short_number(WIDTH * chance)},{short_number(top - 2)}v14"}),
        ]
    )


# ------------------------------------------------------------------------------------------- curves


def curves(board: Leaderboard) -> Markup:
    """What validations said in the course of every trial's first seed; the best have colours. Nothing without any."""
    drawn = [(entry, thinned(entry.curve)) for entry in board.entries if entry.curve]
    if not drawn:
        return Markup("")
    told = drawn[:TOLD]
    right, up, marks = fields([point for _, points in drawn for point in points])
    inner = [
        tag("title", {}, f"{board.watched} by step, {len(drawn)} trials."),
        *(level(up(mark), number(mark)) for mark in marks[1]),
        *(foot(right(mark), number(mark)) for mark in marks[0]),
        foot((LEFT + WIDTH - RIGHT) / 2, "step", line=1),
        *(line(points, "other", called(board, entry), right, up) for entry, points in drawn[TOLD:]),
        *(
            line(points, f"c{at}", called(board, entry), right, up)
            for at, (entry, points) in reversed([*enumerate(told)])
        ),
    ]
    names = [tag("span", {"class": f"key c{at}"}, called(board, entry)) for at, (entry, _) in enumerate(told)]
    rest = [f"and {len(drawn) - TOLD} more"] if len(drawn) > TOLD else []
    return frame(board.watched, join([*names, *rest]), inner)


def fields(points: Sequence[Point]) -> tuple[Scale, Scale, tuple[list[float], list[float]]]:
    """The scales of steps and of values, and the marks of both."""
    steps, values = [x for x, _ in points], [y for _, y in points]
    logarithmic = min(values) > 0 and max(values) > WIDE * min(values)
    least, most = values_of_scale(values, logarithmic)
    up = (logarithm if logarithmic else linear)(least, most, HEIGHT - BOTTOM, TOP)
    ends = spread(min(steps), max(steps))
    across = ticks(*ends, most=5), powers(least, most) if logarithmic else ticks(least, most)
    return linear(*ends, LEFT, WIDTH - RIGHT), up, across


def line(points: Sequence[Point], kind: str, name: str, right: Scale, up: Scale) -> Markup:
    """One trial's curve; a dot where it has one point."""
    if len(points) == 1:
        (x, y) = points[0]
        return tag("circle", {"class": f"dot {kind}", "cx": right(x), "cy": up(y), "r": 2.5}, tag("title", {}, name))
    path = " ".join(f"{short_number(right(x))},{short_number(up(y))}" for x, y in points)
    return tag("path", {"class": f"curve {kind}", "d": f"M{path}"}, tag("title", {}, name))


def called(board: Leaderboard, entry: Entry) -> str:
    """A trial as a curve's name."""
    rank = f"#{entry.rank}" if entry.rank is not None else entry.trial.status
    return f"{rank} {point_of(entry, board.axes)}".strip()
