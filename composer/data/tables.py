"""Files with columns, TSV, CSV, JSON lines and Parquet: reading a column, and the faults of such files.

TSV and JSON lines are read in place; CSV, Parquet and the hub go through `datasets`, which keeps a memory-mapped copy.
Nothing here imports torch, and the checks do not import `datasets`: they answer while a recipe is checked.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from composer.atomic_io import parse_json, sha256_of_file
from composer.data.columns import Column, FileColumn, one_line, open_column
from composer.data.text_files import PACKED, UNPACKING_ERRORS, Problem, open_text, suffix_of
from composer.errors import DataError, Fault, closest_match, did_you_mean, one_line_error
from composer.formatting import count_noun
from composer.recipe.yaml_reader import dump

KINDS = {".tsv": "tsv", ".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""Kind of a file with columns, by its suffix."""
READ_IN_PLACE = ("tsv", "json")
"""Kinds whose lines are indexed and read from the file itself, and not through `datasets`."""
SUFFIXES = (*KINDS, *(suffix + end for suffix, kind in KINDS.items() if kind in READ_IN_PLACE for end in PACKED))
"""How the names of files with columns end, packed ones among them."""
MAX_NAMES = 20
"""Columns of a file that a fault lists."""
SEPARATORS = {"csv": ("commas", "save it with commas, or as TSV"), "tsv": ("tabs", "save it with tabs, or as CSV")}
"""What is between the fields of these kinds, and the fix of a file that has something else there."""
NAMES_OF_SEPARATORS = {";": "semicolons", "\t": "tabs", ",": "commas"}
SURROGATE = re.compile("[\ud800-\udfff]")


class DatasetColumn(Column):
    """Column of a `datasets.Dataset`, which is memory-mapped; `a.b` reaches into a structure. A null is an empty line.

    `origin` is what the data set is called in a fault, and its `path` if it is a file, with the lines to `skip`;
    `as_line` makes a line of a text of several.
    """

    def __init__(
        self,
        dataset: Any,
        name: str,
        origin: str,
        as_line: Callable[[str | None], str] = one_line,
        path: Path | None = None,
        skip: int = 0,
    ) -> None:
        head = name if name in dataset.column_names else name.split(".")[0]
        self.dataset, self.head, self.name, self.origin = dataset.select_columns([head]), head, name, origin
        self.as_line, self.path, self.skip = as_line, path, skip

    def __len__(self) -> int:
        return len(self.dataset)

    def line_of(self, row: int) -> int:
        """Return the line of its file that a row begins in: fields of CSV may have line breaks."""
        is_csv = self.path is not None and KINDS[suffix_of(self.path)[0]] == "csv"
        return self.line_starts[row + self.skip] if is_csv else super().line_of(row)

    @cached_property
    def line_starts(self) -> list[int]:
        """The line that each row of a file of CSV begins in, its header's first."""
        assert self.path is not None
        with open_text(self.path) as file:
            return [line for line, _ in csv_rows(csv.reader(file))]

    def read(self, rows: Sequence[int]) -> list[str]:
        if not len(rows):
            return []
        try:
            values = self.dataset[rows if isinstance(rows, range) else list(rows)][self.head]
        except UnicodeDecodeError as error:
            message = f"the column `{self.name}` is not UTF-8 in rows {rows[0] + 1:,} to {rows[-1] + 1:,}"
            fault = Fault(self.origin, 0, 0, "encoding", "", message, "write the file again, as UTF-8")
            raise DataError([fault]) from error
        return [self.as_line(_inner_text({self.head: value}, self.name)) for value in values]


def open_columns(path: Path, names: Mapping[str, str]) -> dict[str, Column]:
    """Open the columns `names`, by side, of a checked file. `datasets` raises errors without a common class."""
    kind = KINDS[suffix_of(path)[0]]
    if kind in READ_IN_PLACE:
        return {side: _text_column(kind, path, name) for side, name in names.items()}
    datasets = import_datasets()
    settings: dict[str, Any] = {}
    if kind == "csv":
        # every field is a text as it stands: neither "NA" nor 007 nor an empty field means anything else
        texts = datasets.Features({name: datasets.Value("string") for name in dict.fromkeys(names.values())})
        settings = {"features": texts, "na_filter": False, "keep_default_na": False, "encoding": "utf-8-sig"}
    # a cache folder per content: `datasets` knows a file by its name and time, which can stay the same
    cache = Path(datasets.config.HF_DATASETS_CACHE) / "seqcomposer" / sha256_of_file(path)[:32]
    dataset = datasets.load_dataset(kind, data_files=[str(path)], split="train", cache_dir=str(cache), **settings)
    skip = int(kind == "csv")
    return {side: DatasetColumn(dataset, name, str(path), path=path, skip=skip) for side, name in names.items()}


def parquet_texts(path: Path, column: str) -> Iterator[str]:
    """Yield the texts of a column; a null is an empty one. Raises DataError if it is not there, or holds no text."""
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path)
    if problems := [*check_arrow_schema(file.schema_arrow, {"": column})]:
        raise DataError(problem.in_file(path) for problem in problems)
    for batch in file.iter_batches(batch_size=1024, columns=[column]):
        is_inner = column not in batch.schema.names
        texts = (_inner_text(row, column) for row in batch.to_pylist()) if is_inner else batch[column].to_pylist()
        yield from (text or "" for text in texts)


def _inner_text(row: Mapping[str, Any], name: str) -> str | None:
    with suppress(KeyError):  # the schema has the name, so a structure on the way is null
        return cast("str | None", get_nested(row, name))
    return None


def column_names(path: Path) -> list[str]:
    """Return the columns of a checked file, of JSON lines those of the first line."""
    kind = KINDS[suffix_of(path)[0]]
    if kind == "parquet":
        import pyarrow.parquet as parquet

        return [name for name, _ in _arrow_fields(parquet.read_schema(path), "")]
    with open_text(path) as file:
        if kind == "json":
            return [*_nested_names(json.loads(file.readline()))]
        return next(csv.reader(file)) if kind == "csv" else file.readline().rstrip("\r\n").split("\t")


def _text_column(kind: str, path: Path, name: str) -> FileColumn:
    if kind == "json":
        return open_column(path, 0, name, lambda line: get_nested(json.loads(line), name))
    with open_text(path) as file:
        field = file.readline().rstrip("\r\n").split("\t").index(name)
    return open_column(path, 1, name, lambda line: line.split("\t")[field])


def csv_rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that a reader of CSV gives, each with the line that it begins in; a blank line is no row."""
    end = 0
    for fields in reader:
        if fields:
            yield end + 1, fields
        end = reader.line_num


def root_cause(error: BaseException) -> str:
    """Return what went wrong first: `datasets` wraps the error that says it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def import_datasets() -> Any:
    """Import `datasets`, which takes seconds, without its progress bars."""
    import datasets

    datasets.disable_progress_bars()
    return datasets


def get_nested(row: Mapping[str, Any], name: str) -> Any:
    """Return the value called `name`; `a.b` reaches into an inner mapping if no key is `a.b`. Raises KeyError."""
    if name in row:
        return row[name]
    head, dot, rest = name.partition(".")
    if not dot or not isinstance(row[head], Mapping):
        raise KeyError(name)
    return get_nested(row[head], rest)


def check_table(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problems of a UTF-8 (or Parquet) file from which `columns` are to be read, by the keys naming them."""
    kind = KINDS[suffix_of(path)[0]]
    if kind == "parquet":
        yield from _check_parquet(path, columns)
        return
    with path.open(encoding="utf-8-sig", newline="") if kind == "csv" else open_text(path) as file:
        if kind == "json":
            problems = (list(check_object(number, line, columns)) for number, line in enumerate(file, start=1))
            yield from next(filter(None, problems), [])
        elif kind == "tsv":
            yield from _check_rows(
                enumerate((line.rstrip("\r\n").split("\t") for line in file), start=1), columns, kind
            )
        else:
            csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
            reader = csv.reader(file)
            try:
                yield from _check_rows(csv_rows(reader), columns, kind)
            except csv.Error as error:
                message, fix = f"the CSV cannot be read: {error}", "repair it, or save it as TSV"
                yield Problem("table", message, fix, line=reader.line_num)


def check_first_names(path: Path, columns: Mapping[str, str]) -> list[Problem]:
    """Return the problems of names of columns in a readable file of JSON lines or Parquet, from its start alone.

    Of a file that is neither there is none: what is wrong with it is found where it is read.
    """
    with suppress(*UNPACKING_ERRORS, ValueError):
        if KINDS[suffix_of(path)[0]] == "parquet":
            return [problem for problem in _check_parquet(path, columns) if problem.is_name]
        with open_text(path) as file:
            return [problem for problem in check_object(1, file.readline(), columns) if problem.is_name]
    return []


def _check_rows(rows: Iterator[tuple[int, Sequence[str]]], columns: Mapping[str, str], kind: str) -> Iterator[Problem]:
    """Yield the problems of the rows of a TSV or CSV, the header first, each with its line."""
    first, header = next(rows, (0, None))
    if header is None:
        yield Problem("empty", "the file has no rows", "name its columns in the first, and give it pairs")
        return
    separators = [word for mark, word in NAMES_OF_SEPARATORS.items() if mark in header[0]]
    if separators and len(header) == 1 and not {*columns.values()} <= {*header}:
        own, fix = SEPARATORS[kind]
        yield Problem("table", f"the first row has {separators[0]} and no {own}", fix, line=first)
        return
    yield from check_names(header, columns, "the first row, which must name the columns,")
    number = 1
    for number, (line, row) in enumerate(rows, start=2):
        if len(row) != len(header):
            fields = count_noun(len(row), "field")
            message = f"row {number} has {fields}, and the first row names {len(header)}"
            yield Problem("table", message, "give every row one field per column", line=line)
            return
    if number == 1:
        yield Problem("empty", "the file names its columns and has no rows", "give it at least one pair")


def check_object(number: int, line: str, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problems of a line of JSON from which these columns of text are to be read."""
    hint = "write one JSON object a line; `jq -c '.[]'` makes such lines of a list"
    try:
        row = parse_json(line.rstrip("\r\n"))
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
            problem = _unknown_name(key, f"line {number} has no key", name, [*_text_names(row)])
            before = f"give this line a `{name}`: all lines before it have one"
            yield problem if number == 1 else problem._replace(hint=before, is_name=False, line=number)
            continue
        if value is not None and not isinstance(value, str):
            problem = Problem("column", f"`{name}` in line {number} is not a text", "write it in quotes", key)
            yield problem if number == 1 else problem._replace(line=number)  # of the first the name may be at fault
        elif value and SURROGATE.search(value):  # JSON can escape them, UTF-8 cannot hold them
            message = f"`{name}` in line {number} has half of a character, a surrogate without its other half"
            yield Problem("encoding", message, "write the whole character, or remove the `\\ud...`", key, line=number)


def _check_parquet(path: Path, columns: Mapping[str, str]) -> Iterator[Problem]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
    except (arrow.ArrowException, OSError) as error:
        yield Problem("table", f"this is not a Parquet file: {error}", "give a Parquet file")
        return
    yield from check_arrow_schema(schema, columns)
    if not rows:
        yield Problem("empty", "the file has no rows", "give it at least one pair")


def check_arrow_schema(schema: Any, columns: Mapping[str, str]) -> Iterator[Problem]:
    """Yield the problems of an Arrow schema from which these columns of text are to be read."""
    from pyarrow import types

    fields = list(_arrow_fields(schema, ""))
    is_text = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    texts = [name for name, kind in fields if any(test(kind) for test in is_text)]
    yield from check_names([name for name, _ in fields], columns, texts=texts)
    kinds = dict(fields)
    for key, name in columns.items():
        if name in kinds and name not in texts:
            message = f"the column `{name}` holds {kinds[name]}, not text"
            yield Problem("column", message, _name_hint(name, texts), key, is_name=True)


def _arrow_fields(fields: Iterable[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    from pyarrow import types

    for field in fields:
        yield prefix + field.name, field.type
        if types.is_struct(field.type):
            yield from _arrow_fields(field.type, f"{prefix}{field.name}.")


def _nested_names(row: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in row.items():
        yield prefix + name
        if isinstance(value, Mapping):
            yield from _nested_names(value, f"{prefix}{name}.")


def _text_names(row: Mapping[str, Any]) -> Iterator[str]:
    for name in _nested_names(row):
        with suppress(KeyError):  # of a key that has a dot itself
            if isinstance(get_nested(row, name), str | None):
                yield name


def check_names(
    names: Sequence[str], columns: Mapping[str, str], origin: str = "the file", texts: Sequence[str] | None = None
) -> Iterator[Problem]:
    """Yield the columns that are missing, and those whose name is ambiguous. texts: those of text; None is all."""
    for key, name in columns.items():
        if (count := names.count(name)) > 1:
            yield Problem("column", f"the file has {count} columns called `{name}`", "give them different names", key)
        elif not count:
            yield _unknown_name(key, f"{origin} has no column", name, names if texts is None else texts)


def _unknown_name(key: str, message: str, name: str, texts: Sequence[str]) -> Problem:
    message = f"{message} `{name}`{did_you_mean(name, texts)}"
    return Problem("column", message, _name_hint(name, texts), key, is_name=True)


def _name_hint(name: str, texts: Sequence[str]) -> str:
    """Return which of the columns of text to name in place of another, as a recipe has it."""
    listed = ", ".join(f"`{_in_yaml(text)}`" for text in texts[:MAX_NAMES])
    close = _in_yaml(closest_match(name, texts)) if closest_match(name, texts) else ""
    rest = f"name one of {listed}" if listed else "name a file with a column of text"
    return f"write `{close}`; there are {listed}" if close and len(texts) > 1 else f"write `{close}`" if close else rest


def _in_yaml(name: str) -> str:
    """Return a name as YAML that reads back as this text: in quotes where it begins with a blank, or is a number."""
    return dump(name).removesuffix("...\n").rstrip()
