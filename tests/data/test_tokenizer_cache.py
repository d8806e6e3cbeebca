"""The cache of trained tokenizers: the same text trains once, and whatever is wrong with the cache
decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from composer.data import cache_entries, tokenizer_cache
from composer.data.sources import DataSource
from composer.data.tokenizer_cache import cached_tokenizers
from composer.data.tokenizer_kinds import Bpe
from composer.data.tokenizer_training import train_source_tokenizers
from tests.data.conftest import Make

TASK = {"reverse": {"train": 50, "val": 5, "test": 5}}


@pytest.fixture(autouse=True)
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The texts of all trainings, in order, with a cache of the test's own."""
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    texts: list[str] = []

    def train(source: DataSource) -> Any:
        tokenizers = train_source_tokenizers(source)
        texts.append(tokenizers.text)
        return tokenizers

    monkeypatch.setattr(tokenizer_cache, "train_source_tokenizers", train)
    return texts


def source(make: Make, kind: Mapping[str, Any] | str = "bpe", **data: Any) -> DataSource:
    return DataSource(make({"generate": TASK, "tokenizer": kind, **data}), [])


def entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "store" / "tokenizers").glob("*/entry.json"))


def test_the_same_text_and_settings_train_once(make: Make, trained: list[str]) -> None:
    first, again = cached_tokenizers(source(make)), cached_tokenizers(source(make))
    assert first.text == again.text == trained[0]
    assert again.decode("target", again.encode("target", ["1 2 3"])) == ["1 2 3"]
    others = ({"bpe": {"size": 301}}, {"bpe": {"joint": False}})
    changed = [source(make, other) for other in others] + [source(make, lowercase=True)]
    changed += [source(make, generate={"reverse": TASK["reverse"] | {"seed": 2}})]
    for number, other in enumerate(changed, start=2):
        assert cached_tokenizers(other).text == train_source_tokenizers(other).text
        assert len(trained) == number


@pytest.mark.parametrize("changed", ["library", "code"])
def test_another_library_or_code_trains_anew(
    changed: str, make: Make, trained: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached_tokenizers(source(make))
    cache_entries.code_identity.cache_clear()
    if changed == "library":
        monkeypatch.setattr(cache_entries, "version", lambda _: "0.1")
    else:
        monkeypatch.setattr(cache_entries, "__file__", str(tmp_path / "data" / "cache_entries.py"))
        for name in ("data/stories.py", "text_lines.py", "model/features.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("")
    cached_tokenizers(source(make))
    cache_entries.code_identity.cache_clear()
    assert len(trained) == len(entries(tmp_path)) == 2


def test_a_kind_that_is_not_trained_twice_alike_is_trained_each_time(
    make: Make, trained: list[str], tmp_path: Path
) -> None:
    for kind in ("unigram", "word", "unigram", "word"):
        cached_tokenizers(source(make, {kind: {"size": 300}}))
    assert len(trained) == 3
    assert len(entries(tmp_path)) == 1


def test_an_entry_that_is_damaged_is_trained_anew_and_replaced(
    make: Make, trained: list[str], tmp_path: Path
) -> None:
    cached_tokenizers(source(make))
    (entry,) = entries(tmp_path)
    content = entry.read_bytes()
    for spoiled in (content[:-9], b"", b"\xff", b"{}"):
        entry.write_bytes(spoiled)
        assert cached_tokenizers(source(make)).text == trained[0]
        assert entry.read_bytes() == content
    assert len(trained) == 5


def test_an_entry_that_no_training_writes_is_trained_anew(
    make: Make, trained: list[str], tmp_path: Path
) -> None:
    cached_tokenizers(source(make))
    (entry,) = entries(tmp_path)
    content = entry.read_text(encoding="utf-8")
    spoiled = content.replace('\\"add_prefix_space\\": false', '\\"add_prefix_space\\": true')
    assert spoiled != content
    entry.write_text(spoiled, encoding="utf-8")
    assert cached_tokenizers(source(make)).text == trained[0]
    assert len(trained) == 2


def test_without_a_cache_it_is_trained(make: Make, trained: list[str], tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    for _ in range(2):
        assert isinstance(cached_tokenizers(source(make)).kind, Bpe)
    assert len(trained) == 2
