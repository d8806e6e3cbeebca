"""The leaderboard as text and as JSON: columns, number formats and notes."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from composer.formatting import align_columns, count_each, count_noun, format_bound, si, significant
from composer.metrics.table import format_score, is_share, metric_of
from composer.sweeps.leaderboard import Leaderboard, Measurement, TrialResult
from composer.sweeps.sweep import COSTS, ERROR_RATE, Value, format_value

if TYPE_CHECKING:
    from composer.sweeps.significance import Contributions, ValueEffect

ALIKE, DIFFERENT = "≈", "*"
ERROR_PERCENT = f"{100 * ERROR_RATE:g} %"
MAX_GROUPS = 4
"""Ranges, with equally many trials each, into which an axis of many numbers is cut."""
DISPENSABLE = ("minutes", "state bytes", "FLOPs", "epochs", "steps", "parameters")
"""Columns that a narrow terminal drops, in this order, before the further goals."""


def metric_title(metric: str) -> str:
    """Return the name of a metric or cost as the head of a column."""
    return {"flops": "FLOPs", "state_bytes": "state bytes"}.get(metric, metric)


def format_metric(metric: str, value: float) -> str:
    """Format a score by its metric, a cost as a whole number or with an SI prefix."""
    if metric in COSTS:
        return si(value) if metric == "flops" else f"{value:,.0f}"
    return format_score(metric, value)


def format_mean(metric: str, measurement: Measurement | None) -> str:
    """Format a mean, with the standard deviation of several seeds, or `at most` for a bound."""
    if measurement is None:
        return ""
    mean = format_bound(format_metric(metric, measurement.mean), measurement.at_most)
    if measurement.spread is None:
        return mean
    spread = format_spread(metric, measurement.spread)
    if is_share(metric):
        return f"{mean} ± {spread}"
    return " ± ".join(equally_exact([measurement.mean, measurement.spread], [mean, spread]))


def format_spread(metric: str, spread: float) -> str:
    """Format a standard deviation; of an unbounded metric two digits, no more are ever known."""
    known = metric_of(metric)
    is_bounded = known is not None and known.highest is not None
    if is_share(metric) or is_bounded or metric in COSTS:
        return format_metric(metric, spread)
    return significant(spread, 2)


def equally_exact(values: Sequence[float], texts: Sequence[str]) -> list[str]:
    """Return the texts of values with as many decimals as the one that has the most.

    A text with an exponent or a prefix counts for none; beside one all stay as they are if the
    first, the value itself, is such a text.
    """
    plain = [text for text in texts if text.replace(".", "").lstrip("+-").isdecimal()]
    if texts[0] not in plain:
        return [*texts]
    decimals = max(len(text.partition(".")[2]) for text in plain)
    sign = "+" if texts[0][0] in "+-" else ""
    return [f"{value:{sign}.{decimals}f}" for value in values]


def format_difference(metric: str, result: TrialResult, best: TrialResult | None) -> str:
    """Format the difference from the best, of shares in percentage points ("%" is relative)."""
    if best is None or result is best or result.rank is None:
        return ""
    difference = result.measured[metric].mean - best.measured[metric].mean
    points = " points" if difference and is_share(metric) else ""
    return f"{format_signed(metric, difference)}{points}" if difference else "equal"


def format_signed(metric: str, difference: float) -> str:
    """Format a difference with its sign, of shares in percentage points."""
    if is_share(metric):
        return f"{100 * difference:+.1f}"
    return f"{'-' if difference < 0 else '+'}{format_spread(metric, abs(difference))}"


def format_p_value(result: TrialResult) -> str:
    """Format the p-value of the difference from the best, "" for the best itself."""
    if result.p_value is None:
        return ""
    return "< 0.001" if result.p_value < 0.001 else significant(result.p_value, 2)


def spent(result: TrialResult, key: str) -> dict[int, float]:
    """Return the `steps` or `epochs` of a trial by finished seed."""
    trial = result.trial
    amounts = {seed: getattr(trial.records[seed], key) for seed in trial.finished_seeds}
    return {seed: amount for seed, amount in amounts.items() if amount is not None}


def format_range(amounts: Collection[float], form: str) -> str:
    """Format one amount, or the least and the largest of several; "" for none."""
    if not amounts:
        return ""
    least, most = form.format(min(amounts)), form.format(max(amounts))
    return least if least == most else f"{least} to {most}"


def point_text(result: TrialResult, axes: Sequence[str]) -> str:
    """Return a trial's point in one line."""
    point = result.trial.point
    return ", ".join(f"{axis} {format_value(point[axis])}" for axis in axes if axis in point)


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


def count_text(board: Leaderboard) -> str:
    """Return the number of trials in each state."""
    counts = count_each(result.state for result in board.results)
    return f"{count_noun(len(board.results), 'trial')}: {counts}" if counts else "no trials yet"


def summary_notes(board: Leaderboard) -> Iterator[str]:
    """Yield the sentences below the table of trials: order, marks, warnings."""
    goal, *ties = board.goals
    order = "highest" if goal.direction == "max" else "lowest"
    note = f"Ranked by {metric_title(goal.metric)}, {order} first"
    if ties:
        note += f"; ties by {', '.join(metric_title(tie.metric) for tie in ties)}"
    yield f"{note}."
    if goal.metric in COSTS or not board.ranked:
        return
    if any(has_spread(board, result) for result in board.ranked):
        yield (
            f"±: standard deviation over seeds. {ALIKE}: not significantly worse than the best"
            " trial (p is corrected for all pairs of trials)."
        )
    else:
        yield "One seed each: differences may be due to chance."
    yield from _tuning_notes(board)
    if not board.has_same_data:
        yield "The sweeps have different data, so their scores cannot be compared."


def has_spread(board: Leaderboard, result: TrialResult) -> bool:
    """True if several seeds of a trial have a score."""
    return result.measured[board.goals[0].metric].spread is not None


def ranking_note(board: Leaderboard) -> str:
    """Return the summary with the statistics in full: tests, corrections, error rates."""
    notes = [*summary_notes(board)]
    have_spread = [has_spread(board, result) for result in board.ranked]
    if any(have_spread) and board.goals[0].metric not in COSTS:
        notes.append(
            "Standard deviations are of a sample (n - 1). Each trial is compared with the best by a"
            " moderated t-test, paired over seeds if all trials have the same ones; p-values are"
            f" corrected for all pairs of trials (Bonferroni); {ALIKE} means p >= {ERROR_RATE:g}."
            f" A trial as good as the best lacks the {ALIKE} in at most {ERROR_PERCENT} of sweeps,"
            " or up to 12 % with two seeds or if the variance differs between trials."
        )
        if not all(have_spread):
            notes.append("Trials with one seed are not compared.")
    return " ".join(notes)


def _tuning_notes(board: Leaderboard) -> Iterator[str]:
    """Yield the number of trials of which each is the best, and the metric that chose it."""
    beaten = Counter(result.better.fingerprint for result in board.results if result.better)
    numbers = [1 + beaten[result.trial.fingerprint] for result in board.ranked]
    for metric in dict.fromkeys(board.tuned.values()):
        axes = " and ".join(axis for axis, chosen_by in board.tuned.items() if chosen_by == metric)
        number = format_range(numbers, "{}")
        yield f"Each is the best by {metric} of {number} trials that differ only in {axes}."
        if min(numbers) != max(numbers):
            yield "The best of more trials is better by chance alone."


def contributions(board: Leaderboard) -> Contributions | None:
    """Fit the effects of the axes on the first goal; None if it is a cost, or of no axis."""
    metric = board.goals[0].metric
    if metric in COSTS or len(board.ranked) < 2:
        return None
    from composer.sweeps.significance import fit_contributions  # SciPy takes a while to import

    dependent = {*board.zipped, *board.tuned}
    axes = [axis for axis in board.axes if axis not in dependent]
    groups = {axis: group_by_value(board, axis) for axis in axes}
    fitted = fit_contributions(groups, [result.measured[metric].values for result in board.ranked])
    return fitted if fitted.effects else None


def contribution_notes(board: Leaderboard, fitted: Contributions) -> Iterator[str]:
    """Yield the method of the effects, and their caveats."""
    if fitted.df:
        source = "the residuals of the model"
        if fitted.by_seeds:
            source = "the variance between seeds"
            if len(fitted.effects) > 1:
                source += ", since there are too few trials to estimate it from the model"
        df = count_noun(f"{fitted.df:g}", "degree")
        yield (
            "Means are adjusted by an additive model of the axes, fitted to the finished trials;"
            " differences are to the reference. An interval covers its difference in 95 % of"
            f" sweeps; its width comes from {source} ({df} of freedom). {DIFFERENT}: significant"
            f" after correction for all differences of the table (Holm): if no axis has an effect,"
            f" at most {ERROR_PERCENT} of sweeps have a {DIFFERENT}. A value is compared by all of"
            f" its trials, so it may have a {DIFFERENT} although its trials have an {ALIKE}."
        )
    yield from contribution_caveats(board, fitted)


def contribution_caveats(board: Leaderboard, fitted: Contributions) -> Iterator[str]:
    """Yield the limits of the effects: missing seeds, interactions, confounding, pruning."""
    if not fitted.df:
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


def group_by_value(board: Leaderboard, axis: str) -> dict[str, list[int]]:
    """Return the indices of ranked trials by their value on an axis, in the file's order.

    Many numbers are cut into ranges; trials in which the axis is not active are in no group.
    """
    trials = [result.trial for result in board.ranked]
    values = {}
    for index in sorted(range(len(trials)), key=lambda index: trials[index].number):
        if axis in trials[index].point:
            values[index] = trials[index].point[axis]
    if all(map(_is_number, values.values())):
        indices = sorted(values, key=lambda index: float(values[index]))
        ends = group_ends([values[index] for index in indices])
    else:
        order = [*board.labels.get(axis, ()), *values.values()]
        indices = sorted(values, key=lambda index: order.index(values[index]))
        ends = range(len(indices) + 1)
    groups: dict[str, list[int]] = {}
    for start, end in pairwise(ends):
        low, high = format_value(values[indices[start]]), format_value(values[indices[end - 1]])
        group = groups.setdefault(low if low == high else f"{low} to {high}", [])
        group.extend(indices[start:end])
    return groups


def _is_number(value: Value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def group_ends(values: Sequence[Value]) -> Sequence[int]:
    """Return the ends of groups of sorted numbers: one for each, or MAX_GROUPS ranges of many."""
    if len({*values}) <= 2 * MAX_GROUPS:
        return range(len(values) + 1)
    # equal values stay together
    changes = [0, *accumulate(len(list(same)) for _, same in groupby(values))]
    ends = set()
    for part in range(MAX_GROUPS + 1):
        least = len(values) * part // MAX_GROUPS
        ends.add(min(end for end in changes if end >= least))
    return sorted(ends)


class Column(NamedTuple):
    """A column of a table, with a cell for each row. Texts are aligned left, numbers right."""

    head: str
    is_text: bool
    cells: Sequence[str]


def shown_metrics(board: Leaderboard) -> list[str]:
    """Return the metrics of the table of trials: the goals, then costs."""
    goals = [goal.metric for goal in board.goals]
    return [*dict.fromkeys([*goals, "parameters", "flops", "minutes"])]


def columns(board: Leaderboard) -> list[Column]:
    """Return the columns of the table of trials that say anything, the fingerprint last."""
    results, best = board.results, next(iter(board.ranked), None)
    first, *others = shown_metrics(board)

    def metric_column(metric: str) -> Column:
        means = [format_mean(metric, result.measured.get(metric)) for result in results]
        return Column(metric_title(metric), False, means)

    table = [Column("rank", True, [*map(rank_text, results)]), metric_column(first)]
    for axis in board.axes:
        values = [format_value(result.trial.point.get(axis, "-")) for result in results]
        table.append(Column(axis, True, values))
    if first not in COSTS:
        differences = [format_difference(first, result, best) for result in results]
        table.append(Column("to the best", False, differences))
        table.append(Column("p", False, [*map(format_p_value, results)]))
    table += map(metric_column, others)
    for key, form in (("steps", "{:,.0f}"), ("epochs", "{:,.2f}")):
        amounts = [format_range(spent(result, key).values(), form) for result in results]
        table.append(Column(key, False, amounts))
    seeds = [len(result.trial.finished_seeds) for result in results]
    if len({*seeds[: len(board.ranked)]}) > 1:
        table.append(Column("seeds", False, [*map(str, seeds)]))
    table.append(Column("status", True, [*map(status_text, results)]))
    table.append(Column("trial", True, [result.trial.fingerprint for result in results]))
    return [column for column in table if {*column.cells} - {"", "finished"}]


def rank_text(result: TrialResult) -> str:
    """Return the rank of a trial, marked if it is not significantly worse than the best."""
    if result.rank is None:
        return ""
    return f"{result.rank} {ALIKE}" if result.is_alike else str(result.rank)


def status_text(result: TrialResult) -> str:
    """Return the state of a trial in words."""
    if result.trial.status == "pruned" and result.trial.pruned_at is not None:
        return f"pruned at step {result.trial.pruned_at:,}"
    if result.better is not None:
        return f"{result.state}, better tuned in {result.better.fingerprint}"
    has_no_rank = result.state == "finished" and result.rank is None
    return "finished, without a number to rank it by" if has_no_rank else result.state


def leaderboard_text(board: Leaderboard, width: int | None = None) -> str:
    """Return the leaderboard as text, at most `width` columns wide."""
    lines = [f"{board.name}: {count_text(board)}", ""]
    if board.results:
        goals = [metric_title(metric) for metric in shown_metrics(board)[1:]]
        dispensable = (*DISPENSABLE, *reversed(goals), "p", "to the best", "trial")
        lines += [*_table_lines(columns(board), dispensable, width), ""]
        lines += [_wrap(line, width) for line in failure_lines(board)]
    lines.append(_wrap(" ".join(summary_notes(board)), width))
    lines += _effect_lines(board, width)
    if board.results:
        folders = dict.fromkeys(str(result.trial.folder.parent) for result in board.results)
        trials = " or ".join(f"{folder}/TRIAL" for folder in folders)
        lines += ["", f"Trials are in {trials}. The HTML page explains the statistics."]
    return "\n".join(lines)


def _wrap(text: str, width: int | None) -> str:
    if width is None:
        return text
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _table_lines(
    table: Sequence[Column], dispensable: Sequence[str], width: int | None
) -> list[str]:
    """Return a table without as many `dispensable` columns as it takes to fit, and their heads."""
    shown, lines = [*table], _ruled_table(table)
    for head in dispensable:
        if width is None or cell_len(lines[1]) <= width:
            break
        shown = [column for column in shown if column.head != head]
        lines = _ruled_table(shown)
    dropped = ", ".join(column.head for column in table if column not in shown)
    if not dropped:
        return lines
    note = f"Columns left out for lack of width: {dropped}. See the HTML page or --json."
    return [*lines, "", _wrap(note, width)]


def _ruled_table(table: Sequence[Column]) -> list[str]:
    """Return the lines of a table, the second a rule as wide as it is."""
    columns = [[column.head, *column.cells] for column in table]
    head, *lines = align_columns(
        [*zip(*columns, strict=True)], [column.is_text for column in table]
    )
    return [head, "─" * max(map(cell_len, (head, *lines))), *lines]


def _effect_lines(board: Leaderboard, width: int | None) -> list[str]:
    """Return the table of the axes, with its marks and caveats."""
    fitted = contributions(board)
    if fitted is None:
        return []
    lines, notes = [""], [*contribution_caveats(board, fitted)]
    if fitted.df:
        table = effect_columns(board, fitted)
        lines += _table_lines(table, [table[3].head, table[2].head], width)
        note = f"Differences are to the reference. {DIFFERENT}: significant, corrected for all"
        notes = [f"{note} differences of the table.", *notes]
    return [*lines, _wrap(" ".join(notes), width)]


def effect_columns(board: Leaderboard, fitted: Contributions) -> list[Column]:
    """Return the table of the axes: a row for each value, the axis in the first of its rows."""
    metric = board.goals[0].metric
    points = " (points)" if is_share(metric) else ""
    rows = []
    for axis, effects in fitted.effects.items():
        title = effect_title(board, axis)
        for effect in effects:
            rows.append([title, *effect_cells(metric, effect)])
            title = ""
    axes, values, trials, means, differences, intervals = zip(*rows, strict=True)
    return [
        Column("axis", True, axes),
        Column("value", True, values),
        Column("trials", False, trials),
        Column(f"adjusted {metric_title(metric)}", False, means),
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
    texts = [format_signed(metric, end) for end in ends]
    if not is_share(metric):
        texts = equally_exact(ends, texts)
    difference, low, high = texts
    mark = f" {DIFFERENT}" if effect.p_value < ERROR_RATE else ""
    return [*head, difference, f"{low} to {high}{mark}"]


def effect_title(board: Leaderboard, axis: str) -> str:
    """Return the name of an axis and of the axes zipped to it."""
    followers = (name for name, leader in board.zipped.items() if leader == axis)
    return ", ".join((axis, *followers))


def leaderboard_json(board: Leaderboard) -> dict[str, object]:
    """Return a leaderboard without its curves as plain data."""
    fitted = contributions(board)
    return {
        "name": board.name,
        "rank": [{goal.metric: goal.direction} for goal in board.goals],
        "axes": [*board.axes],
        "trials": [_result_json(result) for result in board.results],
        "notes": [ranking_note(board), *(contribution_notes(board, fitted) if fitted else ())],
        "contributions": fitted and asdict(fitted),
    }


def _result_json(result: TrialResult) -> dict[str, object]:
    """Return one trial: costs as numbers, metrics under `measured` with the value of each seed."""
    trial = result.trial
    plain: dict[str, object] = {"rank": result.rank}
    for key in ("number", "fingerprint", "point", "status", "pruned_at", "error"):
        plain[key] = result.state if key == "status" else getattr(trial, key)
    plain["alike"] = None if result.p_value is None else result.is_alike
    plain["p_value"] = result.p_value
    plain["better"] = result.better and result.better.fingerprint
    for cost in COSTS:
        plain[cost] = round(result.measured[cost].mean)
    plain["at_most"] = [cost for cost in COSTS if result.measured[cost].at_most]
    for key in ("steps", "epochs"):
        plain[key] = {str(seed): amount for seed, amount in spent(result, key).items()}
    measured = {}
    for metric, measurement in result.measured.items():
        if metric not in COSTS:
            seeds = {str(seed): value for seed, value in measurement.values.items()}
            mean, spread = measurement.mean, measurement.spread
            measured[metric] = {"mean": mean, "spread": spread, "seeds": seeds}
    return plain | {"measured": measured, "folder": str(trial.folder)}
