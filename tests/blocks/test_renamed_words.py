"""Blocks and settings that were called otherwise are refused with the word that is written now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.small_recipes import SMALL, refused


@pytest.mark.parametrize(
    ("block", "old", "new"),
    [
        ("aligned", "aligned", "source_state"),
        ("blank", "blank", "no_input"),
        ("{column: 0}", "column", "select_column"),
        ("condense", "condense", "pool_hierarchical"),
        ("sum", "sum", "sum_columns"),
        ("{grid: {room: 2}}", "room", "max_length_ratio"),
        ("{repeat: {times: 2, share: true, sets: 2, stack: [linear]}}", "sets", "relaxation"),
        ("{repeat: {times: 2, share: true, pull: 0.1, stack: [linear]}}", "pull", "relaxation"),
        ("{repeat: {times: 2, share: true, join: 0.1, stack: [linear]}}", "join", "relaxation"),
    ],
)
def test_an_old_word_is_refused_with_the_new_one(tmp_path: Path, block: str, old: str, new: str) -> None:
    (fault,) = refused(tmp_path, SMALL.replace("[norm]", f"[{block}]"))
    assert fault.code == "renamed"
    assert f"`{old}` is called `{new}` now" in fault.message
    assert fault.hint.startswith(f"write `{new}")
