"""The tasks of the random-access machine: tapes before and after, against programs written for
cells.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from composer.data.tasks import TASKS, TaskError
from composer.data.tasks.numbers import RamAccess
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_kinds import Integers
from composer.data.tokenizer_training import train_tokenizers
from composer.model.special_tokens import NUM_SPECIAL, UNK


def access(cells: list[int]) -> None:
    cells[0] = cells[cells[0] + 1]


def increment(cells: list[int]) -> None:
    at = 0
    while cells[at] != 0:
        cells[at] += 1
        at += 1


def copy(cells: list[int]) -> None:
    for at in range(1, cells[0]):
        cells[cells[0] + at - 1] = cells[at]


@pytest.mark.parametrize(
    ("task", "program"), [("access", access), ("increment", increment), ("copy", copy)]
)
@pytest.mark.parametrize("count", [9, 20])
def test_the_target_is_what_the_program_leaves(
    task: str, program: Callable[[list[int]], None], count: int
) -> None:
    lines = TASKS[f"ram_{task}"](train=300, cells=count, max_length=4).generate("train")
    for source, target in zip(lines.source, lines.target, strict=True):
        cells = [int(cell) for cell in source.split()]
        assert len(cells) == count
        program(cells)
        assert [int(cell) for cell in target.split()] == cells
        assert all(0 <= cell < count for cell in cells)
    assert len(set(lines.source)) > 150


def test_every_index_and_every_length_occurs() -> None:
    lines = RamAccess(train=500, cells=9, min_length=2, max_length=4).generate("train")
    assert {int(line.split()[0]) for line in lines.source} == {0, 1, 2, 3}
    assert {sum(cell != "0" for cell in line.split()[1:]) for line in lines.source} == {2, 3, 4}


@pytest.mark.parametrize(
    ("task", "longest"), [("ram_access", 8), ("ram_increment", 9), ("ram_copy", 4)]
)
def test_an_array_larger_than_the_tape_is_refused_with_the_cells_it_needs(
    task: str, longest: int
) -> None:
    settings = {"cells": 10, "train": 20, "test": 20, "max_length": 2}
    assert TASKS[task](**settings, test_lengths=[longest]).generate("test").source
    with pytest.raises(TaskError) as raised:
        TASKS[task](**settings, test_lengths=[longest + 1]).generate("test")
    assert raised.value.setting == "test_lengths"
    with pytest.raises(TaskError) as raised:
        TASKS[task](**settings | {"max_length": longest + 1}).generate("train")
    assert raised.value.setting == "max_length"
    room = int(raised.value.fix.removeprefix("write `cells: ").removesuffix("` or more"))
    assert (
        TASKS[task](**settings | {"max_length": longest + 1, "cells": room})
        .generate("train")
        .source
    )


def test_integers_have_ids_of_their_own_whatever_the_lines_hold() -> None:
    kind = {"integers": {"below": 12}}
    tokenizers = train_tokenizers({"tokenizer": kind}, {"source": ["3 1"], "target": []})
    line = "0 11  3"
    assert tokenizers.sizes["source"] == tokenizers.sizes["target"] == NUM_SPECIAL + 12
    assert tokenizers.encode("target", [line]) == [[NUM_SPECIAL, NUM_SPECIAL + 11, NUM_SPECIAL + 3]]
    assert tokenizers.decode("target", tokenizers.encode("source", [line])) == ["0 11 3"]
    assert tokenizers.encode("source", ["12 -1 03 ⟨pad⟩ x"]) == [[UNK] * 5]
    assert len(Integers(below=3).train({"source": [], "target": []})) == 1


def test_an_integer_tokenizer_survives_saving(tmp_path) -> None:
    tokenizers = train_tokenizers(
        {"tokenizer": {"integers": {"below": 7}}}, {"source": [], "target": []}
    )
    tokenizers.save(tmp_path / "tokenizer.json")
    assert Tokenizers.load(tmp_path / "tokenizer.json").encode("target", ["6 2"]) == [
        [NUM_SPECIAL + 6, NUM_SPECIAL + 2]
    ]
