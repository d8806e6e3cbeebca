"""Charts hold the values they are given, in words too."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import plotly.graph_objects as go
from hypothesis import given
from hypothesis import strategies as st

from composer.viz.page import (
    MAX_MARKERS,
    MAX_POINTS,
    Curve,
    bleu_chart,
    chart_text,
    describe_curves,
    figure_html,
    line_chart,
    thin_out,
)

FINITE = st.floats(-1e6, 1e6)
CURVES = [Curve("a", [(10, 4.0), (20, 3.0), (30, 2.0)]), Curve("b", [(20, 3.0)])]
BLEU_BY_LENGTH = [
    {"words": "1-10", "lines": 7, "bleu": 30.0},
    {"words": "51+", "lines": 1, "bleu": 15.0},
]
EVIL = "</script><script>alert(1)</script>'\"&<b>"


def in_page(figure: Any) -> dict[str, Any]:
    """Return a figure as the page's script reads it."""
    return read_element(figure_html(figure))


def read_element(element: str | None) -> dict[str, Any]:
    """Return the figure in an element of a page."""
    assert element is not None
    content: dict[str, Any] = json.loads(ElementTree.fromstring(element).get("data-figure", ""))
    return content


def test_a_curve_has_its_points_and_both_axes_their_labels() -> None:
    figure = in_page(line_chart("Loss", CURVES, "step", "nats per token"))
    assert [(trace["x"], trace["y"], trace["name"]) for trace in figure["data"]] == [
        ([10, 20, 30], [4.0, 3.0, 2.0], "a"),
        ([20], [3.0], "b"),
    ]
    layout = figure["layout"]
    assert (layout["title"]["text"], layout["xaxis"]["title"]["text"]) == ("Loss", "step")
    assert (layout["yaxis"]["title"]["text"], layout["yaxis"]["type"]) == (
        "nats per token",
        "linear",
    )
    assert layout["showlegend"]


def test_a_single_curve_needs_no_legend() -> None:
    assert not in_page(line_chart("Loss", CURVES[:1], "step", ""))["layout"]["showlegend"]


def test_a_chart_can_be_logarithmic_or_have_a_range() -> None:
    assert (
        in_page(line_chart("Perplexity", CURVES, "step", "", logarithmic=True))["layout"]["yaxis"][
            "type"
        ]
        == "log"
    )
    assert in_page(line_chart("Accuracy", CURVES, "step", "", y_range=(0, 1)))["layout"]["yaxis"][
        "range"
    ] == [0, 1]


def test_colours_are_left_to_the_page() -> None:
    """Set by its script, they follow light and dark; a template of Plotly's would overrule them."""
    for content in (
        in_page(line_chart("Loss", CURVES, "step", "")),
        read_element(figure_html(*bleu_chart("test", BLEU_BY_LENGTH))),
    ):
        assert "template" not in content["layout"]
        assert "color" not in json.dumps(content)


def test_a_chart_is_described_in_words() -> None:
    assert (
        describe_curves("Loss", CURVES, "step")
        == "Loss. a: 4 at step 10, 2 at step 30, from 2 to 4. b: 3 at step 20, 3 at step 20, from 3"
        " to 3."
    )


def test_bars_have_their_values_above_and_their_names_below() -> None:
    figure = read_element(figure_html(*bleu_chart("test", BLEU_BY_LENGTH)))
    (bars,) = figure["data"]
    assert (bars["x"], bars["y"]) == (["1-10<br>n=7", "51+<br>n=1"], [30.0, 15.0])
    assert bars["texttemplate"] == "%{y:.1f}"
    assert figure["layout"]["yaxis"]["rangemode"] == "tozero"


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=1000))
def test_a_thinned_curve_stays_within_its_values(points: list[tuple[float, float]]) -> None:
    thinned = thin_out(points)
    assert len(thinned) <= MAX_POINTS
    if len(points) <= MAX_POINTS:
        assert thinned == points
    assert min(y for _, y in points) - 1e-6 <= min(y for _, y in thinned)
    assert max(y for _, y in thinned) <= max(y for _, y in points) + 1e-6


def test_only_few_points_have_markers() -> None:
    for count, mode in ((MAX_MARKERS, "lines+markers"), (MAX_MARKERS + 1, "lines")):
        curve = Curve("a", [(float(step), 1.0) for step in range(count)])
        assert in_page(line_chart("Loss", [curve], "step", ""))["data"][0]["mode"] == mode


# ------------------------------------------------------------------------------------------- text
# from anywhere


def test_no_text_escapes_from_a_figure() -> None:
    figure = go.Figure(go.Scatter(x=[EVIL], y=[1.0], name=EVIL), layout={"title": EVIL})
    element = ElementTree.fromstring(figure_html(figure, EVIL + "\0"))
    assert len(element) == 0
    assert element.get("aria-label") == EVIL + "\N{REPLACEMENT CHARACTER}"
    assert in_page(figure)["data"][0]["name"] == EVIL


def test_plotly_reads_no_tags_in_the_text_of_a_user() -> None:
    assert chart_text("<a href='x'>run</a> & \0") == "&lt;a href='x'&gt;run&lt;/a&gt; &amp; �"
    figure = in_page(line_chart("<b>", [Curve("<i>", [(1, 2)])], "step", ""))
    assert (figure["layout"]["title"]["text"], figure["data"][0]["name"]) == (
        "&lt;b&gt;",
        "&lt;i&gt;",
    )


def test_a_value_that_is_not_finite_leaves_a_gap() -> None:
    figure = go.Figure(go.Scatter(x=[1, 2, 3], y=[1.0, float("nan"), float("inf")]))
    assert in_page(figure)["data"][0]["y"] == [1.0, None, None]
