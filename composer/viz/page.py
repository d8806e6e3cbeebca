"""Self-contained HTML pages from Jinja2 templates, with Plotly charts and escaped texts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from composer.atomic_io import atomic_write, os_errors_as_run_errors
from composer.errors import RunError
from composer.formatting import strip_control_characters
from composer.metrics.table import METRICS, METRICS_BY_LENGTH, metric_name, validation_keys

if TYPE_CHECKING:
    from jinja2 import Environment
    from plotly.graph_objects import Figure

DOCTYPE = b"<!DOCTYPE html>"


def render(template: str, **context: object) -> str:
    """Return a template of `composer/viz/templates` filled in.

    Values are escaped unless they are `Markup`, and control characters, which no page may hold, are
    replaced. A page extends `base.html`, takes a `title`, and fills the blocks `body` and, for CSS
    of its own, `style`.
    """
    return load_templates().get_template(template).render(**context)


def is_html(file: Path) -> bool:
    """True if a file is an HTML page."""
    return file.read_bytes().startswith(DOCTYPE)


def write_document(
    file: Path, what: str, text: str | bytes, is_document: Callable[[Path], bool] = is_html
) -> Path:
    """Write a page or a picture atomically, and return its file; `what` names it in errors.

    A file that is there is overwritten if it `is_document`, so that nothing else is lost. Raises
    RunError if it may not be, or cannot be written.
    """
    check_can_overwrite(file, what, is_document)
    with os_errors_as_run_errors(file):
        atomic_write(file, text.encode() if isinstance(text, str) else text)
    return file


def check_can_overwrite(
    file: Path, what: str, is_document: Callable[[Path], bool] = is_html
) -> None:
    """Raise the errors of `write_document` that can be known before."""
    reason = ""
    with os_errors_as_run_errors(file):
        if not file.parent.is_dir():
            reason = "its folder does not exist"
        elif file.exists() and not (file.is_file() and is_document(file)):
            reason = f"the file exists and is not a {what}; it would be lost"
    if reason:
        message = f"the {what} cannot be written: {reason}"
        raise RunError.of(message, "name another file with `--output FILE`", str(file))


def png_uri(pixels: np.ndarray) -> str:
    """Return grey levels (H, W) or colours (H, W, 3 or 4) as the data URI of a PNG file."""
    from plotly.utils import image_array_to_data_uri  # imported late: most pages have no picture

    return str(
        image_array_to_data_uri(np.ascontiguousarray(pixels), backend="pypng", compression=9)
    )


ZOOM = 8
"""Pixels of a cell's sides in a picture for programs that blur what they enlarge."""


def sharp_png_uri(pixels: np.ndarray) -> str:
    """Return the data URI of a PNG file in which a cell has ZOOM by ZOOM pixels."""
    return png_uri(pixels.repeat(ZOOM, 0).repeat(ZOOM, 1))


@cache
def load_templates() -> Environment:
    """Return the templates of `composer/viz/templates`, with the functions that they may call."""
    # imported late: training imports this module, and may not need it
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def strip_text(value: object) -> object:
        return (
            strip_control_characters(value)
            if isinstance(value, str) and not isinstance(value, Markup)
            else value
        )

    environment = Environment(
        loader=PackageLoader("composer.viz", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=strip_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"png": png_uri, "sharp_png": sharp_png_uri}
    environment.filters["coordinate"] = lambda value: f"{value:.2f}".rstrip("0").rstrip(".")
    folder = files("composer.viz") / "templates"
    environment.globals.update(
        # as it is, not escaped
        asset=lambda name: Markup((folder / name).read_text(encoding="utf-8")),
        plotly_script=plotly_script,
        security_policy=security_policy,
    )
    return environment


def security_policy(scripts: Iterable[str]) -> str:
    """Return the policy of a page that loads nothing from elsewhere and runs these scripts only."""
    digests = (
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    )
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Plotly draws the pictures that it saves as a blob of the page
    return (
        "default-src 'none'; img-src data: blob:; media-src data:; style-src 'unsafe-inline';"
        f" script-src {allowed}"
    )


MAX_POINTS, MAX_MARKERS = 300, 60
"""Points of a curve, beyond which each is the mean of several, and beyond which they have no
markers.
"""
Point = tuple[float, float]
Rows = Sequence[Mapping[str, Any]]
"""Rows of metrics.jsonl, or of scores by source length."""
Chart = tuple["Figure", str]
"""A figure, and what it shows in words."""


class Curve(NamedTuple):
    """Curve of a chart; its points go from left to right."""

    name: str
    points: Sequence[Point]


def figure_html(figure: Figure, description: str = "") -> Markup:
    """Return a Plotly figure as an element, which `script.js` draws in the page's colours.

    What a figure leaves unset (colours, fonts, grid, background) follows the page; its template is
    ignored. Texts of users, such as names of runs, must pass through `chart_text`, since Plotly
    reads some HTML. description: the chart in words, for those who cannot see it.
    """
    from jinja2.utils import htmlsafe_json_dumps

    content = json.loads(figure.to_json())
    content["layout"].pop("template", None)
    # not Plotly's own HTML: that is a script for each figure, and the page's policy allows only
    # those that it lists
    element = Markup('<div class="plot" role="img" aria-label="{}" data-figure=\'{}\'></div>')
    return element.format(strip_control_characters(description), htmlsafe_json_dumps(content))


def chart_text(text: str) -> str:
    """Return a text such that Plotly shows it verbatim instead of reading tags and links in it."""
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
    """Return a figure of curves; `y_range` is that of a linear axis."""
    from plotly.graph_objects import Figure, Scatter

    figure = Figure()
    for curve in curves:
        points = thin_out(curve.points)
        mode = "lines+markers" if len(points) <= MAX_MARKERS else "lines"
        xs, ys = [x for x, _ in points], [y for _, y in points]
        hover = "%{y:.5~g} at " + x_label + " %{x:,.0f}"
        name = chart_text(curve.name)
        figure.add_trace(
            Scatter(x=xs, y=ys, name=name, mode=mode, marker={"size": 5}, hovertemplate=hover)
        )
    figure.update_xaxes(title=x_label)
    figure.update_yaxes(title=y_label, type="log" if logarithmic else "linear", range=y_range)
    return style_figure(figure, title)


def logarithmic_ticks(low: float, high: float) -> list[float]:
    """Return ticks of a logarithmic axis: powers of ten, for few decades also twos and fives."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(decades) <= 4 else (1,)
    ticks = []
    for decade in decades:
        ticks += [digit * 10.0**decade for digit in digits]
    return ticks


def style_figure(figure: Figure, title: str) -> Figure:
    """Set the title and the layout that all charts share; returns the figure."""
    return figure.update_layout(
        title={
            "text": chart_text(title),
            "font": {"size": 15},
            "x": 0.01,
            "y": 0.97,
            "yanchor": "top",
        },
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
    means = []
    for start in range(0, len(points), size):
        xs, ys = zip(*points[start : start + size], strict=True)
        means.append((sum(xs) / len(xs), sum(ys) / len(ys)))
    return means


class ChartSpec(NamedTuple):
    """Chart of learning curves: its title, the unit of its y axis, and keys of metrics.jsonl."""

    title: str
    unit: str
    keys: tuple[str, ...]
    logarithmic: bool = False
    y_range: tuple[float, float] | None = None


OTHER_CHARTS = (
    ChartSpec("Learning rate", "learning rate", ("train/learning_rate",)),
    ChartSpec("Speed", "target tokens per second", ("train/tokens_per_second",)),
    ChartSpec("Level of the curriculum", "level", ("train/level",)),
    ChartSpec(
        "Training sequences with an error",
        "share, 0 to 1",
        ("train/sequence_error",),
        y_range=(0.0, 1.0),
    ),
)
"""Charts of what is logged beside the metrics."""


class CurveChart(NamedTuple):
    """Chart of learning curves, and the curves of which the run has logged something."""

    spec: ChartSpec
    curves: list[Curve]


def learning_charts(rows: Rows) -> list[CurveChart]:
    """Return every chart of metrics, and of other logged values, that has a curve."""
    specs: dict[str, ChartSpec] = {}
    for name, metric in METRICS.items():
        title = metric.chart or metric.label.capitalize()
        keys = specs[title].keys if title in specs else ("train/loss",) if name == "loss" else ()
        y_range = (0.0, 1.0) if metric.highest == 1 else None
        logged = [key for key in validation_keys() if metric_name(key) == name]
        specs[title] = ChartSpec(title, metric.unit, (*keys, *logged), metric.logarithmic, y_range)
    charts = []
    for spec in (*specs.values(), *OTHER_CHARTS):
        curves = [Curve(key, points(rows, key, spec.logarithmic)) for key in spec.keys]
        if curves := [curve for curve in curves if curve.points]:
            charts.append(CurveChart(spec, curves))
    return charts


def learning_curves(rows: Rows) -> list[Markup]:
    """Return the elements of a page with every chart of `learning_charts`."""
    elements = []
    for spec, curves in learning_charts(rows):
        figure = line_chart(spec.title, curves, "step", spec.unit, spec.logarithmic, spec.y_range)
        elements.append(figure_html(figure, describe_curves(spec.title, curves, "step")))
    return elements


def bleu_chart(split: str, by_length: Rows) -> Chart | None:
    """Return BLEU by source length: bars with values above, lengths and counts below."""
    import plotly.graph_objects as go

    rows = [row for row in by_length if "bleu" in row]
    if not rows:
        return None
    metric = METRICS_BY_LENGTH["bleu"]
    title = f"{metric.label} on {split}"
    unit = "characters" if "characters" in rows[0] else "words"
    names = [f"{chart_text(str(row.get(unit, '')))}<br>n={row['lines']:,}" for row in rows]
    values = [float(row["bleu"]) for row in rows]
    hover = "%{x}: %{y:.2f}<extra></extra>"
    figure = go.Figure(
        go.Bar(x=names, y=values, texttemplate="%{y:.1f}", hovertemplate=hover, cliponaxis=False)
    )
    figure.update_traces(textposition="outside")
    figure.update_xaxes(title=f"{unit} of the source", type="category")
    figure.update_yaxes(title=f"{metric.label}, {metric.unit}", rangemode="tozero")
    words = " ".join(
        f"{row.get(unit, '')} {unit}: {row['bleu']:.1f} (n={row['lines']:,})." for row in rows
    )
    return style_figure(figure, title), f"{title}. {words}"


def accuracy_chart(split: str, by_length: Rows) -> Chart | None:
    """Return the accuracies by source length."""
    rows = [row for row in by_length if "exact_match" in row]
    rows = [row for row in rows if isinstance(row.get("words"), int)]
    rows.sort(key=lambda row: row["words"])
    if not rows:
        return None
    metrics = {name: METRICS_BY_LENGTH[name] for name in ("exact_match", "positional_accuracy")}
    curves = [
        Curve(metric.label, points(rows, name, False, "words")) for name, metric in metrics.items()
    ]
    curves = [curve for curve in curves if curve.points]
    title = f"Accuracy on {split}"
    unit = f"share, {metrics['exact_match'].unit}"
    figure = line_chart(title, curves, "words of the source", unit, y_range=(0.0, 1.0))
    return figure, describe_curves(title, curves, "length")


def points(rows: Rows, key: str, positive: bool, x_key: str = "step") -> list[Point]:
    """Return the finite values of a key by `x_key`, `positive`: only those above 0."""
    values = [
        (float(row[x_key]), float(row[key]))
        for row in rows
        if isinstance(row.get(key), int | float)
    ]
    values = [(x, y) for x, y in values if math.isfinite(y)]
    return [(x, y) for x, y in values if y > 0] if positive else values
