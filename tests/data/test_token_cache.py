"""The cache of tokenised texts: made once, by one process, whole or not at all."""

from __future__ import annotations

import errno
import multiprocessing
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from composer.data import cache_entries
from composer.data.cache_entries import write_entry
from composer.data.documents import CorpusFile, Documents
from composer.data.pairs import TARGET
from composer.data.token_cache import encode_documents
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_training import train_tokenizers
from composer.errors import DataError, RunError
from composer.model.special_tokens import EOS

LINES = ["the cat sat", "", "on the mat"]


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Documents:
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in LINES))
    return Documents([CorpusFile(tmp_path / "a.txt", ())], "line", "text")


@pytest.fixture
def tokenizers() -> Tokenizers:
    return train_tokenizers({"tokenizer": {"word": {}}}, {TARGET: LINES[:1]})


def entries(tmp_path: Path) -> list[str]:
    return [
        path.name
        for path in (tmp_path / "store" / "corpora").iterdir()
        if not path.name.endswith(".lock")
    ]


def test_ids_are_those_of_the_lines_with_their_ends(
    documents: Documents, tokenizers: Tokenizers
) -> None:
    encoded = encode_documents(documents, tokenizers)
    rows = tokenizers.encode(TARGET, LINES)
    assert [encoded.target[row] for row in range(3)] == rows
    assert encoded.target.values.tolist() == [token for row in rows for token in [*row, EOS]]
    assert isinstance(encoded.target.values, np.memmap)
    counts = encoded.counts
    assert counts is not None
    assert (counts.documents, counts.tokens, counts.words, counts.unknown) == (3, 9, 9, 2)
    assert counts.bytes == counts.characters == sum(map(len, LINES)) + 3


def test_a_text_is_tokenised_once(
    documents: Documents, tokenizers: Tokenizers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = encode_documents(documents, tokenizers)
    monkeypatch.setattr(
        cache_entries, "write_entry", lambda *given: pytest.fail("this text is in the cache")
    )
    again = encode_documents(documents, tokenizers)
    assert again.sha256 == first.sha256
    assert again.target.values.tolist() == first.target.values.tolist()


def test_another_tokenizer_or_text_is_another_entry(
    documents: Documents, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    encode_documents(documents, tokenizers)
    encode_documents(documents, train_tokenizers({"tokenizer": {"char": {}}}, {TARGET: LINES}))
    (tmp_path / "a.txt").write_text("another text\n")
    encode_documents(Documents(documents.files, "line", "text"), tokenizers)
    assert len(entries(tmp_path)) == 3


def test_a_file_that_has_changed_since_it_was_inspected_is_not_the_entry_of_what_it_was(
    documents: Documents, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    content = (tmp_path / "a.txt").read_text()
    assert documents.facts[0].documents == 3
    (tmp_path / "a.txt").write_text("another text\n")
    with pytest.raises(DataError, match="changed while it was in use"):
        encode_documents(documents, tokenizers)
    (tmp_path / "a.txt").write_text(content)
    assert len(encode_documents(Documents(documents.files, "line", "text"), tokenizers)) == 3


def test_a_full_disk_leaves_nothing(
    documents: Documents, tokenizers: Tokenizers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_entries, "write_entry", full)
    with pytest.raises(RunError, match="no space left on device"):
        encode_documents(documents, tokenizers)
    assert entries(tmp_path) == []


@pytest.mark.parametrize("file", ["ids.bin", "ends.bin", "entry.json"])
def test_a_damaged_entry_is_made_anew(
    file: str, documents: Documents, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    expected = encode_documents(documents, tokenizers).target.values.tolist()
    (name,) = entries(tmp_path)
    (tmp_path / "store" / "corpora" / name / file).write_bytes(b"12345")
    assert encode_documents(documents, tokenizers).target.values.tolist() == expected


def test_a_cache_that_cannot_be_written_is_one_error(
    documents: Documents, tokenizers: Tokenizers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store").write_text("a file")
    with pytest.raises(RunError, match="SEQCOMPOSER_STORE"):
        encode_documents(documents, tokenizers)


def test_without_locks_the_entry_of_a_quicker_process_is_used(
    documents: Documents, tokenizers: Tokenizers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quicker(*arguments: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(cache_entries, "write_entry", write_entry)
            encode_documents(documents, tokenizers)
        write_entry(*arguments)

    monkeypatch.setattr(cache_entries, "locked_entry", lambda path: nullcontext())
    monkeypatch.setattr(cache_entries, "write_entry", quicker)
    assert len(encode_documents(documents, tokenizers).target) == 3


def make_entry(documents: Documents, text: str, queue: Any) -> None:
    queue.put(encode_documents(documents, Tokenizers.from_text(text)).target.values.tolist())


@pytest.mark.slow
def test_two_processes_that_make_an_entry_at_once_both_have_it(
    documents: Documents, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=make_entry, args=(documents, tokenizers.text, queue))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    one, two = queue.get(timeout=120), queue.get(timeout=120)
    for process in processes:
        process.join()
    assert one == two
    assert len(entries(tmp_path)) == 1
