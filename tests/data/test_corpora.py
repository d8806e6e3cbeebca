"""Corpora: documents of files in every form, and one clear answer to every file that is none."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from composer.data import documents, tables
from composer.data.corpora import check_corpora, open_corpus
from composer.data.documents import CorpusFile, Documents
from composer.data.encoding import load_data
from composer.data.pairs import TARGET
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_training import train_tokenizers
from composer.errors import DataError
from composer.model.special_tokens import UNK
from composer.training.dry_run import dry_run
from tests.data.conftest import Make

LM = {"decoder": ["rnn"]}
TEXT = "the first line\n\nthe third one\r\nthe last"


def read(path: Path, unit: str = "line", column: str = "text") -> list[str]:
    return list(Documents([CorpusFile(path, ())], unit, column))


@pytest.mark.parametrize(
    ("unit", "documents"),
    [
        ("line", ["the first line", "", "the third one", "the last"]),
        ("paragraph", ["the first line", "the third one\nthe last"]),
        ("file", [TEXT.replace("\r\n", "\n")]),
    ],
)
def test_a_document_is_a_line_a_paragraph_or_a_file(
    tmp_path: Path, unit: str, documents: list[str]
) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    with pa.CompressedOutputStream(str(tmp_path / "c.txt.zst"), "zstd") as file:
        file.write(TEXT.encode())
    for name in ("a.txt", "b.txt.gz", "c.txt.zst"):
        assert read(tmp_path / name, unit) == documents


def test_documents_are_read_by_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\nb\nc\nd\n")
    documents = Documents([CorpusFile(tmp_path / "a.txt", ())], "line", "text")
    assert (documents[1], documents[-1], documents[1:3], documents[3:3]) == (
        "b",
        "d",
        ["b", "c"],
        [],
    )
    assert documents.read([3, 0]) == ["d", "a"]
    with pytest.raises(IndexError):
        documents[4]


def test_rows_of_json_lines_and_parquet_are_documents(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"d": {"text": "one\ntwo"}},
        {"d": {"text": None}},
        {"d": {"text": "three"}},
    ]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert read(tmp_path / "a.jsonl.gz", column="d.text") == ["one\ntwo", "", "three"]
    pyarrow.parquet.write_table(
        pa.table({"body": ["one\ntwo", None, "three"]}), tmp_path / "a.parquet"
    )
    assert read(tmp_path / "a.parquet", column="body") == ["one\ntwo", "", "three"]


@pytest.mark.parametrize(
    "kind", ["word", "char", "byte", {"word": {"split": "spaces"}}, {"bpe": {"size": 300}}]
)
def test_a_long_document_is_tokenised_in_pieces_as_in_one(
    monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setattr(documents, "PIECE", 40)
    text = " ".join(f"word{n % 7}, and\n  more {n}" for n in range(40))
    pieces = list(documents.cut(text))
    assert len(pieces) > 5
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    section = {"tokenizer": kind if isinstance(kind, dict) else {kind: {}}}
    check_pieces(train_tokenizers(section, {TARGET: [text]}), pieces, text)


def test_a_document_is_cut_alike_whether_it_comes_in_one_or_in_blocks(tmp_path: Path) -> None:
    text = "x" * 5 * documents.PIECE + " and\nmore" * documents.PIECE
    (tmp_path / "a.txt").write_text(text)
    pieces = list(documents.cut(text))
    assert pieces == list(documents.read_pieces(tmp_path / "a.txt", "file", "text"))
    # or a text of a gigabyte would be copied for each of its pieces
    assert max(len(piece.text) for piece in pieces) < 2 * documents.PIECE


def check_pieces(tokenizers: Tokenizers, pieces: list[documents.Piece], text: str) -> None:
    """Check that pieces of a text have the tokens of the text."""
    follows = [False, *[True] * (len(pieces) - 1)]
    rows = tokenizers.encode_pieces(TARGET, [piece.text for piece in pieces], follows)
    assert [token for row in rows for token in row] == tokenizers.encode(TARGET, [text])[0]


def test_what_is_known_of_a_file_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one two\nthrée\n", encoding="utf-8")
    facts = documents.inspect(tmp_path / "a.txt", "line", "text")
    assert (facts.documents, facts.words, facts.characters, facts.bytes) == (2, 3, 12, 13)
    monkeypatch.setattr(documents, "read_pieces", lambda *given: pytest.fail("this file is known"))
    assert documents.inspect(tmp_path / "a.txt", "line", "text") == facts


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "a.txt", documents.read_pieces
    path.write_text("one\n")

    def growing(*given: Any) -> Any:
        path.write_text("one\ntwo\n")
        return real(*given)

    monkeypatch.setattr(documents, "read_pieces", growing)
    with pytest.raises(DataError, match="changed while it was read"):
        documents.inspect(path, "line", "text")


def test_files_of_a_part_are_a_name_a_list_a_pattern_or_names_with_weights(
    make: Make, tmp_path: Path
) -> None:
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(f"from {name}\n")

    def files(train: Any) -> list[tuple[str, float]]:
        recipe = make({"text": {"train": train}}, LM)
        return [
            (file.path.name, file.weight) for file in open_corpus(recipe, "train", [tmp_path]).files
        ]

    assert files("c.md") == [("c.md", 1.0)]
    assert files("*.txt") == [("a.txt", 1.0), ("b.txt", 1.0)]
    assert files(["b.txt", "c.md"]) == [("b.txt", 1.0), ("c.md", 1.0)]
    assert files({"one": "a.txt", "two": {"file": "*.md", "weight": 2}}) == [
        ("a.txt", 1.0),
        ("c.md", 2.0),
    ]
    assert files(["a.txt", {"file": "*.md", "weight": 2}]) == [("a.txt", 1.0), ("c.md", 2.0)]


def test_what_a_number_holds_out_is_spread_over_all_files(make: Make, tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("\n".join(f"{name}{number}" for number in range(10)))
    recipe = make({"text": {"train": "*.txt", "val": 6, "test": 3}, "tokenizer": "word"}, LM)
    data = load_data(recipe, [tmp_path])
    texts = {split: [*pairs.sides[TARGET]] for split, pairs in data.pairs.items()}
    assert {split: Counter(text[0] for text in part) for split, part in texts.items()} == {
        "train": {"a": 7, "b": 7, "c": 7},
        "val": {"a": 2, "b": 2, "c": 2},
        "test": {"a": 1, "b": 1, "c": 1},
    }
    assert sorted(chain(*texts.values())) == sorted(
        f"{name}{number}" for name in "abc" for number in range(10)
    )
    assert all(text == sorted(text) for text in texts.values())


def test_a_number_holds_out_the_last_documents_of_the_training_text(
    make: Make, tmp_path: Path
) -> None:
    for name, words in (("a.txt", "one two three"), ("b.txt", "four five six")):
        (tmp_path / name).write_text(words.replace(" ", "\n"))
    train = ["a.txt", {"file": "b.txt", "weight": 2}]
    recipe = make(
        {"text": {"train": train, "val": 2, "test": 1, "hold_out": "end"}, "tokenizer": "word"}, LM
    )
    data = load_data(recipe, [tmp_path])
    texts = {split: list(pairs.sides[TARGET]) for split, pairs in data.pairs.items()}
    assert texts == {"train": ["one", "two", "three"], "val": ["four", "five"], "test": ["six"]}
    assert {
        split: encoded.counts and encoded.counts.words for split, encoded in data.splits.items()
    } == {
        "train": 6,
        "val": 4,
        "test": 2,
    }
    assert len({encoded.sha256 for encoded in data.splits.values()}) == 3
    assert data.tokenizers.encode(TARGET, ["six"]) == [[UNK]], "what is held out is not trained on"
    assert [pairs.sides[TARGET].head(9) for pairs in data.pairs.values()] == [*texts.values()]
    longer = open_corpus(
        make({"text": {"train": train, "test": 2, "hold_out": "end"}}, LM), "train", [tmp_path]
    )
    assert (list(longer), longer.weights()) == (
        ["one", "two", "three", "four"],
        pytest.approx([1, 1, 1, 2]),
    )


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        (
            {"val": 2, "test": 1},
            "val and test take 3 documents, and the training files have 3",
            "`val: 1, test: 1`",
        ),
        (
            {"val": 2, "unit": "file"},
            "val takes 2 documents, and the training files have 1",
            "name files in `val`",
        ),
    ],
)
def test_holding_out_all_documents_is_refused(
    make: Make, tmp_path: Path, settings: dict[str, Any], message: str, hint: str
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    (fault,) = check_corpora(make({"text": {"train": "a.txt", **settings}}, LM), [tmp_path])
    assert (fault.code, fault.path, fault.message) == ("empty", "data.text.val", message)
    assert hint in fault.hint


FAULTS = {
    "nothing.txt": (b"", "empty", "is empty"),
    "blank.txt": (b"\n \n", "empty", "has no words"),
    "latin.txt": (b"one\ncaf\xe9\n", "encoding", "not UTF-8 at line 2"),
    "cut.txt.gz": (gzip.compress(b"one two three " * 99)[:40], "file", "is damaged"),
    "no.txt.gz": (b"plain text\n", "file", "is damaged"),
    "no.txt.zst": (b"plain text\n", "file", "is damaged"),
    "keys.jsonl": (b'{"text": "one"}\n{"txt": "two"}\n', "column", "line 2 has no key `text`"),
    "number.jsonl": (b'{"text": 3}\n', "column", "`text` in line 1 is not a text"),
    "twice.jsonl": (
        b'{"text": "one"}\n{"text": "two", "text": ""}\n',
        "table",
        "line 2 has the key `text` more than once",
    ),
    "no.jsonl": (b'{"text": "one"\n', "table", "line 1 is not JSON"),
    "half.jsonl": (b'{"text": "\\ud800"}\n', "encoding", "surrogate"),
    "no.parquet": (b"plain text\n", "file", "cannot be read"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_file_that_is_none_is_one_error_where_the_recipe_names_it(
    make: Make, tmp_path: Path, name: str
) -> None:
    content, code, message = FAULTS[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "a.txt").write_text("some text\n")
    faults = check_corpora(make({"text": {"train": "a.txt", "val": [name]}}, LM), [tmp_path])
    assert [(fault.code, fault.path) for fault in faults] == [(code, "data.text.val[0]")]
    assert message in faults[0].message
    assert faults[0].hint
    assert faults[0].line


@pytest.mark.parametrize("val", ["50", "10%"])
def test_a_number_in_quotes_and_a_share_are_to_be_numbers(
    make: Make, tmp_path: Path, val: str
) -> None:
    (tmp_path / "a.txt").write_text("one two\n")
    (fault,) = check_corpora(make({"text": {"train": "a.txt", "val": val}}, LM), [tmp_path])
    assert (fault.code, fault.path) == ("file", "data.text.val")
    assert "such as `500`" in fault.hint


@pytest.mark.parametrize("test", ["test.txt", "t*t.txt", ["test.txt"], {"a": {"file": "test.txt"}}])
def test_a_file_that_is_named_elsewhere_is_not_proposed(
    make: Make, tmp_path: Path, test: Any
) -> None:
    (tmp_path / "test.txt").write_text("some text\n")
    (fault,) = check_corpora(make({"text": {"train": ["tst.txt"], "test": test}}, LM), [tmp_path])
    assert fault.message.startswith("no file `tst.txt`")
    assert "test.txt" not in fault.message + fault.hint
    (fault,) = check_corpora(make({"text": {"train": "tst.txt"}}, LM), [tmp_path])
    assert fault.hint == "write `test.txt`"


ROWS = [{"id": n, "text": "one two", "title": "three", "inner": {"body": "four"}} for n in range(3)]


def write_rows(path: Path, rows: list[dict[str, Any]] = ROWS) -> None:
    if path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize(
    ("column", "path", "hint"),
    [
        ("txt", "data.text.column", "write `text`; there are `text`, `title`, `inner.body`"),
        ("ids", "data.text.column", "name one of `text`, `title`, `inner.body`"),
        (
            "inner.bod",
            "data.text.column",
            "write `inner.body`; there are `text`, `title`, `inner.body`",
        ),
    ],
)
def test_a_column_that_is_not_there_is_one_fault_at_its_name_and_each_column_that_is_named_is_read(
    make: Make, tmp_path: Path, name: str, column: str, path: str, hint: str
) -> None:
    for file in (name, f"val{Path(name).suffix}"):
        write_rows(tmp_path / file)
    (tmp_path / "a.txt").write_text("some text\n")
    text = {"train": ["a.txt", name], "val": f"val{Path(name).suffix}"}
    (fault,) = check_corpora(make({"text": {**text, "column": column}}, LM), [tmp_path])
    assert (fault.code, fault.path, fault.hint) == ("column", path, hint)
    assert f"{name}`: " in fault.message
    for named in re.findall("`(.*?)`", hint):
        assert check_corpora(make({"text": {**text, "column": named}}, LM), [tmp_path]) == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_column_that_some_files_have_is_a_fault_of_those_that_lack_it(
    make: Make, tmp_path: Path, name: str
) -> None:
    write_rows(tmp_path / name)
    write_rows(tmp_path / f"val{Path(name).suffix}", [{"body": "one"}])
    (fault,) = check_corpora(
        make({"text": {"train": name, "val": f"val{Path(name).suffix}"}}, LM), [tmp_path]
    )
    assert (fault.code, fault.path) == ("column", "data.text.val")
    assert fault.hint == "name this column as in the other files, or remove the file"


def test_where_no_column_is_written_the_fault_says_which_setting_names_it(
    make: Make, tmp_path: Path
) -> None:
    write_rows(tmp_path / "a.jsonl", [{"body": "one", "title": "two"}])
    (fault,) = check_corpora(make({"text": {"train": "a.jsonl"}}, LM), [tmp_path])
    assert (fault.path, fault.hint) == (
        "data.text",
        "as `data.text.column` name one of `body`, `title`",
    )


BAD_LINES = {
    "a control character": (b'{"text": "a\x01b"}\n', "Invalid control character at column 12"),
    "cut in a text": (b'{"text": "a b\n', "Unterminated string starting at column 10"),
    "cut behind a text": (b'{"text": "a"\n', "at column 13"),
    "nested too deeply": (b"[" * 100_000 + b"\n", "it is nested too deeply"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_line_that_is_not_json_has_one_number_and_a_column(
    make: Make, tmp_path: Path, case: str
) -> None:
    line, reason = BAD_LINES[case]
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one"}\n' * 20 + line)
    (fault,) = check_corpora(make({"text": {"train": "a.jsonl"}}, LM), [tmp_path])
    (of_table,) = tables.check_table(tmp_path / "a.jsonl", {"target": "text"})
    for message in (fault.message, of_table.message):
        assert re.findall(r"line (\d+)", message) == ["21"]
        assert message.endswith(reason)


def test_files_that_are_not_there_and_weights_without_effect_are_errors(
    make: Make, tmp_path: Path
) -> None:
    for name in ("news.txt", "news1.txt"):
        (tmp_path / name).write_text("some text\n")
    text = {"train": "nws.txt", "val": {"a": {"file": "news.txt", "weight": 2}}, "test": []}
    faults = check_corpora(make({"text": text}, LM), [tmp_path])
    assert [fault.path for fault in faults] == [
        "data.text.train",
        "data.text.val.a.weight",
        "data.text.test",
    ]
    assert "did you mean `news1.txt`" in faults[0].message  # `news.txt` is measured
    assert "read once" in faults[1].message


@pytest.mark.parametrize("unit", ["line", "paragraph"])
@pytest.mark.parametrize("name", ["b.txt", "b.txt.gz", "b.jsonl", "b.parquet"])
@pytest.mark.parametrize("held_out", [0, 1])
def test_a_document_at_fault_is_named_by_its_file_and_line(
    make: Make, tmp_path: Path, unit: str, name: str, held_out: int
) -> None:
    texts, gap = ["10 01", "00 11\n01 10", "10 xx", "11 00", "11 01"], "\n\n\n"
    if name.startswith("b.txt"):
        texts = texts if unit == "paragraph" else [text.replace("\n", " ") for text in texts]
        content = ("\n" + gap.join(texts) if unit == "paragraph" else "\n".join(texts)).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    elif name == "b.jsonl":
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    else:
        pyarrow.parquet.write_table(pa.table({"text": texts}), tmp_path / name)
    line = 9 if name.startswith("b.txt") and unit == "paragraph" else 3
    (tmp_path / "a.txt").write_text("10 10\n\n01 01\n")
    text = {"train": ["a.txt", name], "unit": unit, **({"val": held_out} if held_out else {})}
    recipe = make({"text": text, "tokenizer": {"bits": 2}}, LM)
    for read in (load_data, lambda recipe, _: dry_run(DataSource(recipe, recipe.folders()))):
        with pytest.raises(
            DataError, match=re.escape(f"does not know `xx` in line {line} of `{tmp_path / name}`")
        ):
            read(recipe, recipe.folders())
