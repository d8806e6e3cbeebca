"""A first recipe of a language model from one's own text."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.cli import main
from composer.cli.new_text import inspect_text, text_steps
from composer.errors import DataError, RunError
from composer.recipe.recipe import Recipe, load
from composer.training.preflight import check_recipe

SENTENCE = "the lantern swings above a quiet street while somebody counts its slow turns"


def load_new(path: Path) -> Recipe:
    recipe = load(composer.new(None, path, path.with_name("mine.yaml")))
    check_recipe(recipe)
    return recipe


def sentences(count: int) -> str:
    words = SENTENCE.split()
    return "".join(
        " ".join([f"{number}", *words[number % 9 :], *words[: number % 7]]) + "\n" for number in range(count)
    )


def test_sentences_are_pieces_in_windows_and_the_last_ones_are_held_out(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt.gz"
    path.write_bytes(gzip.compress(sentences(300).encode()))
    recipe = load_new(path)
    assert (*recipe.dataset["tokenizer"],) == ("bpe",)
    assert (recipe.training["window"], recipe.dataset["text"]["val"], recipe.dataset["text"]["test"]) == (64, 30, 30)
    output = "\n".join(text_steps(inspect_text(path), tmp_path / "mine.yaml"))
    assert "300 lines: 240 for training, 30 for validation and 30 for test" in output


def test_lines_between_blank_ones_are_paragraphs(tmp_path: Path) -> None:
    lines = sentences(300).splitlines()
    (tmp_path / "a.txt").write_text("\n\n".join("\n".join(lines[at : at + 3]) for at in range(0, 300, 3)))
    recipe = load_new(tmp_path / "a.txt")
    assert (recipe.dataset["text"]["unit"], recipe.dataset["text"]["val"]) == ("paragraph", 10)


def test_paragraphs_of_a_line_and_words_in_columns_are_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(sentences(300).splitlines()))
    recipe = load_new(tmp_path / "a.txt")
    assert (recipe.dataset["text"]["unit"], recipe.dataset["text"]["val"]) == ("paragraph", 30)
    (tmp_path / "b.txt").write_text(sentences(200).replace("\n", "\n\n").replace(" ", "\n"))
    recipe = load(composer.new(None, tmp_path / "b.txt", tmp_path / "b.yaml"))
    check_recipe(recipe)
    assert ((*recipe.dataset["tokenizer"],), recipe.training["window"]) == (("bpe",), 64)


def test_the_column_of_json_lines_is_called_text(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n')
    with pytest.raises(DataError) as raised:
        composer.new(None, tmp_path / "a.jsonl")
    hint = raised.value.faults[0].hint
    assert hint.startswith("call it `text`, or")
    assert "`body`" in hint


TEXTS: dict[str, tuple[str, str, int | None]] = {
    "names": ("anna\nbob\nclara\n" * 30, "char", None),
    "symbols": ("a b b a c\nb a c a\n" * 100, "word", 64),
    "a different letter each": ("".join(chr(0x4E00 + at) + "\n" * (at % 20 == 19) for at in range(2000)), "char", 64),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tokenizer_suits_the_text(name: str, tmp_path: Path) -> None:
    text, tokenizer, window = TEXTS[name]
    (tmp_path / "a.txt").write_text(text)
    recipe = load_new(tmp_path / "a.txt")
    assert ((*recipe.dataset["tokenizer"],), recipe.training["window"]) == ((tokenizer,), window)


@pytest.mark.parametrize(("content", "message"), [("", "is empty"), ("\n \n", "there is no text in it")])
def test_a_file_without_text_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        composer.new(None, tmp_path / "a.txt")


def test_a_few_lines_are_all_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.txt").write_text(sentences(20))
    with pytest.raises(SystemExit, match="0"):
        main.main(["new", "--target", "few.txt"])
    assert "20 lines, all for training" in capsys.readouterr().out
    overrides = ["training.max_steps=2", "training.max_minutes=null", "logging.wandb=false"]
    recipe = load(Path("few.yaml"), overrides)
    assert (recipe.name, recipe.dataset["text"]["val"]) == ("few", None)
    composer.train(recipe, run="run")
    assert composer.open_run("run").generate(["the"])[0]


def test_a_table_needs_the_column_of_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["new", "--table", str(tmp_path / "a.tsv"), "--target", "text"])
    assert "`--source COLUMN`" in capsys.readouterr().err
    with pytest.raises(RunError, match="a table needs a source"):
        composer.new(None, "text", table=tmp_path / "a.tsv")
