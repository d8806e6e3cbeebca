"""The tasks on binary vectors: each answer is worked out again from its question alone."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from composer.data.encoding import load_data
from composer.data.tasks import TASKS, TaskError
from composer.data.tasks.vectors import AssociativeRecall, PrioritySort, RepeatCopy, VectorCopy
from composer.model.special_tokens import UNK


def test_vector_copy_repeats_the_source():
    lines = VectorCopy(train=400, bits=3, max_length=6).generate("train")
    assert lines.source == lines.target
    words = [word for line in lines.source for word in line.split()]
    assert set(words) == {"".join(bits) for bits in itertools.product("01", repeat=3)}


def test_the_channel_says_how_often_to_repeat():
    lines = RepeatCopy(train=400, bits=4, max_length=3, min_repeats=2, max_repeats=8).generate(
        "train"
    )
    counts = set()
    for source, target in zip(*lines, strict=True):
        *vectors, last = source.split()
        zeros, number = last.split("@")
        times = round((float(number) + 1) * 8)
        assert zeros == "0000"
        assert target.split() == vectors * times
        counts.add(times)
    assert counts == set(range(2, 9))


def test_every_count_has_its_own_channel():
    answers = [
        RepeatCopy(test=1, max_length=5, max_repeats=100, test_repeats=[count]).generate("test")
        for count in COUNTS
    ]
    assert len({lines.source[0].split("@")[1] for lines in answers}) == len(COUNTS)
    assert [
        len(one.target[0].split()) / (len(one.source[0].split()) - 1) for one in answers
    ] == COUNTS


COUNTS = [1, 2, 50, 99, 100, 101, 199, 200]


def test_lengths_and_repetitions_are_tested_together():
    lines = RepeatCopy(
        test=3, max_length=4, max_repeats=4, test_lengths=[3, 9], test_repeats=[8, 2]
    ).generate("test")
    shapes = [
        (len(source.split()) - 1, len(target.split()))
        for source, target in zip(*lines, strict=True)
    ]
    assert shapes == [(3, 24)] * 3 + [(9, 72)] * 3 + [(3, 6)] * 3 + [(9, 18)] * 3
    some = RepeatCopy(
        test=40, max_length=4, min_repeats=2, max_repeats=3, test_repeats=[5]
    ).generate("test")
    assert {len(source.split()) - 1 for source in some.source} == {1, 2, 3, 4}
    train = RepeatCopy(train=9, test_repeats=[8, 2]).generate("train")
    assert train == RepeatCopy(train=9).generate("train")


def test_recall_answers_with_the_item_after():
    lines = AssociativeRecall(train=300, bits=2, vectors=2, max_length=5).generate("train")
    positions = set()
    for source, target in zip(*lines, strict=True):
        listed, question = source.split(" ? ")
        items = [item.strip() for item in listed.split(";")[1:]]
        assert len(set(items)) == len(items)
        assert all(len(item.split()) == 2 for item in items)
        assert items[items.index(question) + 1] == target
        positions.add((len(items), items.index(question)))
    assert positions == {(length, at) for length in range(2, 6) for at in range(length - 1)}


def test_priority_sort_returns_the_highest_in_order():
    lines = PrioritySort(train=200, bits=3, min_length=4, max_length=9, share=0.5).generate("train")
    for source, target in zip(*lines, strict=True):
        priority = {
            float(number): vector for vector, number in (word.split("@") for word in source.split())
        }
        length = len(source.split())
        assert len(priority) == length
        highest = sorted(priority, reverse=True)[: round(length / 2)]
        assert target.split() == [priority[vector_] for vector_ in highest]
    (few,) = PrioritySort(train=1, min_length=1, max_length=1, share=0.1).generate("train").target
    assert len(few.split()) == 1
    assert {len(line.split()) for line in PrioritySort(val=5).generate("val").target} == {16}


def test_priorities_are_even():
    lines = PrioritySort(train=400).generate("train")
    numbers = [float(word.split("@")[1]) for line in lines.source for word in line.split()]
    assert (min(numbers), max(numbers)) == (-1.0, 1.0)
    assert abs(statistics.mean(numbers)) < 4 * 0.58 / math.sqrt(len(numbers))


@pytest.mark.parametrize(
    ("task", "settings", "setting"),
    [
        ("repeat_copy", {"min_repeats": 5, "max_repeats": 3}, "min_repeats"),
        ("repeat_copy", {"max_repeats": 3, "test_repeats": [6, 7]}, "test_repeats"),
        ("associative_recall", {"min_length": 1}, "min_length"),
        ("associative_recall", {"test_lengths": [1]}, "test_lengths"),
        ("associative_recall", {"bits": 1, "vectors": 2}, "vectors"),
    ],
)
def test_an_impossible_vector_task_is_refused(task, settings, setting):
    with pytest.raises(TaskError) as raised:
        TASKS[task](train=1, **settings).generate("train")
    assert raised.value.setting == setting


@pytest.mark.parametrize(
    ("task", "tokenizer"),
    [
        ({"vector_copy": {}}, {"size": 8, "marks": []}),
        ({"repeat_copy": {"bits": 3}}, {"size": 3, "numbers": True}),
        ({"associative_recall": {}}, {"size": 6, "marks": [";", "?"]}),
        ({"priority_sort": {"bits": 3}}, {"size": 3, "numbers": True}),
    ],
)
def test_the_tokenizer_knows_every_word(make, task, tokenizer):
    ((name, settings),) = task.items()
    sizes = {"train": 40, "val": 5, "test": 5}
    recipe = make({"generate": {name: {**settings, **sizes}}, "tokenizer": {"bits": tokenizer}})
    data = load_data(recipe, recipe.folders())
    assert all(
        ids.values.min() > UNK
        for split in data.splits.values()
        for ids in (split.sources["source"], split.target)
    )
