"""Texts of the hub: a column without a source is tokenised into the cache, and trained on as any
other text.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from pyarrow import parquet

from composer import evaluate, train
from composer.data import tables
from composer.data.documents import HubDocuments
from composer.data.encoding import load_data
from composer.data.pairs import TARGET
from composer.data.sources import DataSource
from composer.errors import DataError
from composer.fingerprint import fingerprints
from composer.recipe.recipe import Recipe, load
from tests.data.conftest import Make

TEXTS = [f"chapter {n}\nof a book, with some words\n\nand more" for n in range(40)]
LM = {"decoder": ["rnn"]}
HUB = {"id": "set", "target": "body", "test": None}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a data set in the hub's form, and the same texts as JSON lines."""
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    (tmp_path / "set").mkdir()
    for split, texts in (("train", TEXTS), ("validation", TEXTS[:3])):
        rows = {"body": texts, "title": [text[:9] for text in texts]}
        parquet.write_table(arrow.table(rows), tmp_path / "set" / f"{split}.parquet")
        lines = "".join(json.dumps({"body": text}) + "\n" for text in texts)
        (tmp_path / f"{split}.jsonl").write_text(lines)
    return tmp_path


def of_hub(make: Make, **data: Any) -> Recipe:
    return make({"hub": HUB, **data}, LM)


@pytest.mark.parametrize("tokenizer", ["char", "byte", {"bpe": {"size": 300}}])
def test_the_ids_and_counts_are_those_of_the_same_text_in_files(
    make: Make, folder: Path, tokenizer: Any
) -> None:
    files = {"train": "train.jsonl", "val": "validation.jsonl", "column": "body"}
    own = load_data(make({"text": files, "tokenizer": tokenizer}, LM), [folder])
    data = load_data(of_hub(make, tokenizer=tokenizer), [folder])
    assert data.tokenizers.sha256 == own.tokenizers.sha256
    for split in ("train", "val"):
        assert data.splits[split].sha256 == own.splits[split].sha256
        assert data.splits[split].counts == own.splits[split].counts
    assert isinstance(data.pairs["train"].sides[TARGET], HubDocuments)
    assert [*data.pairs["train"].sides[TARGET]] == TEXTS
    assert (folder / "store" / "corpora").is_dir()


def test_a_second_training_reads_the_data_set_no_more(
    make: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_data(of_hub(make, tokenizer="byte"), [folder])
    monkeypatch.setattr(
        tables.DatasetColumn, "read", lambda *_: pytest.fail("its ids are in the cache")
    )
    again = load_data(of_hub(make, tokenizer="byte"), [folder])
    assert again.splits["train"].sha256 == first.splits["train"].sha256
    assert again.splits["train"].counts == first.splits["train"].counts


def test_the_content_counts_in_the_fingerprint(make: Make, folder: Path) -> None:
    before = fingerprints(of_hub(make), folder)["data"]
    assert fingerprints(of_hub(make), folder)["data"] == before
    rows = {"body": [*TEXTS[:-1], "another end"], "title": TEXTS}
    parquet.write_table(arrow.table(rows), folder / "set" / "train.parquet")
    assert fingerprints(of_hub(make), folder)["data"] != before


def test_a_column_that_is_not_there_is_a_fault(make: Make, folder: Path) -> None:
    with pytest.raises(DataError, match="`boddy`; did you mean `body`"):
        load_data(make({"hub": {**HUB, "target": "boddy"}}, LM), [folder])


def test_with_an_encoder_its_rows_are_pairs(make: Make, folder: Path) -> None:
    recipe = make({"hub": {**HUB, "source": "title"}})
    assert not recipe.reads_text
    pairs = DataSource(recipe, [folder]).pairs("train")
    assert pairs[0] == {
        "source": "chapter 0",
        "target": "chapter 0 of a book, with some words  and more",
    }


def test_it_is_trained_on_in_windows_with_a_carried_state(make: Make, folder: Path) -> None:
    of_hub(make, tokenizer="byte")
    settings = [
        "training.window=8",
        "training.carry=true",
        "training.tokens_per_batch=32",
        "training.max_steps=3",
    ]
    settings += ["trainer.accelerator=cpu", "logging.wandb=false", "training.validate_every=3"]
    train(load(folder / "t.yaml", settings), run=folder / "run", data=folder)
    scores = evaluate(folder / "run", split="val", data=folder)
    assert scores["val/measured"]["lines"] == 3
    bits = scores["val/loss"] / math.log(2)
    assert scores["val/bits_per_byte"] == pytest.approx(bits, rel=1e-4)
