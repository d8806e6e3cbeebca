"""Validation and test pairs that are taken from the training files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from composer.data.columns import RowSubset
from composer.data.encoding import load_data
from composer.data.split import split_rows, split_sources
from composer.errors import ComposerError
from composer.recipe.recipe import load
from composer.training.preflight import check_recipe

RECIPE = """\
recipe: 1
data:
  parallel:
    train: {train}
    val: {val}
    test: {test}
  tokenizer: word
model: {{width: 4, encoder: [rnn], decoder: [rnn, cross_attention]}}
"""
TEXTS = "{source: a.txt, target: b.txt}"


def write_recipe(
    folder: Path, lines: int, train: str = TEXTS, val: object = 4, test: object = 3
) -> Path:
    (folder / "a.txt").write_text("".join(f"a{at}\n" for at in range(lines)), encoding="utf-8")
    (folder / "b.txt").write_text("".join(f"b{at}\n" for at in range(lines)), encoding="utf-8")
    (folder / "both.tsv").write_text(
        "x\ty\n" + "".join(f"a{at}\tb{at}\n" for at in range(lines)), encoding="utf-8"
    )
    recipe = folder / "mine.yaml"
    recipe.write_text(RECIPE.format(train=train, val=val, test=test), encoding="utf-8")
    return recipe


@pytest.mark.parametrize(
    "sizes", [{"val": 4, "test": 3}, {"val": 1}, {"test": 1}, {"val": 9, "test": 90}, {}]
)
@pytest.mark.parametrize("count", [100, 101, 1009])
def test_every_pair_is_in_exactly_one_split(count: int, sizes: dict[str, int]) -> None:
    rows = split_rows(count, sizes)
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(count))
    assert {split: len(rows[split]) for split in ("val", "test")} == {"val": 0, "test": 0} | sizes
    gaps = np.diff(np.sort(np.concatenate([rows["val"], rows["test"]])))
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_a_row_subset_reads_its_lines() -> None:
    lines = [f"line {at}" for at in range(50)]
    near, far = RowSubset(lines, np.array([3, 4, 6])), RowSubset(lines, np.array([0, 20, 49]))
    assert list(near) == ["line 3", "line 4", "line 6"]
    assert far[1:] == ["line 20", "line 49"]
    assert (far[-1], far[5:], len(near)) == ("line 49", [], 3)


@pytest.mark.parametrize("train", [TEXTS, "{file: both.tsv, source: x, target: y}"])
def test_one_text_is_split_into_train_val_and_test(train: str, tmp_path: Path) -> None:
    data = load_data(load(write_recipe(tmp_path, 40, train)), [tmp_path])
    sides = {
        split: list(zip(*pairs.sides.values(), strict=True)) for split, pairs in data.pairs.items()
    }
    assert {split: len(pairs) for split, pairs in sides.items()} == {
        "train": 33,
        "val": 4,
        "test": 3,
    }
    assert all(one[1:] == other[1:] for pairs in sides.values() for one, other in pairs)
    assert sorted(int(one[1:]) for pairs in sides.values() for one, _ in pairs) == list(range(40))
    # never seen: unk
    assert all(data.tokenizers.encode("source", [one])[0] == [3] for one, _ in sides["val"])


def test_a_split_may_be_a_number_beside_one_with_files(tmp_path: Path) -> None:
    data = load_data(load(write_recipe(tmp_path, 40, test=TEXTS)), [tmp_path])
    assert {split: len(pairs) for split, pairs in data.pairs.items()} == {
        "train": 36,
        "val": 4,
        "test": 40,
    }


def test_holding_out_all_pairs_is_refused(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, 7)
    with pytest.raises(ComposerError) as raised:
        check_recipe(load(recipe))
    (fault,) = raised.value.faults
    assert (fault.line, fault.code) == (5, "empty")
    assert fault.message == "val and test take 7 pairs, and the training files have 7"
    with pytest.raises(ComposerError, match="val takes 4 pairs, and the training files have 4"):
        check_recipe(load(write_recipe(tmp_path, 4, test=TEXTS)))


@pytest.mark.parametrize(
    ("val", "words"), [("0", "1 or more"), ("2.5", "whole number"), ("a.txt", "")]
)
def test_a_held_out_size_must_be_a_positive_number(val: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ComposerError) as raised:
        load(write_recipe(tmp_path, 40, val=val))
    assert [fault.path for fault in raised.value.faults] == ["data.parallel.val"]
    assert words in raised.value.faults[0].message


@pytest.mark.parametrize("sizes", [{"val": 40, "test": 30}, {"val": 25}, {"test": 1}])
@pytest.mark.parametrize("most", [1, 2, 5, 60])
def test_a_source_is_in_one_part_where_there_is_room(sizes: dict[str, int], most: int) -> None:
    draw = np.random.default_rng(most)
    times = draw.integers(1, most + 1, 400)
    sources = draw.permutation(np.repeat(np.arange(1, 401, dtype=np.uint64), times))
    sources[::50] = 0  # without text
    rows = split_sources(sources, sizes)
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(len(sources)))
    assert {split: len(rows[split]) for split in ("val", "test")} == {"val": 0, "test": 0} | sizes
    own = [{*sources[part].tolist()} - {0} for part in rows.values()]
    assert sum(map(len, own)) == len(set.union(*own))
    if most == 1:
        plain = split_rows(len(sources), sizes)
        assert all((rows[split] == plain[split]).all() for split in plain)


def test_sources_with_more_pairs_than_are_held_out_are_shared() -> None:
    rows = split_sources(np.repeat(np.array([1, 2], np.uint64), 50), {"val": 10, "test": 5})
    assert {split: len(part) for split, part in rows.items()} == {"train": 85, "val": 10, "test": 5}
