"""The leaderboard as one HTML page that opens offline: a Jinja2 template with Plotly charts."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any
from urllib.parse import quote

import plotly.graph_objects as go

from composer.recipe.metrics import is_share
from composer.run_dir import seed_dirs, utc_now
from composer.sweeps import leaderboard_text as text
from composer.sweeps.leaderboard import Leaderboard, TrialResult, pareto_front
from composer.sweeps.sweep import Goal
from composer.viz.page import (
    Curve,
    Point,
    chart_text,
    figure_html,
    line_chart,
    render,
    write_document,
)

MAX_NAMED_CURVES = 8
"""Curves that are shown at first; the legend has the others."""
NUM_NAMED, MAX_NAME = 3, 26
"""The best trials, whose names are printed beside their dots; characters of such a name, after
which it is cut.
"""
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
"""Above the chart, where it cannot cover the title of an axis."""


def write_leaderboard(board: Leaderboard, output: str | Path | None = None) -> Path:
    """Write the page, by default FOLDER/leaderboard.html, and return its path. Raises RunError."""
    file = Path(output) if output is not None else board.folder / "leaderboard.html"
    fitted = text.contributions(board)
    ranked = [
        (cost, [e for e in board.ranked if cost.metric in e.measured]) for cost in cost_goals(board)
    ]
    charts = [(cost, results) for cost, results in ranked if results]
    curves = [result for result in board.results if result.curve]
    sections = {
        "table": ("Trials", board.results),
        "costs": ("Quality against cost", charts),
        "axes": ("What each axis contributes", fitted),
        "curves": ("Curves", curves),
    }
    page = render(
        "leaderboard.html",
        title=f"{board.name}: leaderboard",
        name=board.name,
        counts=text.count_text(board),
        sections={name: heading for name, (heading, content) in sections.items() if content},
        ranking_note=text.ranking_note(board),
        columns=text.columns(board),
        files={
            result.trial.fingerprint: _file_links(result, file.parent) for result in board.results
        },
        failures=text.failure_lines(board),
        cost_charts=[cost_chart(board, cost, results) for cost, results in charts],
        parallel_chart=fitted
        and figure_html(parallel_figure(board), "The axes and the score of each trial"),
        effects=text.effect_columns(board, fitted) if fitted and fitted.df else [],
        effect_notes=[*text.contribution_notes(board, fitted)] if fitted else [],
        curve_metric=board.curve_metric,
        curve_chart=figure_html(curve_figure(board, curves), f"{board.curve_metric} by step")
        if curves
        else "",
        time=utc_now()[:16].replace("T", " "),
    )
    return write_document(file, "leaderboard", page)


def _file_links(result: TrialResult, home: Path) -> dict[str, dict[str, str]]:
    """Return links to a trial's recipe, each seed's run folder and report, and the log of what did
    not finish.
    """
    trial = result.trial
    logs = {
        path.stem.removeprefix("seed-"): path for path in sorted(trial.folder.glob("seed-*.log"))
    }
    runs = {str(seed): trial.run(seed) for seed in seed_dirs(trial.folder)}
    files = {
        "": {"recipe": trial.recipe},
        "run": runs,
        "report": {seed: run / "report.html" for seed, run in runs.items()},
        "log": logs if trial.status != "finished" else {},
    }
    links: dict[str, dict[str, str]] = {}
    for kind, paths in files.items():
        for label, path in paths.items():
            if path.exists():
                href = quote(os.path.relpath(path, home).replace(os.sep, "/"))
                links.setdefault(kind, {})[label] = f"./{href}{'/' if path.is_dir() else ''}"
    return links


def cost_goals(board: Leaderboard) -> list[Goal]:
    """Return what the first goal is drawn against: the further goals, then parameters and FLOPs."""
    goals = {goal.metric: goal for goal in board.goals[1:]}
    for cost in ("parameters", "flops"):
        goals.setdefault(cost, Goal(cost, "min"))
    return [goal for metric, goal in goals.items() if metric != board.goals[0].metric]


def cost_chart(board: Leaderboard, cost: Goal, results: Sequence[TrialResult]) -> str:
    """Return a scatter plot of the first goal against a cost, with error bars over seeds and the
    Pareto front.
    """
    quality = board.goals[0]
    costs = [result.measured[cost.metric].mean for result in results]
    scale = axis_type(costs)
    middle = math.sqrt(min(costs) * max(costs)) if scale == "log" else (min(costs) + max(costs)) / 2
    front = pareto_front(results, quality, cost)
    rest = [result for result in results if result not in front]
    figure = go.Figure()
    if rest:
        figure.add_trace(
            _scatter(board, cost, rest, middle, name="other trials", mode="markers+text")
        )
    # a price buys the same quality until the next one buys more
    line = {"shape": "hv", "dash": "dot"}
    figure.add_trace(
        _scatter(
            board, cost, front, middle, name="Pareto front", mode="lines+markers+text", line=line
        )
    )
    has_bounds = any(result.measured[cost.metric].at_most for result in results)
    titles = (
        text.metric_title(quality.metric),
        f"{text.metric_title(cost.metric)}{', at most' if has_bounds else ''}",
    )
    figure.update_xaxes(title=titles[1], type=scale)
    figure.update_yaxes(title=titles[0], tickformat=".0%" if is_share(quality.metric) else "")
    figure.update_layout(legend=LEGEND, margin={"t": 60, "r": 10})
    # the front in words, for those who cannot see it
    names = "; ".join(
        text.point_text(result, board.axes) or result.trial.fingerprint for result in front
    )
    caption = (
        f"{titles[0]} against {titles[1]}, {len(results)} trials. On the Pareto front: {names}."
    )
    return figure_html(figure, caption)


def axis_type(values: Sequence[float]) -> str:
    """Return Plotly's type of an axis: logarithmic for positive values of which one is over 20
    times another.
    """
    return "log" if min(values) > 0 and max(values) > 20 * min(values) else "linear"


def _scatter(
    board: Leaderboard, cost: Goal, results: Sequence[TrialResult], middle: float, **style: Any
) -> go.Scatter:
    """Return dots with their ranks; names point inwards from `middle`, and those of the best apart
    from one another.
    """
    metrics = (board.goals[0].metric, cost.metric)
    heights = (
        ("top", "middle", "bottom")
        if board.goals[0].direction == "max"
        else ("bottom", "middle", "top")
    )
    height = dict(zip(range(1, NUM_NAMED + 1), heights, strict=True))

    def label(result: TrialResult) -> str:
        name = text.point_text(result, board.axes) if result.rank in height else ""
        return chart_text(f"{result.rank} {shorten(name, MAX_NAME, placeholder='…')}".strip())

    def describe(result: TrialResult) -> str:
        scores = ", ".join(
            f"{text.metric_title(key)} {text.format_mean(key, result.measured[key])}"
            for key in metrics
        )
        return chart_text(f"#{result.rank} {text.point_text(result, board.axes)}: {scores}")

    def position(here: Sequence[TrialResult]) -> str:
        side = "left" if here[0].measured[cost.metric].mean > middle else "right"
        return f"{height.get(here[0].rank or 0, 'top')} {side}"

    points = gather_points(results, board.goals[0], cost)
    spreads = [here[0].measured[board.goals[0].metric].spread or 0.0 for here in points.values()]
    return go.Scatter(
        x=[x for x, _ in points],
        y=[y for _, y in points],
        error_y={"type": "data", "array": spreads, "visible": any(spreads)},
        text=[", ".join(map(label, here)) for here in points.values()],
        textposition=list(map(position, points.values())),
        cliponaxis=False,
        hovertext=["<br>".join(map(describe, here)) for here in points.values()],
        hoverinfo="text",
        # `script.js` leads there
        customdata=[f"#trial-{here[0].trial.fingerprint}" for here in points.values()],
        **style,
    )


def gather_points(
    results: Sequence[TrialResult], quality: Goal, cost: Goal
) -> dict[Point, list[TrialResult]]:
    """Return results by their cost and quality, so that no dot hides another."""
    points: dict[Point, list[TrialResult]] = {}
    for result in results:
        point = (result.measured[cost.metric].mean, result.measured[quality.metric].mean)
        points.setdefault(point, []).append(result)
    return points


def parallel_figure(board: Leaderboard) -> go.Figure:
    """Return each ranked trial as a band through its values, in the colour of its score, the best
    yellow.
    """
    goal, dimensions = board.goals[0], []
    for axis in board.axes:
        groups = {
            chart_text(value): indices
            for value, indices in text.group_by_value(board, axis).items()
        }
        values = {index: value for value, indices in groups.items() for index in indices}
        through = [values.get(index, "-") for index, _ in enumerate(board.ranked)]
        order = {"categoryorder": "array", "categoryarray": [*groups, "-"]}
        dimensions.append({"label": chart_text(axis), "values": through, **order})
    scores = [result.measured[goal.metric].mean for result in board.ranked]
    colors = {
        "color": scores,
        "colorscale": "Viridis",
        "reversescale": goal.direction == "min",
        "showscale": True,
    }
    bar = {"title": text.metric_title(goal.metric), "orientation": "h", "y": 0, "yanchor": "top"}
    bands = go.Parcats(
        dimensions=dimensions,
        line={"shape": "hspline", "colorbar": bar, **colors},
        hoverinfo="count",
    )
    bands.domain.x = [0.1, 0.85]  # the values are written beside it
    return go.Figure(bands).update_layout(margin={"t": 60, "r": 10})


def curve_figure(board: Leaderboard, results: Sequence[TrialResult]) -> go.Figure:
    """Return the learning curves of the trials' first seeds; those not among the best are hidden at
    first.
    """
    heads = (f"#{one.rank}" if one.rank is not None else one.trial.status for one in results)
    names = (
        f"{head} {text.point_text(one, board.axes)}".strip()
        for head, one in zip(heads, results, strict=True)
    )
    curves = [Curve(name, result.curve) for name, result in zip(names, results, strict=True)]
    is_logarithmic = axis_type([y for curve in curves for _, y in curve.points]) == "log"
    figure = line_chart("", curves, "step", board.curve_metric, is_logarithmic)
    for trace in figure.data[MAX_NAMED_CURVES:]:
        trace.visible = "legendonly"
    return figure.update_layout(
        showlegend=True, legend=LEGEND, margin={"t": 60, "r": 10}, height=None
    )
