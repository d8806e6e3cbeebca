"""The charts of a leaderboard's page: quality against costs with the Pareto front, and curves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import plotly.graph_objects as go

from composer.metrics.table import is_share, logged_key, metric_of
from composer.sweeps.leaderboard.board import Leaderboard, TrialResult
from composer.sweeps.leaderboard.tables import mean_text, metric_title, point_text
from composer.sweeps.sweep import COSTS
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
    goals = [goal.metric for goal in board.goals if goal.metric in (*COSTS, "minutes")]
    for cost in dict.fromkeys((*goals, "parameters", "flops")):
        results = [result for result in board.ranked if cost in result.measured]
        if results and cost != board.metric:
            yield cost_chart(board, cost, results)


def cost_chart(board: Leaderboard, cost: str, results: Sequence[TrialResult]) -> str:
    """Return a scatter plot of the first goal against a cost, with the Pareto front."""
    dots = gather_dots(results, board.metric, cost)
    front = {dot: dots[dot] for dot in pareto_front(dots, board.goals[0].direction == "max")}
    rest = {dot: here for dot, here in dots.items() if dot not in front}
    # in this order always, since the palette of the page gives the colours
    others, best = dot_trace(board, cost, rest), dot_trace(board, cost, front)
    others.update(name="other trials", mode="markers+text", showlegend=bool(rest))
    best.update(name="Pareto front", mode="lines+markers+text", textposition="top left")
    # a price buys the same quality until the next one buys more
    best.update(line={"shape": "hv", "dash": "dot"})
    figure = go.Figure([others, best])
    y_title, x_title = metric_title(board.metric), metric_title(cost)
    if any(result.measured[cost].at_most for result in results):
        x_title += ", at most"
    figure.update_xaxes(title=x_title, tickformat="~s", type="linear", nticks=6)
    costs = [x for x, _ in dots]
    if 0 < 20 * min(costs) < max(costs):
        figure.update_xaxes(type="log", tickvals=logarithmic_ticks(min(costs), max(costs)))
    figure.update_yaxes(title=y_title, tickformat=".0%" if is_share(board.metric) else "")
    figure.update_layout(showlegend=True, legend=LEGEND, margin={"t": 50, "r": 10, "b": 45})
    # the front in words, for those who cannot see it
    names = [
        point_text(result, board.axes) or result.trial.fingerprint
        for result in chain(*front.values())
    ]
    caption = f"{y_title} against {x_title}, {len(results)} trials. On the Pareto front: "
    return figure_html(figure, f"{caption}{'; '.join(names)}.")


def gather_dots(results: Sequence[TrialResult], quality: str, cost: str) -> Dots:
    """Return trials by their cost and quality, so that no dot hides another."""
    dots: dict[Point, list[TrialResult]] = {}
    for result in results:
        place = (result.measured[cost].mean, result.measured[quality].mean)
        dots.setdefault(place, []).append(result)
    return dots


def pareto_front(dots: Iterable[Point], is_better_above: bool) -> list[Point]:
    """Return the dots than which no other is as good and cheaper, or better and as cheap."""
    sign = 1 if is_better_above else -1
    front: list[Point] = []
    for x, y in sorted(dots, key=lambda dot: (dot[0], -sign * dot[1])):
        if not front or sign * y > sign * front[-1][1]:
            front.append((x, y))
    return front


def dot_trace(board: Leaderboard, cost: str, dots: Dots) -> go.Scatter:
    """Return a dot for each trial, one for those at the same place, with their ranks."""
    spreads = [here[0].measured[board.metric].spread or 0.0 for here in dots.values()]
    return go.Scatter(
        x=[x for x, _ in dots],
        y=[y for _, y in dots],
        error_y={"type": "data", "array": spreads, "visible": any(spreads)},
        text=[", ".join(str(result.rank) for result in here) for here in dots.values()],
        textposition="bottom right",
        cliponaxis=False,
        hovertext=[describe_dot(board, cost, here) for here in dots.values()],
        hoverinfo="text",
        # `script.js` leads there
        customdata=[f"#trial-{here[0].trial.fingerprint}" for here in dots.values()],
    )


def describe_dot(board: Leaderboard, cost: str, here: Sequence[TrialResult]) -> str:
    """Return the text that is shown at a dot: values and numbers of each of its trials."""
    lines = []
    for result in here:
        scores = [f"{metric_title(key)} {mean_text(result, key)}" for key in (board.metric, cost)]
        lines.append(chart_text(f"{trial_name(board, result)}: {', '.join(scores)}"))
    return "<br>".join(lines)


def trial_name(board: Leaderboard, result: TrialResult) -> str:
    """Return the rank, or the state, and the values of a trial."""
    head = result.state if result.rank is None else f"#{result.rank}"
    return f"{head} {point_text(result, board.axes)}".strip()


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
        if values := points(log, key, positive=False):
            curves.append(Curve(trial_name(board, result), values))
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
