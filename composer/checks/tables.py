"""Rules of tables with probable mistakes: line breaks, quotes, file names as text, empty cells."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blocks.core.fixes import Fix, write
from composer.checks.problem import Problem, Problems, faults, warning
from composer.checks.read_data import ReadData, Rules
from composer.data.columns import RowSubset, locate
from composer.data.csv_files import csv_index
from composer.data.media_files import is_there, kind_of
from composer.data.pairs import TARGET, available_splits, text_names
from composer.data.parallel_files import column_names, open_table, split_parts
from composer.data.split import held_out_sizes
from composer.data.tables import KINDS
from composer.data.text_files import find_file, open_text, suffix_of
from composer.errors import Fault, KeyPath
from composer.formatting import format_lines
from composer.model.features import feature_settings
from composer.recipe.data_sections import TableColumn
from composer.recipe.interpolation import recipe_text
from composer.recipe.schema_reader import REFERENCE
from composer.text_lines import is_blank, without_break

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

QUOTED = re.compile(r'"(?:[^"]|"")*"')
"""A field as programs quote it that write CSV with tabs."""
LOOKED_AT, SHOWN = 20, 40
"""Cells of a column that are looked at for names of files, and characters of a cell that are shown.
"""
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "image": {"kind": "image", "size": [64, 64]},
    "audio": {"kind": "audio", "rate": 16000},
    "vectors": {"kind": "vectors", "width": 512},
}
"""How a recipe declares the content of files, by kind."""


@dataclass
class QuoteCounts:
    """Quoted cells of a TSV's column: their number, the first, the first with a quote inside.

    Of the cells in quotes some are `without_comma`; of all others some have commas or quotes, and
    are `plain` so.
    """

    quoted: int = 0
    first: tuple[int, str] | None = None
    doubled: tuple[int, str] | None = None
    without_comma: int = 0
    plain_commas: int = 0
    plain_quotes: int = 0

    def add(self, line: int, cell: str) -> None:
        """Count a cell."""
        if not QUOTED.fullmatch(cell):
            self.plain_commas += "," in cell
            self.plain_quotes += '"' in cell
            return
        self.quoted += 1
        self.without_comma += "," not in cell
        self.first = self.first or (line, cell)
        if '"' in cell[1:-1]:
            self.doubled = self.doubled or (line, cell)

    def example(self, total: int) -> tuple[int, str] | None:
        """Return a cell that a program quoted, with its line; None if people may have.

        A quote that is written twice is a program's. Without one, quotes are a program's around all
        cells of a column, or around those with commas and no other, as Excel puts them.
        """
        is_of_commas = not (self.without_comma or self.plain_commas or self.plain_quotes)
        return self.doubled or (self.first if self.quoted == total or is_of_commas else None)


def contents(read: ReadData) -> Problems:
    """Nothing in the tables of a recipe, whose files have no fault, is hardly meant."""
    recipe = read.recipe
    if not (recipe.data.parallel or recipe.data.table):
        return
    held_out, seen = held_out_sizes(recipe.data.parallel or recipe.data.table), set[str]()
    for split in (split for split in available_splits(recipe) if split not in held_out):
        for files in split_parts(recipe, split):
            path = find_file(files.file, read.source.folders) if files.file else None
            if path is None:
                continue
            names, kind = column_names(recipe, files), KINDS.get(suffix_of(path)[0])
            yield from line_breaks(path) if kind == "csv" else ()
            yield from quotes(path, [*dict.fromkeys(names.values())]) if kind == "tsv" else ()
            warnings = [*faults(recipe, file_names(recipe, files.at, path, names))]
            yield from (warning for warning in warnings if warning.path not in seen)
            # the columns of all tables stand at one place
            seen |= {warning.path for warning in warnings}


def line_breaks(path: Path) -> Iterator[Fault]:
    """Yield a warning of the fields of a CSV with line breaks, at the row with the most lines."""
    index = csv_index(path)
    if not (count := int(index.broken.sum())):
        return
    row = int(index.heights.argmax())
    message = (
        f"{count:,} of {int(index.fields.sum()):,} fields have line breaks, which become spaces;"
        f" the row that begins here has {index.heights[row]:,} lines"
    )
    hint = (
        "if that is not meant, a quote in this row opens a field and should not; else leave it at"
        " that"
    )
    yield Fault(str(path), int(index.lines[row]), 1, "lines", "", message, hint).as_warning()


def quotes(path: Path, names: Sequence[str]) -> Iterator[Fault]:
    """Yield a warning of each column of a TSV whose cells were quoted, which become text."""
    with open_text(path) as file:  # most tables end here: none of their cells begins with a quote
        if not any('\t"' in line or line.startswith('"') for line in file):
            return
    with open_text(path) as file:
        header = without_break(file.readline()).split("\t")
        counts, number = {name: QuoteCounts() for name in names}, 1
        columns = [(header.index(name), own) for name, own in counts.items()]
        for number, line in enumerate(file, start=2):
            if '"' in line or "," in line:
                cells = without_break(line).split("\t")
                for at, own in columns:
                    own.add(number, cells[at])
    for name, own in counts.items():
        if example := own.example(number - 1):
            shown = example[1] if len(example[1]) <= SHOWN else f"{example[1][:SHOWN]}..."
            count = f"{own.quoted:,} of {number - 1:,} cells of `{name}`"
            message = f"{count} stand in quotes, which are text in a TSV: `{shown}`"
            hint = (
                "if a program put them there, save the table as CSV, where quotes are no part of"
                " the text"
            )
            yield Fault(str(path), example[0], 1, "quotes", "", message, hint).as_warning()


def file_names(
    recipe: Recipe, key: KeyPath, path: Path, names: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a warning of each text column whose cells name existing files beside the table."""
    folder, is_table = path if path.is_dir() else path.parent, bool(recipe.data.table)
    texts = {
        side: name for side, name in names.items() if feature_settings(recipe.data, side) is None
    }
    for side, lines in open_table(path, texts).items():
        place: KeyPath = ("data", "table", side) if is_table else (*key, side)
        if side.startswith(REFERENCE) or (is_table and recipe.locate((*place, "kind")).is_written):
            continue
        rows = np.unique(np.linspace(0, len(lines) - 1, LOOKED_AT).astype(np.int64))
        cells = [cell for cell in RowSubset(lines, rows)[:] if cell.strip()]
        if not cells or not all(_names_file(folder, cell) for cell in cells):
            continue
        column, kind = texts[side], kind_of(cells)
        value = {"column": recipe_text(column), **EXAMPLES.get(kind, {"kind": "..."})}
        fix = write(place, value, ", or `kind: text` if the names are meant")
        if not is_table:
            fix = Fix(f"name the table in `data.table`, and there {fix.text}")
        if side == TARGET:
            fix = Fix("name a column of text")
        elif kind not in EXAMPLES:
            fix = Fix(fix.text)
        message = (
            f"`{column}` names files that are there, such as `{cells[0]}`, and is read as text,"
            " letter by letter"
        )
        yield warning("column", place, message, fix)


def _names_file(folder: Path, cell: str) -> bool:
    with suppress(OSError, ValueError):  # a text that is too long for a name, or has a NUL
        return "." in cell and is_there(str(folder / cell))
    return False


def empty_cells(read: ReadData) -> Problems:
    """No text column of a table has empty cells; all lines are reported at the first.

    Those of `parallel` the notes count: in aligned texts empty lines are usual.
    """
    recipe, table = read.recipe, read.recipe.data.table
    for split, pairs in read.data.pairs.items() if table else ():
        for side in text_names(recipe):
            lines = pairs.sides[side]
            by_file = defaultdict[str, list[int]](list)
            for path, line in (
                locate(lines, row) for row, text in enumerate(lines) if is_blank(text)
            ):
                by_file[str(path)].append(line)
            column = table.of_side(side) if table else ""
            column = column.column if isinstance(column, TableColumn) else column
            total = f"{sum(map(len, by_file.values())):,} of {len(lines):,} cells of `{column}`"
            for file, empty in by_file.items():
                message = (
                    f"{total} are empty ({format_lines(empty)}): {_effect_of_empty(split, side)}"
                )
                yield Fault(
                    file, empty[0], 1, "empty", "", message, "fill them, or remove their lines"
                ).as_warning()


def _effect_of_empty(split: str, side: str) -> str:
    if split == "train":
        return "the training leaves these rows out"
    if side == TARGET:
        return "exact match and all other scores leave these rows out"
    return "these rows are measured, and the model reads nothing there"


RULES: Rules = (empty_cells, contents)
