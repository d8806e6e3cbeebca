"""`match`: each point gets the whole number with the nearest number of parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.errors import Mark, RecipeError, error_at
from composer.recipe.yaml_reader import Node
from composer.sweeps.points import CostPlanner, list_points, point_recipe
from composer.sweeps.size_match import SizeMatch
from composer.sweeps.spec import read_sweep
from tests.sweeps.tiny_sweep import write_sweep

BY = Node("vars.hidden", Mark("s.yaml", 3, 5, 11, "by: vars.hidden"), text="vars.hidden")
SWEEP = """\
sweep: 1
base: base.yaml
axes:
  encoder: {replace: model.encoder..rnn, with: {gru: {rnn: {cell: gru}}, conv: {conv: {kernel: 3}}}}
match: {parameters: 5k, by: vars.hidden}
"""


def refuse(value: int) -> RecipeError:
    return error_at(BY.mark, "value", "", f"{value} is refused", "")


@settings(max_examples=200, deadline=None)
@given(
    wanted=st.integers(500, 10**5),
    fixed=st.integers(0, 400),
    linear=st.integers(1, 50),
    square=st.integers(0, 9),
    multiple=st.sampled_from([1, 3, 8, 60]),
)
def test_the_nearest_value_is_chosen(
    wanted: int, fixed: int, linear: int, square: int, multiple: int
) -> None:
    tried = []

    def count(value: int) -> int:
        tried.append(value)
        if value % multiple:
            raise refuse(value)
        return fixed + linear * value + square * value * value

    values = range(multiple, 2**20, multiple)
    low, high = 0, len(values) - 1
    while low < high:  # the first value that is large enough
        middle = (low + high) // 2
        low, high = (low, middle) if count(values[middle]) >= wanted else (middle + 1, high)
    below = [values[max(0, low - 1)], values[low]]
    best = min(abs(count(value) - wanted) for value in below)
    tried.clear()
    match = SizeMatch(wanted, BY)
    if best > 0.05 * wanted:
        with pytest.raises(RecipeError, match="gives about"):
            match.choose(count)
    else:
        assert abs(count(match.choose(count)) - wanted) == best
    assert len({value for value in tried if value % multiple == 0}) < 60


def test_a_value_that_changes_nothing_is_an_error() -> None:
    with pytest.raises(RecipeError, match="does not change the number of parameters, 7"):
        SizeMatch(1000, BY).choose(lambda value: 7)


def test_a_recipe_that_refuses_all_values_says_why() -> None:
    def count(value: int) -> int:
        raise refuse(value)

    with pytest.raises(RecipeError, match="1 is refused"):
        SizeMatch(1000, BY).choose(count)


def test_points_are_equally_large_and_the_same_when_read_again(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, SWEEP)
    points = list_points(read_sweep(file))
    assert [point.status for point in points] == ["trained", "trained"]
    assert all(abs(point.parameters - 5000) < 50 for point in points)
    sizes = [point.size for point in points]
    assert sizes[0] != sizes[1]
    again = read_sweep(file)
    for point in points:
        recipe = point_recipe(again, point.point)
        assert CostPlanner().plan(recipe)["parameters"] == point.parameters
        assert recipe.name.endswith(point.fingerprint)


def test_a_width_is_chosen_among_those_that_the_heads_divide(tmp_path: Path) -> None:
    text = SWEEP.replace("{parameters: 5k, by: vars.hidden}", "{parameters: 20000, by: vars.width}")
    points = list_points(read_sweep(write_sweep(tmp_path, text)))
    assert all(point.size is not None and point.size % 2 == 0 for point in points)
    assert all(abs(point.parameters - 20_000) < 1000 for point in points)


@pytest.mark.parametrize(
    ("written", "code", "column"),
    [
        ("{parameters: 5k, by: vars.hiden}", "variable", 34),
        ("{parameters: 5k, by: model.width.of}", "override", 41),
        ("{parameters: 0, by: vars.hidden}", "bound", 21),
        ("{parameters: 5 k, by: vars.hidden}", "type", 21),
        ("{parameters: 5k}", "missing", 1),
        ("vars.hidden", "type", 8),
    ],
)
def test_a_wrong_match_is_refused_at_its_place(
    tmp_path: Path, written: str, code: str, column: int
) -> None:
    text = SWEEP.replace("{parameters: 5k, by: vars.hidden}", written)
    with pytest.raises(RecipeError) as refused:
        read_sweep(write_sweep(tmp_path, text))
    (fault,) = refused.value.faults
    assert (fault.line, fault.column, fault.code) == (5, column, code)
    assert fault.hint
