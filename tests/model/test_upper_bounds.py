"""Sizes before a tokenizer is trained are upper bounds, and say `at most` wherever they stand; all
others do not.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer.cli import main
from composer.comparison.diff import diff
from composer.recipe.recipe import load
from composer.recipe.registry import CHOICES
from composer.viz.architecture import draw

TEXT = """recipe: 1
data: {generate: {TASK: {train: 20, val: 2, test: 2}}, tokenizer: TOKENIZER}
model:
  width: 8
  embedding: EMBEDDING
  encoder: [{rnn: {cell: gru}}]
  decoder: [{rnn: {cell: gru}}, cross_attention]
"""


def write(
    folder: Path, tokenizer: str, embedding: str = "learned", task: str = "copy", width: int = 8
) -> str:
    """Write a recipe, and return the name of its file."""
    text = (
        TEXT.replace("TASK", task).replace("TOKENIZER", tokenizer).replace("EMBEDDING", embedding)
    )
    file = folder / f"{tokenizer}-{width}.yaml"
    file.write_text(text.replace("width: 8", f"width: {width}"), encoding="utf-8")
    return str(file)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints to stdout."""
    with pytest.raises(SystemExit):
        main.main(arguments)
    return capsys.readouterr().out


def test_most_tokenizers_learn_how_many_ids_it_has(tmp_path: Path) -> None:
    names = CHOICES["tokenizers"].constructors().keys() - {"file"}
    learning = {name for name in names if load(write(tmp_path, name)).tokenizer.is_trained}
    assert learning == {"word", "char", "bpe", "unigram"}


def test_check_and_plan_mark_upper_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "word")
    plan = load(file).plan()
    assert f"no errors; at most {plan.parameters:,} parameters" in printed(capsys, "check", file)
    marked = [line for line in printed(capsys, "plan", file).splitlines() if ", at most " in line]
    assert [line.split(",")[0].strip() for line in marked] == [
        "model.encoder embedding",
        "model.decoder embedding",
        "model output",
        "all",
    ]
    data = json.loads(printed(capsys, "plan", "--json", file))
    assert data["at_most"]
    assert [row["at_most"] for row in data["blocks"]] == [True, False, True, False, False, True]


def test_sizes_that_no_text_decides_are_not_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, "{integers: {below: 40}}", task="ram_increment")
    for command in ("check", "plan"):
        assert "at most" not in printed(capsys, command, file)
    assert not json.loads(printed(capsys, "plan", "--json", file))["at_most"]
    assert "at most" not in draw(load(file)).svg()
    assert (
        "at most"
        not in diff(
            file, write(tmp_path, "{integers: {below: 40}}", task="ram_increment", width=16)
        ).text()
    )


def test_a_bound_is_one_and_a_known_vocabulary_is_none(tmp_path: Path) -> None:
    recipe = load(write(tmp_path, "word"))
    bound, known = recipe.plan(), recipe.plan({"source": 20, "target": 30})
    assert (bound.at_most, known.at_most) == (True, False)
    assert not any(row.at_most for row in known.rows)
    for one, other in zip(known.rows, bound.rows, strict=True):
        same = (one.parameters, one.flops) == (other.parameters, other.flops)
        assert same != other.at_most


def test_one_hot_vectors_make_every_row_a_bound(tmp_path: Path) -> None:
    assert all(
        row.at_most for row in load(write(tmp_path, "word", embedding="one_hot")).plan().rows
    )


def test_pictures_mark_upper_bounds(tmp_path: Path) -> None:
    recipe = load(write(tmp_path, "word"))
    svg = draw(recipe).svg()
    assert svg.count("at most 10,000 tokens") == 3
    assert "width 8; at most " in svg
    assert "8 wide, at most " in draw(load(write(tmp_path, "word", "one_hot"))).mermaid()
    assert "at most" not in draw(recipe, vocabularies={"source": 20, "target": 30}).svg()


def test_diff_marks_upper_bounds(tmp_path: Path) -> None:
    one, other = write(tmp_path, "word"), write(tmp_path, "word", width=16)
    assert "A, at most" in diff(one, other).text()
    assert "B, at most" in diff(one, other).text()
    assert "costs the same: at most " in diff(one, one).text()
    assert diff(one, other).as_json()["costs"]["a"]["at_most"]
