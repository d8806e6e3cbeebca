"""Generated tasks: right, repeatable, and disjoint by construction."""

from __future__ import annotations

import random

import pytest
from num2words import num2words

from composer.data.pairs import check_files, open_pairs
from composer.data.tasks import TASKS, TaskError, english, german, number_words

EDGES = [0, 1, 7, 16, 21, 100, 101, 421, 999, 1000, 1001, 1021, 1100, 1101, 21_000, 100_000, 101_001, 999_999]


def test_number_words_are_those_of_num2words():
    draw = random.Random(1)
    for number in [*EDGES, *(draw.randrange(1_000_000) for _ in range(600))]:
        assert english(number) == num2words(number)
        assert german(number) == num2words(number, lang="de")
    assert (english(421), german(421)) == ("four hundred and twenty-one", "vierhunderteinundzwanzig")


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_disjoint_and_repeatable(task):
    sizes = {"train": 3000, "val": 50, "test": 80}
    drawn = {split: TASKS[task](split, **sizes) for split in sizes}
    assert {split: len(lines.target) for split, lines in drawn.items()} == sizes
    assert drawn == {split: TASKS[task](split, **sizes) for split in sizes}
    assert drawn["val"] != TASKS[task]("val", **sizes, seed=2)
    sources = {split: set(lines.source) for split, lines in drawn.items()}
    assert not sources["train"] & sources["test"]
    assert not sources["train"] & sources["val"]
    # another seed draws other pairs, from the same splits
    assert not set(TASKS[task]("test", **sizes, seed=7).source) & sources["train"]


def test_test_numbers_are_all_different_and_even():
    test = number_words("test", test=1000)
    assert len(set(test.source)) == 1000
    assert sum(" thousand" in words and words.count("hundred") >= 1 for words in test.source) > 850


def test_sequences():
    copy, reverse, sort = (TASKS[name]("train", symbols=30, train=200) for name in ("copy", "reverse", "sort"))
    assert copy.source == copy.target == reverse.source == sort.source
    for source, back, ordered in zip(copy.source, reverse.target, sort.target, strict=True):
        assert back.split() == source.split()[::-1]
        assert ordered.split() == sorted(source.split())
    assert {len(line.split()) for line in TASKS["copy"]("test", test_length=33).source} == {33}


def test_a_task_that_cannot_be_drawn_is_told_at_its_setting(make):
    with pytest.raises(TaskError):
        number_words("test", maximum=99)
    recipe = make({"generate": {"number_words": {"maximum": 99}}})
    faults = check_files(recipe, recipe.folders())
    assert {fault.code for fault in faults} == {"task"}
    assert len(faults) == 2
    recipe = make({"generate": {"copy": {"min_length": 30}}})
    (fault,) = check_files(recipe, recipe.folders())
    assert fault.path == "data.generate.copy.min_length"


def test_a_task_gives_pairs(make):
    recipe = make({"generate": {"copy": {"train": 5}}})
    assert check_files(recipe, recipe.folders()) == []
    pairs = open_pairs(recipe, "train", recipe.folders())
    assert len(pairs) == 5
    assert pairs[0]["source"] == pairs[0]["target"]
