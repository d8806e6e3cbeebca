"""The leaderboard as text: tables as wide as the terminal, and their notes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len

from composer.formatting import align_columns
from composer.sweeps.leaderboard.board import Leaderboard
from composer.sweeps.leaderboard.tables import (
    Column,
    Table,
    count_text,
    effect_table,
    failure_lines,
    trial_table,
)


def leaderboard_text(board: Leaderboard, width: int | None = None) -> str:
    """Return the leaderboard as text, at most `width` columns wide."""
    trials, effects = trial_table(board), effect_table(board)
    lines = [f"{board.name}: {count_text(board)}", ""]
    if board.results:
        lines += [*_table_lines(trials, width), ""]
    for line in (*failure_lines(board), " ".join(trials.notes)):
        lines.append(_wrap(line, width))
    if effects.notes:
        lines += ["", *_table_lines(effects, width), _wrap(" ".join(effects.notes), width)]
    if board.results:
        folders = dict.fromkeys(f"{result.trial.folder.parent}/TRIAL" for result in board.results)
        where = f"Trials are in {' or '.join(folders)}."
        lines += ["", f"{where} The HTML page explains the statistics."]
    return "\n".join(lines)


def _wrap(text: str, width: int | None) -> str:
    if width is None:
        return text
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _table_lines(table: Table, width: int | None) -> list[str]:
    """Return a table without as many dispensable columns as it takes to fit, and their heads."""
    if not table.columns:
        return []
    shown, lines = table.columns, _ruled_table(table.columns)
    for head in table.dispensable:
        if width is None or cell_len(lines[1]) <= width:
            break
        shown = [column for column in shown if column.head != head]
        lines = _ruled_table(shown)
    dropped = ", ".join(column.head for column in table.columns if column not in shown)
    if not dropped:
        return lines
    note = f"Columns left out for lack of width: {dropped}. See the HTML page or --json."
    return [*lines, "", _wrap(note, width)]


def _ruled_table(columns: Sequence[Column]) -> list[str]:
    """Return the lines of a table, the second a rule as wide as it is."""
    rows = zip(*([column.head, *column.cells] for column in columns), strict=True)
    head, *lines = align_columns([*rows], [column.is_text for column in columns])
    return [head, "─" * max(map(cell_len, (head, *lines))), *lines]
