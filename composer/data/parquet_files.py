"""Parquet: columns of text, read by row groups, and faults of such files. Imports Arrow late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from composer.atomic_io import file_stamp
from composer.data.column_names import check_names, get_nested, name_hint
from composer.data.columns import Column, changed
from composer.data.text_files import Problem
from composer.errors import DataError, one_line_error
from composer.text_lines import one_line

BATCH_ROWS = 1024
"""Rows of a text that are read at once."""
GET_AGAIN = "repair it, or get the file again"


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a file of Parquet. Raises what Arrow does: its own errors, and OSError."""
    import pyarrow.parquet as parquet

    # the opened file: of a name Arrow would expand `~`, and take what has a colon for an address
    with path.open("rb") as opened:
        yield parquet.ParquetFile(opened, page_checksum_verification=True)


class ParquetColumn(Column):
    """Column of a file; `a.b` reaches into a structure, and null is an empty line.

    The last row group stays in memory.
    """

    path: Path

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name, self.stamp = path, name, file_stamp(path)
        with open_parquet(path) as file:
            sizes = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
        self.ends = np.cumsum(sizes, dtype=np.int64)
        self.held: tuple[int, object] = (-1, None)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.ends) else 0

    def read(self, rows: Sequence[int]) -> list[str]:
        numbers = np.asarray(rows, dtype=np.int64)
        group_of, lines = np.searchsorted(self.ends, numbers, side="right"), [""] * len(numbers)
        for group in np.unique(group_of).tolist():
            places = np.flatnonzero(group_of == group)
            table = self._row_group(group)
            own = numbers[places] - int(self.ends[group]) + len(table)
            try:
                values = table.take(own).to_pylist()
            except UnicodeDecodeError as error:
                problem = not_utf8_problem(self.name, int(numbers[places[0]]))
                raise DataError([problem.in_file(self.path)]) from error
            for place, row in zip(places.tolist(), values, strict=True):
                lines[place] = one_line(inner_text(row, self.name))
        return lines

    def _row_group(self, number: int) -> Any:
        """Read a row group of this column as a table.

        Raises DataError if the file is damaged or changed.
        """
        import pyarrow as arrow

        if self.held[0] != number:
            try:
                with open_parquet(self.path) as file:
                    table = file.read_row_group(number, columns=[self.name])
                columns = arrow.schema(
                    [column.with_type(without_views(column.type)) for column in table.schema]
                )
                self.held = number, table if columns.equals(table.schema) else table.cast(columns)
            except (arrow.ArrowException, OSError) as error:
                raise DataError([damaged(self.path, error).in_file(self.path)]) from error
            if file_stamp(self.path) != self.stamp:
                raise changed(self.path)
        return self.held[1]


def parquet_texts(path: Path, column: str) -> Iterator[str]:
    """Yield the texts of a column, null as empty. Raises DataError if it is missing or no text."""
    with open_parquet(path) as file:
        if problems := [*check_arrow_schema(file.schema_arrow, {"": column})]:
            raise DataError(problem.in_file(path) for problem in problems)
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=[column]):
            is_inner = column not in batch.schema.names
            if is_inner:
                texts = (inner_text(row, column) for row in batch.to_pylist())
            else:
                texts = batch[column].to_pylist()
            yield from (text or "" for text in texts)


def inner_text(row: Mapping[str, object], name: str) -> str | None:
    """Return the text called `name` of a row; None if a structure on the way is null."""
    with suppress(KeyError):
        return cast("str | None", get_nested(row, name))
    return None


def parquet_text_names(path: Path) -> list[str]:
    """Return a file's columns of text, those in structures as `a.b`; [] if it is no Parquet."""
    import pyarrow as arrow

    with suppress(arrow.ArrowException, OSError), open_parquet(path) as file:
        return [name for name, kind in arrow_fields(file.schema_arrow) if is_text(kind)]
    return []


def check_parquet_schema(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yield problems of a file and columns that are to be read as text, from its metadata alone."""
    import pyarrow as arrow

    try:
        with open_parquet(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (arrow.ArrowException, OSError) as error:
        yield Problem("table", f"this is not a Parquet file: {error}", "give a Parquet file")
        return
    yield from check_arrow_schema(schema, columns)
    if not rows:
        yield Problem("empty", "the file has no rows", "give it at least one pair")


def check_parquet(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yield problems of a file and columns that are to be read as text; reads it to the end."""
    import pyarrow as arrow

    problems = [*check_parquet_schema(path, columns)]
    yield from problems
    if problems:
        return
    first = 0
    try:
        with open_parquet(path) as file:
            for batch in file.iter_batches(columns=[*dict.fromkeys(columns.values())]):
                for name in columns.values():
                    if problem := _check_utf8(batch, name, first):
                        yield problem
                        return
                first += len(batch)
    except (arrow.ArrowException, OSError) as error:
        yield damaged(path, error)


def _check_utf8(batch: Any, name: str, first: int) -> Problem | None:
    """Return the problem of the first text of a batch that is not UTF-8. first.

    The batch's first row.
    """
    import pyarrow as arrow

    try:
        batch.validate(full=True)
    except arrow.ArrowInvalid:
        for row in range(len(batch)):
            try:
                batch.slice(row, 1).to_pylist()
            except UnicodeDecodeError:
                return not_utf8_problem(name, first + row)
        raise
    return None


def not_utf8_problem(name: str, row: int) -> Problem:
    """Return the problem of a text that Parquet takes for UTF-8."""
    message = f"the column `{name}` is not UTF-8 in row {row + 1:,}"
    return Problem("encoding", message, "write the file again, as UTF-8", line=row + 1)


def damaged(path: Path, error: Exception) -> Problem:
    """Return the problem of a file that begins as it should."""
    return Problem("table", f"`{path}` cannot be read: {one_line_error(error)}", GET_AGAIN)


def check_arrow_schema(schema: Any, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problems of an Arrow schema from which these columns of text are to be read."""
    fields = dict(arrow_fields(schema))
    texts = [name for name, kind in fields.items() if is_text(kind)]
    yield from check_names([name for name, _ in arrow_fields(schema)], columns, texts=texts)
    for key, name in columns.items():
        if name in fields and name not in texts:
            message = f"the column `{name}` holds {fields[name]}, not text"
            yield Problem("column", message, name_hint(name, texts), key, is_name=True)


def is_text(kind: Any) -> bool:
    """True if values of an Arrow type are read as texts: strings, categories of strings, nulls."""
    from pyarrow import types

    if types.is_dictionary(kind):  # the categories of pandas
        return is_text(kind.value_type)
    return any(
        test(kind)
        for test in (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    )


def without_views(kind: Any) -> object:
    """Return an Arrow type without views of strings, from which Arrow takes no single rows."""
    import pyarrow as arrow

    if arrow.types.is_string_view(kind):
        return arrow.large_string()
    if arrow.types.is_struct(kind):
        return arrow.struct([field.with_type(without_views(field.type)) for field in kind])
    return kind


def arrow_fields(fields: Iterable[Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield names and types of an Arrow schema's fields; fields of structures follow as `a.b`."""
    from pyarrow import types

    for field in fields:
        yield prefix + field.name, field.type
        if types.is_struct(field.type):
            yield from arrow_fields(field.type, f"{prefix}{field.name}.")
