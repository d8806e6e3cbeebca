"""The leaderboard as one HTML page that opens offline: a Jinja2 template with Plotly charts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

import plotly.graph_objects as go

from composer.metrics.table import is_share, metric_of
from composer.run_dir import seed_dirs, utc_now
from composer.sweeps import leaderboard_text as text
from composer.sweeps.leaderboard import Leaderboard, TrialResult, pareto_front
from composer.sweeps.sweep import COSTS, Goal, format_value
from composer.viz.page import (
    Curve,
    Point,
    chart_text,
    figure_html,
    line_chart,
    logarithmic_ticks,
    render,
    write_document,
)

MAX_NAMED_CURVES = 8
"""Curves that are shown at first; the legend has the others."""
NUM_NAMED, MAX_NAME = 3, 26
"""Trials whose values are printed beside their dots, and the characters of such a name."""
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
"""Above the chart, where it cannot cover the title of an axis."""


def write_leaderboard(board: Leaderboard, output: str | Path | None = None) -> Path:
    """Write the page, by default FOLDER/leaderboard.html, and return its path. Raises RunError."""
    file = Path(output) if output is not None else board.folder / "leaderboard.html"
    fitted = text.contributions(board)
    curves = [result for result in board.results if result.curve]
    page = render(
        "leaderboard.html",
        title=f"{board.name}: leaderboard",
        board=board,
        counts=text.count_text(board),
        ranking_note=text.ranking_note(board),
        summary_notes=text.summary_notes(board),
        columns=text.columns(board),
        files=[
            (result.trial.fingerprint, file_links(result, file.parent)) for result in board.results
        ],
        failures=text.failure_lines(board),
        cost_charts=list(cost_charts(board)),
        is_fitted=fitted is not None,
        effects=text.effect_columns(board, fitted) if fitted and fitted.df else [],
        effect_notes=list(text.contribution_notes(board, fitted)) if fitted else [],
        parallel_chart=parallel_chart(board),
        curve_chart=curve_chart(board, curves) if curves else "",
        time=utc_now()[:16].replace("T", " "),
    )
    return write_document(file, "leaderboard", page)


def file_links(result: TrialResult, home: Path) -> dict[str, dict[str, str]]:
    """Return links to the recipe, runs and reports of a trial, and to logs if it has failed."""
    trial = result.trial
    runs = {str(seed): trial.run(seed) for seed in seed_dirs(trial.folder)}
    logs = [] if trial.status == "finished" else sorted(trial.folder.glob("seed-*.log"))
    files = {
        "": {"recipe": trial.recipe},
        "run": runs,
        "report": {seed: run / "report.html" for seed, run in runs.items()},
        "log": {path.stem.removeprefix("seed-"): path for path in logs},
    }
    links: dict[str, dict[str, str]] = {}
    for kind, paths in files.items():
        for label, path in paths.items():
            if path.exists():
                href = quote(os.path.relpath(path, home).replace(os.sep, "/"))
                links.setdefault(kind, {})[label] = f"./{href}{'/' if path.is_dir() else ''}"
    return links


def cost_goals(board: Leaderboard) -> list[Goal]:
    """Return the costs to draw the first goal against: those ranked by, parameters, FLOPs."""
    first, *others = board.goals
    goals = {goal.metric: goal for goal in others if goal.metric in (*COSTS, "minutes")}
    for cost in ("parameters", "flops"):
        goals.setdefault(cost, Goal(cost, "min"))
    goals.pop(first.metric, None)
    return [*goals.values()]


def cost_charts(board: Leaderboard) -> Iterator[str]:
    """Yield a chart of the first goal against each cost that is known of a trial."""
    for cost in cost_goals(board):
        results = [result for result in board.ranked if cost.metric in result.measured]
        if results:
            yield cost_chart(board, cost, results)


def cost_chart(board: Leaderboard, cost: Goal, results: Sequence[TrialResult]) -> str:
    """Return a scatter plot of the first goal against a cost, with the Pareto front."""
    quality = board.goals[0]
    front = pareto_front(results, quality, cost)
    rest = [result for result in results if result not in front]
    figure = go.Figure()
    # in this order always, since the palette of the page gives the colours
    # the front leaves a dot to the right, and comes from below, or from above if less is better
    front_side, other_side = ("top", "bottom") if quality.direction == "max" else ("bottom", "top")
    add_dots(
        figure,
        board,
        cost,
        rest,
        name="other trials",
        mode="markers+text",
        textposition=f"{other_side} right",
        showlegend=bool(rest),
    )
    add_dots(
        figure,
        board,
        cost,
        front,
        name="Pareto front",
        mode="lines+markers+text",
        textposition=f"{front_side} left",
        # a price buys the same quality until the next one buys more
        line={"shape": "hv", "dash": "dot"},
    )
    add_names(figure, board, cost, results)
    y_title, x_title = text.metric_title(quality.metric), text.metric_title(cost.metric)
    if any(result.measured[cost.metric].at_most for result in results):
        x_title += ", at most"
    figure.update_xaxes(title=x_title, tickformat="~s", **cost_axis(costs_of(results, cost)))
    figure.update_yaxes(title=y_title, tickformat=".0%" if is_share(quality.metric) else "")
    figure.update_layout(showlegend=True, legend=LEGEND, margin={"t": 50, "r": 10, "b": 45})
    # the front in words, for those who cannot see it
    names = "; ".join(trial_name(board, result) for result in front)
    caption = f"{y_title} against {x_title}, {len(results)} trials. On the Pareto front: {names}."
    return figure_html(figure, caption)


def costs_of(results: Sequence[TrialResult], cost: Goal) -> list[float]:
    """Return the cost of each trial."""
    return [result.measured[cost.metric].mean for result in results]


def cost_axis(costs: Sequence[float]) -> dict[str, Any]:
    """Return Plotly's axis of costs, logarithmic if one is more than 20 times another."""
    if min(costs) <= 0 or max(costs) <= 20 * min(costs):
        return {"type": "linear", "nticks": 6}
    return {"type": "log", "tickvals": logarithmic_ticks(min(costs), max(costs))}


def trial_name(board: Leaderboard, result: TrialResult) -> str:
    """Return the values of a trial, or its fingerprint if it has none."""
    return text.point_text(result, board.axes) or result.trial.fingerprint


def add_dots(
    figure: go.Figure,
    board: Leaderboard,
    cost: Goal,
    results: Sequence[TrialResult],
    **style: Any,
) -> None:
    """Add a trace of trials, one dot for those at the same place, with their ranks."""
    quality = board.goals[0]
    points = gather_points(results, quality, cost)
    spreads = [here[0].measured[quality.metric].spread or 0.0 for here in points.values()]
    figure.add_trace(
        go.Scatter(
            x=[x for x, _ in points],
            y=[y for _, y in points],
            error_y={"type": "data", "array": spreads, "visible": any(spreads)},
            text=[ranks_of_unnamed(here) for here in points.values()],
            cliponaxis=False,
            hovertext=[describe_dot(board, cost, here) for here in points.values()],
            hoverinfo="text",
            # `script.js` leads there
            customdata=[f"#trial-{here[0].trial.fingerprint}" for here in points.values()],
            **style,
        )
    )


def gather_points(
    results: Sequence[TrialResult], quality: Goal, cost: Goal
) -> dict[Point, list[TrialResult]]:
    """Return trials by their cost and quality, so that no dot hides another."""
    points: dict[Point, list[TrialResult]] = {}
    for result in results:
        point = (result.measured[cost.metric].mean, result.measured[quality.metric].mean)
        points.setdefault(point, []).append(result)
    return points


def is_named(here: Sequence[TrialResult]) -> bool:
    """True if the best trial at a dot has its values printed beside it."""
    return (here[0].rank or math.inf) <= NUM_NAMED


def ranks_of_unnamed(here: Sequence[TrialResult]) -> str:
    """Return the ranks of the trials at a dot that has no name."""
    return "" if is_named(here) else ", ".join(str(result.rank) for result in here)


def describe_dot(board: Leaderboard, cost: Goal, here: Sequence[TrialResult]) -> str:
    """Return the text that is shown at a dot: values and numbers of each of its trials."""
    lines = []
    for result in here:
        scores = []
        for metric in (board.goals[0].metric, cost.metric):
            mean = text.format_mean(metric, result.measured[metric])
            scores.append(f"{text.metric_title(metric)} {mean}")
        name = text.point_text(result, board.axes)
        lines.append(chart_text(f"#{result.rank} {name}: {', '.join(scores)}"))
    return "<br>".join(lines)


def add_names(
    figure: go.Figure, board: Leaderboard, cost: Goal, results: Sequence[TrialResult]
) -> None:
    """Print ranks and values of the best beside their dots, inwards and apart from one another.

    They are annotations, whose background keeps the front's line and bars of spread from them.
    """
    costs = costs_of(results, cost)
    is_logarithmic = cost_axis(costs)["type"] == "log"
    middle = (min(costs) + max(costs)) / 2
    if is_logarithmic:
        middle = math.sqrt(min(costs) * max(costs))
    above = 1 if board.goals[0].direction == "max" else -1
    for (x, y), here in gather_points(results, board.goals[0], cost).items():
        if not is_named(here):
            continue
        anchor = "right" if x > middle else "left"
        label = ", ".join(f"{result.rank} {short_name(board, result)}".strip() for result in here)
        figure.add_annotation(
            x=math.log10(x) if is_logarithmic else x,
            y=y,
            text=chart_text(label),
            xanchor=anchor,
            xshift=-9 if anchor == "right" else 9,
            yshift=14 * above * (2 - (here[0].rank or 0)),
            showarrow=False,
        )


def short_name(board: Leaderboard, result: TrialResult) -> str:
    """Return the values of a trial on the axes that vary, cut where they are long."""
    axes = [axis for axis in board.axes if len(text.group_by_value(board, axis)) > 1]
    values = [result.trial.point[axis] for axis in axes if axis in result.trial.point]
    return shorten(", ".join(map(format_value, values)), MAX_NAME, placeholder="…")


def parallel_chart(board: Leaderboard) -> str:
    """Return each ranked trial as a band through its values; "" if fewer than two axes vary."""
    groups = {axis: text.group_by_value(board, axis) for axis in board.axes}
    dimensions = []
    for axis, by_value in groups.items():
        through = ["-"] * len(board.ranked)
        for value, indices in by_value.items():
            for index in indices:
                through[index] = chart_text(value)
        if len({*through}) > 1:
            order = [*map(chart_text, by_value), "-"]
            dimensions.append(
                {
                    "label": chart_text(axis),
                    "values": through,
                    "categoryorder": "array",
                    "categoryarray": order,
                }
            )
    if len(dimensions) < 2:
        return ""
    return figure_html(parallel_figure(board, dimensions), "The axes and the score of each trial")


def parallel_figure(board: Leaderboard, dimensions: Sequence[dict[str, Any]]) -> go.Figure:
    """Return bands through the values of the axes, in the colour of the score, the best yellow."""
    goal = board.goals[0]
    bar = {"title": text.metric_title(goal.metric), "orientation": "h", "y": 0, "yanchor": "top"}
    line = {
        "shape": "hspline",
        "color": [result.measured[goal.metric].mean for result in board.ranked],
        "colorscale": "Viridis",
        "reversescale": goal.direction == "min",
        "showscale": True,
        "colorbar": bar,
    }
    bands = go.Parcats(dimensions=dimensions, line=line, hoverinfo="count")
    bands.domain.x = [0.1, 0.85]  # the values are written beside it
    return go.Figure(bands).update_layout(margin={"t": 60, "r": 10})


def curve_chart(board: Leaderboard, results: Sequence[TrialResult]) -> str:
    """Return the learning curves of the first seeds; at first those of the best are shown."""
    curves = []
    for result in results:
        head = result.state if result.rank is None else f"#{result.rank}"
        name = f"{head} {text.point_text(result, board.axes)}".strip()
        curves.append(Curve(name, result.curve))
    metric = metric_of(board.curve_metric)
    is_logarithmic = metric is not None and metric.logarithmic
    for curve in curves:
        is_logarithmic = is_logarithmic and all(value > 0 for _, value in curve.points)
    figure = line_chart("", curves, "step", board.curve_metric, is_logarithmic)
    for trace in figure.data[MAX_NAMED_CURVES:]:
        trace.visible = "legendonly"
    figure.update_layout(showlegend=True, legend=LEGEND, margin={"t": 60, "r": 10}, height=None)
    return figure_html(figure, f"{board.curve_metric} by step")
