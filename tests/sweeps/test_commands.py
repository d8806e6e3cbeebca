"""The commands of sweeps: one point by `axis=value`, the listing, and what is said where a sweep is
no recipe.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import composer
from composer.cli import main
from composer.errors import RecipeError, RunError
from composer.recipe.recipe import load
from composer.sweeps.directory import check_resumable, read_ranked_sweep, write_sweep_record
from composer.sweeps.point_arguments import parse_point, point_from_args
from composer.sweeps.points import list_points
from composer.sweeps.spec import read_sweep
from composer.sweeps.sweep import Point, SweepDir
from composer.training.train import train
from composer.training.wandb_logger import sweep_overrides
from tests.sweeps.tiny_sweep import SWEEP, write_sweep

Runner = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Runner:
    """Runs a command in the folder of the sweep, in this process."""
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path)

    def running(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main.main(arguments)
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return running


def told(folder: Path, *words: str, text: str = SWEEP) -> list[str]:
    """What is wrong with words."""
    with pytest.raises(RecipeError) as refused:
        point_from_args(write_sweep(folder, text), words, None)
    return [fault.message for fault in refused.value.faults]


# ------------------------------------------------------------------------------------------- a
# point by its words


def test_a_word_without_a_value_is_no_axis(tmp_path: Path) -> None:
    (message,) = told(tmp_path, "attention=none", "encoder=recurrent", "rate=5e-3", "foo")
    assert message == "`foo` is not KEY=VALUE"


def test_arguments_select_a_point(tmp_path: Path) -> None:
    words = ["attention=none", "encoder=recurrent", "rate=5e-3", "width=16", "training.max_steps=3"]
    file = write_sweep(tmp_path)
    recipe, folder = point_from_args(file, words, None)
    assert parse_point(read_sweep(file), words) == {
        "encoder": "recurrent",
        "attention": "none",
        "rate": 0.005,
        "width": 16,
        "hidden": 48,
    }
    assert recipe.training.optimizer.learning_rate == 0.005
    assert recipe.training.max_steps == 3
    assert recipe.model.width == 16
    assert [block.word for block in recipe.model.decoder] == ["rnn", "residual"]
    assert folder == Path("runs") / recipe.name


def test_values_of_inactive_axes_are_ignored(tmp_path: Path) -> None:
    file = write_sweep(tmp_path)
    words = ["attention=dot", "encoder=convolution", "width=8"]
    one, other = (parse_point(read_sweep(file), [*more, *words]) for more in (["rate=5e-3"], []))
    assert "rate" not in one
    assert one == other
    recipe, _ = point_from_args(file, ["rate=5e-3", *words], None)
    assert recipe.training.optimizer.learning_rate == 0.001


def test_each_seed_has_its_folder(tmp_path: Path) -> None:
    words = ["attention=dot", "encoder=convolution", "width=8"]
    file = write_sweep(tmp_path)
    seeds = [point_from_args(file, [*words, f"training.seed={seed}"], None) for seed in (1, 2)]
    assert [recipe.training.seed for recipe, _ in seeds] == [1, 2]
    assert [folder.name for _, folder in seeds] == ["seed-1", "seed-2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["encoder=recurent"], "`encoder` is never `recurent`; did you mean `recurrent`?"),
        (["encoder="], "`encoder` is never ``"),
        (["rate=1"], "`rate` is never `1`"),
        (["rate=fast"], "`rate` is never `fast`"),
        (["width=9"], "`width` is never `9`"),
        (["hidden=24", "width=16"], "`hidden` is zipped to `width`, so it is `48` here"),
        (["encodr=recurrent"], "the sweep has no axis `encodr`; did you mean `encoder`?"),
    ],
)
def test_arguments_outside_of_the_sweep_are_refused(
    words: list[str], message: str, tmp_path: Path
) -> None:
    given = {"encoder": "recurrent", "attention": "dot", "rate": "1e-3", "width": "8"}
    kept = [
        f"{axis}={value}"
        for axis, value in given.items()
        if not any(word.startswith(f"{axis}=") for word in words)
    ]
    assert told(tmp_path, *kept, *words) == [message]


def test_all_missing_axes_are_reported(tmp_path: Path) -> None:
    missing = told(tmp_path, "encoder=recurrent")
    assert missing == [
        f"`{axis}` of the sweep `tiny` has no value" for axis in ("attention", "rate", "width")
    ]


def test_an_excluded_point_is_refused(tmp_path: Path) -> None:
    (message,) = told(tmp_path, "encoder=convolution", "attention=dot", "width=512")
    assert message.startswith("the sweep excludes this point by `parameters < 100K`: it has ")


def test_an_impossible_point_is_refused_with_the_recipes_own_error(tmp_path: Path) -> None:
    text = SWEEP.replace("[8, 16, 512]", "[8, 9, 16]").replace("score: dot", "heads: 2")
    (message,) = told(tmp_path, "encoder=convolution", "attention=dot", "width=9", text=text)
    assert message == "2 does not divide the width 9"


def test_labels_are_distinguished_by_type(tmp_path: Path) -> None:
    axes = "axes:\n  norm: {set: model.decoder.1.residual.norm, values: [none, pre]}\n"
    axes += "  joint: {set: data.tokenizer.word.joint, values: [true, false]}\n"
    text = f"sweep: 1\nbase: base.yaml\n{axes}"
    file = write_sweep(tmp_path, text)
    base = (tmp_path / "base.yaml").read_text()
    (tmp_path / "base.yaml").write_text(
        base.replace("[{cross_attention", "{stack: [{cross_attention").replace(
            "{heads: 2}}]", "{heads: 2}}]}"
        )
    )
    assert parse_point(read_sweep(file), ["norm=pre", "joint=True"]) == {
        "norm": "pre",
        "joint": True,
    }


def test_the_first_probe_point_is_a_valid_point(tmp_path: Path) -> None:
    sweep = read_sweep(write_sweep(tmp_path))
    assert sweep.probe_points()[0] == {
        "encoder": "recurrent",
        "attention": "dot",
        "rate": 1e-4,
        "width": 8,
        "hidden": 24,
    }


AXES = [
    'logging.wandb.config.encoder="none"',
    "logging.wandb.config.rate=1e-05",
    "logging.wandb.config.tied=true",
]


@pytest.mark.parametrize(
    ("wandb", "words"),
    [
        ("", ["logging.wandb.group=g", *AXES, "logging.wandb.mode=offline"]),
        ("logging: {wandb: false}", []),
        ("logging: {wandb: {mode: disabled}}", []),
        ("logging: {wandb: {project: p}}", ["logging.wandb.group=g", *AXES]),
        ("logging: {wandb: {project: p, group: mine}}", AXES),
    ],
)
def test_wandb_shows_a_run_as_one_of_its_sweep(
    wandb: str, words: list[str], tmp_path: Path
) -> None:
    """What a recipe says of W&B stays, and one that says nothing is not sent anywhere for it."""
    write_sweep(tmp_path)
    file = tmp_path / "base.yaml"
    file.write_text(f"{file.read_text(encoding='utf-8')}\n{wandb}\n", encoding="utf-8")
    point: Point = {"encoder": "none", "rate": 1e-5, "tied": True}
    assert sweep_overrides(load(file), "g", point) == words
    settings = load(file, words).logging.wandb
    if words:
        assert settings.config == point
        assert type(settings.config["tied"]) is bool


def test_no_axis_is_called_as_a_key_of_a_runs_config(tmp_path: Path) -> None:
    for name in ("fingerprints", "evaluation"):
        axes = f"axes:\n  {name}: {{set: model.width, values: [8, 16]}}\n"
        with pytest.raises(RecipeError, match=f"an axis cannot be called `{name}`"):
            read_sweep(write_sweep(tmp_path, f"sweep: 1\nbase: base.yaml\n{axes}"))


# -------------------------------------------------------------------------------------------
# commands


@pytest.mark.parametrize("command", ["draw", "plan"])
def test_a_sweep_is_no_recipe(run: Runner, command: str) -> None:
    status, out, err = run(command, "tiny.yaml")
    assert status == 2
    assert out == ""
    assert err.startswith("tiny.yaml:1:1: error[sweep]: this is a sweep")
    assert "seqcomposer sweep tiny.yaml --dry-run" in err


def test_a_point_is_trained(run: Runner, tmp_path: Path) -> None:
    words = (
        "encoder=convolution",
        "attention=none",
        "width=8",
        "training.max_steps=1",
        "training.seed=3",
    )
    status, _, err = run("train", "tiny.yaml", *words, "--run", "one")
    assert (status, json.loads(Path("one/run.json").read_text())["status"]) == (0, "finished"), err
    output = (tmp_path / "one/recipe.yaml").read_text()
    assert "conv" in output
    assert "cross_attention" not in output
    assert "group: tiny" in output
    assert "sweep:" not in output  # an ordinary recipe: it needs neither the sweep nor its base


def test_a_dry_run_lists_and_writes_nothing(run: Runner, tmp_path: Path) -> None:
    before = set(tmp_path.rglob("*"))
    status, out, err = run("sweep", "tiny.yaml", "--dry-run")
    assert status == 0, err
    assert "attention" in out
    status, out, err = run("sweep", "tiny.yaml", "--dry-run", "--json")
    assert status == 0, err
    assert json.loads(out)
    status, out, err = run("sweep", "tiny.yaml", "--json")
    assert (status, out) == (2, "")
    assert "only `--status` and `--dry-run` print JSON" in err
    assert set(tmp_path.rglob("*")) == before


def test_a_leaderboard_without_a_sweep_is_refused(run: Runner) -> None:
    for output in ("tiny.yaml", "runs/tiny", "."):
        status, _, err = run("leaderboard", output)
        assert status == 2
        assert "error[" in err


def test_a_sweep_trains_every_point_once_and_has_a_leaderboard(run: Runner, tmp_path: Path) -> None:
    """From the file to the page, with a real training, in a process; run again, nothing is trained
    twice.
    """
    axes = "axes:\n  decoder: {replace: model.decoder..cross_attention, with: {none: identity}}\n"
    (tmp_path / "tiny.yaml").write_text(
        f"sweep: 1\nname: one\nbase: base.yaml\n{axes}rank: [{{val/loss: min}}]\n", encoding="utf-8"
    )
    command = ("sweep", "tiny.yaml", "training.max_steps=2", "logging.wandb=false")
    status, _, err = run(*command)
    assert status == 0, err
    records = {
        file: file.stat().st_mtime_ns for file in tmp_path.glob("runs/one/trials/*/seed-7/run.json")
    }
    assert [json.loads(file.read_text())["steps"] for file in records] == [2]
    assert run(*command)[0] == 0
    assert records == {file: file.stat().st_mtime_ns for file in records}
    for named in ("tiny.yaml", "runs/one"):
        status, out, err = run("leaderboard", named, "--json")
        assert status == 0, err
        assert [item["rank"] for item in json.loads(out)["trials"]] == [1]
    status, out, err = run("leaderboard", "runs/one", "--output", "one.html")
    assert (status, err) == (0, "")
    assert "val/loss" in out
    assert "<html" in Path("one.html").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------- a
# recipe with several seeds


def test_seeds_of_a_recipe_are_a_sweep_of_its_base_alone(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    sweep = read_sweep(tmp_path / "base.yaml", ["model.dropout=0"], seeds="2")
    assert (sweep.name, sweep.seeds, sweep.axes) == ("base", (1, 2), ())
    (point,) = list_points(sweep)
    assert (point.point, point.status) == ({}, "trained")
    assert read_sweep(tmp_path / "base.yaml", seeds="5,1").seeds == (5, 1)
    home = SweepDir(tmp_path / "home")
    home.path.mkdir()
    write_sweep_record(home, sweep, 1)
    assert read_ranked_sweep(home).name == "base"
    check_resumable(home, read_sweep(tmp_path / "base.yaml", ["model.dropout=0"], seeds="3"))
    with pytest.raises(RunError, match="another sweep"):
        check_resumable(home, read_sweep(tmp_path / "base.yaml", seeds="2"))


@pytest.mark.parametrize("seeds", ["0", "-1", "1,1", "two", "", "1001", "1,"])
def test_seeds_are_a_number_or_a_list(tmp_path: Path, seeds: str) -> None:
    write_sweep(tmp_path)
    with pytest.raises(RunError, match="is not a list of seeds"):
        read_sweep(tmp_path / "base.yaml", seeds=seeds)


def test_a_sweep_has_its_seeds_in_its_file(run: Runner) -> None:
    status, _, err = run("sweep", "tiny.yaml", "--seeds", "2", "--dry-run")
    assert status == 2
    assert "tiny.yaml:1:1: error[seeds]" in err
    assert "write `seeds: [1, 2]` in it" in err
    status, out, _ = run("sweep", "base.yaml", "--seeds", "2", "--dry-run")
    assert (status, "1 point to train, each with 2 seeds" in out) == (0, True)


@pytest.mark.slow
def test_each_seed_of_a_recipe_is_the_run_that_train_makes(tmp_path: Path) -> None:
    write_sweep(tmp_path)
    board = composer.sweep(tmp_path / "base.yaml", seeds="2", run=tmp_path / "seeds")
    (trial,) = [result.trial for result in board.results]
    assert trial.finished_seeds == [1, 2]
    alone = train(load(tmp_path / "base.yaml", ["training.seed=2"]), tmp_path / "alone")
    assert alone.record.weights_sha256 == trial.records[2].weights_sha256
