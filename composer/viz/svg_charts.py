"""Curves and bars as SVG, in colours that the page gives them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from composer.viz.html import Markup, join, short_number, tag

if TYPE_CHECKING:
    pass

Point = tuple[float, float]
Scale = Callable[[float], float]

WIDTH, HEIGHT = 400.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 52.0, 12.0, 12.0, 34.0
"""Room around the field for what is written at its axes."""
DRAWN = 300
"""Points of a curve at most; where there are more, each is the mean of several."""
DOTTED = 60
"""Points at most that are dots too, which tell their value."""
STEPS = (1.0, 2.0, 5.0, 10.0)
"""What the distance of two marks may be, in units of a power of ten."""
TINY, NARROW = 1e-300, 1e-9
"""Numbers that are as good as zero; ranges whose width is, as a share of the numbers in them."""


class Curve(NamedTuple):
    """A line of a chart. The points go from left to right."""

    name: str
    points: Sequence[Point]


class Bar(NamedTuple):
    """A bar of a chart, and what stands below its name."""

    name: str
    value: float
    below: str


# ------------------------------------------------------------------------------------------- curves


def line_chart(
    title: str,
    curves: Sequence[Curve],
    logarithmic: bool = False,
    across: str = "step",
    low: float | None = None,
    high: float | None = None,
) -> Markup:
    """Curves over the step, or what `across` says. Each has a point at least; a logarithmic chart takes numbers above 0
    only. `low` and `high` are the ends of the upright axis, where they are known."""
    drawn = [Curve(curve.name, thinned(curve.points)) for curve in curves]
    steps = [x for curve in drawn for x, _ in curve.points]
    values = [y for curve in drawn for _, y in curve.points]
    right = linear(*spread(min(steps), max(steps)), LEFT, WIDTH - RIGHT)
    least, most = values_of_scale(values, logarithmic)
    least, most = least if low is None else low, most if high is None else high
    up = (logarithm if logarithmic else linear)(least, most, HEIGHT - BOTTOM, TOP)
    marks = powers(least, most) if logarithmic else ticks(least, most)
    inner = [
        tag("title", {}, f"{title}. {' '.join(told(curve, across) for curve in curves)}"),
        *(level(up(mark), number(mark)) for mark in marks),
        *(foot(right(mark), number(mark)) for mark in ticks(*spread(min(steps), max(steps)), most=5)),
        foot((LEFT + WIDTH - RIGHT) / 2, across, line=1),
        *(line(curve, place, right, up, across) for place, curve in enumerate(drawn)),
    ]
    return frame(title, legend([curve.name for curve in curves]), inner)


def line(curve: Curve, place: int, right: Scale, up: Scale, across: str) -> Markup:
    """One curve, with dots where its points are few."""
    path = " ".join(f"{short_number(right(x))},{short_number(up(y))}" for x, y in curve.points)
    drawn = [tag("path", {"class": f"curve c{place}", "d": f"M{path}"})]
    if len(curve.points) <= DOTTED:
        drawn += [
            tag(
                "circle",
                {"class": f"dot c{place}", "cx": right(x), "cy": up(y), "r": 2.5},
                tag("title", {}, f"{curve.name} {number(y)} at {across} {x:,.0f}"),
            )
            for x, y in curve.points
        ]
    return join(drawn)


def told(curve: Curve, across: str) -> str:
    """A curve in words, for who does not see it."""
    values = [y for _, y in curve.points]
    (first, began), (last, ended) = curve.points[0], curve.points[-1]
    return (
        f"{curve.name}: {number(began)} at {across} {first:,.0f}, {number(ended)} at {across} {last:,.0f}, "
        f"from {number(min(values))} to {number(max(values))}."
    )


def thinned(points: Sequence[Point], most: int = DRAWN) -> list[Point]:
    """At most so many points, each the mean of as many neighbours as any other."""
    together = math.ceil(len(points) / most)
    parts = [points[at : at + together] for at in range(0, len(points), max(1, together))]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


# ------------------------------------------------------------------------------------------- bars


def bar_chart(title: str, bars: Sequence[Bar]) -> Markup:
    """Bars from zero, each with its value above it and its name below."""
    high = spread(0.0, max(bar.value for bar in bars))[1]
    up = linear(0.0, high, HEIGHT - BOTTOM, TOP + 10)
    room = (WIDTH - LEFT - RIGHT) / len(bars)
    inner = [
        tag("title", {}, f"{title}. " + " ".join(f"{bar.name}: {number(bar.value)}, {bar.below}." for bar in bars))
    ]
    inner += [level(up(mark), number(mark)) for mark in ticks(0.0, high)]
    for place, bar in enumerate(bars):
        middle, top = LEFT + room * (place + 0.5), up(bar.value)
        inner += [
            tag(
                "rect",
                {
                    "class": "bar",
                    "x": middle - room * 0.35,
                    "y": top,
                    "width": room * 0.7,
                    "height": HEIGHT - BOTTOM - top,
                },
            ),
            tag("text", {"class": "above", "x": middle, "y": top - 4}, f"{bar.value:.1f}"),
            foot(middle, bar.name),
            foot(middle, bar.below, line=1),
        ]
    return frame(title, Markup(""), inner)


# ------------------------------------------------------------------------------------------- what all charts have


def frame(title: str, colours: Markup, inner: Sequence[Markup]) -> Markup:
    """A chart as a figure, with its title and what its colours mean."""
    box = f"0 0 {short_number(WIDTH)} {short_number(HEIGHT)}"
    drawing = tag("svg", {"viewBox": box, "role": "img"}, *inner)
    return tag("figure", {"class": "chart"}, tag("figcaption", {}, tag("b", {}, title), colours), drawing)


def legend(names: Sequence[str]) -> Markup:
    """The curves' names, each beside its colour."""
    return join(tag("span", {"class": f"key c{place}"}, name) for place, name in enumerate(names))


def level(y: float, text: str) -> Markup:
    """A value of the upright axis, and a line through the field."""
    across = tag(
        "path", {"class": "grid", "d": f"M{short_number(LEFT)},{short_number(y)}H{short_number(WIDTH - RIGHT)}"}
    )
    return join([across, tag("text", {"class": "left", "x": LEFT - 6, "y": y + 4}, text)])


def foot(x: float, text: str, line: int = 0) -> Markup:
    """What stands below the field."""
    return tag("text", {"class": "foot", "x": x, "y": HEIGHT - BOTTOM + 15 + 14 * line}, text)


# ------------------------------------------------------------------------------------------- scales


def linear(low: float, high: float, start: float, end: float) -> Scale:
    """From values to places."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def logarithm(low: float, high: float, start: float, end: float) -> Scale:
    """From values above 0 to places, equal ratios equally far apart."""
    inner = linear(math.log(low), math.log(high), start, end)
    return lambda value: inner(math.log(value))


def values_of_scale(values: Sequence[float], logarithmic: bool) -> tuple[float, float]:
    """Where the upright axis begins and ends."""
    low, high = min(values), max(values)
    if not logarithmic:
        return spread(low, high)
    return (low, high) if high > low * 1.05 else (low / 1.1, high * 1.1)


def spread(low: float, high: float) -> tuple[float, float]:
    """The same range, or one around it where it has next to no width."""
    size = max(abs(low), abs(high))
    if size < TINY:
        return 0.0, 1.0
    return (low, high) if high - low > NARROW * size else (low - size / 2, high + size / 2)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers from low to high, as many as fit but no more than `most`."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(each for each in STEPS if each * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [place * step for place in range(first, last + 1)]


def powers(low: float, high: float) -> list[float]:
    """Round numbers of a logarithmic axis: 1, 2, 5, 10; powers of ten only where there are many; ends where none."""
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [mantissa * 10.0**exponent for exponent in exponents for mantissa in STEPS[:3]]
    inside = [each for each in every if low * (1 - 1e-9) <= each <= high * (1 + 1e-9)]
    if len(inside) > 7:
        inside = [each for each in inside if math.isclose(math.log10(each), round(math.log10(each)), abs_tol=1e-9)]
    return inside if len(inside) > 1 else [low, high]


def number(value: float) -> str:
    """A number as one reads it at an axis: 1,300; 0.25; 2e-05."""
    size = abs(value)
    if value == 0.0:
        return "0"
    if size >= 1e6 or size < 1e-3:
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
