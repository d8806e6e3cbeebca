"""Pairs that are measured and trained on, sources that are their own targets: `check` and `train`
say so.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from composer.checks import overlap
from composer.data import samples
from composer.data.columns import FileNames, SampledLines
from composer.data.line_hashes import are_among, line_hashes, row_hashes
from composer.data.sources import DataSource
from composer.errors import DataError
from composer.recipe.recipe import Recipe, load
from composer.training.preflight import check_recipe
from composer.training.train import train
from tests.data.conftest import Make

MODEL = {"encoder": ["rnn"], "decoder": ["rnn", "cross_attention"]}
Texts = Callable[..., dict[str, str]]


def numbered(*numbers: int) -> list[str]:
    return [f"line number {number}" for number in numbers]


def upper(*numbers: int) -> list[str]:
    return [line.upper() for line in numbered(*numbers)]


def overlaps(recipe: Recipe) -> list[tuple[str, str, str]]:
    faults = check_recipe(recipe).warnings
    return [(fault.path, fault.message, fault.hint) for fault in faults if fault.code == "overlap"]


def test_check_and_train_count_test_pairs_that_are_trained_on(
    make: Make, texts: Texts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_files = texts("train", source=numbered(*range(40)), target=upper(*range(40)))
    test_files = texts("test", source=numbered(*range(35, 45)), target=upper(*range(35, 45)))
    val_files = texts("val", source=numbered(*range(10)), target=upper(*range(1, 11)))
    recipe = make({"parallel": {"train": train_files, "val": val_files, "test": test_files}}, MODEL)
    (path, message, hint), (other, of_sources, _), (_, of_targets, _) = sorted(overlaps(recipe))
    assert other == "data.parallel.val"
    assert of_sources.startswith(
        "the source of 10 of 10 pairs of val is trained on with another target"
    )
    assert of_targets.startswith(
        "the target of 10 of 10 pairs of val is trained on with another source"
    )
    assert path == "data.parallel.test"
    assert message == (
        "5 of 10 pairs of test are also in the training data, so the scores will be too good"
    )
    assert hint == "write `decontaminate: true` under `parallel`"
    recipe.file.write_text(
        recipe.file.read_text() + "training: {max_steps: 1}\nlogging: {wandb: false}\n"
    )
    train(load(recipe.file), run=tmp_path / "run")
    assert "5 of 10 pairs of test are also in the training data" in capsys.readouterr().out


def test_of_a_sample_it_is_at_least_so_many(
    make: Make, texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samples, "READ_SIZE", 1_000)
    files = {
        name: texts(name, source=numbered(*rows), target=upper(*rows))
        for name, rows in (("train", range(100)), ("val", range(200, 205)), ("test", range(8)))
    }
    ((_, message, _),) = overlaps(make({"parallel": files}, MODEL))
    assert message.startswith("at least 8 of 8 pairs of test")


def test_files_of_a_text_that_are_trained_on_are_a_warning(make: Make, tmp_path: Path) -> None:
    for name, text in (("a.txt", "one two\n"), ("b.txt", "three\n"), ("c.txt", "three\n")):
        (tmp_path / name).write_text(text)
    text = {"train": ["a.txt", "b.txt"], "val": "c.txt", "test": "a.txt"}
    ((path, message, _), (other, _, _)) = sorted(
        overlaps(make({"text": text}, {"decoder": ["rnn"]})), reverse=True
    )
    assert (path, other) == ("data.text.val", "data.text.test")
    file = tmp_path / "c.txt"
    consequence = "so the scores will be too good"
    assert message == f"`{file}` of val is also in the training data, {consequence}"
    text |= {"train": ["a.txt", "a.txt", "b.txt"], "test": 1}
    assert [path for path, *_ in overlaps(make({"text": text}, {"decoder": ["rnn"]}))] == [
        "data.text.val"
    ]
    with pytest.raises(DataError, match="this is the training text"):
        check_recipe(make({"text": {"train": "b.txt", "test": "c.txt"}}, {"decoder": ["rnn"]}))


def test_files_of_a_text_are_compared_by_their_documents_however_they_are_kept(
    make: Make, tmp_path: Path
) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one two\nthree\n"))
    (tmp_path / "b.txt").write_bytes(b"one two\r\nthree")
    (tmp_path / "c.jsonl").write_text('{"text": "one two"}\n{"text": "three"}\n')
    (tmp_path / "d.txt").write_text("one\ntwo three\n")
    for val, warned in (
        ("b.txt", ["data.text.val"]),
        ("c.jsonl", ["data.text.val"]),
        ("d.txt", []),
    ):
        recipe = make({"text": {"train": "a.txt.gz", "val": val}}, {"decoder": ["rnn"]})
        assert [path for path, _, _ in overlaps(recipe)] == warned


def test_a_sample_of_files_is_compared_by_what_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the same")
    (tmp_path / "b").write_text("the same")
    one, other = (
        SampledLines(FileNames([name], tmp_path), [str(tmp_path / name)]) for name in "ab"
    )
    assert (line_hashes(one) == line_hashes(other)).all()


def test_few_repeated_lines_and_blank_ones_are_usual(make: Make, texts: Texts) -> None:
    rows = [*range(200), 0]
    files = {
        "train": texts(
            "train", source=[*numbered(*rows), *[""] * 9], target=[*upper(*rows), *[""] * 9]
        ),
        "test": texts(
            "test",
            source=[*numbered(*range(199, 320)), *[""] * 9],
            target=[*upper(*range(199, 320)), *[""] * 9],
        ),
    }
    assert overlaps(make({"parallel": files}, MODEL)) == []
    assert (
        overlaps(
            make({"generate": {"copy": {"train": 5, "val": 5, "test": 5, "symbols": 2}}}, MODEL)
        )
        == []
    )


@pytest.mark.parametrize("kind", ["texts", "table"])
def test_a_test_that_is_the_training_file_is_an_error(
    kind: str, make: Make, texts: Texts, tmp_path: Path
) -> None:
    files: dict[str, str] = texts("train", source=numbered(*range(9)), target=upper(*range(9)))
    if kind == "table":
        rows = (json.dumps({"a": f"x {number}", "b": f"y {number}"}) for number in range(9))
        (tmp_path / "all.jsonl").write_text("\n".join(rows))
        files = {"file": "all.jsonl", "source": "a", "target": "b"}
    with pytest.raises(DataError) as refused:
        check_recipe(make({"parallel": {"train": files, "test": dict(files)}}, MODEL))
    (fault,) = refused.value.faults
    assert fault.path == "data.parallel.test"
    assert "these are the training pairs" in fault.message
    # to validate on them is how one looks whether a model can learn them by heart
    ((path, _, _),) = overlaps(make({"parallel": {"train": files, "val": dict(files)}}, MODEL))
    assert path == "data.parallel.val"


def test_a_source_that_is_the_target_is_a_warning(make: Make, texts: Texts) -> None:
    texts("train", source=numbered(*range(9)))
    ((path, message, _),) = overlaps(
        make({"parallel": {"train": {"source": "train.source", "target": "train.source"}}}, MODEL)
    )
    assert path == "data.parallel.train"
    assert "source and target of train are the same lines" in message


def test_the_fix_of_repeated_pairs_leaves_them_out_of_training(make: Make, texts: Texts) -> None:
    rows = [row // 2 for row in range(60)]
    parallel = {
        "train": texts("my text", source=numbered(*rows), target=upper(*rows)),
        "test": 10,
        "hold_out": "pairs",
    }
    ((_, message, hint),) = overlaps(make({"parallel": parallel}, MODEL))
    assert "of 10 pairs of test are also in the training data" in message
    assert hint == "write `decontaminate: true` under `parallel`"
    assert overlaps(make({"parallel": {**parallel, "decontaminate": True}}, MODEL)) == []


def test_hashes_among_others_are_those_that_numpy_finds() -> None:
    random = np.random.default_rng(0)
    for count, few in ((1000, 50), (10, 1), (0, 3), (5, 0), (1000, 1000)):
        hashes, others = (random.integers(0, 300, size, np.uint64) for size in (count, few))
        assert (are_among(hashes, others) == np.isin(hashes, others)).all()


def test_hashes_of_rows_tell_the_sides_apart() -> None:
    rows = row_hashes(["a", "b", "", " "], ["b", "a", "", ""])
    assert rows[0] != rows[1]
    assert rows[2] == rows[3] == 0


def test_five_translations_of_a_sentence_are_on_one_side(make: Make, texts: Texts) -> None:
    rows, targets = [row // 5 for row in range(500)], upper(*range(500))
    files = texts("five", source=numbered(*rows), target=targets)
    recipe = make({"parallel": {"train": files, "val": 50, "test": 50}}, MODEL)
    pairs = DataSource(recipe, recipe.folders()).all_pairs()
    sources = {split: {*part.sides["source"]} for split, part in pairs.items()}
    assert {split: len(part) for split, part in pairs.items()} == {
        "train": 400,
        "val": 50,
        "test": 50,
    }
    assert len(set.union(*sources.values())) == sum(map(len, sources.values())) == 100
    assert sorted(line for part in pairs.values() for line in part.sides["target"]) == sorted(
        targets
    )
    assert overlaps(recipe) == []
    one_by_one = make(
        {"parallel": {"train": files, "val": 50, "test": 50, "hold_out": "pairs"}}, MODEL
    )
    assert [path for path, *_ in overlaps(one_by_one)] == [
        "data.parallel.val",
        "data.parallel.test",
    ]
    assert all("50 of 50 pairs" in message for _, message, _ in overlaps(one_by_one))


def test_targets_that_are_trained_on_with_other_sources_are_reported_unless_they_are_labels(
    make: Make, texts: Texts
) -> None:
    for targets, warned in ((upper(*range(40)), ["data.parallel.test"]), (["yes", "no"] * 20, [])):
        train = texts("train", source=numbered(*range(40)), target=targets)
        test = texts("test", source=numbered(*range(100, 110)), target=targets[:10])
        found = overlaps(make({"parallel": {"train": train, "test": test}}, MODEL))
        assert [path for path, *_ in found] == warned
        assert all(message.startswith("the target of 10 of 10 pairs") for _, message, _ in found)


def test_held_out_documents_that_are_repeated_in_the_training_text(
    make: Make, tmp_path: Path
) -> None:
    lines = [f"this is the document number {number // 2}" for number in range(100)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    ((path, message, _),) = overlaps(
        make({"text": {"train": "a.txt", "val": 10}}, {"decoder": ["rnn"]})
    )
    assert path == "data.text.val"
    assert message.startswith("10 of 10 lines of val are repeated in the training text")
    (tmp_path / "a.txt").write_text("\n".join(lines[::2]))
    assert overlaps(make({"text": {"train": "a.txt", "val": 10}}, {"decoder": ["rnn"]})) == []


def test_documents_are_hashed_only_where_some_are_held_out(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []
    monkeypatch.setattr(
        overlap, "document_hashes", lambda texts: hashed.append(len(texts)) or line_hashes(texts)
    )
    (tmp_path / "a.txt").write_text("one two\nthree\nfour\n")
    (tmp_path / "b.txt").write_text("five\n")
    assert overlaps(make({"text": {"train": "a.txt", "val": "b.txt"}}, {"decoder": ["rnn"]})) == []
    assert hashed == []
    assert overlaps(make({"text": {"train": "a.txt", "val": 1}}, {"decoder": ["rnn"]})) == []
    assert sorted(hashed) == [1, 2]


def test_a_file_that_is_wholly_held_out_is_reported(make: Make, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"this is the only text number {number}")
    text = {"train": "*.txt", "val": 1, "unit": "file"}
    ((path, message, _),) = overlaps(make({"text": text}, {"decoder": ["rnn"]}))
    assert path == "data.text.train"
    assert message == f"all of `{tmp_path / '2.txt'}` is held out, so nothing of it is trained on"
