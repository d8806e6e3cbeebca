"""What training would refuse in the data, `check` refuses, with a fix that can be written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from composer.api import check
from composer.data import samples, tables, token_cache
from composer.data.answer_limits import AnswerLimits
from composer.data.encoding import Data, encode_data
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers
from composer.errors import ComposerError, DataError
from composer.recipe.recipe import load
from composer.training import dry_run
from composer.training.preflight import check_and_sample, check_recipe
from tests.data.conftest import Make
from verify.random_data import ODD_LINES

MODEL = {"encoder": ["rnn"], "decoder": ["rnn", "cross_attention"]}
SMALL = {"train": 20, "val": 3, "test": 3}
ADDITION = {"generate": {"binary_addition": SMALL}}
TASKS: list[tuple[Mapping[str, Any], str, str, str]] = [
    (
        {**ADDITION, "tokenizer": "bits"},
        "unknown",
        "does not know `0` in line 1 of train source",
        "tokenizer: word",
    ),
    ({**ADDITION, "tokenizer": "integers"}, "unknown", "does not know `+`", "tokenizer: word"),
    (
        {"generate": {"ram_copy": {**SMALL, "cells": 20}}, "tokenizer": {"integers": {"below": 5}}},
        "unknown",
        "`",
        "below:",
    ),
    (
        {"generate": {"sort": SMALL}, "tokenizer": "integers"},
        "unknown",
        "does not know `",
        "tokenizer: word",
    ),
    (
        {"generate": {"priority_sort": {**SMALL, "bits": 3}}, "tokenizer": {"bits": {"size": 3}}},
        "unknown",
        "@",
        "numbers: true",
    ),
    (
        {
            "generate": {"associative_recall": {**SMALL, "bits": 3}},
            "tokenizer": {"bits": {"size": 3}},
        },
        "unknown",
        "`?`",
        '";", "?"',
    ),
    (
        {"generate": {"vector_copy": {**SMALL, "bits": 4}}, "tokenizer": {"bits": {"size": 3}}},
        "unknown",
        "train target",
        "{size: 4}",
    ),
    ({**ADDITION, "max_length": 2}, "empty", "0 are empty, 20 too long", "max_length: 4"),
    (
        {**ADDITION, "tokenizer": {"word": {"min_count": 900}}},
        "unknown",
        "knows no token",
        "min_count",
    ),
]


@pytest.mark.parametrize(("data", "code", "message", "hint"), TASKS)
def test_a_tokenizer_that_cannot_read_its_task(
    make: Make, data: Mapping[str, Any], code: str, message: str, hint: str
) -> None:
    faults = check(make(data, MODEL))
    assert any(
        message in fault.message and hint in fault.hint and fault.code == code for fault in faults
    ), faults
    assert all(fault.line > 1 for fault in faults)


@pytest.mark.parametrize(
    ("lines", "hint"),
    [(["a b", "c d"], "write `length: 2`"), (["a b", "c"], "remove it: the answers have several")],
)
def test_answers_of_another_length_than_the_output(
    make: Make, texts: Callable[..., dict[str, str]], lines: list[str], hint: str
) -> None:
    train = texts(source=lines, target=lines)
    (fault,) = check(make({"parallel": {"train": train}}, {**MODEL, "output": {"length": 4}}))
    assert (fault.path, fault.message[:41]) == (
        "model.output.length",
        "answers have 4 tokens here, and that of l",
    )
    assert hint in fault.hint


def test_a_task_whose_later_epochs_have_other_answers(make: Make) -> None:
    """The pairs of the first epoch, of val and of test have the right length by chance."""
    task = {"copy": {"train": 1, "val": 1, "test": 1, "min_length": 1, "max_length": 2, "seed": 4}}
    recipe = make({"generate": task}, {**MODEL, "output": {"length": 2}})
    assert encode_data(DataSource(recipe, [])).train is not None
    (fault,) = check(recipe)
    assert (fault.path, fault.message[:41]) == (
        "model.output.length",
        "answers have 2 tokens here, and that of l",
    )


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_split_that_is_not_trained_on_is_read_too(
    make: Make, texts: Callable[..., dict[str, str]], split: str
) -> None:
    train = texts(source=["1 2"], target=["1 2"])
    other = texts(split, source=["1 x"], target=["1 2 3"])
    data = {"parallel": {"train": train, split: other}, "tokenizer": {"integers": {"below": 5}}}
    unknown, length = sorted(
        check(make(data, {**MODEL, "output": {"length": 2}})), key=lambda fault: fault.line
    )
    folder = Path(unknown.file).parent
    assert f"does not know `x` in line 1 of `{folder / other['source']}`" in unknown.message
    assert f"that of line 1 of `{folder / other['target']}` has 3" in length.message


@pytest.mark.parametrize(
    ("target", "tokenizer", "fix"),
    [
        ("0 30", {"integers": {"below": 5}}, "`integers: {below: 31}`"),
        ("0 30", {"integers": {"below": 31}}, ""),
        ("0 x", {"integers": {"below": 5}}, "`tokenizer: word`"),
        # the sources have vectors of four
        ("00110 11111", {"bits": {"size": 5}}, "`tokenizer: word`"),
        ("0011 1111", {"bits": {"size": 5}}, "`bits: {size: 4}`"),
        ("0011 1111", {"bits": {"size": 4}}, ""),
    ],
)
def test_the_fix_for_an_unknown_token_suits_all_of_them(
    make: Make,
    texts: Callable[..., dict[str, str]],
    target: str,
    tokenizer: dict[str, Any],
    fix: str,
) -> None:
    sources = ["0101 1100"] if "bits" in tokenizer else ["7 8"]
    data = {"parallel": {"train": texts(source=sources, target=[target])}, "tokenizer": tokenizer}
    faults = check(make(data, MODEL))
    assert all(fix in fault.hint for fault in faults)
    assert bool(faults) == bool(fix)


@pytest.mark.parametrize("side", ["source", "target"])
def test_lines_that_are_all_blank(
    make: Make, texts: Callable[..., dict[str, str]], side: str
) -> None:
    train = {
        **texts(source=["a", "b"]),
        **texts(target=["a", "b"]),
        **texts(**{side: ODD_LINES["blank"][:2]}),
    }
    (fault,) = check(make({"parallel": {"train": train}}, MODEL))
    assert (fault.path, fault.code) == ("data.parallel.train", "empty")
    assert "none of the 2 training pairs has text on every side" in fault.message


@pytest.mark.parametrize("tokenizer", ["word", "char", "bpe", "unigram"])
def test_a_tokenizer_of_no_text_at_all(
    make: Make, texts: Callable[..., dict[str, str]], tokenizer: str
) -> None:
    """The library makes a `unigram` of it that it cannot read."""
    train = texts(source=["a", "b"], target=["", ""])
    data = {"parallel": {"train": train}, "tokenizer": {tokenizer: {"joint": False}}}
    (fault,) = check(make(data, MODEL))
    assert (fault.path, fault.code) == ("data.parallel.train", "empty")


HUB_FAULTS = [
    (["", " "], {}, {}, "empty", "none of the 2 training pairs has text on every side"),
    (["a b", "c"], {"target": "answr"}, {}, "column", "did you mean `answer`"),
    (["a b", "c d"], {"train": "trian"}, {}, "hub", "`trian`"),
    (["a b c", "d e f"], {}, {"max_length": 2}, "empty", "0 are empty, 2 too long"),
    (
        ["1 2", "x"],
        {},
        {"tokenizer": "integers"},
        "unknown",
        "does not know `x` in line 2 of train source",
    ),
]


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(("lines", "keys", "data", "code", "message"), HUB_FAULTS)
def test_a_data_set_of_the_hub_is_sampled_as_files_are(
    make: Make,
    tmp_path: Path,
    lines: list[str],
    keys: Mapping[str, str],
    data: Mapping[str, Any],
    code: str,
    message: str,
) -> None:
    (tmp_path / "set").mkdir()
    rows = (json.dumps({"text": line, "answer": line}) for line in lines)
    (tmp_path / "set" / "train.jsonl").write_text("\n".join(rows), encoding="utf-8")
    hub = {"id": "set", "source": "text", "target": "answer", "val": None, "test": None, **keys}
    faults = check(make({"hub": hub, **data}, MODEL))
    assert any(fault.code == code and message in fault.message for fault in faults), faults
    assert all(fault.line > 1 for fault in faults)


def test_a_data_set_to_be_downloaded_is_not_read(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "import_datasets", None)
    assert check(make({"hub": {"id": "some/where", "source": "en", "target": "de"}}, MODEL)) == []


def test_answers_longer_than_the_grid(make: Make, texts: Callable[..., dict[str, str]]) -> None:
    grid = [{"grid": {"max_length_ratio": 1}}, {"cgru": {"kernel": [3, 3]}}, {"select_column": 0}]
    train = texts(source=["a", "b"], target=["a b c d", "a b c"])
    (fault,) = check(
        make({"parallel": {"train": train}}, {"encoder": grid, "decoder": ["source_state"]})
    )
    assert "no training pairs are left" in fault.message


def test_pairs_that_the_grid_cannot_answer_make_no_steps(
    make: Make, texts: Callable[..., dict[str, str]]
) -> None:
    train = texts(source=["a"] * 20, target=["a b c d"] * 19 + ["a"])
    recipe = make({"parallel": {"train": train}}, {**MODEL, "encoder": ["rnn"]})
    source = DataSource(recipe, recipe.folders())
    every, some = (dry_run.dry_run(source, AnswerLimits({"source": ratio})) for ratio in (0, 1))
    assert every is not None
    assert some is not None
    assert (every.steps_per_epoch(5), some.steps_per_epoch(5)) == (20, 1)


def test_a_vocabulary_that_is_smaller_than_its_bound(
    make: Make, texts: Callable[..., dict[str, str]]
) -> None:
    """The decoder is as wide as the tokenizer may have tokens, and the text has fewer."""
    data = {
        "parallel": {"train": texts(source=["a", "b"], target=["a", "b"])},
        "tokenizer": {"word": {"size": 12}},
    }
    (fault,) = check(make(data, {**MODEL, "output": {"kind": "identity", "length": 1}}))
    assert "8 wide, and there are 2 tokens" in fault.message


def test_lines_held_out_of_a_large_corpus_are_encoded_without_the_others(
    make: Make, texts: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_cache(*_: object) -> NoReturn:
        pytest.fail("a column that the tokenizer of a sample encodes is of no use to the training")

    monkeypatch.setattr(samples, "READ_SIZE", 200)
    monkeypatch.setattr(token_cache, "CACHED_LINES", 20)
    monkeypatch.setattr(token_cache, "cached_ids", no_cache)
    lines = [f"a b {number}" for number in range(100)]
    data = {"parallel": {"train": texts(source=lines, target=lines[::-1]), "val": 3}}
    _, sample = check_and_sample(make(data, MODEL), True, "required")
    assert sample is not None
    assert len(sample.data.splits["val"]) == 3


def test_of_a_large_corpus_a_part_is_read_and_all_where_that_has_a_fault(
    make: Make, texts: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "READ_SIZE", 200)
    monkeypatch.setattr(samples, "SPREAD_PAIRS", 2)
    long, short = ["a b c d"] * 99, ["a b c"]
    train = texts(source=long + short, target=long + short)
    encoded: list[int] = []

    def counted(source: DataSource, tokenizers: Tokenizers) -> Data:
        encoded.append(len(source.pairs("train")))
        return encode_data(source, tokenizers)

    monkeypatch.setattr(dry_run, "encode_data", counted)
    _, sample = check_and_sample(
        make({"parallel": {"train": train}, "max_length": 8}, MODEL), True, False
    )
    assert sample is not None
    assert sample.describe_beginnings("line") == " of the first 12 lines of train"
    assert encoded == [14]
    check_recipe(make({"parallel": {"train": train}, "max_length": 4}, MODEL))
    assert encoded == [14, 14]  # the last line is one of the part
    train = texts(source=long[:20] + short + long, target=long[:20] + short + long)
    _, sample = check_and_sample(
        make({"parallel": {"train": train}, "max_length": 4}, MODEL), True, False
    )
    assert sample is not None
    assert sample.describe_beginnings("line") == ""
    assert encoded == [14, 14, 14, 120]
    with pytest.raises(ComposerError, match=r"none of the 120 training pairs"):
        check_recipe(make({"parallel": {"train": train}, "max_length": 3}, MODEL))


REFUSED = [
    ({"tokenizer": {"bits": {"size": 2}}}, {}, "01 10", "xx yy"),
    ({"tokenizer": {"integers": {"below": 10}}}, {}, "1 2", "12 x"),
    ({}, {"length": 2}, "a b", "a b c d e f"),
    ({"tokenizer": "bpe"}, {"length": 2}, "a a", "a a a a a a"),
]


@pytest.mark.parametrize("split", ["train", "val", "test"])
@pytest.mark.parametrize(("data", "output", "good", "bad"), REFUSED)
def test_a_line_in_the_middle_is_refused_as_training_refuses_it(
    make: Make,
    texts: Callable[..., dict[str, str]],
    split: str,
    data: Mapping[str, Any],
    output: Mapping[str, Any],
    good: str,
    bad: str,
) -> None:
    lines = [good] * 5_000
    files = {name: texts(name, source=lines, target=lines) for name in ("train", "val", "test")}
    lines[2_501] = bad
    files[split] = texts(split, source=lines, target=lines)
    recipe = make(
        {"parallel": {**files, "val": {**files["val"]}}, **data}, {**MODEL, "output": {**output}}
    )
    with pytest.raises(DataError) as refused:
        encode_data(DataSource(recipe, recipe.folders()))
    faults = check(recipe)
    assert faults == sorted(refused.value.faults)
    assert any("2,502" in fault.message and fault.severity == "error" for fault in faults)


@pytest.mark.parametrize("kind", [{"adaptive": [1000]}, {"sampled": 5000}])
def test_a_vocabulary_of_many_lines_is_known(
    make: Make, texts: Callable[..., dict[str, str]], kind: Mapping[str, Any]
) -> None:
    lines = ["a b", "c d"] * 2_500
    recipe = make(
        {"parallel": {"train": texts(source=lines, target=lines)}},
        {**MODEL, "output": {"kind": kind}},
    )
    (fault,) = check(recipe)
    assert fault.path.startswith("model.output.kind")
    assert "the vocabulary has 8 tokens" in fault.message


def test_all_vectors_of_a_table_are_read(make: Make, tmp_path: Path) -> None:
    for name, width in (("good", 3), ("bad", 4)):
        np.save(tmp_path / f"{name}.npy", np.ones((2, width), np.float32))
    rows = [f"{'bad' if row == 2_500 else 'good'}.npy\tyes" for row in range(2_600)]
    (tmp_path / "table.tsv").write_text("\n".join(["file\ttext", *rows]))
    column = {"column": "file", "kind": "vectors", "width": 3}
    recipe = make({"table": {"train": "table.tsv", "source": column, "target": "text"}}, MODEL)
    (fault,) = check(recipe)
    assert (Path(fault.file).name, fault.line, fault.code) == ("table.tsv", 2_502, "width")


def test_plan_needs_no_files_and_reads_those_that_are_there(
    make: Make, texts: Callable[..., dict[str, str]]
) -> None:
    absent = make({"parallel": {"train": {"source": "x", "target": "y"}}}, MODEL)
    assert check_recipe(absent, data="if_here").parameters
    blank = make({"parallel": {"train": texts(source=[" "], target=[" "])}}, MODEL)
    with pytest.raises(ComposerError):
        check_recipe(blank, data="if_here")


def test_a_file_that_is_checked_is_not_changed(
    make: Make, texts: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    recipe = make({"parallel": {"train": texts(source=["a"], target=["a"])}}, MODEL)
    before = sorted(tmp_path.iterdir())
    assert check(recipe) == []
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("text", "training", "expected"),
    [
        ({"column": "body"}, {}, ["data.text.column"]),
        ({}, {"window": 50}, ["training.window"]),
        ({}, {"window": 2, "carry": True, "tokens_per_batch": 60}, ["training.tokens_per_batch"]),
        ({}, {"window": 2, "carry": True, "tokens_per_batch": 8}, []),
    ],
)
def test_settings_that_do_not_fit_a_text_are_warnings(
    make: Make, tmp_path: Path, text: dict[str, Any], training: dict[str, Any], expected: list[str]
) -> None:
    (tmp_path / "a.txt").write_text("one two three\nfour five six\n" * 3)
    recipe = make({"text": {"train": "a.txt", **text}}, {"decoder": ["rnn"]})
    recipe.file.write_text(
        f"{recipe.file.read_text()}training: {json.dumps({'max_epochs': 2, **training})}\n"
    )
    assert [fault.path for fault in check_recipe(load(recipe.file), True).warnings] == expected


def test_a_filter_that_leaves_nothing_has_a_cure_that_names_it(
    make: Make, texts: Callable[..., dict[str, str]]
) -> None:
    files = texts(source=["a b", "b a"], target=["a b", "b a"])
    data = {
        "parallel": {
            "train": files,
            "test": texts("test", source=["a b", "b a"], target=["c", "c"]),
        }
    }
    data["parallel"]["decontaminate"] = True
    (fault,) = check(make(data, MODEL))
    assert fault.path == "data.parallel"
    assert "`decontaminate`" in fault.hint
    assert "max_ratio" not in fault.hint


def test_a_tokenizer_of_bleu_that_is_yet_to_be_downloaded_is_a_warning(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spm = pytest.importorskip("sacrebleu.tokenizers.tokenizer_spm")
    monkeypatch.setattr(spm, "SACREBLEU_DIR", str(tmp_path))
    recipe = make({"generate": {"copy": {"train": 4, "val": 2, "test": 2}}}, MODEL)
    recipe.file.write_text(
        f"{recipe.file.read_text()}evaluation: {{bleu_tokenizer: flores200, metrics: [bleu]}}\n"
    )
    assert "evaluation.bleu_tokenizer" in [
        fault.path for fault in check_recipe(load(recipe.file)).warnings
    ]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "flores200sacrebleuspm").touch()
    assert "evaluation.bleu_tokenizer" not in [
        fault.path for fault in check_recipe(load(recipe.file)).warnings
    ]
