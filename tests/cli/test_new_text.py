"""A first recipe of a language model from one's own text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.cli import main
from composer.cli.new_text import inspect_text, text_steps
from composer.data.corpora import find_files
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
        " ".join([f"{number}", *words[number % 9 :], *words[: number % 7]]) + "\n"
        for number in range(count)
    )


def test_sentences_are_pieces_in_windows_and_the_last_ones_are_held_out(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt.gz"
    path.write_bytes(gzip.compress(sentences(300).encode()))
    recipe = load_new(path)
    assert (recipe.data.tokenizer.word,) == ("bpe",)
    assert (recipe.training.window, recipe.data.text.val, recipe.data.text.test) == (64, 30, 30)
    output = "\n".join(text_steps(inspect_text([str(path)]), tmp_path / "mine.yaml"))
    assert "300 lines: 240 for training, 30 for validation and 30 for test" in output


def test_lines_between_blank_ones_are_paragraphs(tmp_path: Path) -> None:
    lines = sentences(300).splitlines()
    (tmp_path / "a.txt").write_text(
        "\n\n".join("\n".join(lines[at : at + 3]) for at in range(0, 300, 3))
    )
    recipe = load_new(tmp_path / "a.txt")
    assert (recipe.data.text.unit, recipe.data.text.val) == ("paragraph", 10)


def test_paragraphs_of_a_line_and_words_in_columns_are_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(sentences(300).splitlines()))
    recipe = load_new(tmp_path / "a.txt")
    assert (recipe.data.text.unit, recipe.data.text.val) == ("paragraph", 30)
    (tmp_path / "b.txt").write_text(sentences(200).replace("\n", "\n\n").replace(" ", "\n"))
    recipe = load(composer.new(None, tmp_path / "b.txt", tmp_path / "b.yaml"))
    check_recipe(recipe)
    assert ((recipe.data.tokenizer.word,), recipe.training.window) == (("bpe",), 64)


def test_the_column_of_json_lines_is_text_or_the_only_one_or_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for keys, column, expected in (
        (["body"], None, "body"),
        (["body", "text"], None, "text"),
        (["body", "title"], "title", "title"),
        (["$x", "- y"], "$x", "$x"),
        (["a"], "a", "a"),
    ):
        path.write_text(json.dumps(dict.fromkeys(keys, "one") | {"id": 1}) + "\n")
        recipe = load(
            composer.new(None, path, tmp_path / f"{expected}-{len(keys)}.yaml", column=column)
        )
        check_recipe(recipe)
        assert recipe.data.text.column == expected
    for column, words in ((None, "no key `text`"), ("titel", "did you mean `title`")):
        path.write_text('{"body": "one", "title": "two"}\n')
        with pytest.raises(DataError, match=words) as raised:
            composer.new(None, path, column=column)
        assert "`--column body`" in raised.value.faults[0].hint


def files_of(recipe: Recipe) -> set[str]:
    files, faults = find_files(recipe, "train", recipe.folders())
    assert not faults
    return {str(file.path.resolve().relative_to(Path.cwd().resolve())) for file in files}


FILES = {
    "texts/a.txt",
    "texts/b.txt",
    "texts/deep/c.txt",
    "texts/d.txt.gz",
    "texts/mails.jsonl",
    "x [1]/e.txt",
}


@pytest.mark.parametrize(
    ("targets", "expected", "name"),
    [
        (["texts/*.txt"], {"texts/a.txt", "texts/b.txt"}, "texts"),
        (["texts/**/*.txt"], {"texts/a.txt", "texts/b.txt", "texts/deep/c.txt"}, "texts"),
        (["texts"], {file for file in FILES if file.startswith("texts")}, "texts"),
        (["texts/a.txt", "texts/mails.jsonl"], {"texts/a.txt", "texts/mails.jsonl"}, "a"),
        (["x [1]"], {"x [1]/e.txt"}, "x-1"),
        (["x [1]/e.txt", "texts/[ab].txt"], {"x [1]/e.txt", "texts/a.txt", "texts/b.txt"}, "e"),
        (["texts/d.txt.gz"], {"texts/d.txt.gz"}, "d"),
    ],
)
@pytest.mark.parametrize("output", [None, "recipes [2]/{a}/mine.yaml"])
def test_patterns_folders_and_lists_are_written_as_recipes_take_them(
    targets: list[str],
    expected: set[str],
    name: str,
    output: str | None,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    home = tmp_path / "my [home]*"
    for file in FILES | {"texts/.hidden.txt", "texts/picture.png"}:
        (home / file).parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"body": "a mail"}) if file.endswith("jsonl") else sentences(20)
        (home / file).write_bytes(
            gzip.compress(text.encode()) if file.endswith("gz") else text.encode()
        )
    (home / "recipes [2]" / "{a}").mkdir(parents=True)
    monkeypatch.chdir(home)
    path = composer.new(None, targets, output)
    assert path == Path(output or f"{name}.yaml")
    recipe = load(path)
    check_recipe(recipe)
    assert files_of(recipe) == expected
    assert recipe.data.text.column == ("body" if "texts/mails.jsonl" in expected else "text")
    assert all(
        "my" not in part for part in map(str, recipe.explicit["data"]["text"].values())
    )  # no path of this machine


def test_a_pattern_without_files_and_a_folder_without_texts_are_reported(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("texts").mkdir()
    Path("texts/keys.xyz").touch()
    for target, words in (
        ("texts/*.txt", r"no file `texts/\*\.txt`\n"),
        ("texts", "has no file that ends in"),
    ):
        with pytest.raises(DataError, match=words):
            composer.new(None, target)
    with pytest.raises(RunError, match="a source has one target"):
        composer.new("texts", ["a", "b"])


TEXTS: dict[str, tuple[str, str, int | None]] = {
    "names": ("anna\nbob\nclara\n" * 30, "char", None),
    "symbols": ("a b b a c\nb a c a\n" * 100, "word", 64),
    "a different letter each": (
        "".join(chr(0x4E00 + at) + "\n" * (at % 20 == 19) for at in range(2000)),
        "char",
        64,
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_tokenizer_suits_the_text(name: str, tmp_path: Path) -> None:
    text, tokenizer, window = TEXTS[name]
    (tmp_path / "a.txt").write_text(text)
    recipe = load_new(tmp_path / "a.txt")
    assert ((recipe.data.tokenizer.word,), recipe.training.window) == ((tokenizer,), window)


@pytest.mark.parametrize(
    ("content", "message"), [("", "is empty"), ("\n \n", "there is no text in it")]
)
def test_a_file_without_text_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(DataError, match=message):
        composer.new(None, tmp_path / "a.txt")


def test_a_few_lines_are_all_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.txt").write_text(sentences(20))
    with pytest.raises(SystemExit, match="0"):
        main.main(["new", "--target", "few.txt"])
    assert "20 lines, all for training" in capsys.readouterr().out
    overrides = ["training.max_steps=2", "training.max_minutes=null", "logging.wandb=false"]
    recipe = load(Path("few.yaml"), overrides)
    assert (recipe.name, recipe.data.text.val) == ("few", None)
    composer.train(recipe, run="run")
    assert composer.open_run("run").generate(["the"])[0]


def test_a_table_needs_the_column_of_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(["new", "--table", str(tmp_path / "a.tsv"), "--target", "text"])
    assert "`--source COLUMN`" in capsys.readouterr().err
    with pytest.raises(RunError, match="a table needs a source"):
        composer.new(None, "text", table=tmp_path / "a.tsv")
