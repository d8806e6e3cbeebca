"""Data that break on the way: while they are checked, opened, or read. Every fault is one clear
error.
"""

from __future__ import annotations

import json
import os

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest

from composer.cli.new import new as write_recipe
from composer.data.columns import locate
from composer.data.encoding import load_data
from composer.data.sources import check_files, open_pairs
from composer.data.tables import open_columns
from composer.errors import DataError
from composer.recipe.yaml_reader import parse_value

TABLE = {"source": "en", "target": "de"}
BOM = b"\xef\xbb\xbf"
STORIES = {
    "encoders": {"question": ["rnn"], "story": ["sum_columns"]},
    "decoder": ["rnn"],
    "output": {"length": 1},
}
WORDS = {"word": {"split": "spaces", "joint": True}}


@pytest.fixture
def no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if everything happened to the files after they had been checked."""
    monkeypatch.setattr("composer.data.sources.check_files", lambda *_: [])


def fault_of(recipe) -> tuple[str, str, str]:
    with pytest.raises(DataError) as caught:
        load_data(recipe, recipe.folders())
    (fault,) = caught.value.faults
    assert fault.hint
    return fault.code, fault.path, fault.message


def column(values, kind=None) -> arrow.Array:
    return arrow.array(values, kind)


def parquet_file(path, **columns) -> None:
    parquet.write_table(arrow.table(columns), path)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("name", "content", "code", "key", "words"),
    [
        ("t.csv", b"\n\n", "empty", "file", "no rows"),
        ("t.csv", BOM, "empty", "file", "is empty"),
        ("t.tsv", BOM, "empty", "file", "is empty"),
        ("t.csv", b"en,de,de\na,b,c\n", "column", "target", "2 columns called `de`"),
        ("t.tsv", b"en\tde\tde\na\tb\tc\n", "column", "target", "2 columns called `de`"),
        ("t.jsonl", b'{"en": "a \\ud83d\\ude00", "de": 1e999}\n', "column", "target", "not a text"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_fault(name, content, code, key, words, make, tmp_path):
    (tmp_path / name).write_bytes(content)
    place_and_message = fault_of(make({"parallel": {"train": {"file": name, **TABLE}}}))
    assert place_and_message[:2] == (code, f"data.parallel.train.{key}")
    assert words in place_and_message[2]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_text_of_nothing_but_a_byte_order_mark_is_empty(side, make, tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).write_bytes(BOM if name == side else b"a\n")
    place_and_message = fault_of(
        make({"parallel": {"train": {"source": "source", "target": "target"}}})
    )
    assert place_and_message[:2] == ("empty", f"data.parallel.train.{side}")


@pytest.mark.usefixtures("own_cache")
def test_a_damaged_parquet_file_is_one_fault(make, tmp_path):
    recipe = make({"parallel": {"train": {"file": "t.parquet", **TABLE}}})
    parquet_file(
        tmp_path / "t.parquet",
        en=column(["x"] * 500),
        de=column([f"y {row}" for row in range(500)]),
    )
    data = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(
        data[:200] + bytes(255 - byte for byte in data[200:800]) + data[800:]
    )
    code, path, message = fault_of(recipe)
    assert (code, path) == ("table", "data.parallel.train.file")
    assert "t.parquet` cannot be read" in message
    one = column([0, 2], arrow.int32()).buffers()[1]
    latin = arrow.Array.from_buffers(arrow.string(), 1, [None, one, arrow.py_buffer(b"\xff\xfe")])
    parquet_file(tmp_path / "t.parquet", en=latin, de=column(["b"]))
    (fault,) = check_files(recipe, recipe.folders())
    assert (fault.code, fault.file, fault.line) == ("encoding", str(tmp_path / "t.parquet"), 1)


@pytest.mark.parametrize("kind", [arrow.string(), arrow.large_string()])
def test_categories_of_texts_are_texts(kind, make, tmp_path):
    """As pandas writes a column of the type `category`."""
    texts = column(["one", None, "two", "one"], arrow.dictionary(arrow.int8(), kind))
    numbers = column([1, 2, 2, 1]).dictionary_encode()
    parquet_file(tmp_path / "t.parquet", en=texts, de=column([*"abcd"]), no=numbers)
    recipe = make({"parallel": {"train": {"file": "t.parquet", **TABLE}}})
    assert check_files(recipe, recipe.folders()) == []
    sides = open_pairs(recipe, "train", recipe.folders()).sides
    assert (sides["source"][:], sides["source"][3]) == (["one", "", "two", "one"], "one")
    recipe = make({"parallel": {"train": {"file": "t.parquet", "source": "no", "target": "de"}}})
    (fault,) = check_files(recipe, recipe.folders())
    assert (fault.path, fault.hint) == ("data.parallel.train.source", "name one of `en`, `de`")


@pytest.mark.parametrize("name", ["en", "both.en"])
def test_views_of_strings_are_texts(name, make, tmp_path):
    """As polars writes them."""
    texts = column(["one", None, "two"], arrow.string_view())
    both = arrow.StructArray.from_arrays([texts, column([1, 2, 3])], ["en", "number"])
    parquet_file(tmp_path / "t.parquet", en=texts, both=both, de=column([*"abc"]))
    recipe = make({"parallel": {"train": {"file": "t.parquet", "source": name, "target": "de"}}})
    assert check_files(recipe, recipe.folders()) == []
    sides = open_pairs(recipe, "train", recipe.folders()).sides
    assert (sides["source"][:], sides["source"][2]) == (["one", "", "two"], "two")


def test_rows_of_parquet_are_read_from_their_row_groups(make, tmp_path):
    texts = [f"text {row}" for row in range(100)]
    table = arrow.table({"en": texts, "de": [text.upper() for text in texts]})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=7)
    recipe = make({"parallel": {"train": {"file": "t.parquet", **TABLE}}})
    pairs = open_pairs(recipe, "train", recipe.folders())
    assert [*pairs.sides["source"]] == texts
    few = pairs.keep(np.array([99, 0, 50, 7, 6]))
    assert few.sides["target"][:] == ["TEXT 99", "TEXT 0", "TEXT 50", "TEXT 7", "TEXT 6"]
    parquet.write_table(table.slice(0, 50), tmp_path / "t.parquet", row_group_size=7)
    with pytest.raises(DataError, match=r"has been changed while it was in use"):
        pairs.sides["source"][20:30]


@pytest.mark.usefixtures("own_cache")
def test_a_structure_that_is_null_is_an_empty_line(make, tmp_path):
    kind = arrow.struct([("en", arrow.string()), ("de", arrow.string())])
    parquet_file(tmp_path / "t.parquet", t=column([{"en": "a", "de": "b"}, None], kind))
    recipe = make(
        {"parallel": {"train": {"file": "t.parquet", "source": "t.en", "target": "t.de"}}}
    )
    data = load_data(recipe, recipe.folders())
    assert data.pairs["train"].sides["source"][:] == ["a", ""]
    assert data.notes[0] == "left out 1 of 2 training pairs with an empty side"


@pytest.mark.usefixtures("no_check")
def test_a_split_without_pairs_is_refused(make, texts, tmp_path):
    (tmp_path / "none").write_bytes(b"")
    splits = {
        "train": texts(source=["a"], target=["b"]),
        "val": {"source": "none", "target": "none"},
    }
    code, path, message = fault_of(make({"parallel": splits}))
    assert (code, path) == ("empty", "data.parallel.val")
    assert "val has no pairs" in message


@pytest.mark.usefixtures("own_cache")
def test_a_hub_split_without_pairs_is_refused(make, tmp_path):
    (tmp_path / "set").mkdir()
    parquet_file(tmp_path / "set" / "train.parquet", en=column(["a"]), de=column(["b"]))
    code, path, message = fault_of(
        make({"hub": {"id": "set", **TABLE, "val": "train[:0]", "test": None}})
    )
    assert (code, path.rpartition(".")[0]) == ("hub", "data.hub")
    assert "has no `train[:0]` that can be read" in message


def test_text_of_blank_lines_alone_is_refused(make, texts):
    blank = texts(source=["", " \t", "\u3000"], target=["a", "b", ""])
    code, _, message = fault_of(make({"parallel": {"train": blank}}))
    assert code == "empty"
    assert "none of the 3 training pairs has text on every side" in message


def test_a_side_of_unknown_tokens_alone_is_refused(make, texts):
    train = texts(source=["a b", "c d"], target=["x x", "x x"])
    recipe = make({"parallel": {"train": train}, "tokenizer": {"word": {"min_count": 2}}})
    code, path, message = fault_of(recipe)
    assert (code, path) == ("unknown", "data.tokenizer.word")
    assert "train source" in message


@pytest.mark.usefixtures("no_check")
@pytest.mark.parametrize(
    "data",
    [
        {"parallel": {"train": {"source": "gone", "target": "gone"}}},
        {"parallel": {"train": {"file": "gone.tsv", **TABLE}}},
        {"parallel": {"train": {"file": "gone.csv", **TABLE}}},
    ],
)
def test_a_file_removed_after_the_check_is_one_fault(data, make):
    code, path, message = fault_of(make(data))
    assert code == "file"
    assert path == "data"
    assert "gone" in message
    assert "No such file" in message


@pytest.mark.usefixtures("no_check")
def test_a_task_removed_after_the_check_is_one_fault(make, tmp_path):
    for folder in ("no", "tasks"):
        (tmp_path / "tasks").mkdir(exist_ok=True)
        recipe = make({"babi": {"folder": folder, "tasks": [1]}, "tokenizer": WORDS}, STORIES)
        code, _, message = fault_of(recipe)
        assert code == "file"
        assert "qa1_..._train.txt" in message


@pytest.mark.usefixtures("no_check")
def test_sides_of_different_lengths_after_the_check_are_one_fault(make, texts):
    code, path, message = fault_of(
        make({"parallel": {"train": texts(source=["a", "b"], target=["c"])}})
    )
    assert (code, path) == ("lines", "data.parallel.train")
    assert "source 2, target 1" in message


def test_a_disk_error_during_the_check_is_one_fault(make, texts, monkeypatch):
    recipe = make({"parallel": {"train": texts(source=["a"], target=["b"])}})

    def fails(path) -> int:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("composer.data.text_files.count_lines", fails)
    (fault,) = check_files(recipe, recipe.folders())
    assert "Input/output error" in fault.message


def opened(make, texts):
    recipe = make({"parallel": {"train": texts(source=["a", "b", "c"], target=["d", "e", "f"])}})
    return open_pairs(recipe, "train", recipe.folders()).sides["target"]


@pytest.mark.parametrize("content", [b"", b"d\n", b"d\ne\ng\n", b"d\ne\nf\ng\n"])
def test_a_file_modified_while_it_is_read_is_one_fault(content, make, texts, tmp_path):
    lines = opened(make, texts)
    assert lines[0] == "d"
    with (tmp_path / "train.target").open("r+b") as file:
        file.truncate(0)
        file.write(content)
    # the clock of a file system may stand still for milliseconds
    os.utime(tmp_path / "train.target", ns=(1, 1))
    for read in (lambda: lines[2], lambda: lines[:], lambda: list(lines)):
        with pytest.raises(DataError, match=r"train\.target.*changed"):
            read()


def test_a_file_touched_or_removed_while_it_is_read_is_read_on(make, texts, tmp_path):
    lines = opened(make, texts)
    path = tmp_path / "train.target"
    os.utime(path, ns=(1, 1))
    assert lines[:] == ["d", "e", "f"]
    path.write_bytes(path.read_bytes())
    assert lines[1] == "e"
    path.unlink()
    path.write_text("another\n")
    assert lines[:] == ["d", "e", "f"]


@pytest.mark.usefixtures("own_cache")
def test_a_table_with_new_content_is_not_read_from_the_cache(make, tmp_path):
    recipe = make({"parallel": {"train": {"file": "t.csv", **TABLE}}})
    for word in ("one", "two"):
        (tmp_path / "t.csv").write_text(f"en,de\n{word},x\n")
        os.utime(tmp_path / "t.csv", ns=(1, 1))
        assert open_pairs(recipe, "train", recipe.folders())[0]["source"] == word


def test_a_new_recipe_for_missing_files_is_refused(tmp_path):
    for name in ("none", "x" * 5000):
        with pytest.raises(DataError, match="no file"):
            write_recipe(tmp_path / name, tmp_path / name, tmp_path / "first.yaml")
    assert not (tmp_path / "first.yaml").exists()


def test_faults_of_tables_say_what_to_mend(make, tmp_path):
    rows = [{"id": "1", "written": "a", "spoken": "b"}, {"id": "2", "written": "c"}]
    (tmp_path / "bad.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "bare.tsv").write_text("1\tone\n2\ttwo\n")
    names = {"source": "written", "target": "spoken"}
    (fault,) = check_files(
        recipe := make({"parallel": {"train": {"file": "bad.jsonl", **names}}}), recipe.folders()
    )
    assert fault.message.startswith("line 2 has no key `spoken`")
    assert fault.hint == "give this line a `spoken`: all lines before it have one"
    faults = check_files(
        recipe := make({"parallel": {"train": {"file": "bare.tsv", **names}}}), recipe.folders()
    )
    assert [fault.message for fault in faults] == [
        f"the first row, which must name the columns, has no column `{name}`"
        for name in ("written", "spoken")
    ]


def test_the_name_of_a_column_that_is_proposed_reads_as_that_name(make, tmp_path):
    (tmp_path / "blank.tsv").write_text(" spoken\t1\nx\ty\n")
    sides = {"source": "spoken", "target": "spoken"}
    (fault, _) = check_files(
        recipe := make({"parallel": {"train": {"file": "blank.tsv", **sides}}}), recipe.folders()
    )
    assert [parse_value(text, 0).value for text in fault.hint.split("`")[1::2]] == [
        " spoken",
        " spoken",
        "1",
    ]


def test_a_row_of_csv_is_reported_by_the_line_that_it_begins_in(tmp_path):
    (tmp_path / "t.csv").write_text('a,b\n\nx,"two\nlines"\n"y\n\n",z\nw,v\n')
    column = open_columns(tmp_path / "t.csv", {"target": "b"})["target"]
    assert [*column] == ["two lines", "z", "v"]
    assert [locate(column, row) for row in range(3)] == [
        (tmp_path / "t.csv", line) for line in (3, 5, 8)
    ]
