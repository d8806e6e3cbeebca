"""A first recipe from one's own text: what it says to its user, and which texts it refuses."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import composer
from composer.cli.new import new
from composer.cli.new_recipe import MIN_PAIRS_TO_SPLIT, inspect, next_steps, validation_size
from composer.data.split import split_rows
from composer.errors import DataError, RunError
from composer.metrics.bleu import TOKENIZER_PACKAGES
from composer.recipe.recipe import load


def texts(folder: Path, source: bytes, target: bytes) -> tuple[Path, Path]:
    one, two = folder / "my.en", folder / "my.de"
    one.write_bytes(source)
    two.write_bytes(target)
    return one, two


def lines(count: int, end: bytes = b"\n") -> bytes:
    return b"".join(b"line %d%s" % (number, end) for number in range(count))


@pytest.mark.parametrize("count", [1, MIN_PAIRS_TO_SPLIT - 1, MIN_PAIRS_TO_SPLIT, 300, 3000])
def test_next_steps_names_the_sizes_of_the_splits(tmp_path: Path, count: int) -> None:
    source, target = texts(tmp_path, lines(count), lines(count))
    path = new(source, target, tmp_path / "mine.yaml")
    recipe = load(path)
    sizes = {split: getattr(recipe.data.parallel, split) or 0 for split in ("val", "test")}
    left = len(split_rows(count, sizes)["train"])
    output = "\n".join(next_steps(inspect(source, target), path))
    assert f"{count:,} pairs" in output
    assert (f"{left:,} for training" in output) == (count >= MIN_PAIRS_TO_SPLIT)
    assert (f"{sizes['test']:,} for test" in output) == (count >= MIN_PAIRS_TO_SPLIT)
    assert f"{recipe.training.max_minutes:g} minutes" in output


def test_a_tenth_of_a_small_corpus_is_held_out_and_less_of_a_large_one() -> None:
    shares = [validation_size(pairs) / pairs for pairs in (100, 1_000, 10_000, 100_000)]
    assert shares[0] == 0.1
    assert shares == sorted(shares, reverse=True)
    assert [validation_size(pairs) for pairs in range(1, 30_000, 7)] == sorted(
        validation_size(pairs) for pairs in range(1, 30_000, 7)
    )


def test_empty_lines_are_counted_and_the_next_command_can_be_pasted(tmp_path: Path) -> None:
    source, target = texts(tmp_path, b"a\n\n  \nd\n", b"a\nb\nc\n\n")
    *_, following = output = next_steps(inspect(source, target), tmp_path / "my recipe.yaml")
    assert any(line.startswith("note: 3 pairs have an empty side") for line in output)
    path = f"'{tmp_path}/my recipe.yaml'"
    assert following == f"next: seqcomposer check {path} && seqcomposer train {path}"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (lines(60, b"\r\n"), lines(60)),  # as Windows writes it
        (b"\xef\xbb\xbf" + lines(60), lines(60)),
        (lines(60)[:-1], lines(60)),  # the last line lacks its break
        (lines(59) + b"a\rb\n", lines(60)),
    ],
)
def test_bom_crlf_and_other_common_formats_are_accepted(
    tmp_path: Path, source: bytes, target: bytes
) -> None:
    output = next_steps(inspect(*texts(tmp_path, source, target)), tmp_path / "mine.yaml")
    assert output[1].startswith("60 pairs: 48 for training")
    assert not any("empty side" in line for line in output)


@pytest.mark.parametrize(
    ("source", "target", "message", "fix"),
    [
        (lines(3, b"\r"), lines(1), "end with CR alone", "tr '"),
        (
            b"\n\n",
            b"a\nb\n",
            "no line has text both here and in",
            "give every line its translation",
        ),
    ],
)
def test_texts_without_pairs_are_refused(
    tmp_path: Path, source: bytes, target: bytes, message: str, fix: str
) -> None:
    with pytest.raises(DataError, match=message) as refused:
        new(*texts(tmp_path, source, target), tmp_path / "mine.yaml")
    assert fix in refused.value.faults[0].hint
    assert not (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize(
    ("name", "fix"), [("pairs.tsv", "source: COLUMN"), ("text.en", "name two files")]
)
def test_one_file_for_both_sides_is_refused(tmp_path: Path, name: str, fix: str) -> None:
    (tmp_path / name).write_bytes(lines(3))
    with pytest.raises(DataError) as refused:
        new(tmp_path / name, tmp_path / "." / name, tmp_path / "mine.yaml")
    assert fix in refused.value.faults[0].hint


def test_a_missing_file_is_reported_without_options_of_other_commands(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        new(tmp_path / "one", tmp_path / "two", tmp_path / "mine.yaml")
    assert all("--data" not in fault.hint for fault in refused.value.faults)


def recipe_of(folder: Path, pairs: list[tuple[str, str]]) -> tuple[dict[str, Any], str]:
    """Return what `new` writes for pairs, checked, and what it says."""
    sides = ["".join(f"{line}\n" for line in lines).encode() for lines in zip(*pairs, strict=True)]
    source, target = texts(folder, *sides)
    path = new(source, target, folder / "mine.yaml")
    assert composer.check(path) == []
    return load(path).explicit, "\n".join(next_steps(inspect(source, target), path))


def spelled(number: int, letters: str = "abcdefghij") -> str:
    return "".join(letters[int(digit)] for digit in str(number))


def test_words_are_cut_into_characters(tmp_path: Path) -> None:
    recipe, output = recipe_of(
        tmp_path, [(spelled(n), " ".join(spelled(n)).upper()) for n in range(10_000, 10_300)]
    )
    assert recipe["data"]["tokenizer"] == {"char": {"size": 100, "joint": True}}
    assert (
        "source: one word and 5 characters a line, 99.9% of lines up to 5; Latin letters" in output
    )
    assert "tokenizer char: a line of the source is one word" in output
    # no BLEU of five symbols
    assert recipe["evaluation"] == {"metrics": ["exact_match", "word_error_rate"]}


def test_symbols_between_spaces_have_an_id_each(tmp_path: Path) -> None:
    pairs = [
        (" ".join(f"I_{digit}" for digit in str(n)), " ".join(str(n))) for n in range(1000, 1900)
    ]
    recipe, output = recipe_of(tmp_path, pairs)
    assert recipe["data"]["tokenizer"] == {"word": {"split": "spaces", "size": 100, "joint": False}}
    assert "few different symbols between spaces, 10 and 10" in output


def test_text_without_spaces_is_measured_without_them(tmp_path: Path) -> None:
    kana = "あいうえおかきくけこ"
    recipe, output = recipe_of(
        tmp_path,
        [
            (f"the word {spelled(n)} of {spelled(n * 7)}", spelled(n * n, kana) * 2)
            for n in range(1000, 1300)
        ],
    )
    module, _ = TOKENIZER_PACKAGES["ja-mecab"]
    assert recipe["evaluation"] == {"bleu_tokenizer": "ja-mecab" if find_spec(module) else "char"}
    assert recipe["data"]["tokenizer"]["bpe"]["joint"] is False
    assert "target: no spaces between words, 14 characters a line" in output
    assert "Hiragana letters" in output


def test_sentences_are_cut_into_pieces_and_few_short_ones_get_a_small_model(tmp_path: Path) -> None:
    words = [f"a sentence of {spelled(n)} and {spelled(n * 7)}" for n in range(3000)]
    recipe, _ = recipe_of(tmp_path, [(line, line.upper()) for line in words])
    assert recipe["data"]["tokenizer"] == {"bpe": {"size": 500, "joint": True}}
    assert recipe["model"]["width"] == 64
    assert "evaluation" not in recipe


def test_a_long_line_raises_max_length(tmp_path: Path) -> None:
    recipe, _ = recipe_of(
        tmp_path, [(f"{spelled(n)} " * 80, f"{spelled(n)} " * 90) for n in range(10_000, 10_080)]
    )
    assert recipe["data"]["max_length"] == 384


def test_a_recipe_has_no_path_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "link").symlink_to("corpus")
    (tmp_path / "mine").mkdir()
    texts(tmp_path / "corpus", lines(60), lines(60))
    monkeypatch.chdir(tmp_path)
    inside = new("link/my.en", tmp_path / "link" / "my.de", tmp_path / "inside.yaml")
    assert load(inside).data.parallel.train.source == "link/my.en"
    outside = new("corpus/my.en", "corpus/my.de", "mine/outside.yaml")
    assert load(outside).data.parallel.train.source == "../corpus/my.en"
    note = "not in the folder of the recipe"
    assert [
        note in "".join(next_steps(inspect(Path("corpus/my.en"), Path("corpus/my.de")), path))
        for path in (inside, outside)
    ] == [False, True]
    for path in (inside, outside):
        assert not re.search(r"[ =]/|site-packages", path.read_text(encoding="utf-8"))


def test_the_lines_that_are_looked_at_are_no_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every second line is long, not only long or only short ones are seen."""
    monkeypatch.setattr("composer.cli.new_recipe.SAMPLE", 100)
    rows = b"short\n" + b"a much longer line of this text\n"
    side = inspect(*texts(tmp_path, rows * 99 + b"end\n", rows * 99 + b"end\n")).sides[0]
    assert side.most_words == 7
    assert side.vocabulary >= 8  # of both kinds of line


def test_a_folder_is_no_name_of_a_recipe(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="this is a folder") as refused:
        new(*texts(tmp_path, lines(3), lines(3)), tmp_path)
    assert refused.value.faults[0].hint.endswith(f"`--output {tmp_path / 'en-de.yaml'}`")


@pytest.mark.parametrize("name", ["0", "1e3", "true", "null", ".5"])
def test_a_name_is_a_text_whatever_it_looks_like(tmp_path: Path, name: str) -> None:
    new(*texts(tmp_path, lines(3), lines(3)), tmp_path / f"{name}.yaml")
    assert load(tmp_path / f"{name}.yaml").name == name.strip(".")


def test_what_is_no_text_is_not_to_be_converted(tmp_path: Path) -> None:
    for start, hint in (
        (b"\x89PNG\r\n\x1a\n\0\xff", "name a text file"),
        (b"\0\1\xff\xfe\n" * 9, "name a text file"),
    ):
        with pytest.raises(DataError) as refused:
            inspect(*texts(tmp_path, start, lines(1)))
        assert refused.value.faults[0].hint == hint
