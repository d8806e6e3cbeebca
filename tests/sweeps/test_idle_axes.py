"""An axis that leaves a setting without effect: a warning at its points, which train."""

from __future__ import annotations

from pathlib import Path

import pytest

import composer
from composer.checks.planner import plan
from composer.errors import Fault
from composer.recipe.recipe import load
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.dry_run import dry_run_json, dry_run_text
from composer.sweeps.point_arguments import point_from_args
from composer.sweeps.points import list_points
from composer.sweeps.spec import read_sweep
from composer.sweeps.trial import read_trials

BASE = """recipe: 1
data: {generate: {copy: {train: 20, val: 4, test: 4}}}
model:
  width: 8
  encoder: [{rnn: ENCODER}]
  decoder: [rnn, cross_attention]
training: {max_steps: 1}
logging: {wandb: false}
decoding: DECODING
"""
SWEEP = "sweep: 1\nbase: base.yaml\nsearch: {grid: {}}\naxes:\n  "
RNN = "set: model.encoder.0.rnn"
CASES = {
    "the axis itself": (
        "{}",
        "greedy",
        f"x: {{{RNN}.dropout, values: [0.1, 0.2]}}",
        "dropout",
        [1, 2],
    ),
    "another axis": (
        "{}",
        "greedy",
        f"x: {{{RNN}.reset, values: [after, before]}}\n  y: {{{RNN}.cell, values: [gru, lstm]}}",
        "reset",
        [2],
    ),
    "the base's setting": (
        "{}",
        "{beam: {size: 4, length_penalty: 0.7}}",
        "x: {set: decoding.beam.size, values: [1, 2]}",
        "length_penalty",
        [1],
    ),
    "the base's block": (
        "{layers: 2, dropout: 0.1}",
        "greedy",
        f"x: {{{RNN}.layers, values: [1, 2]}}",
        "dropout",
        [1],
    ),
}


def write_files(folder: Path, encoder: str, decoding: str, axes: str) -> Path:
    base = BASE.replace("ENCODER", encoder).replace("DECODING", decoding)
    (folder / "base.yaml").write_text(base, encoding="utf-8")
    (folder / "tried.yaml").write_text(SWEEP + axes + "\n", encoding="utf-8")
    return folder / "tried.yaml"


def idle(warnings: tuple[Fault, ...] | list[Fault], setting: str) -> list[Fault]:
    return [fault for fault in warnings if fault.code == "unused" and fault.path.endswith(setting)]


@pytest.mark.parametrize("case", CASES)
def test_a_dry_run_warns_of_what_an_axis_leaves_without_effect(case: str, tmp_path: Path) -> None:
    encoder, decoding, axes, setting, numbers = CASES[case]
    sweep = read_sweep(write_files(tmp_path, encoder, decoding, axes))
    points = list_points(sweep)
    assert {point.status for point in points} == {"trained"}
    assert [
        number for number, point in enumerate(points, start=1) if idle([*point.warnings], setting)
    ] == numbers
    (warning,) = idle([*points[numbers[0] - 1].warnings], setting)
    assert warning.message in dry_run_text(sweep, points)
    (printed,) = dry_run_json(sweep, points)["points"][numbers[0] - 1]["warnings"]
    assert printed["message"] == warning.message
    point = points[numbers[0] - 1].point
    chosen, _ = point_from_args(
        sweep.file, [f"{name}={value}" for name, value in point.items()], None
    )
    assert [fault.message for fault in idle(plan(chosen).warnings, setting)] == [warning.message]


def test_an_axis_of_the_training_is_seen_beside_the_same_model(tmp_path: Path) -> None:
    axes = "x: {set: training.schedule.linear.final, values: [0.5, 1.0]}"
    points = list_points(read_sweep(write_files(tmp_path, "{}", "greedy", axes)))
    assert [len(idle([*point.warnings], "linear")) for point in points] == [0, 1]


def test_the_points_are_trained(home: Path) -> None:
    """The sweep starts them, here the stub; and its command trains them."""
    encoder, decoding, axes, *_ = CASES["the axis itself"]
    sweep = read_sweep(write_files(home, encoder, decoding, axes.replace("[0.1, 0.2]", "[0.1]")))
    assert run_sweep(sweep, home / "run") == 0
    (trial,) = read_trials(home / "run")
    assert trial.status == "finished"
    folder = composer.train(trial.recipe, run=home / "trained").run_dir
    for recipe in (trial.recipe, folder / "recipe.yaml"):
        (warning,) = idle(plan(load(recipe)).warnings, "dropout")
        assert warning.file == str(recipe)


def test_what_is_dead_in_the_base_itself_is_a_warning_at_its_points(tmp_path: Path) -> None:
    axes = "x: {set: model.width, values: [8, 16]}"
    points = list_points(read_sweep(write_files(tmp_path, "{dropout: 0.1}", "greedy", axes)))
    assert [(point.status, len(idle([*point.warnings], "dropout"))) for point in points] == [
        ("trained", 1)
    ] * 2
