"""CSV by RFC 4180: what is written by the rules comes back, and what breaks them is refused with
its line.
"""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.data.columns import locate
from composer.data.csv_files import CsvColumn, CsvError, csv_index, csv_rows
from composer.data.sources import check_files, open_pairs

FIELDS = st.text(st.sampled_from('ab ",\n\r\t;é\u2028\x85\x0c'), max_size=6)
TABLES = st.integers(1, 4).flatmap(
    lambda width: st.lists(st.lists(FIELDS, min_size=width, max_size=width), min_size=1)
)
COLUMNS = {"source": "en", "target": "de"}


def rows_of(text: str) -> list[list[str]]:
    return [row.fields for row in csv_rows(io.StringIO(text, newline="\n"))]


@given(TABLES, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_what_a_writer_of_csv_writes_comes_back(table, quoting):
    file = io.StringIO(newline="")
    csv.writer(file, quoting=quoting).writerows(table)
    assert rows_of(file.getvalue()) == table


@settings(max_examples=500)
@given(st.text(st.sampled_from('a",\n'), max_size=12))
def test_what_the_grammar_of_the_rfc_has_is_read_and_nothing_else(text):
    field = r'(?:"(?:[^"]|"")*"|[^",\n]*)'
    row = f"{field}(?:,{field})*"
    if re.fullmatch(f"(?:{row}\n)*{row}", text):
        rows_of(text)
    else:
        with pytest.raises(CsvError):
            rows_of(text)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('en,de\na,b\n5" disk,c\n', 3, "a quote stands inside a field"),
        ('en,de\na, "b, c"\n', 2, "a quote stands inside a field"),
        ('en,de\n"94 inch" screen,c\n', 2, 'text follows where it is closed: `"94 inch" screen,c`'),
        ('en,de\n"he said \\"hi\\"",c\n', 2, "text follows where it is closed"),
        ('en,de\n"a\nb",c\n"d,e\nf,"g"\n', 4, "text follows where it is closed in line 5"),
        ('en,de\n"a,b\nc,d\n', 2, "never closed"),
        ("en,de\na\rb,c\n", 2, "a carriage return without a line feed"),
    ],
)
def test_what_is_no_csv_is_refused_at_the_line_where_it_begins(text, line, words, make, tmp_path):
    (tmp_path / "t.csv").write_bytes(text.encode())
    recipe = make({"parallel": {"train": {"file": "t.csv", **COLUMNS}}})
    (fault,) = check_files(recipe, recipe.folders())
    assert (fault.file, fault.line, fault.code) == (str(tmp_path / "t.csv"), line, "table")
    assert words in fault.message
    assert fault.hint


@given(TABLES, st.sampled_from(["\n", "\r\n", "\n\n"]))
def test_a_column_has_the_fields_of_its_rows_and_their_lines(tmp_path_factory, table, end):
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    names = [f"c{at}" for at in range(len(table[0]))]
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=end).writerows([names, *table])
    path.write_bytes(b"\xef\xbb\xbf" + file.getvalue().encode())
    column = CsvColumn(path, names[-1])
    values = [row[-1].replace("\r\n", " ").replace("\n", " ") for row in table]
    assert (column[:], [column[row] for row in range(len(column))]) == (values, values)
    lines = file.getvalue().split("\n")
    for row, fields in enumerate(table):
        assert lines[column.line_of(row) - 1].startswith(
            '"' + fields[0].split("\n")[0].replace('"', '""')
        )


def test_the_index_of_a_large_file_is_the_same_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("composer.data.csv_files.READ_BYTES", 1)
    (tmp_path / "t.csv").write_text('en,de\n"a\nb","c\n\nd"\ne,f\n')
    first, again = csv_index(tmp_path / "t.csv"), csv_index(tmp_path / "t.csv")
    assert [numbers.tolist() for numbers in first] == [[1, 2, 6], [1, 4, 1], [2, 2, 2], [0, 2, 0]]
    assert all(map(np.array_equal, first, again))


NAMES = [
    "corpus [1]/x",
    "tr*",
    "train",
    "a::b",
    "~x",
    "~root/x",
    "what?",
    "hf:x",
    "s3:x",
    "[a-z]",
    "a{b,c}",
    "x.csv#y",
]

TEXTS = {
    "csv": "en,de\na,b\n",
    "tsv": "en\tde\na\tb\n",
    "jsonl": '{"en": "a", "de": "b"}\n',
    "txt": "a\n",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("suffix", ["tsv", "csv", "jsonl", "parquet", "tsv.zst", "txt"])
def test_a_name_means_the_file_of_that_name(name, suffix, make, tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text("en,de\nother,other\n")
    monkeypatch.chdir(tmp_path)
    path = Path(f"{name}.{suffix}")
    path.parent.mkdir(exist_ok=True)
    if suffix == "parquet":
        with (tmp_path / path).open("wb") as file:
            parquet.write_table(arrow.table({"en": ["a"], "de": ["b"]}), file)
    elif suffix == "tsv.zst":
        path.write_bytes(arrow.Codec("zstd").compress(b"en\tde\na\tb\n", asbytes=True))
    else:
        path.write_text(
            {"csv": "en,de\na,b\n", "tsv": "en\tde\na\tb\n", "txt": "a\n"}.get(
                suffix, '{"en": "a", "de": "b"}\n'
            )
        )
    split = {"file": str(path), **COLUMNS}
    if suffix == "txt":
        Path(f"{name}.de").write_text("b\n")
        split = {"source": str(path), "target": f"{name}.de"}
    recipe = make({"parallel": {"train": split}})
    for folders in (recipe.folders(), [Path()]):
        assert check_files(recipe, folders) == []
        pairs = open_pairs(recipe, "train", folders)
        assert [pairs[at] for at in range(len(pairs))] == [{"source": "a", "target": "b"}]
        assert locate(pairs.sides["source"], 0)[0] in (path, tmp_path / path)
