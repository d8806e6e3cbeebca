"""A first recipe from one's own text: what it says to its user, and which texts it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.cli.new_recipe import MIN_PAIRS_TO_SPLIT, held_out_of, new, next_steps
from composer.data.sources import split_rows
from composer.errors import DataError
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
    sizes = {split: recipe.dataset["parallel"].get(split) or 0 for split in ("val", "test")}
    left = len(split_rows(count, sizes)["train"])
    output = "\n".join(next_steps(source, target, path))
    assert f"{count:,} pairs" in output
    assert (f"{left:,} for training" in output) == (count >= MIN_PAIRS_TO_SPLIT)
    assert (f"{sizes['test']:,} for test" in output) == (count >= MIN_PAIRS_TO_SPLIT)
    assert f"{recipe.training['max_minutes']:g} minutes" in output
    assert "so few pairs" in output


def test_a_tenth_of_a_small_corpus_is_held_out_and_less_of_a_large_one() -> None:
    shares = [held_out_of(pairs) / pairs for pairs in (100, 1_000, 10_000, 100_000)]
    assert shares[0] == 0.1
    assert shares == sorted(shares, reverse=True)
    assert [held_out_of(pairs) for pairs in range(1, 30_000, 7)] == sorted(
        held_out_of(pairs) for pairs in range(1, 30_000, 7)
    )


def test_empty_lines_are_counted_and_the_next_command_can_be_pasted(tmp_path: Path) -> None:
    source, target = texts(tmp_path, b"a\n\n  \nd\n", b"a\nb\nc\n\n")
    *_, blank, _, following = next_steps(source, target, Path("my recipe.yaml"))
    assert blank.startswith("note: 3 pairs have an empty side")
    assert following == "next: seqcomposer check 'my recipe.yaml' && seqcomposer train 'my recipe.yaml'"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (lines(60, b"\r\n"), lines(60)),  # as Windows writes it
        (b"\xef\xbb\xbf" + lines(60), lines(60)),
        (lines(60)[:-1], lines(60)),  # the last line lacks its break
        (lines(59) + b"a\rb\n", lines(60)),
    ],
)
def test_bom_crlf_and_other_common_formats_are_accepted(tmp_path: Path, source: bytes, target: bytes) -> None:
    output = next_steps(*texts(tmp_path, source, target), tmp_path / "mine.yaml")
    assert output[1].startswith("60 pairs: 48 for training")
    assert not any("empty side" in line for line in output)


@pytest.mark.parametrize(
    ("source", "target", "message", "fix"),
    [
        (lines(3, b"\r"), lines(1), "end with CR alone", "tr '"),
        (b"\n\n", b"a\nb\n", "no line has text both here and in", "give every line its translation"),
    ],
)
def test_texts_without_pairs_are_refused(tmp_path: Path, source: bytes, target: bytes, message: str, fix: str) -> None:
    with pytest.raises(DataError, match=message) as refused:
        new(*texts(tmp_path, source, target), tmp_path / "mine.yaml")
    assert fix in refused.value.faults[0].hint
    assert not (tmp_path / "mine.yaml").exists()


@pytest.mark.parametrize(("name", "fix"), [("pairs.tsv", "source: COLUMN"), ("text.en", "name two files")])
def test_one_file_for_both_sides_is_refused(tmp_path: Path, name: str, fix: str) -> None:
    (tmp_path / name).write_bytes(lines(3))
    with pytest.raises(DataError) as refused:
        new(tmp_path / name, tmp_path / "." / name, tmp_path / "mine.yaml")
    assert fix in refused.value.faults[0].hint


def test_a_missing_file_is_reported_without_options_of_other_commands(tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        new(tmp_path / "one", tmp_path / "two", tmp_path / "mine.yaml")
    assert all("--data" not in fault.hint for fault in refused.value.faults)
