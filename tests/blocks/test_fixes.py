"""A fix says what it changes: its words and its change come from one place."""

from __future__ import annotations

from typing import Any

import pytest

from blocks.core.contract import BlockError, Fix, NoEffect, Remove, Set, remove, write


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4, "heads: 4"),
        (True, "heads: true"),
        (None, "heads: null"),
        ([2, 3], "heads: [2, 3]"),
        ({"beam": {"size": 5}}, "heads: {beam: {size: 5}}"),
    ],
)
def test_a_value_is_written_as_a_recipe_has_it(value: Any, text: str) -> None:
    assert write("heads", value, " or more") == Fix(
        f"write `{text}` or more", Set(("heads",), value)
    )


def test_a_fix_of_a_block_is_one_of_its_path_in_the_recipe() -> None:
    path = "model", "decoder", 0, "rnn"
    assert write("layers", 2).below(path).change == Set((*path, "layers"), 2)
    assert remove().below(path) == Fix("remove it", Remove(path))
    assert Fix("choose another name").below(path) == Fix("choose another name")


def test_an_error_has_words_and_a_change() -> None:
    error = BlockError("heads", "3 does not divide 8", fix=write("heads", 2))
    assert (error.fix.text, error.fix.change) == ("write `heads: 2`", Set(("heads",), 2))
    error = BlockError("heads", "3 does not divide 8", fix="write `heads: 2`")
    assert (error.fix.text, error.fix.change) == ("write `heads: 2`", None)


def test_what_has_no_effect_can_be_removed_whatever_else_can_be_done() -> None:
    fixes = {
        "": "remove `dropout`",
        "remove it, or write `layers: 2`": "remove it, or write `layers: 2`",
    }
    for fix, words in (*fixes.items(), (write("layers", 2), "write `layers: 2`")):
        error = NoEffect("dropout", "there is one layer", fix=fix)
        assert (error.fix.text, error.fix.change) == (words, Remove(("dropout",)))
