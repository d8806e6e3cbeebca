"""The tables of a leaderboard: their cells and notes, which the text and the page lay out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from composer.formatting import count_each, count_noun, format_bound, si, significant
from composer.metrics.table import format_score, is_share, metric_of
from composer.sweeps.leaderboard.board import Leaderboard, Measurement, TrialResult
from composer.sweeps.sweep import COSTS, ERROR_RATE, format_value

if TYPE_CHECKING:
    from composer.sweeps.leaderboard.significance import Contributions, ValueEffect

ALIKE, DIFFERENT = "≈", "*"
ERROR_PERCENT = f"{100 * ERROR_RATE:g} %"
DISPENSABLE = ("minutes", "state bytes", "FLOPs", "epochs", "steps", "parameters")
"""Columns that a narrow terminal drops, in this order, before the further goals."""


@dataclass(frozen=True)
class Column:
    """A column of a table, with a cell for each row. Texts are aligned left, numbers right."""

    head: str
    is_text: bool
    cells: Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table, the sentences below it, and those that say how its numbers are computed.

    `dispensable` are the heads of columns that a narrow terminal drops, in this order.
    """

    columns: Sequence[Column] = ()
    dispensable: Sequence[str] = ()
    notes: Sequence[str] = ()
    method: Sequence[str] = ()


def trial_table(board: Leaderboard) -> Table:
    """Return the table of trials, a row for each."""
    goals = [metric_title(metric) for metric in shown_metrics(board)[1:]]
    dispensable = (*DISPENSABLE, *reversed(goals), "p", "to the best", "trial")
    return Table(trial_columns(board), dispensable, [*trial_notes(board)], [*trial_method(board)])


def effect_table(board: Leaderboard) -> Table:
    """Return the table of the axes, a row for each value; an empty one if no axis is compared."""
    fitted = board.contributions
    if fitted is None:
        return Table()
    notes = [*effect_notes(board, fitted)]
    if not fitted.df:
        return Table(notes=notes)
    dispensable = (adjusted_title(board), "trials")
    return Table(effect_columns(board, fitted), dispensable, notes, [effect_method(fitted)])


# -------------------------------------------------------------------------------------------
# numbers


def metric_title(metric: str) -> str:
    """Return the name of a metric or cost as the head of a column."""
    return {"flops": "FLOPs", "state_bytes": "state bytes"}.get(metric, metric)


def format_metric(metric: str, value: float) -> str:
    """Format a score by its metric, a cost as a whole number or with an SI prefix."""
    if metric in COSTS:
        return si(value) if metric == "flops" else f"{value:,.0f}"
    return format_score(metric, value)


def format_mean(metric: str, measurement: Measurement) -> str:
    """Format a mean, with the standard deviation of several seeds, or `at most` for a bound."""
    mean = format_bound(format_metric(metric, measurement.mean), measurement.at_most)
    if measurement.spread is None:
        return mean
    texts = [mean, format_spread(metric, measurement.spread)]
    return " ± ".join(equally_exact([measurement.mean, measurement.spread], texts))


def format_spread(metric: str, spread: float) -> str:
    """Format a standard deviation; of an unbounded metric two digits, no more are ever known."""
    known = metric_of(metric)
    is_bounded = known is not None and known.highest is not None
    if is_share(metric) or is_bounded or metric in COSTS:
        return format_metric(metric, spread)
    return significant(spread, 2)


def format_signed(metric: str, difference: float) -> str:
    """Format a difference with its sign, of shares in percentage points."""
    if is_share(metric):
        return f"{100 * difference:+.1f}"
    return f"{'-' if difference < 0 else '+'}{format_spread(metric, abs(difference))}"


def equally_exact(values: Sequence[float], texts: Sequence[str]) -> Sequence[str]:
    """Return the texts of values with as many decimals as the one that has the most.

    A text with an exponent, a prefix or a unit counts for none; beside one all stay as they are if
    the first, the value itself, is such a text.
    """
    plain = [text for text in texts if text.replace(".", "").lstrip("+-").isdecimal()]
    if texts[0] not in plain:
        return texts
    decimals = max(len(text.partition(".")[2]) for text in plain)
    sign = "+" if texts[0][0] in "+-" else ""
    return [f"{value:{sign}.{decimals}f}" for value in values]


# -------------------------------------------------------------------------------------------
# trials


def shown_metrics(board: Leaderboard) -> list[str]:
    """Return the metrics of the table of trials: the goals, then costs."""
    goals = [goal.metric for goal in board.goals]
    return [*dict.fromkeys([*goals, "parameters", "flops", "minutes"])]


def trial_columns(board: Leaderboard) -> list[Column]:
    """Return the columns of the table of trials that say anything, the fingerprint last."""
    first, *others = shown_metrics(board)
    columns: list[Column] = []

    def add(head: str, cell: Callable[[TrialResult], str], is_text: bool = False) -> None:
        cells = [cell(result) for result in board.results]
        if {*cells} - {"", "finished"}:
            columns.append(Column(head, is_text, cells))

    add("rank", rank_text, is_text=True)
    add(metric_title(first), partial(mean_text, metric=first))
    for axis in board.axes:
        add(axis, partial(value_text, axis=axis), is_text=True)
    if first not in COSTS and board.ranked:
        add("to the best", partial(difference_text, metric=first, best=board.ranked[0]))
        add("p", p_value_text)
    for metric in others:
        add(metric_title(metric), partial(mean_text, metric=metric))
    add("steps", partial(spent_text, key="steps", form="{:,.0f}"))
    add("epochs", partial(spent_text, key="epochs", form="{:,.2f}"))
    if len({len(result.trial.finished_seeds) for result in board.ranked}) > 1:
        add("seeds", lambda result: str(len(result.trial.finished_seeds)))
    add("status", status_text, is_text=True)
    add("trial", lambda result: result.trial.fingerprint, is_text=True)
    return columns


def rank_text(result: TrialResult) -> str:
    """Return the rank of a trial, marked if it is not significantly worse than the best."""
    if result.rank is None:
        return ""
    return f"{result.rank} {ALIKE}" if result.is_alike else str(result.rank)


def mean_text(result: TrialResult, metric: str) -> str:
    """Return a metric of a trial with its spread; "" if it has none."""
    measurement = result.measured.get(metric)
    return "" if measurement is None else format_mean(metric, measurement)


def value_text(result: TrialResult, axis: str) -> str:
    """Return the value of a trial on an axis; `-` where the axis is not active."""
    return format_value(result.trial.point.get(axis, "-"))


def difference_text(result: TrialResult, metric: str, best: TrialResult) -> str:
    """Return the difference from the best, of shares in percentage points ("%" is relative)."""
    if result is best or result.rank is None:
        return ""
    difference = result.measured[metric].mean - best.measured[metric].mean
    points = " points" if is_share(metric) else ""
    return f"{format_signed(metric, difference)}{points}" if difference else "equal"


def p_value_text(result: TrialResult) -> str:
    """Return the p-value of the difference from the best; "" of the best itself."""
    if result.p_value is None:
        return ""
    return "< 0.001" if result.p_value < 0.001 else significant(result.p_value, 2)


def spent(result: TrialResult, key: str) -> dict[int, float]:
    """Return the `steps` or `epochs` of a trial by finished seed."""
    trial = result.trial
    amounts = {seed: getattr(trial.records[seed], key) for seed in trial.finished_seeds}
    return {seed: amount for seed, amount in amounts.items() if amount is not None}


def spent_text(result: TrialResult, key: str, form: str) -> str:
    """Return the `steps` or `epochs` of a trial's seeds; "" if none are known."""
    amounts = spent(result, key).values()
    return format_range(amounts, form) if amounts else ""


def format_range(amounts: Collection[float], form: str) -> str:
    """Format the least and the largest of several amounts, as one where they are equal."""
    least, most = form.format(min(amounts)), form.format(max(amounts))
    return least if least == most else f"{least} to {most}"


def status_text(result: TrialResult) -> str:
    """Return the state of a trial in words."""
    if result.trial.status == "pruned" and result.trial.pruned_at is not None:
        return f"pruned at step {result.trial.pruned_at:,}"
    if result.better is not None:
        return f"{result.state}, better tuned in {result.better.fingerprint}"
    has_no_rank = result.state == "finished" and result.rank is None
    return "finished, without a number to rank it by" if has_no_rank else result.state


def point_text(result: TrialResult, axes: Iterable[str]) -> str:
    """Return a trial's point in one line."""
    point = result.trial.point
    return ", ".join(f"{axis} {format_value(point[axis])}" for axis in axes if axis in point)


def count_text(board: Leaderboard) -> str:
    """Return the number of trials in each state."""
    counts = count_each(result.state for result in board.results)
    return f"{count_noun(len(board.results), 'trial')}: {counts}" if counts else "no trials yet"


def failure_lines(board: Leaderboard) -> list[str]:
    """Return each trial that failed, with the first line of its error."""
    lines = []
    for result in board.results:
        trial = result.trial
        if trial.status == "failed":
            error = (trial.error or "no error was recorded").strip().partition("\n")[0]
            point = point_text(result, board.axes)
            lines.append(f"{trial.fingerprint} failed ({point}): {error}")
    return lines


def trial_notes(board: Leaderboard) -> Iterator[str]:
    """Yield warnings, the order of the trials, and what the marks mean."""
    yield from board.warnings
    goal, *ties = board.goals
    order = "highest" if goal.direction == "max" else "lowest"
    ranked_by = f"Ranked by {metric_title(goal.metric)}, {order} first"
    if ties:
        ranked_by += f"; ties by {', '.join(metric_title(tie.metric) for tie in ties)}"
    yield f"{ranked_by}."
    if goal.metric in COSTS or not board.ranked:
        return
    if any(have_spreads(board)):
        yield (
            f"±: standard deviation over seeds. {ALIKE}: not significantly worse than the best"
            " trial (p is corrected for all pairs of trials)."
        )
    else:
        yield "One seed each: differences may be due to chance."
    if board.tuned:
        yield from tuning_notes(board)
    if not board.has_same_data:
        yield "The sweeps have different data, so their scores cannot be compared."


def tuning_notes(board: Leaderboard) -> Iterator[str]:
    """Yield the number of trials of which each is the best, and the metric that chose it."""
    beaten = Counter(result.better.fingerprint for result in board.results if result.better)
    numbers = [1 + beaten[result.trial.fingerprint] for result in board.ranked]
    metric, number = board.goals[0].on_validation.metric, format_range(numbers, "{}")
    axes = " and ".join(board.tuned)
    yield f"Each is the best by {metric} of {number} trials that differ only in {axes}."
    if min(numbers) != max(numbers):
        yield "The best of more trials is better by chance alone."


def have_spreads(board: Leaderboard) -> list[bool]:
    """Return of each ranked trial whether several seeds have a score."""
    return [result.measured[board.metric].spread is not None for result in board.ranked]


def trial_method(board: Leaderboard) -> Iterator[str]:
    """Yield the statistics in full: tests, corrections, error rates."""
    have_spread = have_spreads(board)
    if not any(have_spread):
        return
    yield (
        "Standard deviations are of a sample (n - 1). Each trial is compared with the best by a"
        " moderated t-test, paired over seeds if all trials have the same ones; p-values are"
        f" corrected for all pairs of trials (Bonferroni); {ALIKE} means p >= {ERROR_RATE:g}."
        f" A trial as good as the best lacks the {ALIKE} in at most {ERROR_PERCENT} of sweeps,"
        " or up to 12 % with two seeds or if the variance differs between trials."
    )
    if not all(have_spread):
        yield "Trials with one seed are not compared."


# -------------------------------------------------------------------------------------------
# axes


def adjusted_title(board: Leaderboard) -> str:
    """Return the head of the column of adjusted means."""
    return f"adjusted {metric_title(board.metric)}"


def effect_columns(board: Leaderboard, fitted: Contributions) -> list[Column]:
    """Return the table of the axes: a row for each value, the axis in the first of its rows."""
    metric = board.metric
    points = " (points)" if is_share(metric) else ""
    rows = []
    for axis, effects in fitted.effects.items():
        followers = (name for name, leader in board.zipped.items() if leader == axis)
        title = ", ".join((axis, *followers))
        for effect in effects:
            rows.append([title, *effect_cells(metric, effect)])
            title = ""
    axes, values, trials, means, differences, intervals = zip(*rows, strict=True)
    return [
        Column("axis", True, axes),
        Column("value", True, values),
        Column("trials", False, trials),
        Column(adjusted_title(board), False, means),
        Column(f"difference{points}", False, differences),
        Column("95 % interval", True, intervals),
    ]


def effect_cells(metric: str, effect: ValueEffect) -> list[str]:
    """Return the cells of a value: trials, mean, difference from the reference, interval."""
    mean = "?" if effect.mean is None else format_metric(metric, effect.mean)
    head = [effect.value, str(effect.trials), mean]
    if effect.difference is None or effect.interval is None or effect.p_value is None:
        return [*head, "reference" if effect.is_reference else "?", ""]
    ends = [effect.difference, *effect.interval]
    texts: Sequence[str] = [format_signed(metric, end) for end in ends]
    if not is_share(metric):
        texts = equally_exact(ends, texts)
    difference, low, high = texts
    mark = f" {DIFFERENT}" if effect.p_value < ERROR_RATE else ""
    return [*head, difference, f"{low} to {high}{mark}"]


def effect_method(fitted: Contributions) -> str:
    """Return how the effects and their intervals are computed."""
    source = "the residuals of the model"
    if fitted.by_seeds:
        source = "the variance between seeds"
        if len(fitted.effects) > 1:
            source += ", since there are too few trials to estimate it from the model"
    df = count_noun(f"{fitted.df:g}", "degree")
    return (
        "Means are adjusted by an additive model of the axes, fitted to the finished trials;"
        " differences are to the reference. An interval covers its difference in 95 % of"
        f" sweeps; its width comes from {source} ({df} of freedom). {DIFFERENT}: significant"
        f" after correction for all differences of the table (Holm): if no axis has an effect,"
        f" at most {ERROR_PERCENT} of sweeps have a {DIFFERENT}. A value is compared by all of"
        f" its trials, so it may have a {DIFFERENT} although its trials have an {ALIKE}."
    )


def effect_notes(board: Leaderboard, fitted: Contributions) -> Iterator[str]:
    """Yield what the mark means, and the limits of the effects: interactions, confounding, ..."""
    if fitted.df:
        yield (
            f"Differences are to the reference. {DIFFERENT}: significant, corrected for all"
            " differences of the table."
        )
    else:
        yield (
            "The effects of the axes cannot be told from chance: each trial has one seed, and there"
            " are no more trials than values."
        )
    if fitted.additivity is not None and fitted.additivity < ERROR_RATE:
        p_value = significant(fitted.additivity, 2)
        yield (
            f"The axes interact (F test of the additive model: p = {p_value}): the effect of a"
            " value depends on the other axes."
        )
    confounded = []
    for axis, effects in fitted.effects.items():
        confounded += [f"`{axis}: {effect.value}`" for effect in effects if effect.mean is None]
    if confounded:
        values = ", ".join(confounded)
        yield f"Too few combinations were tried to separate {values} from the other axes."
    if any(result.trial.status == "pruned" for result in board.results):
        yield "Pruned trials are left out: a value with many of them looks better than it is."
