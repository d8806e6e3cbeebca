"""`new --table` of images or sounds: its choices; the recipe is accepted and trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest
import soundfile
from hypothesis import strategies as st
from PIL import Image

import composer
from composer.cli.main import main
from composer.cli.new_recipe import clean_name
from composer.cli.new_table import fill_table_template, inspect_table
from composer.errors import DataError, RunError
from composer.recipe.data_sections import TableColumn
from composer.recipe.recipe import Recipe, load

DIGITS = ("zero", "one", "two", "three", "four")


def write_table(
    folder: Path, kind: str, answers: Sequence[str], header: str = "id\tfile\tanswer\tmore"
) -> Path:
    random, lines = np.random.default_rng(1), [header]
    for number, answer in enumerate(answers):
        name = f"{number}.{'png' if kind == 'image' else 'wav'}"
        if kind == "image":
            Image.fromarray(random.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(
                folder / name
            )
        else:
            soundfile.write(folder / name, random.normal(size=12_000) / 9, 8000)
        lines.append(f"{number}\t{name}\t{answer}\tx")
    (folder / "mine.tsv").write_text("\n".join(lines) + "\n")
    return folder / "mine.tsv"


def written_recipe(table: Path, *arguments: str) -> Recipe:
    output = table.with_name("mine.yaml")
    with pytest.raises(SystemExit) as end:
        main(["new", "--table", str(table), "--output", str(output), *arguments])
    assert end.value.code == 0
    return load(output)


SHORT = [
    "training.max_minutes=null",
    "training.max_steps=2",
    "logging.wandb=false",
    "decoding={greedy: {max_length: 5}}",
]


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_the_recipe_is_accepted_and_trains(tmp_path: Path, kind: str) -> None:
    table = write_table(
        tmp_path, kind, [" ".join((DIGITS * 2)[at % 5 :][: 2 + at % 3]) for at in range(60)]
    )
    facts = inspect_table(table, "file", "answer")
    assert (facts.pairs, facts.kind, facts.source, facts.target) == (60, kind, "file", "answer")
    path = tmp_path / "mine.yaml"
    path.write_text(fill_table_template(facts, path))
    assert not composer.check(path)
    recipe = load(path, SHORT)
    held_out = [recipe.data.table.val, recipe.data.table.test]
    assert held_out == [facts.held_out] * 2 != [0, 0]
    composer.train(recipe, run=tmp_path / "run")
    assert composer.evaluate(tmp_path / "run")["test/loss"] > 0


def test_the_recipe_for_vectors_is_accepted_and_trains(tmp_path: Path) -> None:
    for number in range(12):
        np.save(tmp_path / f"{number}.npy", np.ones((2 + number % 3, 6)))
    rows = [f"{number}\t{number}.npy\t{DIGITS[number % 5]}" for number in range(12)]
    (tmp_path / "mine.tsv").write_text("\n".join(["id\tvector\tname", *rows]) + "\n")
    facts = inspect_table(tmp_path / "mine.tsv", "vector", "name")
    assert (facts.kind, facts.source, facts.target) == ("vectors", "vector", "name")
    assert facts.media == "3 vectors of 6 numbers, up to 4"
    path = tmp_path / "mine.yaml"
    path.write_text(fill_table_template(facts, path))
    assert not composer.check(path)
    recipe = load(path, SHORT)
    assert recipe.data.table.source.width == 6
    composer.train(recipe, run=tmp_path / "run")


def settings(folder: Path, kind: str, answers: Sequence[str]) -> dict[str, Any]:
    facts, path = (
        inspect_table(write_table(folder, kind, answers), "file", "answer"),
        folder / "mine.yaml",
    )
    path.write_text(fill_table_template(facts, path))
    recipe = load(path)
    return {
        **recipe.data.table.source.as_data(),
        "tokenizer": recipe.data.tokenizer.word,
        "ctc": recipe.model.output.ctc and recipe.model.output.ctc.as_data(),
        "metrics": [*(recipe.evaluation.metrics or ())],
        "val": recipe.data.table.val,
    }


def test_an_image_is_read_in_its_size_and_colours(tmp_path: Path) -> None:
    chosen = settings(tmp_path, "image", ["a small house", "a large tree"])
    assert (chosen["size"], chosen["channels"], chosen["ctc"], chosen["val"]) == (
        [20, 30],
        3,
        None,
        None,
    )
    assert (chosen["tokenizer"], chosen["metrics"]) == ("word", ["bleu", "chrf", "exact_match"])


def test_a_large_image_is_scaled_down(tmp_path: Path) -> None:
    table = write_table(tmp_path, "image", ["a", "b"])
    Image.new("L", (1000, 400)).save(tmp_path / "1.png")
    assert "size: [52, 128]" in fill_table_template(
        inspect_table(table, "file", "answer"), tmp_path / "r.yaml"
    )


def test_ctc_stands_beside_answers_that_follow_a_sound(tmp_path: Path) -> None:
    spoken = settings(tmp_path, "audio", ["nineteen hundred", "eighty four"])
    assert (spoken["rate"], spoken["tokenizer"], spoken["ctc"]["weight"]) == (8000, "char", 0.3)
    assert spoken["metrics"] == ["word_error_rate", "exact_match"]
    assert (
        settings(tmp_path, "audio", ["so many letters for a second and a half of it"] * 3)["ctc"]
        is None
    )
    label = settings(tmp_path, "audio", [DIGITS[at % 5] for at in range(50)])
    assert (label["tokenizer"], label["ctc"], label["metrics"]) == ("word", None, ["exact_match"])


def test_columns_that_are_named_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_table(tmp_path, "audio", ["a b", "c"])
    recipe = written_recipe(table, "--source", "file", "--target", "more")
    assert (recipe.data.table.target, recipe.data.table.train) == ("more", "mine.tsv")
    output = capsys.readouterr().out
    assert "file: sounds of 1.5 seconds, up to 1.5; 8,000 Hz" in output
    assert "2 rows, all for training" in output


def test_a_folder_of_kaldi_is_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path, "audio", ["a", "b"])
    (tmp_path / "wav.scp").write_text("u1 0.wav\nu2 1.wav\n")
    (tmp_path / "text").write_text("u1 one\nu2 two\n")
    facts = inspect_table(tmp_path, "sound", "text")
    assert (facts.kind, facts.source, facts.target) == ("audio", "sound", "text")
    monkeypatch.chdir(tmp_path)
    recipe = composer.new("sound", "text", table=".")
    assert recipe.name == f"{clean_name(tmp_path.name)}.yaml"
    assert load(recipe).name == clean_name(tmp_path.name)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_other_tables_are_read(tmp_path: Path, suffix: str) -> None:
    write_table(tmp_path, "image", ["a", "b"])
    path, rows = (
        tmp_path / f"t.{suffix}",
        [{"file": "0.png", "text": "a, b"}, {"file": "1.png", "text": "c"}],
    )
    if suffix == "csv":
        path.write_text('file,text\n0.png,"a, b"\n1.png,c\n')
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps({"number": 1, **row}) + "\n" for row in rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert inspect_table(path, "file", "text")[2:5] == ("image", "file", "text")


def test_columns_the_wrong_way_round_are_reported(tmp_path: Path) -> None:
    table = write_table(tmp_path, "image", ["a", "b"])
    with pytest.raises(
        DataError, match=r"`answer` names no images, sounds or vectors\n *fix: name one that does"
    ) as raised:
        inspect_table(table, "answer", "file")
    pairs = f"data: {{parallel: {{train: {{file: {table}, source: answer, target: file}}}}}}"
    assert raised.value.faults[0].hint.endswith(f"write a recipe with `{pairs}`")


def test_a_table_that_cannot_be_used_is_reported(tmp_path: Path) -> None:
    table = write_table(tmp_path, "image", ["a", "b"])
    for name, text, message in (
        ("gone.tsv", None, "no file"),
        ("t.tsv", "a\tb\nx\ty\n", "names no images, sounds or vectors"),
        ("t.tsv", "a\n0.png\n", "has no column `b`"),
        ("t.tsv", "a\tb\n0.png\tx\ngone.png\ty\n", r"gone\.png"),
    ):
        if text:
            (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=message):
            inspect_table(tmp_path / name, "a", "b")
    (tmp_path / "open.csv").write_text('a,b\n0.png,"say hi\n')
    with pytest.raises(DataError, match=r"open\.csv:2:1: .*never closed"):
        inspect_table(tmp_path / "open.csv", "a", "b")
    with pytest.raises(DataError, match="has no column `picture`"):
        inspect_table(table, "picture", "answer")
    (tmp_path / "1.png").write_bytes(b"no image")
    with pytest.raises(DataError) as error:
        inspect_table(table, "file", "answer")
    assert [(fault.file, fault.line) for fault in error.value.faults] == [(str(table), 3)]


NAMES = st.text(min_size=1, max_size=12) | st.text(
    st.sampled_from("$-{}[]:,#&*!|>'\"%@`?~ x0e1"), min_size=1, max_size=8
)


@hypothesis.settings(max_examples=10, deadline=None)
@hypothesis.given(names=st.lists(NAMES, min_size=2, max_size=2, unique=True))
@hypothesis.example(names=["$x", "- y"])
@hypothesis.example(names=["{{7*7}}", "null"])
@hypothesis.example(names=["007", "$$x"])
@hypothesis.example(names=["a, b", "x: #y"])
def test_columns_of_any_name_come_back_from_the_recipe(
    names: list[str], tmp_path_factory: Any
) -> None:
    folder = tmp_path_factory.mktemp("names")
    np.save(folder / "a.npy", np.zeros((3, 4)))
    rows = [dict(zip(names, ("a.npy", answer), strict=True)) for answer in ("yes", "no")]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        path = composer.new(*names, folder / "mine.yaml", table=folder / "t.jsonl")
    except RunError as error:
        assert "a recipe cannot have this name" in str(error)  # noqa: PT017
        return
    table = load(path).data.table
    assert table is not None
    assert isinstance(table.source, TableColumn)
    assert [table.source.column, table.target] == names
    assert composer.check(path) is not None
