"""Costs of a sweep's points: of the models that are trained, where the data are there; else upper
bounds, called so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from composer.data import tokenizer_training
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_kinds import TokenizerKind
from composer.errors import RecipeError
from composer.model.weights import count_parameters
from composer.sweeps import trial_course
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.dry_run import dry_run_json, dry_run_text
from composer.sweeps.leaderboard.page import write_leaderboard
from composer.sweeps.point_arguments import point_from_args
from composer.sweeps.points import CostPlanner, list_points, point_recipe
from composer.sweeps.spec import read_sweep
from composer.sweeps.trial import read_trial, read_trials, write_trial
from composer.training.datamodule import RecipeDataModule
from composer.training.module import Seq2SeqModule
from tests.sweeps import leaderboard_dirs, stub_sweeps

BASE = """recipe: 1
data:
  parallel: {train: {source: train.src, target: train.trg}, val: 2}
model:
  width: 8
  encoder: [{rnn: {cell: gru}}]
  decoder: [{rnn: {cell: gru}}, cross_attention]
training: {max_steps: 2}
logging: {wandb: false}
"""
SWEEP = """sweep: 1
base: base.yaml
axes:
  tokenizer: {set: data.tokenizer, values: [word, bpe, char]}
  width: {set: model.width, values: [8, 16]}
"""
LINES = [
    "a small dog runs",
    "two men",
    "a man sleeps",
    "the dog sleeps in the sun",
    "she reads",
    "he reads a book",
]


def write_files(folder: Path, rest: str = "", with_data: bool = True) -> Path:
    """Write a sweep, its base and, unless it must be missing, the text; return the sweep."""
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    (folder / "tried.yaml").write_text(SWEEP + rest, encoding="utf-8")
    if with_data:
        for side in ("src", "trg"):
            (folder / f"train.{side}").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return folder / "tried.yaml"


def test_costs_are_those_of_the_models_that_are_trained(tmp_path: Path) -> None:
    sweep = read_sweep(write_files(tmp_path))
    for point in list_points(sweep):
        recipe = point_recipe(sweep, point.point)
        module = Seq2SeqModule.from_recipe(recipe, RecipeDataModule(recipe).tokenizers)
        assert (point.parameters, point.at_most) == (count_parameters(module.model), False)
    assert "at most" not in dry_run_text(sweep, list_points(sweep))


def test_each_tokenizer_is_trained_once_and_a_dry_run_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = []
    train = tokenizer_training.train_tokenizers

    def count_and_train(
        section: Mapping[str, Any], lines: Mapping[str, Iterable[str]], kind: TokenizerKind
    ) -> Tokenizers:
        trained.append(section["tokenizer"])
        return train(section, lines, kind)

    monkeypatch.setattr(tokenizer_training, "train_tokenizers", count_and_train)
    sweep = read_sweep(write_files(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    assert len(list_points(sweep)) == 6
    assert [next(iter(tokenizer)) for tokenizer in trained] == ["word", "bpe", "char"]
    assert sorted(tmp_path.rglob("*")) == before


def test_where_compares_what_will_be_built(tmp_path: Path) -> None:
    sizes = {
        json.dumps(one.point): one.parameters
        for one in list_points(read_sweep(write_files(tmp_path)))
    }
    limit = sorted(sizes.values())[2]
    sweep = read_sweep(write_files(tmp_path, f"where: parameters < {limit}\n"))
    points = list_points(sweep)
    assert {json.dumps(one.point) for one in points if one.status == "trained"} == {
        point for point, size in sizes.items() if size < limit
    }
    point_from_args(
        sweep.file, [f"{axis}={value}" for axis, value in points[0].point.items()], None
    )


def test_without_the_data_sizes_are_called_upper_bounds(tmp_path: Path) -> None:
    sweep = read_sweep(write_files(tmp_path, with_data=False))
    points = list_points(sweep)
    assert all(point.at_most for point in points)
    first = points[0]
    assert f"at most {first.parameters:,}  at most " in dry_run_text(sweep, points)
    assert [point["at_most"] for point in dry_run_json(sweep, points)["points"]] == [True] * 6


def test_faults_of_where_say_at_most_and_what_to_do(tmp_path: Path) -> None:
    sweep = read_sweep(write_files(tmp_path, "where: parameters < 100\n", with_data=False))
    with pytest.raises(RecipeError) as all_points:
        list_points(sweep)
    with pytest.raises(RecipeError) as one_point:
        point_from_args(sweep.file, ["tokenizer=bpe", "width=8"], None)
    for caught, words in (
        (all_points, "the smallest has at most "),
        (one_point, "it has at most "),
    ):
        (fault,) = caught.value.faults
        assert words in fault.message
        assert "--data DIR" in fault.hint


def test_a_point_that_its_axes_exclude_has_no_costs(tmp_path: Path) -> None:
    file = write_files(tmp_path, 'where: tokenizer != "bpe"\n')
    with pytest.raises(RecipeError) as caught:
        point_from_args(file, ["tokenizer=bpe", "width=8"], None)
    assert caught.value.faults[0].message == 'the sweep excludes this point by `tokenizer != "bpe"`'


def test_a_search_excludes_by_what_it_would_build_and_says_how_large_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial_course, "train_command", stub_sweeps.stub)
    none = "search: {tpe: {trials: 1}}\nwhere: parameters < 100\n"
    assert run_sweep(read_sweep(write_files(tmp_path, none)), tmp_path / "run") == 1
    (reason,) = (line for line in capsys.readouterr().out.splitlines() if "excluded by" in line)
    assert "excluded by `parameters < 100`: it has " in reason
    assert "at most" not in reason
    # with 10,000 words a side it would be 330,000
    some = "search: {tpe: {trials: 1}}\nwhere: parameters < 20000\n"
    run_sweep(read_sweep(write_files(tmp_path, some)), tmp_path / "other")
    (trial,) = read_trials(tmp_path / "other")
    assert (trial.parameters < 20000, trial.at_most) == (True, False)
    capsys.readouterr()
    # as of a data set that is not here
    monkeypatch.setattr(CostPlanner, "trained_vocabularies", lambda *_: None)
    run_sweep(
        read_sweep(write_files(tmp_path, "search: {tpe: {trials: 1}}\n")), tmp_path / "unknown"
    )
    (trial,) = read_trials(tmp_path / "unknown")
    assert trial.at_most
    assert f"(at most {trial.parameters:,} parameters" in capsys.readouterr().out


def test_the_leaderboard_marks_upper_bounds_unless_a_run_has_counted(tmp_path: Path) -> None:
    folder = leaderboard_dirs.begun(tmp_path / "run")
    trial = read_trial(leaderboard_dirs.trial(folder, 1, [0.5], parameters=4000, flops=6000))
    write_trial(replace(trial, at_most=True))
    board = leaderboard_dirs.read_board(folder)
    assert "at most 4,000" in board.text()
    assert board.as_json()["trials"][0]["at_most"] == ["parameters", "flops", "state_bytes"]
    assert (
        "against parameters, at most, 1 trials"
        in write_leaderboard(board, tmp_path / "a.html").read_text()
    )
    record = trial.run(1) / "run.json"
    record.write_text(
        json.dumps({**json.loads(record.read_text()), "parameters": 3000}), encoding="utf-8"
    )
    board = leaderboard_dirs.read_board(folder)
    assert "at most 6k" in board.text()
    assert "at most 3,000" not in board.text()
    assert (
        "against parameters, 1 trials" in write_leaderboard(board, tmp_path / "a.html").read_text()
    )
    assert board.as_json()["trials"][0]["at_most"] == ["flops", "state_bytes"]
