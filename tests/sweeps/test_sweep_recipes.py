"""The sweeps of `recipes/sweeps/`: every point that is not excluded can be trained, and they name
what they say.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from shutil import copytree

import pytest
from jsonschema import Draft202012Validator

from composer.recipe.recipe import load
from composer.recipe.yaml_reader import read, to_data
from composer.sweeps.points import (
    CostPlanner,
    PointCost,
    cost_point,
    grid_points,
    list_points,
    point_recipe,
    violated_condition,
)
from composer.sweeps.spec import read_sweep

ROOT = Path(__file__).parents[2]
HOME = ROOT / "recipes" / "sweeps"
SWEEPS = sorted(HOME.glob("*.yaml"))


@cache
def points(name: str, every: bool) -> list[PointCost]:
    """Points of a sweep with their costs: each value of each axis at least once, or `every` one.

    Of TPE, which has no points before it runs, those of 8 random trials.
    """
    sweep = read_sweep(HOME / f"{name}.yaml")
    if sweep.search.kind == "tpe":
        sweep = replace(sweep, search=replace(sweep.search, kind="random", trials=8))
    if every or sweep.search.kind != "grid":
        return list_points(sweep)
    planner, seen, chosen = CostPlanner(), set[tuple[str, str]](), []
    for point in grid_points(sweep):
        values = {(axis, str(value)) for axis, value in point.items()}
        if not values <= seen and not violated_condition(sweep, point):
            seen |= values
            chosen.append(cost_point(sweep, point, planner))
    return chosen


@pytest.mark.parametrize(
    "every",
    [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_every_point_is_a_valid_recipe(file: Path, every: bool) -> None:
    result = points(file.stem, every)
    assert [item.faults for item in result if item.faults] == []
    trained = [item for item in result if item.status == "trained"]
    assert len(trained) > len(result) / 2
    assert len({item.fingerprint for item in trained}) == len(trained)


@pytest.mark.parametrize("file", SWEEPS, ids=lambda file: file.stem)
def test_an_editor_sees_no_fault(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=../../schemas/sweep.schema.json\n")
    rules = json.loads((ROOT / "schemas" / "sweep.schema.json").read_text(encoding="utf-8"))
    assert [
        error.message
        for error in Draft202012Validator(rules).iter_errors(to_data(read(file, str(file))))
    ] == []


def test_every_cell_of_the_matrix_combines_its_two_fragments(tmp_path: Path) -> None:
    """A point is what `extends` of the base and of one fragment for each side makes, at one of
    three learning rates.
    """
    file = HOME / "mix_and_match.yaml"
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 20
    sweep = read_sweep(file)
    kinds = ("self_attention", "rnn", "cnn")
    cells = list(product(kinds, (*kinds, "none", "combined")))
    points = list(grid_points(sweep))
    assert [(point["encoder"], point["decoder"]) for point in points] == cells * 3
    (tmp_path / ".git").mkdir()  # the copy is a repository, out of which no path may lead
    copytree(ROOT / "recipes", tmp_path / "recipes")
    mine = tmp_path / "recipes" / "sweeps" / "cell.yaml"
    for point in points:
        sides = ", ".join(
            f"../domhan/fragments/{side}_{point[side]}.yaml" for side in ("encoder", "decoder")
        )
        rate = f"training: {{optimizer: {{adam: {{learning_rate: {point['rate']}}}}}}}"
        extends = f"extends: [fragments/mix_and_match.yaml, {sides}]"
        mine.write_text(f"recipe: 1\n{extends}\n{rate}\n", encoding="utf-8")
        assert point_recipe(sweep, point).fingerprints == load(mine).fingerprints


def test_both_sides_have_the_same_memory() -> None:
    """Both sides of the model have the same memory, and only a tape has slots, heads and shifts."""
    sweep = read_sweep(HOME / "memory_heads.yaml")
    kinds = {
        "queue": "queue_memory",
        "stack": "stack_memory",
        "deque": "deque_memory",
        "tape": "ntm",
    }
    for point in grid_points(sweep):
        assert point["memory"] == point["carried"]
        assert ("slots" in point) == (point["memory"] == "tape")
        model = point_recipe(sweep, point).model
        for (loop,) in (model.encoder, model.decoder):
            names = [name for block in loop.settings["stack"] for name in block]
            assert names[:3] == ["concat", "rnn", kinds[str(point["memory"])]]
        if point["memory"] == "tape":
            (ntm,) = (
                block["ntm"] for block in model.encoder[0].settings["stack"] if "ntm" in block
            )
            assert {key: ntm[key] for key in NTM} == {key: point[axis] for key, axis in NTM.items()}


NTM = {"slots": "slots", "read_heads": "heads", "write_heads": "heads", "shift": "shift"}


@pytest.mark.slow
def test_a_search_stays_below_two_million_parameters() -> None:
    sweep = read_sweep(HOME / "small_numbers.yaml")
    sampled = points("small_numbers", False)
    largest = {axis.name: axis.ends[-1] for axis in sweep.axes}
    assert cost_point(sweep, largest, CostPlanner()).status == "excluded"
    assert all(item.parameters < 2_000_000 for item in sampled if item.status == "trained")
    assert (sweep.search.kind, sweep.pruner.kind if sweep.pruner else None) == ("tpe", "hyperband")
    task = point_recipe(sweep, sampled[0].point).data.generate
    assert task is not None
    assert (task.source, task.target) == ("de", "es")
