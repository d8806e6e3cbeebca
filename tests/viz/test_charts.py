"""Curves and bars stand where their numbers are."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.viz.charts import (
    BOTTOM,
    DRAWN,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Bar,
    Curve,
    bar_chart,
    line_chart,
    number,
    powers,
    spread,
    thinned,
    ticks,
)
from tests.viz.pages import having, texts

FINITE = st.floats(-1e6, 1e6)


def places(chart: str, kind: str) -> list[tuple[float, float]]:
    """The points of a curve."""
    (curve,) = (each for each in having(ElementTree.fromstring(chart), "curve") if kind in each.get("class", ""))
    return [tuple(map(float, pair.split(","))) for pair in curve.get("d", "")[1:].split()]  # type: ignore[misc]


def test_a_curve_fills_its_field() -> None:
    chart = line_chart("loss", [Curve("a", [(10, 4.0), (20, 3.0), (30, 2.0)]), Curve("b", [(20, 3.0)])])
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    assert places(chart, "c0") == [(LEFT, TOP), ((LEFT + right) / 2, (TOP + bottom) / 2), (right, bottom)]
    assert places(chart, "c1") == [((LEFT + right) / 2, (TOP + bottom) / 2)]
    root = ElementTree.fromstring(chart)
    assert [each.text for dot in having(root, "dot") for each in dot] == [
        "a 4 at step 10",
        "a 3 at step 20",
        "a 2 at step 30",
        "b 3 at step 20",
    ]
    assert texts(root, "key") == ["a", "b"]
    assert "a: 4 at step 10, 2 at step 30, from 2 to 4." in "".join(root.itertext())


def test_equal_ratios_are_equally_far_apart() -> None:
    chart = line_chart("perplexity", [Curve("a", [(1, 1000.0), (2, 100.0), (3, 10.0), (4, 1.0)])], logarithmic=True)
    heights = [y for _, y in places(chart, "c0")]
    third = (heights[-1] - heights[0]) / 3
    assert [after - before for before, after in pairwise(heights)] == pytest.approx([third] * 3, abs=0.02)


def test_an_axis_ends_where_it_is_told_to() -> None:
    chart = line_chart("right", [Curve("a", [(20, 0.5), (40, 0.75)])], across="length", low=0.0, high=1.0)
    field = HEIGHT - BOTTOM - TOP
    assert [y for _, y in places(chart, "c0")] == [TOP + field / 2, TOP + field / 4]
    told = "".join(ElementTree.fromstring(chart).itertext())
    assert "a: 0.5 at length 20, 0.75 at length 40" in told
    assert "step" not in told
    flat = line_chart("right", [Curve("a", [(1, 1.0), (2, 1.0)])], high=1.0)
    assert texts(ElementTree.fromstring(flat), "left")[-1] == "1"
    assert [y for _, y in places(flat, "c0")] == [TOP, TOP]


def test_one_row_is_a_chart_too() -> None:
    for logarithmic in (False, True):
        for value in (1e-9, 1.0, 3e5):
            ((x, y),) = places(line_chart("one", [Curve("a", [(4, value)])], logarithmic), "c0")
            assert LEFT < x < WIDTH - RIGHT
            assert TOP < y < HEIGHT - BOTTOM


def test_bars_are_as_high_as_their_values() -> None:
    root = ElementTree.fromstring(bar_chart("bleu", [Bar("1-10", 30.0, "n=7"), Bar("51+", 15.0, "n=1")]))
    high, low = (float(each.get("height", "")) for each in having(root, "bar"))
    assert high == pytest.approx(2 * low, abs=0.02)
    assert texts(root, "above") == ["30.0", "15.0"]
    assert texts(root, "foot") == ["1-10", "n=7", "51+", "n=1"]
    nothing = ElementTree.fromstring(bar_chart("bleu", [Bar("1-10", 0.0, "n=7")]))
    assert [each.get("height") for each in having(nothing, "bar")] == ["0"]


@given(FINITE, FINITE)
def test_marks_are_round_and_inside(one: float, other: float) -> None:
    low, high = spread(*sorted((one, other)))
    assert low < high
    assert low <= min(one, other) + 1e-300
    assert max(one, other) <= high
    found = ticks(low, high)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-6 * (high - low) <= each <= high + 1e-6 * (high - low) for each in found)
    if len(found) > 1:
        step = found[1] - found[0]
        mantissa = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(mantissa - each) for each in (1, 2, 5, 10)) < 1e-3


@given(st.floats(1e-6, 1e6), st.floats(1.1, 1e9))
def test_marks_of_a_logarithmic_axis(low: float, ratio: float) -> None:
    found = powers(low, low * ratio)
    assert len(found) >= 2
    assert found == sorted(found)
    assert all(low * 0.999 <= each <= low * ratio * 1.001 for each in found)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=1000))
def test_a_thinned_curve_is_as_long_and_as_high(points: list[tuple[float, float]]) -> None:
    found = thinned(points)
    assert len(found) <= DRAWN
    if len(points) <= DRAWN:
        assert found == points
    assert min(y for _, y in points) - 1e-6 <= min(y for _, y in found)
    assert max(y for _, y in found) <= max(y for _, y in points) + 1e-6


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0.0, 1300, 0.25, 2e-5, -3.0, 1e7)] == [
        "0",
        "1,300",
        "0.25",
        "2e-5",
        "-3",
        "1e7",
    ]
    assert not re.search(r"\d{8}", number(123456789.0))
