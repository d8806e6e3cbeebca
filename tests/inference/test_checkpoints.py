"""Checkpoints of a run, opened in place of its final weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import composer
from composer.cli.main import main
from composer.errors import RunError
from composer.evaluation.scores import evaluate
from composer.inference.run import open_run
from composer.recipe.recipe import load
from composer.run_dir import RunDir, checkpoint_path, checkpoint_weights, read_checkpoint
from composer.training.checkpointing import AtomicCheckpointIO
from composer.training.train import train
from composer.viz.report import report
from tests.run_records import write_record
from tests.training.tiny_recipes import TINY


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has validated after steps 4, 8 and 12, the last of them with the worst loss."""
    folder = tmp_path_factory.mktemp("checkpoints")
    (folder / "tiny.yaml").write_text(TINY)
    train(
        load(folder / "tiny.yaml", ["training.optimizer.adam.learning_rate=0.02"]), folder / "run"
    )
    return folder / "run"


@pytest.fixture
def unfinished(trained: Path, tmp_path: Path) -> Path:
    """The run as it was before its end."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "model.safetensors").unlink()
    late = {
        "scores",
        "by_length",
        "steps",
        "epochs",
        "minutes",
        "ended_at",
        "checkpoints_used",
        "weights_sha256",
    }
    record = json.loads(RunDir(run).record.read_text())
    record = {key: value for key, value in record.items() if key not in late}
    write_record(RunDir(run), record | {"status": "interrupted"})
    return run


def steps(run: Path) -> list[int]:
    return sorted(
        int(path.stem.removeprefix("step-")) for path in (run / "checkpoints").glob("*.ckpt")
    )


def has_weights_of(run: composer.inference.run.Run, step: int) -> bool:
    weights = checkpoint_weights(checkpoint_path(run.run_dir.checkpoints, step))
    return all(torch.equal(value, weights[name]) for name, value in run.model.state_dict().items())


def test_a_checkpoint_by_its_name(trained: Path, unfinished: Path) -> None:
    (best,) = RunDir(trained).read().checkpoints_used.checkpoints
    for run in (trained, unfinished):
        assert has_weights_of(open_run(run, checkpoint="last"), max(steps(run)))
        assert has_weights_of(open_run(run, checkpoint="best"), int(best[5:13]))
        for step in steps(run):
            assert has_weights_of(open_run(run, checkpoint=step), step)
    for name in ("5", "newest", 10**30):
        with pytest.raises(
            RunError,
            match=r"no checkpoint `.*`\n *fix: write one of these: `last`, `best`, or a step: ",
        ):
            open_run(trained, checkpoint=name)
    last = checkpoint_path(unfinished / "checkpoints", max(steps(unfinished)))
    content = read_checkpoint(last)
    content["callbacks"]["TrainingLoopCallback"]["history"] = []
    AtomicCheckpointIO().save_checkpoint(content, last)
    with pytest.raises(
        RunError, match=r"`best`; nothing was.*\n *fix: write one of these: `last`, or a step: "
    ):
        open_run(unfinished, checkpoint="best")


def test_what_would_change_nothing_of_an_open_run_is_refused(trained: Path) -> None:
    run = open_run(trained)
    for settings in ({"checkpoint": "best"}, {"overrides": ["decoding.beam.size=3"]}):
        for use in (evaluate, lambda run, **given: composer.translate(run, ["a b"], **given)):
            with pytest.raises(TypeError, match="this run is open: open it with them"):
                use(run, **settings)


def test_without_weights_the_error_says_how(unfinished: Path) -> None:
    with pytest.raises(
        RunError, match=r"no weights yet.*\n *fix: .*--finish`; .*`generate`, `score`, .*best`"
    ):
        open_run(unfinished)
    shutil.rmtree(unfinished / "checkpoints")
    with pytest.raises(RunError, match="wait for the first validation"):
        open_run(unfinished, checkpoint="last")


def test_weights_that_were_removed_are_not_called_unfinished(trained: Path, tmp_path: Path) -> None:
    finished = shutil.copytree(trained, tmp_path / "finished")
    (finished / "model.safetensors").unlink()
    with pytest.raises(
        RunError,
        match=r"which has finished, are missing\n *fix: restore the file, or pass `--checkpoint",
    ):
        open_run(finished)


def test_all_that_opens_runs_takes_one(
    unfinished: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = ["a b c", "d e f a"]
    step = steps(unfinished)[0]
    expected = open_run(unfinished, checkpoint=step).translate(lines)
    assert composer.translate(unfinished, lines, checkpoint=step) == expected
    (tmp_path / "lines").write_text("a b c\nd e f a\n")
    with pytest.raises(SystemExit, match="0"):
        main(
            [
                "translate",
                str(unfinished),
                "--checkpoint",
                str(step),
                "--input",
                str(tmp_path / "lines"),
            ]
        )
    assert capsys.readouterr().out.splitlines() == expected
    scores = evaluate(unfinished, checkpoint=step)
    with pytest.raises(SystemExit, match="0"):
        main(["evaluate", str(unfinished), "--checkpoint", str(step), "--json"])
    assert json.loads(capsys.readouterr().out) == scores
    page = report(unfinished, checkpoint=step).read_text()
    assert f"the checkpoint after {step:,} steps" in page
    assert f"{scores['test/chrf']:.2f}" in page  # what the page decodes, it also scores


def test_a_checkpoint_is_verified(unfinished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *_, before, last = steps(unfinished)
    path = checkpoint_path(unfinished / "checkpoints", last)
    content = read_checkpoint(path)
    texts = content["hyper_parameters"]
    other = content | {
        "hyper_parameters": texts | {"recipe": texts["recipe"].replace("width: 8", "width: 16")}
    }
    AtomicCheckpointIO().save_checkpoint(other, path)
    with pytest.raises(RunError, match=r"made with another recipe: `model\.width` was 16 and is 8"):
        open_run(unfinished, checkpoint=last)
    AtomicCheckpointIO().save_checkpoint(
        content | {"state_dict": {"model.x": torch.zeros(2)}}, path
    )
    with pytest.raises(RunError, match="do not fit the model"):
        open_run(unfinished, checkpoint="last")
    path.write_bytes(b"no")
    with pytest.raises(RunError, match="damaged"):
        open_run(unfinished, checkpoint=last)
    assert has_weights_of(open_run(unfinished, checkpoint="last"), before)
    assert "is damaged and is passed over" in capsys.readouterr().err
