"""Generated tasks: right, repeatable, new in every epoch, and disjoint by construction."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from typing import get_args

import pytest
from num2words import num2words

from composer.data.sources import check_files, generate_pairs, is_endless, open_pairs
from composer.data.tasks import TASKS, Lines, TaskError, split_of
from composer.data.tasks.numbers import Increment, Language, NumberWords, from_bits, spell, to_bits
from composer.data.tasks.sequences import (
    CLOSING,
    OPENING,
    BigramFlip,
    Copy,
    Dialect,
    Duplicate,
    DynamicNgrams,
    Parentheses,
    Reverse,
    Sort,
    closing_next,
)
from composer.data.tasks.state_tracking import ModularSum, MultiQueryRecall
from composer.recipe.schema_generator import settings_schema

EDGES = [
    0,
    1,
    7,
    16,
    21,
    100,
    101,
    421,
    999,
    1000,
    1001,
    1021,
    1100,
    1101,
    21_000,
    100_000,
    101_001,
    999_999,
]
LONG = sorted(set(TASKS) - {"number_words", "counting", "ram_access", "ram_increment", "ram_copy"})
WORDS = {
    "binary_addition": lambda k: 2 * k + 1,
    "binary_multiplication": lambda k: 2 * k + 1,
    "repeat_copy": lambda k: k + 1,
    "associative_recall": lambda k: 4 * k + 4,
    "multi_query_recall": lambda k: 3 * k,
}
"""How many words a source of length k has, where not k."""


def sources_of(lines: Lines) -> list[str]:
    """What a pair is known by: its source, or of a language its one line."""
    return lines.source if any(lines.source) else lines.target


def words_of(task: str, length: int) -> int:
    return WORDS.get(task, lambda k: k)(length)


def test_number_words_are_those_of_num2words():
    draw = random.Random(1)
    for value in [*range(1000), *EDGES, *(draw.randrange(1_000_000) for _ in range(600))]:
        assert spell(value, "en") == num2words(value)
        assert spell(value, "de") == num2words(value, lang="de")
    assert (spell(421, "en"), spell(421, "de")) == (
        "four hundred and twenty-one",
        "vierhunderteinundzwanzig",
    )


@pytest.mark.parametrize("language", get_args(Language))
def test_number_words_of_every_language(language):
    """Each number has words of its own, and the two sides are of the same numbers."""
    words, english_of = (
        {spell(value, code): value for value in range(2000)} for code in (language, "en")
    )
    assert len(words) == 2000
    lines = NumberWords(source=language, target="en", test=40, maximum=1999).generate("test")
    assert [words[line] for line in lines.source] == [english_of[line] for line in lines.target]
    assert (
        lines.target
        == NumberWords(source="en", target=language, test=40, maximum=1999).generate("test").source
    )


# ------------------------------------------------------------------------------------------- what
# all have in common


@pytest.mark.parametrize("task", TASKS)
def test_splits_are_disjoint_and_repeatable(task):
    sizes = {"train": 1000, "val": 20, "test": 50}
    splits = {split: TASKS[task](**sizes).generate(split) for split in sizes}
    assert {split: len(lines.target) for split, lines in splits.items()} == sizes
    assert splits == {split: TASKS[task](**sizes).generate(split) for split in sizes}
    assert splits["val"] != TASKS[task](**sizes, seed=2).generate("val")
    sources = {split: set(sources_of(lines)) for split, lines in splits.items()}
    assert not sources["train"] & sources["test"]
    assert not sources["train"] & sources["val"]
    assert len(sources["val"]) == 20
    assert len(sources["test"]) == 50
    # another seed and another epoch draw other pairs, from the same splits
    assert not set(sources_of(TASKS[task](**sizes, seed=7).generate("test"))) & sources["train"]
    later = set(sources_of(TASKS[task](**sizes, endless=True).generate("train", 3)))
    assert not later & (sources["test"] | sources["val"])


@pytest.mark.parametrize("task", TASKS)
def test_every_epoch_of_an_endless_task_is_new_and_repeatable(task):
    epochs = [TASKS[task](train=20, endless=True).generate("train", epoch) for epoch in range(3)]
    assert epochs == [
        TASKS[task](train=20, endless=True).generate("train", epoch) for epoch in range(3)
    ]
    assert all(
        sources_of(one) != sources_of(other) for one, other in itertools.combinations(epochs, 2)
    )
    assert epochs[0] == TASKS[task](train=20).generate("train")
    assert TASKS[task](train=20, endless=False).generate("train", 2) == epochs[0]
    assert TASKS[task](val=3, endless=True).generate("val", 2) == TASKS[task](val=3).generate("val")
    assert TASKS[task](test=3, endless=True).generate("test", 2) == TASKS[task](test=3).generate(
        "test"
    )


@pytest.mark.parametrize("task", LONG)
def test_training_and_test_have_the_lengths_of_the_settings(task):
    train = TASKS[task](train=100, min_length=3, max_length=5, test_lengths=[9]).generate("train")
    assert {len(line.split()) for line in sources_of(train)} == {
        words_of(task, length) for length in (3, 4, 5)
    }
    test = TASKS[task](test=3, min_length=3, max_length=5, test_lengths=[40, 9]).generate("test")
    assert [len(line.split()) for line in sources_of(test)] == [words_of(task, 40)] * 3 + [
        words_of(task, 9)
    ] * 3
    # what is asked of one length does not depend on what else is asked
    assert sources_of(test)[:3] == sources_of(
        TASKS[task](test=3, test_lengths=[40]).generate("test")
    )
    assert (
        sources_of(test)[:3]
        == sources_of(TASKS[task](test=5, test_lengths=[40, 40]).generate("test"))[:3]
    )
    assert TASKS[task](test=3, test_lengths=[]).generate("test") == TASKS[task](test=3).generate(
        "test"
    )


@pytest.mark.parametrize("task", TASKS)
def test_settings_are_documented_and_tasks_endless_by_default(task):
    described = settings_schema(TASKS[task], {})["properties"]
    assert described.keys() == TASKS[task]().as_data().keys()
    assert all(setting["description"] for setting in described.values())
    assert described["endless"]["default"] is (task != "number_words")


def test_the_settings_of_a_task_come_before_the_common_ones_and_its_texts_say_the_unit():
    described = settings_schema(DynamicNgrams, {})["properties"]
    assert [*described][:4] == ["context", "min_length", "max_length", "test_lengths"]
    assert described["min_length"]["description"] == "bits of the shortest line"
    assert described["train"]["description"] == "training lines of an epoch"


def test_val_and_test_are_five_percent_of_all_keys():
    shares = Counter(split_of((at,)) for at in range(20_000))
    assert shares["val"] / 20_000 == pytest.approx(0.05, abs=0.01)
    assert shares["test"] / 20_000 == pytest.approx(0.05, abs=0.01)


# ------------------------------------------------------------------------------------------- each
# alone


def test_test_numbers_are_all_different_and_even():
    test = NumberWords(test=1000).generate("test")
    assert len(set(test.source)) == 1000
    assert sum(" thousand" in words and words.count("hundred") >= 1 for words in test.source) > 850


def test_sequence_targets_are_the_rearranged_source():
    copy, reverse, double, sort, flip = (
        kind(symbols=30, train=200).generate("train")
        for kind in (Copy, Reverse, Duplicate, Sort, BigramFlip)
    )
    assert (
        copy.source == copy.target == reverse.source == sort.source == double.source == flip.source
    )
    for source, back, twice, ordered in zip(
        copy.source, reverse.target, double.target, sort.target, strict=True
    ):
        assert back.split() == source.split()[::-1]
        assert twice == f"{source} {source}"
        assert ordered.split() == sorted(source.split())
    for source, flipped in zip(flip.source, flip.target, strict=True):
        words, answer = source.split(), flipped.split()
        assert (answer[1::2], answer[: len(words) // 2 * 2 : 2]) == (
            words[: len(words) // 2 * 2 : 2],
            words[1::2],
        )
        assert len(words) % 2 == 0 or answer[-1] == words[-1]


def test_binary_results_are_those_of_python():
    assert from_bits([0, 1, 1, 0]) == 6
    assert to_bits(6, 4) == [0, 1, 1, 0]
    signs = {
        "binary_addition": ("+", lambda k: k + 1),
        "binary_multiplication": ("*", lambda k: 2 * k),
    }
    for task, (sign, places) in signs.items():
        lines = TASKS[task](train=300, max_length=70).generate("train")
        for source, target in zip(*lines, strict=True):
            one, other = (read(number) for number in source.split(sign))
            assert len(target.split()) == places(len(source.split()) // 2)
            assert read(target) == (one + other if sign == "+" else one * other)
    for source, target in zip(*Increment(train=300).generate("train"), strict=True):
        assert read(target) == read(source) + 1
        assert len(target.split()) == len(source.split()) + 1


def read(line: str) -> int:
    """The number that digits say, the least significant first."""
    return sum(int(digit) << place for place, digit in enumerate(line.split()))


def test_parentheses_name_the_next_closing_bracket():
    assert closing_next(["(", "[", "]", ")"]) == [")", "]", ")", "."]
    assert closing_next(["(", ")", ")", "("]) == [")", ".", "x", "x"]
    assert closing_next(["[", "(", "]"]) == ["]", ")", "x"]
    lines = Parentheses(train=400, kinds=3, min_length=4, max_length=9).generate("train")
    assert {word for line in lines.source for word in line.split()} == set("()[]{}")
    broken = sum(line.endswith("x") for line in lines.target)
    assert 60 < broken < 200
    for source, target in zip(*lines, strict=True):
        brackets, answer = source.split(), target.split()
        assert len(answer) == len(brackets)
        for end, word in enumerate(answer, 1):
            assert word == reduced_answer(brackets[:end])


def reduced_answer(brackets: Sequence[str]) -> str:
    """By another way: what is left when pairs are taken out, over and over."""
    left = "".join(brackets)
    for _ in brackets:
        for pair in map("".join, zip(OPENING, CLOSING, strict=True)):
            left = left.replace(pair, "")
    if any(bracket in CLOSING for bracket in left):
        return "x"
    return CLOSING[OPENING.index(left[-1])] if left else "."


def test_a_modular_sum_is_of_all_numbers_so_far():
    for source, target in zip(*ModularSum(train=200, modulus=5).generate("train"), strict=True):
        numbers = [int(word) for word in source.split()]
        assert [int(word) for word in target.split()] == [
            sum(numbers[: at + 1]) % 5 for at in range(len(numbers))
        ]
    parity = ModularSum(train=200, min_length=7).generate("train")
    assert {word for line in (*parity.source, *parity.target) for word in line.split()} == {
        "0",
        "1",
    }


def test_every_key_of_a_line_is_asked_for_once_and_answered_by_its_value():
    lines = MultiQueryRecall(train=200, keys=9, values=3, min_length=2, max_length=9).generate(
        "train"
    )
    in_order = 0
    for source, target in zip(*lines, strict=True):
        words, answer = source.split(), target.split()
        count = len(words) // 3
        pairs = dict(zip(words[0 : 2 * count : 2], words[1 : 2 * count : 2], strict=True))
        assert sorted(pairs) == sorted(words[2 * count :])
        assert answer == ["."] * 2 * count + [pairs[key] for key in words[2 * count :]]
        in_order += list(pairs) == words[2 * count :]
    assert in_order < 60
    with pytest.raises(TaskError, match="only 9"):
        MultiQueryRecall(keys=9, test_lengths=[4, 10]).generate("test")


# -------------------------------------------------------------------------------------------
# dialects


def test_dialects_mark_every_third_symbol():
    lines = Dialect(train=400, symbols=5, dialects=3, every=2, min_length=2, max_length=6).generate(
        "train"
    )
    spoken = Counter()
    for source, target in zip(*lines, strict=True):
        words = source.split()
        assert [word.isupper() for word in words] == [place % 2 == 1 for place in range(len(words))]
        numbers = {word[1:] for word in target.split() if word[0].isupper()}
        assert len(numbers) == 1
        spoken.update(numbers)
        assert target.replace(*numbers, "") == source
    assert set(spoken) == {"1", "2", "3"}
    assert min(spoken.values()) > 90


# ------------------------------------------------------------------------------------------- in a
# recipe


def test_an_impossible_task_is_refused_at_its_setting(make):
    with pytest.raises(TaskError):
        NumberWords(maximum=99).generate("test")
    recipe = make({"generate": {"number_words": {"maximum": 99}}})
    faults = check_files(recipe, recipe.folders())
    assert {fault.code for fault in faults} == {"task"}
    assert len(faults) == 2
    recipe = make({"generate": {"copy": {"min_length": 30}}})
    (fault,) = check_files(recipe, recipe.folders())
    assert fault.path == "data.generate.copy.min_length"
    recipe = make({"generate": {"increment": {"test_lengths": [40, 3], "test": 20}}})
    (fault,) = check_files(recipe, recipe.folders())
    assert fault.path == "data.generate.increment.test"
    assert "of the 20 test pairs of length 3" in fault.message


def test_a_task_generates_the_sides_of_the_recipe(make):
    recipe = make({"generate": {"copy": {"train": 5}}})
    assert check_files(recipe, recipe.folders()) == []
    pairs = open_pairs(recipe, "train", recipe.folders())
    assert len(pairs) == 5
    assert pairs[0]["source"] == pairs[0]["target"]
    assert pairs == generate_pairs(recipe, "train")
    assert pairs != generate_pairs(recipe, "train", 1)
    assert is_endless(recipe)
    assert not is_endless(make({"generate": {"copy": {"endless": False}}}))
    assert not is_endless(make({"generate": "number_words"}))
    assert not is_endless(make({"parallel": {"train": {"source": "a", "target": "b"}}}))
