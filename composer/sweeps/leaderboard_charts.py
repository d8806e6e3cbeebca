"""The charts of a leaderboard's page: quality against costs with the Pareto front, and curves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import plotly.graph_objects as go

from composer.metrics.table import is_share, logged_key, metric_of
from composer.sweeps.leaderboard import Leaderboard, TrialResult, sort_key
from composer.sweeps.leaderboard_tables import mean_text, metric_title, point_text
from composer.sweeps.sweep import COSTS, Goal
from composer.sweeps.trial import read_log
from composer.viz.page import (
    Curve,
    Point,
    chart_text,
    figure_html,
    line_chart,
    logarithmic_ticks,
    points,
)

MAX_SHOWN_CURVES = 8
"""Curves that are shown at first; the legend has the others."""
LEGEND = {"orientation": "h", "y": 1.02, "yanchor": "bottom"}
"""Above the chart, where it cannot cover the title of an axis."""

Dots = Mapping[Point, Sequence[TrialResult]]
"""Trials by their place in a chart: cost and quality."""


def cost_charts(board: Leaderboard) -> Iterator[str]:
    """Yield a chart of the first goal against each cost: those ranked by, parameters, FLOPs."""
    goals = [*board.goals[1:], Goal("parameters", "min"), Goal("flops", "min")]
    costs = {goal.metric: goal for goal in goals if goal.metric in (*COSTS, "minutes")}
    for cost in costs.values():
        results = [result for result in board.ranked if cost.metric in result.measured]
        if results and cost.metric != board.goals[0].metric:
            yield cost_chart(board, cost, results)


def cost_chart(board: Leaderboard, cost: Goal, results: Sequence[TrialResult]) -> str:
    """Return a scatter plot of the first goal against a cost, with the Pareto front."""
    quality = board.goals[0]
    front = pareto_front(results, quality, cost)
    rest = [result for result in results if result not in front]
    # the front leaves a dot to the right, and comes from below, or from above if less is better
    front_side, other_side = ("top", "bottom") if quality.direction == "max" else ("bottom", "top")
    # a price buys the same quality until the next one buys more
    line = go.scatter.Line(shape="hv", dash="dot")
    others = go.Scatter(name="other trials", mode="markers+text", showlegend=bool(rest))
    others.textposition = f"{other_side} right"
    best = go.Scatter(name="Pareto front", mode="lines+markers+text", line=line)
    best.textposition = f"{front_side} left"
    place_dots(others, board, cost, rest)
    place_dots(best, board, cost, front)
    # in this order always, since the palette of the page gives the colours
    figure = go.Figure([others, best])
    y_title, x_title = metric_title(quality.metric), metric_title(cost.metric)
    if any(result.measured[cost.metric].at_most for result in results):
        x_title += ", at most"
    figure.update_xaxes(title=x_title, tickformat="~s", type="linear", nticks=6)
    spread_costs(figure, [result.measured[cost.metric].mean for result in results])
    figure.update_yaxes(title=y_title, tickformat=".0%" if is_share(quality.metric) else "")
    figure.update_layout(showlegend=True, legend=LEGEND, margin={"t": 50, "r": 10, "b": 45})
    # the front in words, for those who cannot see it
    names = "; ".join(
        point_text(result, board.axes) or result.trial.fingerprint for result in front
    )
    caption = f"{y_title} against {x_title}, {len(results)} trials. On the Pareto front: {names}."
    return figure_html(figure, caption)


def pareto_front(results: Sequence[TrialResult], quality: Goal, cost: Goal) -> list[TrialResult]:
    """Return the results that no other beats in one goal and equals in the other, by cost."""
    front: list[TrialResult] = []
    best, price = math.inf, math.inf
    for result in sorted(results, key=lambda result: sort_key(result, (cost, quality))):
        paid, value = sort_key(result, (cost, quality))
        if value < best or (value == best and paid == price):
            front.append(result)
            best, price = value, paid
    return front


def spread_costs(figure: go.Figure, costs: Sequence[float]) -> None:
    """Make the axis of costs logarithmic if one is more than 20 times another."""
    if min(costs) > 0 and max(costs) > 20 * min(costs):
        figure.update_xaxes(type="log", tickvals=logarithmic_ticks(min(costs), max(costs)))


def place_dots(
    trace: go.Scatter, board: Leaderboard, cost: Goal, results: Sequence[TrialResult]
) -> None:
    """Place a dot for each trial, one for those at the same place, with their ranks."""
    quality = board.goals[0].metric
    dots = gather_dots(results, quality, cost.metric)
    spreads = [here[0].measured[quality].spread or 0.0 for here in dots.values()]
    trace.update(
        x=[x for x, _ in dots],
        y=[y for _, y in dots],
        error_y={"type": "data", "array": spreads, "visible": any(spreads)},
        text=[", ".join(str(result.rank) for result in here) for here in dots.values()],
        cliponaxis=False,
        hovertext=[describe_dot(board, cost, here) for here in dots.values()],
        hoverinfo="text",
        # `script.js` leads there
        customdata=[f"#trial-{here[0].trial.fingerprint}" for here in dots.values()],
    )


def gather_dots(results: Sequence[TrialResult], quality: str, cost: str) -> Dots:
    """Return trials by their cost and quality, so that no dot hides another."""
    dots: dict[Point, list[TrialResult]] = {}
    for result in results:
        place = (result.measured[cost].mean, result.measured[quality].mean)
        dots.setdefault(place, []).append(result)
    return dots


def describe_dot(board: Leaderboard, cost: Goal, here: Sequence[TrialResult]) -> str:
    """Return the text that is shown at a dot: values and numbers of each of its trials."""
    lines = []
    for result in here:
        metrics = (board.goals[0].metric, cost.metric)
        scores = [f"{metric_title(metric)} {mean_text(result, metric)}" for metric in metrics]
        name = point_text(result, board.axes)
        lines.append(chart_text(f"#{result.rank} {name}: {', '.join(scores)}"))
    return "<br>".join(lines)


def curve_chart(board: Leaderboard) -> str:
    """Return the learning curves of the first seeds, of which the best are shown; "" without any.

    Their metric is the first goal on validation lines.
    """
    logs = []
    for result in board.results:
        seeds = result.trial.records
        logs.append(read_log(result.trial, min(seeds)) if seeds else [])
    validated = (goal.metric for goal in board.goals if goal.metric.startswith("val/"))
    key = logged_key([*chain(*logs)], next(validated, "val/loss"))
    curves = []
    for result, log in zip(board.results, logs, strict=True):
        head = result.state if result.rank is None else f"#{result.rank}"
        name = f"{head} {point_text(result, board.axes)}".strip()
        if values := points(log, key, positive=False):
            curves.append(Curve(name, values))
    if not curves:
        return ""
    metric = metric_of(key)
    is_positive = all(value > 0 for curve in curves for _, value in curve.points)
    is_logarithmic = metric is not None and metric.logarithmic and is_positive
    figure = line_chart("", curves, "step", key, is_logarithmic)
    for trace in figure.data[MAX_SHOWN_CURVES:]:
        trace.visible = "legendonly"
    figure.update_layout(showlegend=True, legend=LEGEND, margin={"t": 60, "r": 10}, height=None)
    return figure_html(figure, f"{key} by step")
