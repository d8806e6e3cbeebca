"""`average` of a finished run, and `evaluate` of an ensemble: both as computed by hand."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import composer
from composer.cli import main
from composer.comparison.tables import Side, compare_fingerprints
from composer.data.pairs import TARGET
from composer.errors import RunError
from composer.evaluation.scores import read_split
from composer.fingerprint import current_fingerprints, read_verified
from composer.inference.run import Run
from composer.metrics.table import METRICS
from composer.run_dir import RunDir, checkpoint_weights, list_checkpoints
from composer.runs.record import UsedCheckpoints
from tests.run_records import change_record
from tests.sweeps.small_sweeps import BASE

STEPS = ["training.max_steps=8", "training.validate_every=2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run `all`, which keeps three checkpoints, one `two` of another seed, which
    keeps two.
    """
    folder = tmp_path_factory.mktemp("average")
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    for name, more in (("all", ["training.average_checkpoints=3"]), ("two", ["training.seed=3"])):
        composer.train(folder / "base.yaml", run=folder / name, overrides=[*STEPS, *more])
    return folder


def command(*words: str) -> int:
    with pytest.raises(SystemExit) as left:
        main.main(words)
    return int(left.value.code or 0)


# -------------------------------------------------------------------------------------------
# averages


def test_an_average_is_the_mean_of_the_last_checkpoints(home: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (home / "all").rglob("*") if path.is_file()}
    new = composer.average(home / "all", 2, tmp_path / "new")
    paths = list_checkpoints(home / "all" / "checkpoints")[-2:]
    one, other = map(checkpoint_weights, paths)
    for name, value in load_file(new / "model.safetensors").items():
        torch.testing.assert_close(
            value, ((one[name].double() + other[name].double()) / 2).to(value.dtype)
        )
    record = read_verified(RunDir(new))
    assert record.checkpoints_used == UsedCheckpoints("average", tuple(path.name for path in paths))
    assert record.scores == {}
    assert composer.open_run(new).translate(["a b"])
    assert composer.evaluate(new)["test/loss"] != composer.evaluate(home / "all")["test/loss"]
    assert {
        path: path.read_bytes() for path in (home / "all").rglob("*") if path.is_file()
    } == before


def test_an_average_is_what_the_training_would_have_averaged(home: Path, tmp_path: Path) -> None:
    new = composer.average(home / "all", 3, tmp_path / "new")
    mine, theirs = (load_file(run / "model.safetensors") for run in (new, home / "all"))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


@pytest.mark.slow
def test_an_average_has_a_fingerprint_of_its_own(home: Path, tmp_path: Path) -> None:
    """No training has its weights: what `train` makes of its recipe is the run that it is an
    average of.
    """
    new, again, other = (
        composer.average(home / "all", last, tmp_path / f"{last}{at}")
        for at, last in enumerate((2, 2, 3))
    )
    prints, trained = composer.fingerprints(new), composer.fingerprints(home / "all")
    assert {key for key in trained if prints[key] != trained[key]} == {"run", "weights"}
    assert composer.fingerprints(again) == prints
    assert composer.fingerprints(other)["run"] not in (prints["run"], trained["run"])
    difference = composer.diff(home / "all", new)
    assert not difference.same
    assert difference.agreement.text() == "model and data the same, run not"
    result = composer.train(new / "recipe.yaml", run=tmp_path / "reproduced")
    assert result.record.fingerprints["run"] == trained["run"]
    assert result.record.weights_sha256 == trained["weights"]
    assert result.record.reproduces.fingerprint == prints["run"]
    assert (result.record.reproduces.same, "is an average" in result.record.reproduces.message) == (
        None,
        True,
    )


def test_the_own_fingerprint_of_an_average_is_known_where_all_are_computed_anew(
    home: Path, tmp_path: Path
) -> None:
    new = composer.average(home / "all", 2, tmp_path / "new")
    record, recipe = RunDir(new).read(), composer.load(new / "recipe.yaml")
    earlier = replace(record, fingerprints={**record.fingerprints, "version": "1"})
    assert current_fingerprints(recipe, earlier)["run"] == record.fingerprints["run"]
    # as of a run of several processes, whose `run` nobody knows by now: what is compared is the
    # recipes' own
    unknown = replace(earlier, fingerprint_parts=None, machine={"processes": 2})
    one, other = (
        Side("", recipe, replace(unknown, averaged=of), new) for of in (record.averaged, None)
    )
    assert "run" not in current_fingerprints(recipe, one.record)
    lost = compare_fingerprints(one, other, None, print)
    assert (lost.same("model"), lost.same("run")) == (True, False)


def test_more_than_are_kept_are_refused_with_their_number(home: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"2 checkpoints are kept, and 3 are to be averaged"
    ) as refused:
        composer.average(home / "two", 3, tmp_path / "new")
    assert "`--last 2`" in refused.value.faults[0].hint
    with pytest.raises(RunError, match="the mean of 1 is none"):
        composer.average(home / "two", 1, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_checkpoints_of_a_gap_are_not_the_last(home: Path, tmp_path: Path) -> None:
    """The best one is kept, too, however early it was."""
    run = Path(shutil.copytree(home / "all", tmp_path / "run"))
    list_checkpoints(run / "checkpoints")[-2].unlink()
    with pytest.raises(RunError, match=r"1 checkpoint is kept, and 2 are to be averaged"):
        composer.average(run, 2)


def test_a_run_that_has_not_finished_is_refused(home: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(home / "two", tmp_path / "run"))
    change_record(RunDir(run), status="interrupted")
    with pytest.raises(RunError, match="this run has not finished"):
        composer.average(run, 2)


def test_the_command_names_the_new_folder(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(home / "two", tmp_path / "run"))
    assert command("average", str(run), "--last", "2") == 0
    assert f"wrote {run}-average-2\n" in capsys.readouterr().out
    assert command("average", str(run), "--last", "2") == 2
    assert "exists already" in capsys.readouterr().err
    new = f"{run}-average-2"
    assert command("train", f"{new}/recipe.yaml", "--resume", "training.max_steps=20") == 2
    assert "its checkpoints are not here" in capsys.readouterr().err
    assert read_verified(RunDir(Path(new))).status == "finished"


# -------------------------------------------------------------------------------------------
# ensembles


def mean_loss(runs: list[Run]) -> float:
    """The loss of the mean of the probabilities, pair by pair."""
    pairs, _ = read_split(runs[0], "test")
    total, count = 0.0, 0
    for source, target in zip(pairs.sides["source"], pairs.sides[TARGET], strict=True):
        scores = [run.score([source], [target])[0].log_probabilities for run in runs]
        for tokens in zip(*scores, strict=True):
            total -= math.log(sum(map(math.exp, tokens)) / len(runs))
            count += 1
    return total / count


def test_the_loss_of_an_ensemble_is_of_its_mean_probability(home: Path) -> None:
    runs = [composer.open_run(home / name) for name in ("all", "two")]
    found = composer.evaluate(runs)
    assert found["test/loss"] == pytest.approx(mean_loss(runs), rel=1e-5)
    assert found["test/loss"] < max(composer.evaluate(run)["test/loss"] for run in runs)
    assert runs[0].evaluate(ensemble=runs[1:]) == found
    assert found.keys() == composer.evaluate(runs[0]).keys()


def test_an_ensemble_is_scored_by_what_it_translates(home: Path, tmp_path: Path) -> None:
    runs = [composer.open_run(home / name) for name in ("all", "two")]
    found = composer.evaluate(runs, hypotheses=tmp_path / "out.jsonl")
    rows = [
        json.loads(line)
        for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    outputs = composer.translate(runs, [row["src"] for row in rows])
    assert [row["mt"] for row in rows] == outputs
    right = sum(text.strip() == row["ref"].strip() for text, row in zip(outputs, rows, strict=True))
    assert found["test/exact_match"] == pytest.approx(
        right / len(rows) * (100 if METRICS["exact_match"].unit == "%" else 1)
    )


def test_a_run_with_itself_is_itself(home: Path) -> None:
    alone, twice = composer.evaluate(home / "two"), composer.evaluate([home / "two", home / "two"])
    assert alone.keys() == twice.keys()
    for name, value in alone.items():
        assert twice[name] == (
            pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
        )


def test_the_command_takes_several_runs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(home / "all"), str(home / "two")]
    assert command("evaluate", *words, "decoding=greedy", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["test/loss"] == pytest.approx(composer.evaluate(words)["test/loss"])


def test_runs_with_other_tokenizers_are_no_ensemble(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(BASE.replace("symbols: 6", "symbols: 5"), encoding="utf-8")
    composer.train(other, run=tmp_path / "other", overrides=["training.max_steps=2"])
    with pytest.raises(RunError, match="the tokenizer is not that of"):
        composer.evaluate([home / "all", tmp_path / "other"])
