"""Tables that commands print."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from composer.errors import RunError, did_you_mean
from composer.formatting import format_bytes, si
from composer.recipe import schema
from composer.recipe.json_schema import describe, scalar_text
from composer.recipe.metrics import metric_of

if TYPE_CHECKING:
    from pathlib import Path

    from composer.model.planner import Plan, PlanRow
    from composer.training.multi_seed import SeedRuns

PREFIX = "block."


# ------------------------------------------------------------------------------------------- a plan


def print_plan(plan: Plan) -> None:
    """Print a plan as a table of nested blocks."""
    table = _table(["block", "width", "parameters", "FLOPs", "state"], right=4, footer=True)
    loops = any(row.loops for row in plan.rows)
    if loops:
        table.add_column("runs position by position because it")
    for depth, label, row in _nested(plan.rows):
        numbers = (str(row.width), f"{row.parameters:,}", si(row.flops), format_bytes(row.state_bytes))
        table.add_row("  " * depth + escape(label), *numbers, *([row.loops] if loops else []))
    totals = ("all", "", f"{plan.parameters:,}", si(plan.flops), format_bytes(plan.state_bytes), "")
    for column, total in zip(table.columns, totals, strict=False):
        column.footer = total
    console = _console()
    console.print(table)
    sizes = ", ".join(f"{key} {size:,}" for key, size in plan.vocabularies.items())
    console.print(f"FLOPs and state: one pair of {plan.tokens} + {plan.tokens} tokens, forward.", highlight=False)
    console.print(f"Vocabularies, upper bounds until a tokenizer is trained: {sizes}.", highlight=False)


def _nested(rows: Iterable[PlanRow]) -> Iterable[tuple[int, str, PlanRow]]:
    """Yield each row with its depth and its path relative to the block that contains it."""
    above: list[str] = []
    for row in rows:
        while above and row.path != above[-1] and not row.path.startswith((f"{above[-1]}.", f"{above[-1]}[")):
            above.pop()
        outer = above[-1] if above else ""
        label = row.path.removeprefix(outer).lstrip(".")
        # a block that is written as a bare name ends in its number
        yield len(above), label if label.endswith(row.block) else f"{label} {row.block}".strip(), row
        if row.path != outer:
            above.append(row.path)


# ------------------------------------------------------------------------------------------- an evaluation


def print_evaluation(scores: Mapping[str, Any]) -> None:
    """Print the scores of a run, tables by length, and the signatures that make scores comparable."""
    figures = _table(["metric", "value"], right=1)
    figures.add_column("meaning")
    for name, value in scores.items():
        if isinstance(value, float):
            metric = metric_of(name)
            figures.add_row(name, metric.format(value) if metric else f"{value:.4g}", metric.meaning if metric else "")
    console = _console()
    console.print(figures)
    for name, value in scores.items():
        if isinstance(value, list):
            console.print(f"{name}:", markup=False)
            console.print(_by_length(value))
        elif isinstance(value, str):
            console.print(f"{name}: {value}", markup=False)


LENGTH_COLUMNS = {
    "words": ("words", "{}"),
    "tokens": ("words", "{}"),
    "lines": ("lines", "{:,}"),
    "bleu": ("BLEU", "{:.2f}"),
    "exact_match": ("exact match", "{:.1%}"),
    "positional_accuracy": ("positional accuracy", "{:.1%}"),
    "bits": ("bits per sequence", "{:.4g}"),
}
"""Columns of tables by length: title and format of each."""


def _by_length(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = {name: column for name, column in LENGTH_COLUMNS.items() if any(name in row for row in rows)}
    table = _table([title for title, _ in columns.values()], right=len(columns))
    for row in rows:
        table.add_row(*(form.format(row[name]) for name, (_, form) in columns.items()))
    return table


# ------------------------------------------------------------------------------------------- several seeds


def print_seeds(runs: SeedRuns, folder: Path) -> None:
    """Print the result of every seed, and which is the best by the metric that the run selects by."""
    if not runs.seeds:
        return
    wanted = dict.fromkeys((runs.metric, runs.metric.replace("val/", "test/"), "val/loss", "test/loss"))
    names = [name for name in wanted if any(name in seed.scores for seed in runs.seeds)]
    table = _table(["seed", "status", "steps", "minutes", *names], right=2 + len(names))
    for seed in runs.seeds:
        scores = [_score(name, seed.scores.get(name)) for name in names]
        table.add_row(str(seed.seed), seed.status, f"{seed.steps:,}", f"{seed.minutes:.1f}", *scores)
    console = _console()
    console.print(table)
    if runs.best is None:
        console.print(f"No seed has finished with a {runs.metric}, so none is the best.", markup=False)
    else:
        console.print(f"The best by {runs.metric}: seed {runs.best}.", markup=False)
    console.print(f"All scores are in {folder / 'seeds.json'}.", markup=False)


def _score(name: str, value: float | None) -> str:
    metric = metric_of(name)
    return "-" if value is None else metric.format(value) if metric else f"{value:.4g}"


# ------------------------------------------------------------------------------------------- blocks


def print_blocks() -> None:
    """Print every block and what it is."""
    table = _table(["block", "description"])
    for name, described in _blocks().items():
        table.add_row(name, escape(described["description"]))
    _console().print(table)


def print_block(name: str) -> None:
    """Print one block and its settings. Raises RunError if there is no such block."""
    known = _blocks()
    if name not in known:
        raise RunError.of(f"no block is called `{name}`{did_you_mean(name, known)}", "`seqcomposer blocks` lists them")
    described = known[name]
    table = _table(["setting", "value", "default", "meaning"])
    for key, setting in described["properties"].items():
        optional = "-" if setting.get("default") is None else scalar_text(setting["default"])
        default = "required" if key in described["required"] else optional
        table.add_row(key, escape(_accepted(setting)), escape(default), escape(setting.get("description", "")))
    console = _console()
    console.print(f"{name}: {described['description']}", markup=False, highlight=False)
    if first := described.get("x-first"):
        console.print(f"`- {name}: VALUE` sets `{first}`.", markup=False, highlight=False)
    console.print(table)


def _blocks() -> dict[str, Any]:
    definitions = schema.load()["$defs"]
    return {key.removeprefix(PREFIX): value for key, value in definitions.items() if key.startswith(PREFIX)}


def _accepted(setting: Mapping[str, Any]) -> str:
    reference = setting.get("$ref", "").rpartition("/")[2]
    return f"a {reference}" if reference else describe(dict(setting)).replace("`", "")


# ------------------------------------------------------------------------------------------- the terminal


def _table(columns: Sequence[str], right: int = 0, footer: bool = False) -> Table:
    """Make a table whose last `right` columns hold numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_footer=footer, pad_edge=False)
    for index, column in enumerate(columns):
        numbers = index >= len(columns) - right
        table.add_column(column, justify="right" if numbers else "left", no_wrap=numbers or index == 0)
    return table


def _console() -> Console:
    # a pipe or a file has no width, so nothing is cut there
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(width=width, highlight=False, soft_wrap=False)
