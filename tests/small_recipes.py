"""Helpers of the tests of the recipe language: a small recipe, and faults in a form that fits a
table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from composer.errors import Fault, RecipeError
from composer.recipe.recipe import Recipe, load

SMALL = """recipe: 1
data: {generate: copy}
model:
  width: 64
  decoder: [norm]
"""


def loaded(folder: Path, text: str, overrides: Sequence[str] = (), name: str = "r.yaml") -> Recipe:
    """The recipe of a text."""
    (folder / name).write_text(text, encoding="utf-8")
    return load(folder / name, overrides)


def refused(
    folder: Path, text: str, overrides: Sequence[str] = (), name: str = "r.yaml"
) -> list[Fault]:
    """The faults of a text that must not be accepted."""
    with pytest.raises(RecipeError) as raised:
        loaded(folder, text, overrides, name)
    assert raised.value.render()
    return raised.value.faults


def faults_of(build: Callable[[], object]) -> list[Fault]:
    """The faults with which something is refused; none if it is accepted."""
    try:
        build()
    except RecipeError as error:
        return error.faults
    return []


def assert_fault(fault: Fault, place: str, message: str, hint: str) -> None:
    """Assert where a fault is, as `line:column:code`, and what its message and its hint contain."""
    assert places([fault]) == [place]
    assert message in fault.message
    assert hint in fault.hint


def places(faults: Sequence[Fault]) -> list[str]:
    """`line:column:code` of each fault."""
    return [f"{fault.line}:{fault.column}:{fault.code}" for fault in faults]
