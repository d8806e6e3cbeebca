"""Charts as Plotly figures: learning curves, bars, and their place in a page. The one door to Plotly."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from markupsafe import Markup

from composer.formatting import strip_control_characters
from composer.recipe.metrics import METRICS

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MAX_POINTS, MAX_MARKERS = 300, 60
"""Points of a curve, beyond which each is the mean of several, and beyond which they have no markers."""
Point = tuple[float, float]
Rows = Sequence[Mapping[str, Any]]
"""Rows of metrics.jsonl, or of scores by source length."""


class Curve(NamedTuple):
    """Curve of a chart; its points go from left to right."""

    name: str
    points: Sequence[Point]


class Bar(NamedTuple):
    """Bar of a chart, with a note below its name."""

    name: str
    value: float
    note: str


def figure_html(figure: Figure, description: str = "") -> Markup:
    """Return a Plotly figure as an element of a page; `script.js` draws it, in the page's colours, light and dark.

    What a figure leaves unset (colours, fonts, grid, background) follows the page. Texts of users, such as names of
    runs, must pass through `chart_text`, since Plotly reads some HTML.

    Args:
        figure: A `plotly.graph_objects.Figure`; its template is ignored.
        description: The chart in words, for those who cannot see it.
    """
    from jinja2.utils import htmlsafe_json_dumps

    content = json.loads(figure.to_json())
    content["layout"].pop("template", None)
    # not Plotly's own HTML: that is a script for each figure, and the page's policy allows only those that it lists
    element = Markup('<div class="plot" role="img" aria-label="{}" data-figure=\'{}\'></div>')
    return element.format(strip_control_characters(description), htmlsafe_json_dumps(content))


def chart_text(text: str) -> str:
    """Return a text such that Plotly shows it to the letter instead of reading tags and links in it."""
    return html.escape(strip_control_characters(text), quote=False)


@cache
def plotly_script() -> Markup:
    """Return Plotly's own JavaScript, as the installed package has it."""
    from plotly.offline import get_plotlyjs

    return Markup(get_plotlyjs())


def line_chart(
    title: str,
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    logarithmic: bool = False,
    y_range: tuple[float, float] | None = None,
) -> Figure:
    """Return a figure of curves. A logarithmic y axis shows positive values only; `y_range` is that of a linear one."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for curve in curves:
        points = thin_out(curve.points)
        mode = "lines+markers" if len(points) <= MAX_MARKERS else "lines"
        xs, ys = [x for x, _ in points], [y for _, y in points]
        hover = "%{y:.5~g} at " + x_label + " %{x:,.0f}"
        name = chart_text(curve.name)
        figure.add_trace(Scatter(x=xs, y=ys, name=name, mode=mode, marker={"size": 5}, hovertemplate=hover))
    figure.update_xaxes(title=x_label)
    figure.update_yaxes(title=y_label, type="log" if logarithmic else "linear", range=y_range)
    return style_figure(figure, title)


def bar_chart(title: str, bars: Sequence[Bar], x_label: str, y_label: str) -> Figure:
    """Return a figure of vertical bars, each with its value above it, its name and its note below."""
    import plotly.graph_objects as go

    names = [f"{chart_text(bar.name)}<br>{chart_text(bar.note)}" for bar in bars]
    values = [bar.value for bar in bars]
    hover = "%{x}: %{y:.2f}<extra></extra>"
    figure = go.Figure(go.Bar(x=names, y=values, texttemplate="%{y:.1f}", hovertemplate=hover, cliponaxis=False))
    figure.update_traces(textposition="outside")
    figure.update_xaxes(title=x_label, type="category")
    figure.update_yaxes(title=y_label, rangemode="tozero")
    return style_figure(figure, title)


def style_figure(figure: Figure, title: str) -> Figure:
    """Set the title and the layout that all charts share; returns the figure."""
    return figure.update_layout(
        title={"text": chart_text(title), "font": {"size": 15}, "x": 0.01, "y": 0.97, "yanchor": "top"},
        showlegend=len(figure.data) > 1,
        legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"},
        margin={"l": 55, "r": 15, "t": 80, "b": 45},
        height=320,
        hovermode="x unified" if len(figure.data) > 1 else "closest",
    )


def describe_curves(title: str, curves: Sequence[Curve], x_label: str) -> str:
    """Return a chart of curves in words, for those who cannot see it."""
    parts = [f"{title}."]
    for curve in curves:
        (first, start), (last, end) = curve.points[0], curve.points[-1]
        values = [y for _, y in curve.points]
        ends = f"{start:.3g} at {x_label} {first:,.0f}, {end:.3g} at {x_label} {last:,.0f}"
        parts.append(f"{curve.name}: {ends}, from {min(values):.3g} to {max(values):.3g}.")
    return " ".join(parts)


def thin_out(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return at most `limit` points, each the mean of as many neighbours as any other."""
    size = max(1, -(-len(points) // limit))
    parts = [points[at : at + size] for at in range(0, len(points), size)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


class ChartSpec(NamedTuple):
    """Chart of learning curves: its title, the unit of its y axis, and keys of metrics.jsonl."""

    title: str
    unit: str
    keys: tuple[str, ...]
    logarithmic: bool = False
    y_range: tuple[float, float] | None = None


OTHER_CHARTS = (
    ChartSpec("Learning rate", "learning rate", ("train/learning_rate",)),
    ChartSpec("Level of the curriculum", "level", ("train/level",)),
    ChartSpec("Training sequences with an error", "share, 0 to 1", ("train/sequence_error",), y_range=(0.0, 1.0)),
)
"""Charts of what is logged beside the metrics."""


def learning_curves(rows: Rows) -> list[Markup]:
    """Return every chart of metrics, and of what is logged beside them, of which the run has logged something."""
    specs: dict[str, ChartSpec] = {}
    for name, metric in METRICS.items():
        title = metric.chart or metric.label
        keys = specs[title].keys if title in specs else ("train/loss",) if name == "loss" else ()
        y_range = (0.0, 1.0) if metric.highest == 1 else None
        specs[title] = ChartSpec(title, metric.unit, (*keys, f"val/{name}"), metric.logarithmic, y_range)
    charts = []
    for spec in (*specs.values(), *OTHER_CHARTS):
        curves = [Curve(key, points(rows, key, spec.logarithmic)) for key in spec.keys]
        if curves := [curve for curve in curves if curve.points]:
            figure = line_chart(spec.title, curves, "step", spec.unit, spec.logarithmic, spec.y_range)
            charts.append(figure_html(figure, describe_curves(spec.title, curves, "step")))
    return charts


def bleu_chart(split: str, by_length: Rows) -> Markup | None:
    """Return a chart of BLEU by source length."""
    rows = [row for row in by_length if "bleu" in row]
    if not rows:
        return None
    bars = [Bar(str(row["words"]), float(row["bleu"]), f"n={row['lines']:,}") for row in rows]
    figure = bar_chart(f"BLEU on {split}", bars, "words of the source", "BLEU, 0 to 100")
    words = " ".join(f"{bar.name} words: {bar.value:.1f} ({bar.note})." for bar in bars)
    return figure_html(figure, f"BLEU on {split}. {words}")


def accuracy_chart(split: str, by_length: Rows) -> dict[str, Any] | None:
    """Return a chart of the accuracies by source length, and how many sentences each length has."""
    rows = sorted((row for row in by_length if "exact_match" in row), key=lambda row: row["tokens"])
    if not rows:
        return None
    labels = {"exact_match": "exact match", "positional_accuracy": "positional accuracy"}
    curves = [Curve(label, points(rows, key, False, "tokens")) for key, label in labels.items()]
    curves = [curve for curve in curves if curve.points]
    title = f"Accuracy on {split}"
    figure = line_chart(title, curves, "words of the source", "share, 0 to 1", y_range=(0.0, 1.0))
    lines = [row["lines"] for row in rows]
    counts = " to ".join(f"{count:,}" for count in dict.fromkeys((min(lines), max(lines))))
    return {"chart": figure_html(figure, describe_curves(title, curves, "length")), "counts": counts}


def points(rows: Rows, key: str, positive: bool, x_key: str = "step") -> list[Point]:
    """Return the finite values that were logged under a key, by `x_key`. positive: without those that are not."""
    values = [(float(row[x_key]), float(row[key])) for row in rows if isinstance(row.get(key), int | float)]
    return [(x, y) for x, y in values if math.isfinite(y) and (y > 0 or not positive)]
