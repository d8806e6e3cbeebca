"""Tables of made images and sounds: bytes that repeat, and splits that share no sentence."""

from __future__ import annotations

import zipfile
from itertools import chain
from pathlib import Path

import pytest

from prepare_data.media_tables import split_sentences, write_examples


def test_splits_share_no_sentence_and_depend_on_the_seed() -> None:
    sentences = [f"sentence {number % 40}" for number in range(100)]
    splits = split_sentences(sentences, {"train": 30, "val": 5, "test": 5}, seed=1)
    assert {name: len(part) for name, part in splits.items()} == {"train": 30, "val": 5, "test": 5}
    assert sorted(chain(*splits.values())) == sorted(set(sentences))
    assert split_sentences(sentences, {"train": 30, "val": 5, "test": 5}, seed=1) == splits
    assert split_sentences(sentences, {"train": 30, "val": 5, "test": 5}, seed=2) != splits


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="has 2 different sentences that suit, and 3 are needed"):
        split_sentences(["a", "b", "a"], {"train": 2, "val": 1}, seed=1)


def test_a_table_names_what_its_archive_has(tmp_path: Path) -> None:
    examples = [(b"one", ("a b", "x")), (b"two", ("c", "y"))]
    for folder in ("first", "second"):
        write_examples(tmp_path / folder / "val.tsv", ("image", "text", "face"), "png", examples)
    table = (tmp_path / "first/val.tsv").read_text(encoding="utf-8")
    assert table == "image\ttext\tface\nval.zip/00000.png\ta b\tx\nval.zip/00001.png\tc\ty\n"
    with zipfile.ZipFile(tmp_path / "first/val.zip") as archive:
        assert [archive.read(name) for name in archive.namelist()] == [b"one", b"two"]
    assert (tmp_path / "first/val.zip").read_bytes() == (tmp_path / "second/val.zip").read_bytes()
