"""A trial's `#rank` and a sweep's point, in every command and function that takes a run or a
recipe.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import composer
from composer.cli import main
from composer.errors import RecipeError, RunError
from composer.recipe.recipe import load
from composer.run_dir import RunDir, find_run
from tests.sweeps.leaderboard_dirs import begun, trial
from tests.sweeps.small_sweeps import BASE
from tests.sweeps.tiny_sweep import write_sweep

POINT = ["encoder=recurrent", "attention=dot", "rate=1e-3", "width=8"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    return composer.train(folder / "base.yaml", run=folder / "run").run_dir


@pytest.fixture
def sweep(trained: Path, tmp_path: Path) -> Path:
    """A sweep of one trial with two seeds, both real runs."""
    folder = begun(tmp_path / "sweep", [{"val/loss": "min"}])
    home = trial(folder, 1)
    for seed in (1, 2):
        shutil.copytree(trained, home / f"seed-{seed}")
    return folder


def run_of(sweep: Path) -> Path:
    return sweep / "trials" / f"{1:012x}" / "seed-1"


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main.main(words)
    return int(left.value.code or 0)


def test_a_trial_with_several_seeds_names_the_seed(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_run(f"{sweep}#1") == run_of(sweep)
    assert capsys.readouterr().err == f"{sweep}#1 is {run_of(sweep)}; the trial also has seed-2\n"
    shutil.rmtree(run_of(sweep).with_name("seed-2"))
    assert find_run(f"{sweep}#1") == run_of(sweep)
    assert capsys.readouterr().err == ""


def test_a_path_is_a_path_whatever_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a#1").mkdir()
    assert find_run(tmp_path / "a#1") == tmp_path / "a#1"
    assert find_run(tmp_path / "b#1") == tmp_path / "b#1"
    with pytest.raises(RunError, match="no sweep has run here"):
        find_run(tmp_path / "a#2")


def export_problem(run: str, new: Path) -> str:
    """Return why CTranslate2 cannot have a run, with its folder."""
    with pytest.raises(RunError) as raised:
        composer.export(run, new)
    return str(raised.value)


FUNCTIONS: dict[str, Callable[[str, Path], object]] = {
    "open_run": lambda run, _: composer.open_run(run).recipe.canonical,
    "translate": lambda run, _: composer.translate(run, ["a b"]),
    "translate, an ensemble": lambda run, _: composer.translate([run, run], ["a b"]),
    "translate with a draft": lambda run, _: composer.translate(
        run, ["a b"], ["decoding=greedy"], draft=run
    ),
    "score": lambda run, _: composer.score(run, ["a b"], ["b a"])[0],
    "plan": lambda run, _: composer.plan(run).vocabularies,
    "check": lambda run, _: composer.check(run, without_data=True),
    "draw": lambda run, _: composer.draw(run).mermaid(),
    "fingerprints": lambda run, _: composer.fingerprints(run),
    "diff": lambda run, _: composer.diff(run, run, quick=True).one.record,
    "diff with settings": lambda run, _: composer.diff(run, overrides=["model.width=16"]).as_json()[
        "costs"
    ],
    "export": lambda run, new: export_problem(run, new),
    "pack": lambda run, new: (
        composer.pack(run, new / "pack").stat().st_size if new.mkdir() is None else 0
    ),
    "push": lambda run, new: composer.push(run, str(new)).sha256,
    "report": lambda run, new: composer.report(run, output=new.with_suffix(".html")).exists(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_a_trial(name: str, sweep: Path, tmp_path: Path) -> None:
    call = FUNCTIONS[name]
    assert call(f"{sweep}#1", tmp_path / "one") == call(str(run_of(sweep)), tmp_path / "other")


def test_every_function_of_runs_is_tested() -> None:
    taking = {
        name
        for name in composer.__all__
        if callable(function := getattr(composer, name)) and not isinstance(function, type)
        if {"run", "runs", "recipe_or_run", "a", "path"}
        & set(inspect.signature(function).parameters)
    }
    tested = {name.partition(" ")[0].rstrip(",") for name in FUNCTIONS}
    # `train` writes into its `run`; the others read files, or are tested beside what they compute
    others = {"average", "block", "evaluate", "generate", "load", "serve"}
    others |= {"sweep", "sweep_status", "train"}
    assert taking - tested == others & taking


@pytest.mark.parametrize(
    "words",
    [("plan", "--json"), ("draw",), ("fingerprints",), ("check", "--without-data", "--json")],
)
def test_commands_take_a_trial(
    words: tuple[str, ...], sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for run in (f"{sweep}#1", str(run_of(sweep))):
        assert command(words[0], run, *words[1:]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_the_plan_of_a_run_has_its_vocabularies(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = RunDir(trained).read()
    assert command("plan", str(trained), "--json") == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == record.parameters
    assert composer.plan(trained).at_most is False
    assert composer.plan(composer.open_run(trained)).vocabularies == record.vocabularies


# ------------------------------------------------------------------------------------------- points


@pytest.mark.parametrize("name", ["plan", "draw", "build", "fingerprints", "data_loader"])
def test_what_takes_a_recipe_takes_a_point(name: str, tmp_path: Path) -> None:
    file, function = write_sweep(tmp_path), getattr(composer, name)
    assert function(file, overrides=POINT)
    with pytest.raises(RecipeError, match="`width` of the sweep `tiny` has no value"):
        function(file, overrides=POINT[:-1])


def test_a_point_is_planned_as_what_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_sweep(tmp_path)
    assert command("plan", str(file), *POINT, "--json") == 0
    planned = json.loads(capsys.readouterr().out)["parameters"]
    assert planned == composer.plan(file, POINT).parameters
    assert command("plan", str(file), *POINT, "model.width=16", "--json") == 0
    assert json.loads(capsys.readouterr().out)["parameters"] > planned
    assert command("draw", str(file), *POINT) == 0
    assert "rnn" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------- in
# place


def test_a_trial_is_not_trained_on_in_place(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(sweep)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    steps = load(run / "recipe.yaml").training.max_steps
    assert command("train", f"{sweep}#1", "--resume", f"training.max_steps={2 * steps}") == 2
    error = capsys.readouterr().err
    assert "this run is a trial of a sweep, whose leaderboard would change" in error
    assert "copy the folder, and resume the copy by its recipe.yaml; or begin a new run" in error
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
