"""Lines: the same text is read alike from every kind of file, by every unit, and comes back from
every tokenizer.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from composer.data import documents
from composer.data.corpora import check_corpora
from composer.data.documents import CorpusFile, Documents
from composer.data.encoding import load_data
from composer.data.pairs import TARGET
from composer.data.token_cache import encode_documents
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_training import train_tokenizers
from composer.text_lines import (
    answer_line,
    is_blank,
    lines_of,
    one_line,
    unify_breaks,
    without_break,
)
from tests.data.conftest import Make

LM = {"decoder": ["rnn"]}
LINES = ["the first line", "", "a\ttab and a \r inside", " \u200b ", "the last"]
BLANK = [
    "",
    " ",
    "\t",
    "\u200b",
    "\ufeff",
    "\u00ad\u00ad",
    "\u3000\u2028",
    "\u2800",
    "\x00",
    "\U000e0041",
]
BREAKS = {"LF": "\n", "CRLF": "\r\n"}


def write(path: Path, lines: list[str], break_: str, bom: bool, last: bool) -> Path:
    """Write lines into a file, plain or packed, with or without a BOM and the last break."""
    content = (break_.join(lines) + break_ * last).encode("utf-8-sig" if bom else "utf-8")
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(path: Path, unit: str = "line") -> Documents:
    return Documents([CorpusFile(path, ())], unit, "text")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize("unit", ["line", "paragraph", "file"])
def test_a_text_is_the_same_whatever_ends_its_lines(tmp_path: Path, unit: str, name: str) -> None:
    expected = {
        "line": ["the first line", "", "a\ttab and a \r inside", "", "the last"],
        "paragraph": ["the first line", "a\ttab and a \r inside", "the last"],
        "file": ["\n".join(LINES)],
    }[unit]
    facts = set()
    for number, break_ in enumerate(BREAKS.values()):
        for bom in (False, True):
            for last in (False, True):
                folder = tmp_path / f"{number}{bom}{last}"
                folder.mkdir()
                text = read(write(folder / name, LINES, break_, bom, last), unit)
                assert list(text) == expected
                facts.add(text.facts[0].texts_sha256)
    mixed = tmp_path / "mixed.txt"
    mixed.write_bytes(
        "the first line\r\n\na\ttab and a \r inside\n \u200b \r\nthe last\r\n".encode()
    )
    assert list(read(mixed, unit)) == expected
    facts.add(read(mixed, unit).facts[0].texts_sha256)
    assert len(facts) == 1


def test_line_breaks_inside_rows_are_those_of_files(tmp_path: Path) -> None:
    texts = ["one\r\ntwo", "one\ntwo", "\u200b\r\n", None]
    (tmp_path / "a.jsonl").write_text(
        "".join(f"{json.dumps({'text': text})}\r\n" for text in texts)
    )
    pyarrow.parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert list(read(tmp_path / name)) == ["one\ntwo", "one\ntwo", "", ""]


@pytest.mark.parametrize("unit", ["line", "paragraph", "file"])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_that_end_with_cr_alone_are_refused_by_every_unit(
    make: Make, tmp_path: Path, unit: str, name: str
) -> None:
    write(tmp_path / name, ["one", "two", "three"], "\r", bom=False, last=True)
    (fault,) = check_corpora(make({"text": {"train": name, "unit": unit}}, LM), [tmp_path])
    assert (fault.code, fault.path) == ("lines", "data.text.train")


@pytest.mark.parametrize("blank", BLANK)
def test_a_line_with_nothing_to_see_is_blank(blank: str) -> None:
    assert is_blank(blank)
    assert not is_blank(f"{blank}a")
    assert not is_blank(f"\u0301{blank}")


@pytest.mark.parametrize("blank", [text for text in BLANK if "\u2028" not in text])
@pytest.mark.parametrize("kind", ["word", "char", "byte", "bpe"])
def test_a_blank_line_is_not_trained_on(make: Make, tmp_path: Path, kind: str, blank: str) -> None:
    (tmp_path / "a.s").write_text(f"one two\n{blank}\nthree four\nfive\n", encoding="utf-8")
    (tmp_path / "a.t").write_text(
        f"eins zwei\neins\ndrei {blank} vier\n{blank}\n", encoding="utf-8"
    )
    (tmp_path / "a.tsv").write_text(
        f"s\tt\none two\teins zwei\n{blank.strip()}\teins\n", encoding="utf-8"
    )
    source = {"parallel": {"train": {"source": "a.s", "target": "a.t"}}, "tokenizer": kind}
    data = load_data(make(source), [tmp_path])
    assert len(data.splits["train"]) == 2
    assert data.notes == ["left out 2 of 4 training pairs with an empty side"]
    table = {"table": {"train": "a.tsv", "source": "s", "target": "t"}, "tokenizer": kind}
    data = load_data(make(table), [tmp_path])
    assert len(data.splits["train"]) == 1
    text = load_data(make({"text": {"train": "a.s"}, "tokenizer": kind}, LM), [tmp_path])
    assert text.splits["train"].nonempty().tolist() == [True, False, True, True]


@given(st.text(max_size=20))
def test_what_lines_are_made_of(text: str) -> None:
    assert "\n" not in one_line(text)
    assert answer_line(text).splitlines() == [answer_line(text)] or not answer_line(text)
    assert unify_breaks(text.replace("\r", "").replace("\n", "\r\n")) == text.replace("\r", "")
    line = text.replace("\n", "").rstrip("\r")
    assert without_break(f"{line}\r\n") == without_break(f"{line}\n") == without_break(line) == line


LETTERS = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
SIZE = 200_000
LONG = {
    "Chinese": LETTERS * (SIZE // len(LETTERS)),
    "Chinese clauses": (LETTERS + "\uff0c" + LETTERS[:7] + "。") * (SIZE // 33),
    "Chinese lines": (LETTERS + "\n") * (SIZE // 25),
    "bases": "acgt" * (SIZE // 4),
    "spaces": "a" + " " * SIZE + "b",
    "marks": "-=" * (SIZE // 2),
    "accents": "e\u0301" * (SIZE // 2),
    "words": "some words, and more " * (SIZE // 21) + "end",
}
ALPHABET = "ab字\uff0c。,- \n\u0301é😀"
EXACT = ["char", "byte", "bpe", "unigram"]


@pytest.fixture(scope="module")
def trained() -> dict[str, Tokenizers]:
    texts = [
        *(text[part] for text in LONG.values() for part in (slice(2_000), slice(-50, None))),
        ALPHABET,
    ]
    return {
        kind: train_tokenizers(
            {"tokenizer": {kind: {"size": 400} if kind in ("bpe", "unigram") else {}}},
            {TARGET: texts},
        )
        for kind in [*EXACT, "word"]
    }


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("name", LONG)
def test_a_long_document_comes_back_from_its_ids(
    tmp_path: Path, trained: dict[str, Tokenizers], name: str, kind: str
) -> None:
    (tmp_path / "a.txt").write_text(LONG[name] + "\n", encoding="utf-8")
    text = read(tmp_path / "a.txt", "file")
    ids = encode_documents(text, trained[kind]).target
    assert trained[kind].decode(TARGET, [list(ids[0])]) == [LONG[name]]
    assert text.facts[0].words == len(LONG[name].split())


def test_clauses_of_words_are_cut_between_them(
    trained: dict[str, Tokenizers], tmp_path: Path
) -> None:
    for name in ("Chinese clauses", "words"):
        (tmp_path / f"{name}.txt").write_text(LONG[name], encoding="utf-8")
        ids = encode_documents(read(tmp_path / f"{name}.txt", "file"), trained["word"]).target
        assert trained["word"].decode(TARGET, [list(ids[0])]) == [LONG[name]]


@effort(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from(ALPHABET), max_size=60))
@pytest.mark.parametrize("kind", EXACT)
def test_any_document_comes_back_however_it_is_cut(
    trained: dict[str, Tokenizers], kind: str, text: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", 5)
        pieces = [*documents.cut(text)]
    assert "".join(piece.text for piece in pieces) == ("" if is_blank(text) else text)
    rows = trained[kind].encode_pieces(
        TARGET, [piece.text for piece in pieces], [at > 0 for at in range(len(pieces))]
    )
    assert trained[kind].decode(TARGET, [[index for row in rows for index in row]]) == [
        "".join(piece.text for piece in pieces)
    ]


@given(st.text(st.sampled_from("ab\n\r\u2028")))
def test_lines_that_are_read_together_are_those_that_are_read_one_by_one(text: str) -> None:
    assert lines_of(text) == [without_break(line) for line in text.removesuffix("\n").split("\n")]
