"""Files with columns, TSV, CSV, JSON lines and Parquet: columns, and the faults of such files.

All are read in place, so that a name means the file of that name and is no pattern. Only the hub
goes through `datasets`. Nothing here imports torch, and the checks do not import `datasets`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

from composer.data.column_names import check_names, get_nested, unknown_name
from composer.data.columns import Column, FileColumn, open_column
from composer.data.csv_files import CsvColumn, CsvError, csv_header, csv_index
from composer.data.parquet_files import (
    ParquetColumn,
    check_parquet,
    check_parquet_schema,
    inner_text,
    parquet_text_names,
)
from composer.data.text_files import PACKED, UNPACKING_ERRORS, Problem, open_text, suffix_of
from composer.errors import DataError, Fault, one_line_error
from composer.formatting import count_noun
from composer.text_lines import one_line, without_break

KINDS = {".tsv": "tsv", ".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""Kind of a file with columns, by its suffix."""
MAY_BE_PACKED = ("tsv", "json")
PACKABLE = [suffix for suffix, kind in KINDS.items() if kind in MAY_BE_PACKED]
SUFFIXES = (*KINDS, *map("".join, product(PACKABLE, PACKED)))
"""Suffixes of files with columns, plain and packed."""
SEPARATORS = {"csv": ",", "tsv": "\t"}
NAMES_OF_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas"}
SURROGATE = re.compile("[\ud800-\udfff]")


class DatasetColumn(Column):
    """Column of a memory-mapped `Dataset`; `a.b` reaches into a structure, null is an empty line.

    `origin` is what the data set is called in a fault; `as_line` makes a line of a text of several.
    """

    def __init__(
        self, dataset: Any, name: str, origin: str, as_line: Callable[[str | None], str] = one_line
    ) -> None:
        head = name if name in dataset.column_names else name.split(".")[0]
        self.dataset, self.head, self.name = dataset.select_columns([head]), head, name
        self.origin, self.as_line = origin, as_line

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Sequence[int]) -> list[str]:
        if not len(rows):
            return []
        try:
            values = self.dataset[rows if isinstance(rows, range) else list(rows)][self.head]
        except UnicodeDecodeError as error:
            message = (
                f"the column `{self.name}` is not UTF-8 in rows {rows[0] + 1:,} to {rows[-1] + 1:,}"
            )
            fault = Fault(
                self.origin, 0, 0, "encoding", "", message, "write the file again, as UTF-8"
            )
            raise DataError([fault]) from error
        return [self.as_line(inner_text({self.head: value}, self.name)) for value in values]


def open_columns(path: Path, names: Mapping[str, str]) -> dict[str, Column]:
    """Open the columns `names`, by side, of a checked file."""
    return {side: _open_column(path, name) for side, name in names.items()}


def _open_column(path: Path, name: str) -> Column:
    kind = KINDS[suffix_of(path)[0]]
    if kind == "parquet":
        return ParquetColumn(path, name)
    if kind == "csv":
        return CsvColumn(path, name)
    return _text_column(kind, path, name)


def _text_column(kind: str, path: Path, name: str) -> FileColumn:
    if kind == "json":
        return open_column(path, 0, name, lambda line: get_nested(json.loads(line), name))
    with open_text(path) as file:
        field = without_break(file.readline()).split("\t").index(name)
    return open_column(path, 1, name, lambda line: line.split("\t")[field])


def root_cause(error: BaseException) -> str:
    """Return the root cause of an error that `datasets` wrapped."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def import_datasets() -> Any:
    """Import `datasets`, which takes seconds, without its progress bars."""
    import datasets

    datasets.disable_progress_bars()
    return datasets


def check_table(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yield problems of a UTF-8 (or Parquet) file and its `columns`, by the keys naming them."""
    kind = KINDS[suffix_of(path)[0]]
    if kind == "parquet":
        yield from check_parquet(path, columns)
    elif kind == "csv":
        yield from _check_csv(path, columns)
    elif kind == "tsv":
        yield from _check_tsv(path, columns)
    else:
        with open_text(path) as file:
            problems = (
                list(check_object(number, line, columns))
                for number, line in enumerate(file, start=1)
            )
            yield from next(filter(None, problems), [])


def text_columns(path: Path) -> list[str]:
    """Return the columns of text of JSON lines or Parquet, from a file's start; [] of others."""
    with suppress(*UNPACKING_ERRORS, ValueError):
        if KINDS[suffix_of(path)[0]] == "parquet":
            return parquet_text_names(path)
        with open_text(path) as file:
            row = parse_row(file.readline())
        return [*_text_names(row)] if isinstance(row, dict) else []
    return []


def check_first_names(path: Path, columns: Mapping[str, str]) -> list[Problem]:
    """Return problems of names of columns in a file of JSON lines or Parquet, from its start.

    Of a file that is neither there is none: what is wrong with it is found where it is read.
    """
    with suppress(*UNPACKING_ERRORS, ValueError):
        if KINDS[suffix_of(path)[0]] == "parquet":
            return [problem for problem in check_parquet_schema(path, columns) if problem.is_name]
        with open_text(path) as file:
            return [
                problem for problem in check_object(1, file.readline(), columns) if problem.is_name
            ]
    return []


def _check_csv(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    try:
        header, index = csv_header(path), csv_index(path)
    except CsvError as error:
        # with semicolons, for example, quotes stand where commas let none stand
        with open_text(path) as file:
            first, line = next(
                (number, line) for number, line in enumerate(file, start=1) if line.strip()
            )
        yield _wrong_separator("csv", line, first) or Problem(
            "table", error.message, error.fix, line=error.line
        )
        return
    yield from _check_rows(
        "csv", header, columns, zip(index.lines.tolist(), index.fields.tolist(), strict=True)
    )


def _check_tsv(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    with open_text(path) as file:
        header = without_break(file.readline()).split("\t")
    with open_text(path) as file:
        lines = ((number, line.count("\t") + 1) for number, line in enumerate(file, start=1))
        yield from _check_rows("tsv", header, columns, lines)


def _wrong_separator(kind: str, header: str, line: int) -> Problem | None:
    """Return the problem of a header that has other marks between its names than its kind does."""
    words = [word for mark, word in NAMES_OF_SEPARATORS.items() if mark in header]
    if not words or SEPARATORS[kind] in header:
        return None
    separator = NAMES_OF_SEPARATORS[SEPARATORS[kind]]
    alternative = {"csv": "TSV", "tsv": "CSV"}[kind]
    message = f"the first row has {words[0]} and no {separator}"
    return Problem("table", message, f"save it with {separator}, or as {alternative}", line=line)


def _check_rows(
    kind: str, header: Sequence[str], columns: Mapping[str, str], rows: Iterable[tuple[int, int]]
) -> Iterator[Problem]:
    """Yield problems of a TSV or CSV.

    rows: The line and the number of fields of each row, the header first.
    """
    counted = enumerate(rows, start=1)
    _, (first, names) = next(counted, (0, (0, 0)))
    if not names:
        yield Problem(
            "empty", "the file has no rows", "name its columns in the first, and give it pairs"
        )
        return
    if (
        names == 1
        and not {*columns.values()} <= {*header}
        and (problem := _wrong_separator(kind, header[0], first))
    ):
        yield problem
        return
    yield from check_names(header, columns, "the first row, which must name the columns,")
    number = 1
    for number, (line, count) in counted:
        if count != names:
            message = (
                f"row {number} has {count_noun(count, 'field')}, and the first row names {names}"
            )
            fix = "give every row one field per column"
            fix += "; save it as CSV if fields have tabs or line breaks" if kind == "tsv" else ""
            yield Problem("table", message, fix, line=line)
            return
    if number == 1:
        yield Problem(
            "empty", "the file names its columns and has no rows", "give it at least one pair"
        )


class RepeatedKey(ValueError):
    """An object of JSON has a key more than once, of whose values only the last would be read."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    row = dict(pairs)
    if len(row) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        raise RepeatedKey(next(key for key in counts if counts[key] > 1))
    return row


DECODER = json.JSONDecoder(object_pairs_hook=_object)
"""Decoder of lines, made once: `json.loads` with a hook makes one for each line."""
SPACE = " \t\n\r"
"""Characters that may surround an object of JSON."""


def parse_row(line: str) -> Any:
    """Parse a line of JSON. Raises ValueError, RepeatedKey with a key that occurs twice."""
    try:
        # faster than `decode`, which pays for the look at the keys
        row, end = DECODER.raw_decode(line, len(line) - len(line.lstrip(SPACE)))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if rest := line[end:].lstrip(SPACE):
        raise json.JSONDecodeError("Extra data", line, len(line) - len(rest))
    return row


def check_object(number: int, line: str, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problems of a line of JSON from which these columns of text are to be read."""
    hint = "write one JSON object a line; `jq -c '.[]'` makes such lines of a list"
    try:
        row = parse_row(without_break(line))
    except RepeatedKey as error:
        message = f"line {number} has the key `{error}` more than once in one object"
        yield Problem(
            "table",
            message,
            "remove all but one of them, or give them different names",
            line=number,
        )
        return
    except ValueError as error:
        reason = one_line_error(error)
        if isinstance(error, json.JSONDecodeError):  # whose own line is always the first
            reason = f"{error.msg.removesuffix(' at')} at column {error.colno:,}"
        yield Problem("table", f"line {number} is not JSON: {reason}", hint, line=number)
        return
    if not isinstance(row, dict):
        yield Problem("table", f"line {number} is not a JSON object", hint, line=number)
        return
    for key, name in columns.items():
        try:
            value = get_nested(row, name)
        except KeyError:
            problem = unknown_name(key, f"line {number} has no key", name, [*_text_names(row)])
            before = f"give this line a `{name}`: all lines before it have one"
            yield (
                problem
                if number == 1
                else problem._replace(hint=before, is_name=False, line=number)
            )
            continue
        if value is not None and not isinstance(value, str):
            problem = Problem(
                "column", f"`{name}` in line {number} is not a text", "write it in quotes", key
            )
            # of the first the name may be at fault
            yield problem if number == 1 else problem._replace(line=number)
        elif value and SURROGATE.search(value):  # JSON can escape them, UTF-8 cannot hold them
            message = f"`{name}` in line {number} contains an unpaired surrogate"
            fix = "write the whole character, or remove the `\\ud...`"
            yield Problem("encoding", message, fix, key, line=number)


def _nested_names(row: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    for name, value in row.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from _nested_names(value, f"{prefix}{name}.")


def _text_names(row: Mapping[str, object]) -> Iterator[str]:
    for name in _nested_names(row):
        with suppress(KeyError):  # of a key that has a dot itself
            if isinstance(get_nested(row, name), str | None):
                yield name
