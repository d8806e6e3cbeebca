"""One recipe, several seeds: each an ordinary run, none left out, the best named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from composer.cli.recipes import print_seeds
from composer.errors import RunError
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.training.multi_seed import (
    SeedRuns,
    check_single_process,
    parse_seeds,
    seed_run,
    seed_runs,
    train_seeds,
)
from composer.training.train import train
from tests.run_records import change_record, write_record
from tests.training.tiny_recipes import TINY, same_weights

ROOT = Path(__file__).parents[2]
SHORT = ("training.max_steps=2", "training.validate_every=2")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY, encoding="utf-8")
    return file


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would be run; each leaves a run folder, as `outcomes` says, in place of a
    training.
    """
    asked: list[list[str]] = []

    class Child:
        """A training that is over at once."""

        def __init__(self, command: list[str], **_: Any) -> None:
            asked.append(command)
            folder = Path(command[command.index("--run") + 1])
            self.status = OUTCOMES[int(folder.name.removeprefix("seed-"))](folder)

        def wait(self) -> int:
            return self.status

    monkeypatch.setattr("composer.training.multi_seed.subprocess.Popen", Child)
    return asked


def finishes(loss: float, bleu: float = 0.0) -> Any:
    def ends(folder: Path) -> int:
        folder.mkdir(parents=True)
        scores = {"val/loss": loss, "val/bleu": bleu, "test/loss": 2 * loss}
        write_record(
            RunDir(folder), {"status": "finished", "steps": 9, "minutes": 1.5, "scores": scores}
        )
        return 0

    return ends


def fails(folder: Path) -> int:
    folder.mkdir(parents=True)
    write_record(RunDir(folder), {"status": "failed"})
    rows: list[dict[str, float]] = [
        {"step": 4, "minutes": 0.5, "val/loss": 7.0},
        {"step": 6, "minutes": 0.6, "train/loss": 9.0},
    ]
    RunDir(folder).metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 1


def is_killed(folder: Path) -> int:
    folder.mkdir(parents=True)
    write_record(RunDir(folder), {"status": "running"})
    return -9


def is_refused(folder: Path) -> int:
    return 2


OUTCOMES: dict[int, Any] = {
    1: fails,
    2: finishes(0.5),
    3: finishes(0.25),
    4: is_killed,
    5: finishes(0.9, bleu=30.0),
    6: finishes(0.8, bleu=30.0),
    7: is_refused,
    8: finishes(0.1),
    9: fails,
}
"""What comes of a seed; its exit status."""


def train_all(
    recipe: Path, folder: Path, seeds: str, *overrides: str, resume: bool = False
) -> tuple[SeedRuns, int]:
    return train_seeds(recipe, seeds, folder, silent, overrides, resume=resume)


def silent(text: str) -> None:
    pass


# ------------------------------------------------------------------------------------------- which
# seeds


def test_seeds_are_a_number_or_a_list() -> None:
    assert parse_seeds("3", 1) == [1, 2, 3]
    assert parse_seeds("2", 7) == [7, 8]
    assert parse_seeds("1,2,5", 9) == [1, 2, 5]


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "1,1", "1.5", "123456789"])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(RunError, match="is not a list of seeds"):
        parse_seeds(text, 1)


# ------------------------------------------------------------------------------------------- what
# comes of them


def test_the_summary_has_every_seed_including_failed_ones(
    recipe: Path, tmp_path: Path, commands: list[list[str]]
) -> None:
    result, status = train_all(recipe, tmp_path / "runs", "4")
    assert status == 0
    assert [(item.seed, item.status, item.steps) for item in result.seeds] == [
        (1, "failed", 6),
        (2, "finished", 9),
        (3, "finished", 9),
        (4, "failed", 0),
    ]
    assert result.seeds[0].scores == {"val/loss": 7.0}
    assert (result.metric, result.best) == ("val/loss", 3)
    output = json.loads((tmp_path / "runs" / "seeds.json").read_text())
    assert output["best"] == 3
    assert [item["folder"] for item in output["seeds"]] == ["seed-1", "seed-2", "seed-3", "seed-4"]


def test_the_best_seed_is_chosen_by_the_metric_of_the_runs(
    recipe: Path, tmp_path: Path, commands: list[list[str]]
) -> None:
    early = "training.early_stopping={metric: val/bleu, patience: 9}"
    result, _ = train_all(recipe, tmp_path / "runs", "3,5,6", early)
    assert (result.metric, result.best) == ("val/bleu", 6)  # as good as 5, and its loss is lower
    # a finished run has the score of all lines
    result, _ = train_all(
        recipe, tmp_path / "sampled", "3,5,6", early.replace("val/", "val_sample/")
    )
    assert (result.metric, result.best) == ("val/bleu", 6)


def test_a_refused_recipe_ends_all_seeds(
    recipe: Path, tmp_path: Path, commands: list[list[str]]
) -> None:
    result, status = train_all(recipe, tmp_path / "runs", "7,8")
    assert (status, len(commands), list(result.seeds)) == (2, 1, [])
    assert not (tmp_path / "runs").exists()


def test_the_status_is_1_if_no_seed_finished(
    recipe: Path, tmp_path: Path, commands: list[list[str]]
) -> None:
    result, status = train_all(recipe, tmp_path / "runs", "1,9")
    assert (status, result.best, len(result.seeds)) == (1, None, 2)


def test_finished_seeds_are_not_trained_again(
    recipe: Path, tmp_path: Path, commands: list[list[str]]
) -> None:
    train_all(recipe, tmp_path / "runs", "2,3")
    result, _ = train_all(recipe, tmp_path / "runs", "3,8", resume=True)
    assert [command[command.index("--run") + 1][-1] for command in commands] == ["2", "3", "8"]
    assert "--resume" in commands[-1]
    assert [item.seed for item in result.seeds] == [2, 3, 8]  # all that are in the folder
    assert result.best == 8
    others = dict.fromkeys(("model", "data", "run", "recipe"), "0" * 64)
    change_record(RunDir(tmp_path / "runs" / "seed-8"), fingerprints=others)
    with pytest.raises(FileExistsError):  # of another budget: it goes on
        train_all(recipe, tmp_path / "runs", "3,8", resume=True)


def test_a_folder_with_other_contents_is_refused(
    recipe: Path, tmp_path: Path, commands: list[list[str]]
) -> None:
    train_all(recipe, tmp_path / "runs", "2,3")
    with pytest.raises(RunError, match="not empty"):
        train_all(recipe, tmp_path / "runs", "8,9")
    with pytest.raises(RunError, match="a run of one seed"):
        train_all(recipe, tmp_path / "runs" / "seed-2", "8,9", resume=True)
    assert len(commands) == 2


def test_a_process_among_several_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_single_process()
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(RunError, match="launcher"):
        check_single_process()


def test_the_table_has_a_row_for_each_seed(
    recipe: Path, tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    result, _ = train_all(recipe, tmp_path / "runs", "3")
    print_seeds(result, Path("there"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert lines[0] == ["seed", "status", "steps", "minutes", "val/loss", "test/loss"]
    assert lines[2:5] == [
        ["1", "failed", "6", "0.6", "7.000", "-"],
        ["2", "finished", "9", "1.5", "0.5000", "1.000"],
        ["3", "finished", "9", "1.5", "0.2500", "0.5000"],
    ]
    assert " ".join(lines[5]) == "The best by val/loss: seed 3."


def test_a_seed_whose_scores_are_no_numbers_has_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "seed-1")
    run.path.mkdir()
    run.metrics.write_text('{"step": 4, "val/loss": 7.0}\n')
    for scores, known in (({"val/loss": None}, {}), ({}, {"val/loss": 7.0})):
        write_record(run, {"status": "finished", "scores": scores})
        assert seed_run(1, run).scores == known


# ------------------------------------------------------------------------------------------- as
# commands


def command(recipe: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled",
    }
    line = [sys.executable, "-m", "composer.cli.main", "train", str(recipe), *words]
    return subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.slow
def test_each_seed_is_an_ordinary_run(recipe: Path, tmp_path: Path) -> None:
    process = command(recipe, *SHORT, "--seeds", "1,3", "--run", str(tmp_path / "runs"))
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    train(load(recipe, [*SHORT, "training.seed=3"]), tmp_path / "alone")
    assert same_weights(tmp_path / "alone", tmp_path / "runs" / "seed-3")
    assert not same_weights(tmp_path / "runs" / "seed-1", tmp_path / "runs" / "seed-3")
    assert {item.seed: item.status for item in seed_runs(tmp_path / "runs", "val/loss").seeds} == {
        1: "finished",
        3: "finished",
    }
    assert "The best by val/loss: seed" in said


@pytest.mark.slow
def test_a_signal_stops_the_current_and_all_further_seeds(recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "seed-1"
    process = command(
        recipe,
        "training.max_steps=100000",
        "training.validate_every=50000",
        "--seeds",
        "2",
        "--run",
        str(run.parent),
    )
    for _ in range(3000):
        if (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text().count("\n") > 1:
            break
        assert process.poll() is None, process.stdout and process.stdout.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert RunDir(run).read().status == "interrupted"
    assert list((run / "checkpoints").glob("*.ckpt"))
    assert not (run.parent / "seed-2").exists()
    assert (
        json.loads((run.parent / "seeds.json").read_text())["seeds"][0]["status"] == "interrupted"
    )
