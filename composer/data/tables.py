"""Files with columns: their kinds, what their columns are called, and the faults that they may have.

Nothing here imports torch or `datasets`: it answers while a recipe is checked.
"""

from __future__ import annotations

import csv
import difflib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer.data.text_files import Column, Problem, TextColumn, one_line
from composer.errors import DataError, Fault

KINDS = {".tsv": "tsv", ".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""The kind of a file with columns, by the end of its name."""
FILE_KEY = "file"


def get_nested(row: Mapping[str, Any], name: str) -> Any:
    """The value called `name`; `a.b` reaches into an inner mapping where no key is called `a.b`. Raises KeyError."""
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    if not dot or not isinstance(row[head], Mapping):
        raise KeyError(name)
    return get_nested(row[head], rest)


def missing_package(key: str, what: str) -> Problem | None:
    """That the package is not installed through which some data are read."""
    if importlib.util.find_spec("datasets") is not None:
        return None
    message = f"{what} read through the package `datasets`, which is not installed"
    return Problem(key, "package", message, "say `pip install datasets`, or use text, TSV or JSON lines")


def check_table(path: Path, columns: Mapping[str, str]) -> list[Problem]:
    """What is wrong with a UTF-8 (or Parquet) file from which these columns are wanted, by the key that wants them."""
    return list(READERS[KINDS[path.suffix.lower()]](path, columns))


def _tsv(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        yield from _rows((line.rstrip("\r\n").split("\t") for line in file), columns)


def _csv(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            yield from _rows((row for row in csv.reader(file) if row), columns)
        except csv.Error as error:
            yield Problem(FILE_KEY, "table", f"the CSV cannot be read: {error}", "mend the file, or save it as TSV")


def _rows(rows: Iterator[Sequence[str]], columns: Mapping[str, str]) -> Iterator[Problem]:
    header = next(rows, None)
    if header is None:
        yield Problem(FILE_KEY, "empty", "the file has no rows", "name its columns in the first, and give it pairs")
        return
    missing = _missing(header, columns)
    yield from missing
    number = 1
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            message = f"row {number} has {_count(len(row), 'field')}, and the first row names {len(header)}"
            yield Problem(FILE_KEY, "table", message, "give every row one field per column")
            return
    if number == 1:
        yield Problem(FILE_KEY, "empty", "the file names its columns and has no rows", "give it at least one pair")


def _json(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            found = list(_object(number, line, columns))
            yield from found
            if found:
                return


def _object(number: int, line: str, columns: Mapping[str, str]) -> Iterator[Problem]:
    hint = "write one JSON object a line; `jq -c '.[]'` makes such lines of a list"
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        yield Problem(FILE_KEY, "table", f"line {number} is not JSON: {error}", hint)
        return
    if not isinstance(row, dict):
        yield Problem(FILE_KEY, "table", f"line {number} is not a JSON object", hint)
        return
    for key, name in columns.items():
        try:
            value = get_nested(row, name)
        except KeyError:
            known = _near(name, _names(row))
            yield Problem(key, "column", f"line {number} has no key `{name}`{known.question}", known.hint)
            continue
        if value is not None and not isinstance(value, str):
            yield Problem(key, "column", f"`{name}` in line {number} is not a text", "write it in quotes")
        elif value and not _is_unicode(value):
            message = f"`{name}` in line {number} has half of a character, a surrogate without its other half"
            yield Problem(key, "encoding", message, "write the whole character, or remove the `\\ud...`")


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _parquet(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (arrow.ArrowException, OSError) as error:
        yield Problem(FILE_KEY, "table", f"this is not a Parquet file: {error}", "give a Parquet file")
        return
    yield from check_arrow_schema(schema, columns)
    if not rows:
        yield Problem(FILE_KEY, "empty", "the file has no rows", "give it at least one pair")


def check_arrow_schema(schema: Any, columns: Mapping[str, str]) -> Iterator[Problem]:
    """What is wrong with an Arrow schema from which these columns of text are wanted."""
    import pyarrow as arrow

    fields = list(_fields(schema, ""))
    kinds = dict(fields)
    yield from _missing([name for name, _ in fields], columns)
    for key, name in columns.items():
        if name in kinds and not any(is_text(kinds[name]) for is_text in _text_kinds(arrow)):
            yield Problem(key, "column", f"the column `{name}` holds {kinds[name]}, not text", "name a column of text")


READERS: dict[str, Callable[[Path, Mapping[str, str]], Iterator[Problem]]] = {
    "tsv": _tsv,
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
}


def _text_kinds(arrow: Any) -> Sequence[Callable[[Any], bool]]:
    types = arrow.types
    return types.is_string, types.is_large_string, types.is_string_view, types.is_null


def _fields(fields: Iterable[Any], before: str) -> Iterator[tuple[str, Any]]:
    import pyarrow as arrow

    for field in fields:
        yield before + field.name, field.type
        if arrow.types.is_struct(field.type):
            yield from _fields(field.type, f"{before}{field.name}.")


def _names(row: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in row.items():
        yield before + name
        if isinstance(value, Mapping):
            yield from _names(value, f"{before}{name}.")


def _missing(names: Sequence[str], columns: Mapping[str, str]) -> list[Problem]:
    """The columns that are wanted and are not there, or are there twice."""
    known = {key: _near(name, names) for key, name in columns.items() if name not in names}
    twice = {key: names.count(name) for key, name in columns.items() if names.count(name) > 1}
    return [
        *(
            Problem(key, "column", f"the file has no column `{columns[key]}`{near.question}", near.hint)
            for key, near in known.items()
        ),
        *(
            Problem(key, "column", f"the file has {count} columns called `{columns[key]}`", "give them different names")
            for key, count in twice.items()
        ),
    ]


class _Near:
    """What was probably meant."""

    def __init__(self, name: str, names: Sequence[str]) -> None:
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        self.question = f"; did you mean `{close[0]}`?" if close else ""
        listed = ", ".join(f"`{each}`" for each in names[:20])
        self.hint = f"write `{close[0]}`" if close else f"name one of {listed}"


def _near(name: str, names: Iterable[str]) -> _Near:
    return _Near(name, list(names))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


class DatasetColumn(Column):
    """A column of a `datasets.Dataset`, which is memory-mapped; `a.b` reaches into a structure. Nothing is empty."""

    def __init__(self, dataset: Any, name: str, origin: str) -> None:
        head = name if name in dataset.column_names else name.split(".")[0]
        self.dataset, self.head, self.name = dataset.select_columns([head]), head, name
        self.origin = origin

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, rows: Sequence[int]) -> list[str]:
        if not len(rows):
            return []
        try:
            found = self.dataset[rows if isinstance(rows, range) else list(rows)][self.head]
        except UnicodeDecodeError as error:
            raise _column_not_utf8(self.origin, self.name, rows) from error
        return [one_line(self._value(each)) for each in found]

    def _value(self, found: Any) -> str | None:
        try:
            value: str | None = get_nested({self.head: found}, self.name)
        except KeyError:  # the schema has the name, so a structure on the way is null
            return None
        return value


def tsv_column(path: Path, name: str) -> TextColumn:
    """A column of a TSV file whose first line names the columns. Nothing is quoted in it."""
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        place = file.readline().rstrip("\r\n").split("\t").index(name)
    return TextColumn(path, skip=1, pick=lambda line: line.split("\t")[place])


def json_column(path: Path, name: str) -> TextColumn:
    """A key of the objects in a JSON lines file; `a.b` reaches into an inner object."""
    return TextColumn(path, pick=lambda line: get_nested(json.loads(line), name))


def dataset_columns(dataset: Any, names: Mapping[str, str], origin: str) -> dict[str, Column]:
    """The columns called so of a data set, by side; `origin` is what it is called in a fault."""
    return {side: DatasetColumn(dataset, name, origin) for side, name in names.items()}


def _column_not_utf8(origin: str, name: str, rows: Sequence[int]) -> DataError:
    message = f"the column `{name}` is not UTF-8 in rows {rows[0] + 1:,} to {rows[-1] + 1:,}"
    return DataError([Fault(origin, 0, 0, "encoding", "", message, "write the file again, as UTF-8")])
