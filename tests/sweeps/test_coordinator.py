"""Every trial runs once, whatever is killed; finished trials survive."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from composer.errors import DataError, RecipeError, RunError
from composer.recipe.earlier_versions import TRAINING_CHANGES, TrainingChange
from composer.recipe.recipe import load
from composer.run_dir import RunDir
from composer.runs.record import Budget, RunRecord
from composer.sweeps import coordinator
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.dry_run import dry_run_text
from composer.sweeps.executors.local import slot_environments
from composer.sweeps.leaderboard.board import open_leaderboard
from composer.sweeps.points import list_points, point_fingerprint
from composer.sweeps.spec import read_sweep
from composer.sweeps.status import sweep_status
from composer.sweeps.sweep import Resources, SweepDir
from composer.sweeps.sweep_display import SweepDisplay
from composer.sweeps.trial import MAX_KILLS, Trial, failures, read_trials, retry_record, write_trial
from composer.sweeps.trial_course import TrialCourse
from tests.run_records import change_record
from tests.sweeps.stub_sweeps import (
    BASE,
    RATE,
    parent,
    plan,
    printed,
    rates,
    starts,
    trials_by_rate,
    wait_until,
    write_sweep,
)


def run(file: Path, home: Path, workers: int = 1) -> int:
    return run_sweep(read_sweep(file), home / "run", workers=workers)


def opened(home: Path) -> optuna.Study:
    """The study, as anybody may read it."""
    return optuna.load_study(
        study_name=None,
        storage=JournalStorage(JournalFileBackend(str(home / "run" / "study.journal"))),
    )


def test_every_point_and_seed_runs_once_in_order(home: Path) -> None:
    file = write_sweep(home, rates(0.3, 0.1, 0.2), "seeds: [1, 4]")
    assert run(file, home) == 0
    assert starts(home) == [(rate, seed) for rate in (0.3, 0.1, 0.2) for seed in (1, 4)]
    result = trials_by_rate(home / "run")
    assert {rate: trial.number for rate, trial in result.items()} == {0.3: 0, 0.1: 1, 0.2: 2}
    assert all(
        trial.status == "finished" and sorted(trial.records) == [1, 4] for trial in result.values()
    )
    assert result[0.1].value == pytest.approx(0.1 + (0.01 + 0.04) / 2)
    recipe = load(result[0.2].recipe)
    assert recipe.training.optimizer.learning_rate == 0.2
    assert recipe.fingerprints["run"] != load(result[0.1].recipe).fingerprints["run"]
    assert run(file, home) == 0  # all is done
    assert len(starts(home)) == 6


def test_points_with_the_same_fingerprint_run_once(home: Path) -> None:
    file = write_sweep(
        home, f"{rates(0.1, 0.2)}\n  called: {{set: description, values: [one, other]}}"
    )
    assert run(file, home) == 0
    assert [rate for rate, _ in starts(home)] == [0.1, 0.2]
    assert len(read_trials(home / "run")) == 2


def test_data_are_found_relative_to_the_base_and_checked_before_training(home: Path) -> None:
    file = write_sweep(home / "sweeps", rates(0.1))
    (home / "bases").mkdir()
    (home / ".git").mkdir()
    (home / "sweeps" / "base.yaml").unlink()
    text = BASE.replace(
        "generate: {reverse: {symbols: 6, min_length: 2, max_length: 6, train: 90, val: 12,"
        " test: 8}}",
        "parallel: {train: {source: a.txt, target: b.txt}, val: {source: a.txt, target: b.txt}}",
    )
    (home / "bases" / "base.yaml").write_text(text, encoding="utf-8")
    file.write_text(
        file.read_text(encoding="utf-8").replace("base: base", "base: ../bases/base"),
        encoding="utf-8",
    )
    with pytest.raises(DataError, match=r"no file `a\.txt`"):
        run(file, home)
    assert not starts(home)
    for name in ("a.txt", "b.txt"):
        (home / "bases" / name).write_text("a b\nb a\n", encoding="utf-8")
    assert run(file, home) == 0
    assert [rate for rate, _ in starts(home)] == [0.1]


def test_a_failed_trial_is_reported_and_the_others_continue(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(home, **{"0.1": {"fails": 1, "status": 2}})
    file = write_sweep(home, rates(0.1, 0.2), "seeds: [1, 2]")
    assert run_sweep(read_sweep(file), home / "run") == 1
    result = trials_by_rate(home / "run")
    assert result[0.1].status == "failed"
    assert (result[0.1].error or "").splitlines()[0] == "error[run]: the loss is NaN"
    out = capsys.readouterr().out
    assert "the loss is NaN" in out
    assert "`--retry`" in out
    assert result[0.1].retries == ()
    assert result[0.2].status == "finished"
    assert starts(home) == [(0.1, 1), (0.2, 1), (0.2, 2)]  # no other seed of what failed


def test_the_status_is_1_where_nothing_finished(home: Path) -> None:
    plan(home, **{"0.1": {"fails": 1}})
    assert run(write_sweep(home, rates(0.1), "seeds: [1]"), home) == 1


def test_a_killed_worker_goes_on_and_no_retry_is_counted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(home, **{"0.1": {"kills": 2}})
    assert (
        run_sweep(
            read_sweep(write_sweep(home, rates(0.1, 0.3), "seeds: [1]\nretries: 0")), home / "run"
        )
        == 0
    )
    assert [rate for rate, _ in starts(home)] == [0.1] * 3 + [0.3]
    result = trials_by_rate(home / "run")
    assert [result[rate].status for rate in (0.1, 0.3)] == ["finished", "finished"]
    assert [retry.cause for retry in result[0.1].retries] == ["killed", "killed"]
    assert failures(result[0.1].retries) == 0
    assert result[0.3].retries == ()
    out, trial = capsys.readouterr().out, f"trial {result[0.1].folder.name}: rate=0.1"
    assert f"{trial}: killed by SIGKILL, resumes from its start\n" in out
    assert (
        f"{trial}: killed by SIGKILL, resumes from its start, 2 of at most 5 times there\n" in out
    )


def test_a_training_that_always_dies_at_one_place_fails(home: Path) -> None:
    plan(home, **{"0.2": {"kills": 1000}})
    assert run(write_sweep(home, rates(0.2, 0.3), "seeds: [1]"), home) == 1
    assert [rate for rate, _ in starts(home)] == [0.2] * MAX_KILLS + [0.3]
    result = trials_by_rate(home / "run")
    assert [result[rate].status for rate in (0.2, 0.3)] == ["failed", "finished"]
    error = (
        f"its training was killed {MAX_KILLS} times without a new checkpoint, the last time by"
        " SIGKILL"
    )
    assert result[0.2].error == error


@pytest.mark.slow
def test_a_training_that_gets_on_between_its_kills_never_fails(home: Path) -> None:
    """A machine that is taken away every few minutes: each start is killed after one more
    checkpoint.
    """
    count = MAX_KILLS + 3
    plan(home, **{"0.1": {"kills": count, "saves": True, "steps": count + 1}})
    assert run(write_sweep(home, rates(0.1), "seeds: [1]"), home) == 0
    (trial,) = read_trials(home / "run")
    assert [retry.step for retry in trial.retries] == [100 * step for step in range(1, count + 1)]
    assert trial.status == "finished"


@pytest.mark.parametrize(("times", "status"), [(2, "finished"), (3, "failed")])
def test_a_failed_trial_is_tried_again(
    home: Path, times: int, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(home, **{"0.1": {"fails": 1, "times": times}})
    file = write_sweep(home, rates(0.1), "seeds: [1]\nretries: 2")
    assert run_sweep(read_sweep(file), home / "run") == (status == "failed")
    trial = trials_by_rate(home / "run")[0.1]
    assert trial.status == status
    assert len(starts(home)) == 3
    assert [(retry.cause, retry.seed) for retry in trial.retries] == [("failed", 1)] * 2
    out = capsys.readouterr().out
    for number in (1, 2):
        assert f"failed, retry {number} of 2, from its start: error[run]: the loss is NaN" in out
    assert ("`--retry`" in out) == (status == "failed")
    # nothing of the tries before the last
    assert (trial.error or "").count("error[run]") == (status == "failed")


def test_retry_tries_again_what_has_failed_and_nothing_else(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(home, **{"0.1": {"fails": 1, "times": 3}})
    file = write_sweep(home, rates(0.1, 0.2), "seeds: [1]\nretries: 1")
    assert run(file, home) == 1
    assert trials_by_rate(home / "run")[0.1].status == "failed"
    assert run(file, home) == 1  # without --retry a failed trial stays as it is
    assert [rate for rate, _ in starts(home)] == [0.1, 0.1, 0.2]
    capsys.readouterr()
    assert run_sweep(read_sweep(file), home / "run", retry=True) == 0
    out, trial = capsys.readouterr().out, trials_by_rate(home / "run")[0.1]
    assert "retried after it failed: error[run]: the loss is NaN" in out
    # the study gives the second try a number of its own, and a trial is called what its folder is
    assert {*re.findall("trial [0-9a-f]+(?=:| goes on)", out)} == {f"trial {trial.folder.name}"}
    assert [rate for rate, _ in starts(home)] == [0.1, 0.1, 0.2, 0.1, 0.1]
    assert [retry.cause for retry in trial.retries] == ["failed", "requested", "failed"]
    assert (trial.status, trial.error) == ("finished", None)
    states = sorted(item.state.name for item in opened(home).get_trials())
    assert states == ["COMPLETE", "COMPLETE", "FAIL"]  # the search sees both tries
    assert run_sweep(read_sweep(file), home / "run", retry=True) == 0
    assert len(starts(home)) == 5


def test_retries_may_be_changed_in_a_sweep_that_has_run(home: Path) -> None:
    plan(home, **{"0.1": {"fails": 1, "times": 2}})
    assert run(write_sweep(home, rates(0.1), "seeds: [1]"), home) == 1
    assert (
        run_sweep(
            read_sweep(write_sweep(home, rates(0.1), "seeds: [1]\nretries: 1")),
            home / "run",
            retry=True,
        )
        == 0
    )
    assert "retries: 1" in SweepDir(home / "run").sweep.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_retry_that_was_written_down_survives_a_kill_of_the_sweep(home: Path) -> None:
    file = write_sweep(home, rates(0.1), "seeds: [1]\nretries: 2")
    plan(home, **{"0.1": {"pause": 60.0}})
    child = parent(file, home / "run")
    wait_until(lambda: len(starts(home)) == 1)
    child.kill()
    child.join()
    (trial,) = read_trials(home / "run")
    write_trial(
        replace(trial, retries=(retry_record("failed", "once"), retry_record("failed", "twice")))
    )
    plan(home, **{"0.1": {"fails": 1}})
    assert run(file, home) == 1
    (trial,) = read_trials(home / "run")
    assert [retry.error for retry in trial.retries] == ["once", "twice"]  # none was left
    assert trial.status == "failed"


def test_a_worse_trial_is_pruned_once_on_its_first_seed(home: Path) -> None:
    plan(home, **{"0.9": {"pause": 60.0, "from": 2}})
    file = write_sweep(
        home, rates(0.1, 0.2, 0.9), "seeds: [1, 2]\nprune: {median: {min_steps: 200, trials: 2}}"
    )
    assert run(file, home) == 0
    worst = trials_by_rate(home / "run")[0.9]
    assert (worst.status, worst.value, worst.pruned_at) == ("pruned", None, 200)
    assert starts(home)[-1] == (0.9, 1)  # its second seed was never begun
    assert worst.records[1].status == "interrupted"
    run(file, home)
    assert len(starts(home)) == 5


def test_a_trial_that_has_spent_its_budget_is_not_pruned(home: Path) -> None:
    plan(home, **{"0.9": {"pause": 1.0, "from": 5}})
    prune = "prune: {median: {min_steps: 200, trials: 2}}"
    file = write_sweep(
        home, rates(0.1, 0.2, 0.9), f"seeds: [1]\nset: {{training.max_steps: 200}}\n{prune}"
    )
    assert run(file, home) == 0
    assert trials_by_rate(home / "run")[0.9].status == "finished"


@pytest.mark.slow
def test_a_pruning_decision_survives_a_kill(home: Path) -> None:
    file = write_sweep(
        home, rates(0.1, 0.2), "seeds: [1]\nprune: {median: {min_steps: 100, trials: 1}}"
    )
    plan(home, **{"0.2": {"pause": 60.0}})
    child = parent(file, home / "run")
    wait_until(
        lambda: (0.2, 1) in starts(home) and trials_by_rate(home / "run")[0.1].status == "finished"
    )
    child.kill()
    child.join()
    write_trial(replace(trials_by_rate(home / "run")[0.2], pruned_at=100))
    assert run(file, home) == 0
    assert trials_by_rate(home / "run")[0.2].status == "pruned"
    assert starts(home).count((0.2, 1)) == 1


@pytest.mark.slow
def test_a_killed_sweep_resumes(home: Path) -> None:
    plan(home, **{"0.3": {"pause": 0.3}, "0.4": {"pause": 0.3}})
    file = write_sweep(home, rates(0.1, 0.2, 0.3, 0.4), "seeds: [1]")
    child = parent(file, home / "run")
    wait_until(lambda: len(list((home / "run").glob("trials/*/seed-1/metrics.jsonl"))) == 4)
    child.kill()
    child.join()
    before = {
        rate: trial.records[1] for rate, trial in trials_by_rate(home / "run").items() if rate < 0.3
    }
    assert run(file, home, workers=2) == 0
    result = trials_by_rate(home / "run")
    assert {trial.status for trial in result.values()} == {"finished"}
    assert {rate: result[rate].records[1] for rate in before} == before
    assert sorted(rate for rate, _ in starts(home)) == [0.1, 0.2, 0.3, 0.3, 0.4, 0.4]
    assert {trial.number for trial in result.values()} == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_all_workers_first(home: Path, number: signal.Signals, status: int) -> None:
    plan(home, **{"0.1": {"pause": 60.0}, "0.2": {"pause": 60.0}})
    child = parent(write_sweep(home, rates(0.1, 0.2), "seeds: [1]"), home / "run")
    wait_until(lambda: len(list((home / "run").glob("trials/*/seed-1/metrics.jsonl"))) == 2)
    os.kill(child.pid or 0, number)
    child.join(60)
    out = printed(child, home / "run")
    assert child.exitcode == status, out
    assert "stopped; run the same command to resume" in out
    assert {trial.records[1].status for trial in trials_by_rate(home / "run").values()} == {
        "interrupted"
    }
    plan(home)
    assert run(home / "sweep.yaml", home, workers=2) == 0


def test_another_sweep_or_another_process_is_refused(home: Path) -> None:
    run(write_sweep(home, rates(0.1, 0.2), "seeds: [1]"), home)
    write_sweep(home, rates(0.1, 0.3), "seeds: [1, 2]")
    with pytest.raises(RunError, match=r"`axes.rate.values\[1\]` was 0.2 and is 0.3\n"):
        run(home / "sweep.yaml", home)
    with pytest.raises(RunError, match="not written by a sweep"):
        run_sweep(read_sweep(home / "sweep.yaml"), next((home / "run" / "trials").iterdir()))
    assert len(starts(home)) == 2


@pytest.mark.parametrize("other", [None, {"fingerprints": "2", "training_changes": []}])
def test_a_sweep_that_another_version_began_is_refused(
    home: Path, other: dict[str, Any] | None
) -> None:
    """Its trials would be trained again beside those that are there, under other names."""
    file = write_sweep(home, rates(0.1), "seeds: [1]")
    run(file, home)
    record = json.loads((home / "run" / "sweep.json").read_text(encoding="utf-8"))
    record.pop("trained_by", None)
    changed = record if other is None else record | {"trained_by": other}
    (home / "run" / "sweep.json").write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(RunError, match="started by another version") as refused:
        run(file, home)
    assert "--run DIR" in refused.value.faults[0].hint
    assert len(starts(home)) == 1


def test_trials_keep_their_names_when_training_does_something_otherwise(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(home, rates(0.1))
    before = load(home / "base.yaml")
    name, run_print = point_fingerprint(before), before.fingerprints["run"]
    monkeypatch.setitem(
        TRAINING_CHANGES, "newest", TrainingChange("it ends elsewhere", lambda canonical: True)
    )
    after = load(home / "base.yaml")
    assert after.fingerprints["run"] != run_print
    assert point_fingerprint(after) == name


def test_what_has_changed_of_a_base_is_named_and_its_logging_may(home: Path) -> None:
    file = write_sweep(home, rates(0.1), "seeds: [1]")
    run(file, home)
    base = home / "base.yaml"
    base.write_text(
        BASE.replace("logging: {wandb: false}", "logging: {wandb: {mode: disabled}}"),
        encoding="utf-8",
    )
    assert run(file, home) == 0
    base.write_text(BASE.replace("max_steps: 4", "max_steps: 6"), encoding="utf-8")
    with pytest.raises(RunError, match=r"`base\.training\.max_steps` was 4 and is 6\n"):
        run(file, home)
    longer = read_sweep(write_sweep(home, rates(0.1), "seeds: [1]"), ["training.max_steps=5"])
    with pytest.raises(RunError, match="`command line` was"):
        run_sweep(longer, home / "run")


@pytest.mark.slow
def test_two_sweeps_cannot_share_a_folder(home: Path) -> None:
    plan(home, **{"0.1": {"pause": 60.0}})
    child = parent(write_sweep(home, rates(0.1), "seeds: [1]"), home / "run")
    wait_until(lambda: len(starts(home)) == 1)
    with pytest.raises(RunError, match="another"):
        run(home / "sweep.yaml", home)
    child.terminate()
    child.join(60)


def test_a_removed_trial_runs_again_and_a_lost_study_is_rebuilt(home: Path) -> None:
    file = write_sweep(home, rates(0.1, 0.2), "seeds: [1]")
    run(file, home)
    gone = trials_by_rate(home / "run")[0.2].folder
    for path in sorted(gone.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    gone.rmdir()
    run(file, home)
    SweepDir(home / "run").study.unlink()
    run(file, home)
    assert [rate for rate, _ in starts(home)] == [0.1, 0.2, 0.2]
    assert {trial.status for trial in read_trials(home / "run")} == {"finished"}


def test_a_metric_that_no_run_logged_fails_the_trial(home: Path) -> None:
    file = write_sweep(home, rates(0.1), "seeds: [1]\nrank: [{val/bleu: max}]")
    assert run(file, home) == 1
    (trial,) = read_trials(home / "run")
    assert trial.error == "no `val/bleu` was logged with seed 1; logged were: val/loss"


def test_a_search_in_a_small_space_runs_each_point_once_and_ends(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "MAX_SUGGESTIONS_PER_TRIAL", 5)
    more = "called: {set: description, values: [one, other]}"
    rest = "where: rate != 0.3\nsearch: {tpe: {trials: 4, seed: 2}}\nseeds: [1]"
    assert run(write_sweep(home, f"{rates(0.1, 0.2, 0.3)}\n  {more}", rest), home) == 0
    assert sorted(starts(home)) == [(0.1, 1), (0.2, 1)]
    left = {item.user_attrs.get("skipped") for item in opened(home).get_trials()}
    assert "excluded by `rate != 0.3`" in left
    assert any("the same as trial" in str(item) for item in left)
    assert len(opened(home).get_trials()) == 20  # five for each trial that was wanted, and no more


@pytest.mark.slow
def test_a_killed_search_resumes_to_the_requested_number_of_trials(home: Path) -> None:
    rest = "search: {tpe: {trials: 5, seed: 2}}\nseeds: [1]"
    plan(home, all={"pause": 0.3})
    file = write_sweep(home, f"rate: {{{RATE}, log_uniform: [0.01, 0.1]}}", rest)
    child = parent(file, home / "run")
    wait_until(lambda: len(starts(home)) >= 3)
    child.kill()
    child.join()
    assert run(file, home, workers=2) == 0
    result = read_trials(home / "run")
    assert [trial.status for trial in result] == ["finished"] * 5
    assert len({trial.fingerprint for trial in result}) == 5
    states = [item.state.name for item in opened(home).get_trials()]
    assert states.count("COMPLETE") == 5
    assert {*states} <= {"COMPLETE", "FAIL"}, "what was killed has ended, and was asked for again"


def test_impossible_points_never_start(home: Path) -> None:
    file = write_sweep(
        home,
        "heads: {set: model.decoder.1.residual.0.cross_attention.heads, values: [2, 3, 4]}",
        "seeds: [1]",
    )
    assert run(file, home) == 0  # three heads do not share a width of eight
    assert [trial.point for trial in read_trials(home / "run")] == [{"heads": 2}, {"heads": 4}]


@pytest.mark.slow
def test_trials_are_ordinary_runs_of_the_train_command(tmp_path: Path) -> None:
    steps = "steps: {set: training.max_steps, values: [4, 100000], zip: rate}"
    prune = "seeds: [3]\nprune: {median: {min_steps: 2, trials: 1}}"
    file = write_sweep(tmp_path, f"{rates(0.01, 1e-9)}\n  {steps}", prune)
    assert run_sweep(read_sweep(file), tmp_path / "run") == 0
    good, bad = read_trials(tmp_path / "run")
    assert (good.status, bad.status) == ("finished", "pruned")
    record = RunDir(good.run(3)).read()
    assert (record.status, record.seed, record.scores["val/loss"]) == ("finished", 3, good.value)
    assert record.parameters <= good.parameters
    assert RunDir(good.run(3)).weights.exists()
    # a training that is told to end leaves a checkpoint, from which it could go on
    assert RunDir(bad.run(3)).read().status == "interrupted"
    assert list(RunDir(bad.run(3)).checkpoints.glob("step-*"))


def test_threads_and_gpus_are_divided_among_trainings() -> None:
    def divided(slots: int, gpus: list[str]) -> list[dict[str, str]]:
        return slot_environments({"OMP_NUM_THREADS": "3"}, slots, gpus, Resources())

    assert divided(1, ["0"]) == [{}]
    gpus = [{"CUDA_VISIBLE_DEVICES": "0,2"}, {"CUDA_VISIBLE_DEVICES": "1,3"}]
    assert divided(2, ["0", "1", "2", "3"]) == gpus
    assert divided(3, ["5"]) == [{"CUDA_VISIBLE_DEVICES": "5"}] * 3
    assert slot_environments({}, 1000, [], Resources())[0]["OMP_NUM_THREADS"] == "1"


DRAWN = f"rate: {{{RATE}, log_uniform: [1.0e-4, 0.5]}}"


@pytest.mark.slow
@pytest.mark.parametrize("search", ["random", "tpe"])
def test_a_sweep_may_grow_by_trials(home: Path, search: str) -> None:
    def asked(count: int) -> Path:
        return write_sweep(
            home, DRAWN, f"seeds: [1]\nsearch: {{{search}: {{trials: {count}, seed: 2}}}}"
        )

    assert run(asked(2), home) == 0
    before = [trial.point for trial in read_trials(home / "run")]
    assert run(asked(4), home) == 0
    assert [trial.point for trial in read_trials(home / "run")][:2] == before
    assert len(starts(home)) == 4
    assert "trials: 4" in SweepDir(home / "run").sweep.read_text(encoding="utf-8")
    with pytest.raises(RunError, match="`search` had 4 trials here and now has 3"):
        run(asked(3), home)


@pytest.mark.slow
@pytest.mark.parametrize("search", ["grid", "{tpe: {trials: 2}}"])
def test_a_sweep_may_grow_by_seeds(home: Path, search: str) -> None:
    def asked(seeds: list[int]) -> Path:
        return write_sweep(home, rates(0.1, 0.2), f"seeds: {seeds}\nsearch: {search}")

    assert run(asked([1]), home) == 0
    assert run(asked([1, 4]), home) == 0
    assert sorted(starts(home)) == [(0.1, 1), (0.1, 4), (0.2, 1), (0.2, 4)]
    result = trials_by_rate(home / "run")
    assert result[0.1].value == pytest.approx(0.1 + (0.01 + 0.04) / 2)
    assert {trial.status for trial in result.values()} == {"finished"}
    assert run(asked([1, 4]), home) == 0
    assert len(starts(home)) == 4
    for others in ([4, 1], [1], [1, 5]):
        with pytest.raises(RunError, match="`seeds` were 1, 4 and are"):
            run(asked(others), home)


def test_some_points_get_more_seeds_once_all_have_one(home: Path) -> None:
    def write(rest: str) -> Path:
        return write_sweep(home, rates(0.1, 0.2, 0.3), rest)

    assert run(write("seeds: [1]"), home) == 0
    file = write("seeds: [1, 4]\nseeds_where: rate < 0.3 and parameters > 1")
    planned = dry_run_text(read_sweep(file), list_points(read_sweep(file)))
    assert planned.endswith("3 points to train, 2 of them with 2 seeds, the others with one")
    assert run(file, home) == 0
    assert sorted(starts(home)) == [(0.1, 1), (0.1, 4), (0.2, 1), (0.2, 4), (0.3, 1)]
    result = trials_by_rate(home / "run")
    assert {trial.status for trial in result.values()} == {"finished"}
    assert result[0.2].value == pytest.approx(0.2 + (0.01 + 0.04) / 2)
    assert run(write("seeds: [1, 4]\nseeds_where: rate > 0.1"), home) == 0  # what is there stays
    assert len(starts(home)) == 6
    assert [len(trial.finished_seeds) for trial in trials_by_rate(home / "run").values()] == [
        2,
        2,
        2,
    ]
    with pytest.raises(RecipeError, match="it holds at none of the 3 points"):
        run(write("seeds: [1, 4]\nseeds_where: rate > 1"), home)


def test_a_seed_that_was_interrupted_is_trained_when_its_point_is_chosen_again(home: Path) -> None:
    def write(where: str) -> Path:
        return write_sweep(home, rates(0.1, 0.2), f"seeds: [1, 2, 4]\nseeds_where: {where}")

    assert run(write("rate < 0.2"), home) == 0
    trial = trials_by_rate(home / "run")[0.1]
    write_trial(replace(trial, status="running", value=None))
    last = RunDir(trial.run(4))
    change_record(last, status="interrupted")
    assert run(write("rate > 0.1"), home) == 0
    trial = trials_by_rate(home / "run")[0.1]
    assert (trial.status, trial.value) == ("finished", pytest.approx(0.1 + (0.01 + 0.02) / 2))
    assert starts(home).count((0.1, 4)) == 1
    assert run(write("rate < 0.2"), home) == 0
    assert starts(home).count((0.1, 4)) == 2
    assert trials_by_rate(home / "run")[0.1].finished_seeds == [1, 2, 4]


def test_what_is_tuned_may_be_said_later(home: Path) -> None:
    assert run(write_sweep(home, rates(0.1, 0.2)), home) == 0
    assert [result.rank for result in open_leaderboard(home / "run").results] == [1, 2]
    assert run(write_sweep(home, rates(0.1, 0.2), "tune: [rate]"), home) == 0
    assert len(starts(home)) == 2
    assert [result.rank for result in open_leaderboard(home / "run").results] == [1, None]


def test_the_reason_for_training_nothing_is_printed(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prune = "prune: {median: {min_steps: 500}}"
    file = write_sweep(home, DRAWN, f"search: {{tpe: {{trials: 2}}}}\nwhere: rate > 0.6\n{prune}")
    assert run_sweep(read_sweep(file), home / "run") == 1
    output = capsys.readouterr().out
    assert "no point was trained, of 20 suggested: excluded by `rate > 0.6`" in output
    assert (
        "warning[budget]: `prune` can stop no trial: it first would after 500 steps, and a training"
        " has 4" in output
    )


@pytest.mark.parametrize(
    ("key", "value"), [("number", "0"), ("point", 5), ("status", "done"), ("value", "high")]
)
def test_a_damaged_trial_file_is_refused(tmp_path: Path, key: str, value: object) -> None:
    folder = tmp_path / "trials" / "f"
    folder.mkdir(parents=True)
    write_trial(Trial(0, {"rate": 0.1}, "f", 1, 1, 1, folder=folder))
    assert len(read_trials(tmp_path)) == 1
    file = folder / "trial.json"
    file.write_text(
        json.dumps({**json.loads(file.read_text(encoding="utf-8")), key: value}), encoding="utf-8"
    )
    with pytest.raises(RunError, match="cannot be read") as caught:
        read_trials(tmp_path)
    assert f"remove {file}" in caught.value.render()


def course_of(folder: Path, seeds: tuple[int, ...], budget: Budget) -> TrialCourse:
    """The course of a trial of which seed 1 has finished, and seed 2 is trained."""
    trial = Trial(4, {}, "f", 1, 1, 1, folder=folder, records={1: RunRecord(status="finished")})
    course: Any = object.__new__(TrialCourse)
    course.trial, course.seeds, course.budget, course.jobs = trial, seeds, budget, {2: "job"}
    return cast(TrialCourse, course)


def test_what_a_running_trial_has_done_counts(tmp_path: Path) -> None:
    course = course_of(tmp_path, (1, 2), Budget(10_000, None, 5.0))
    assert course.progress() == (0.5, "")  # one of two seeds
    rows = [{"step": 1200, "train/loss": 2.5, "minutes": 2.0}, {"step": 1200, "val/loss": 2.0}]
    course.trial.run(2).mkdir()
    file = course.trial.run(2) / "metrics.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    # of minutes, which end first
    assert course.progress() == (0.7, "trial f at step 1,200, loss 2.5")
    del rows[0]["minutes"]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert course.progress() == (0.5 + 0.06, "trial f at step 1,200, loss 2.5")  # of steps


def test_the_time_left_falls_while_a_trial_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another trial one seed of two was finished before."""
    lines: list[str] = []
    half = Trial(1, {}, "f", 1, 1, 1, folder=Path(), records={1: RunRecord(status="finished")})
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    display = SweepDisplay(read_sweep(write_sweep(home, rates(0.1), "seeds: 2")), 3)
    display.begin([half])
    monkeypatch.setattr(display, "say", lines.append)
    for minutes, share in ((1, 0.25), (2, 0.5), (3, 0.75)):
        display.last_time, display.last_text = 0.0, ""
        monkeypatch.setattr(time, "monotonic", lambda minutes=minutes: 60.0 * minutes)
        course: Any = SimpleNamespace(
            trial=SimpleNamespace(fingerprint="g"), progress=lambda share=share: (share, "at ...")
        )
        display.show([half], [course])
    assert [line.split("; ")[1:] for line in lines] == [
        ["9:00 left", "at ..."],
        ["8:00 left", "at ..."],
        ["7:00 left", "at ..."],
    ]


# ------------------------------------------------------------------------------------------- files
# that are gone


def test_a_damaged_recipe_of_a_trial_is_written_again(home: Path) -> None:
    plan(home, **{"0.1": {"fails": 1, "times": 1}})
    file = write_sweep(home, rates(0.1), "seeds: [1]")
    assert run(file, home) == 1
    (trial,) = read_trials(home / "run")
    right = trial.recipe.read_bytes()
    trial.recipe.write_bytes(right[: len(right) // 2])
    assert run_sweep(read_sweep(file), home / "run", retry=True) == 0
    assert trial.recipe.read_bytes() == right


def test_a_seed_without_its_record_fails_with_a_cure(home: Path) -> None:
    file = write_sweep(home, rates(0.1), "seeds: [1]")
    assert run(file, home) == 0
    (trial,) = read_trials(home / "run")
    record, text = (
        RunDir(trial.run(1)).record,
        RunDir(trial.run(1)).record.read_text(encoding="utf-8"),
    )
    record.unlink()
    assert run(file, home) == 1
    (trial,) = read_trials(home / "run")
    assert len(starts(home)) == 1
    assert "has no run.json" in (trial.error or "")
    assert f"remove {trial.run(1)}" in (trial.error or "")
    record.write_text(text, encoding="utf-8")
    assert run_sweep(read_sweep(file), home / "run", retry=True) == 0
    assert len(starts(home)) == 1
    record.unlink()
    assert run(file, home) == 1
    shutil.rmtree(trial.run(1))
    assert run_sweep(read_sweep(file), home / "run", retry=True) == 0
    assert len(starts(home)) == 2


def test_weights_that_are_gone_are_reported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_sweep(home, rates(0.1, 0.2), "seeds: [1]")
    assert run(file, home) == 0
    runs = [RunDir(trial.run(1)) for trial in read_trials(home / "run")]
    for one in runs:
        one.weights.touch()
        change_record(one, weights_sha256="0" * 64)
    assert run(file, home) == 0
    assert "are gone" not in capsys.readouterr().out
    runs[0].weights.unlink()
    said = (
        f"the weights of {runs[0].path} are gone; put them back, or remove this folder: the sweep"
        " trains it again"
    )
    assert run(file, home) == 0
    assert said in capsys.readouterr().out
    assert said in sweep_status(home / "run").text()
    shutil.rmtree(runs[0].path)
    assert run(file, home) == 0
    assert len(starts(home)) == 3


def test_a_search_says_why_it_has_fewer_trials(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_sweep(home, rates(0.1, 0.2), "seeds: [1]\nsearch: {tpe: {trials: 5}}")
    assert run(file, home) == 0
    assert (
        "the search ended after 2 of 5 trials; its other suggestions: " in capsys.readouterr().out
    )
    assert run(file, home) == 0
    assert " the same as an earlier trial" in capsys.readouterr().out


def test_a_lost_record_of_the_sweep_is_written_again(home: Path) -> None:
    file = write_sweep(home, rates(0.1, 0.2))
    assert run(file, home) == 0
    SweepDir(home / "run").record.unlink()
    assert run(file, home) == 0
    assert len(starts(home)) == 2
    assert SweepDir(home / "run").record.exists()
    SweepDir(home / "run").record.unlink()
    write_sweep(home, rates(0.1, 0.3))
    with pytest.raises(RunError, match="was not written by a sweep"):
        run(file, home)


def test_a_seed_on_the_command_line_is_not_ignored(home: Path) -> None:
    file = write_sweep(home, rates(0.1), "seeds: 2")
    with pytest.raises(RunError, match="replaced by the seeds of the sweep"):
        run_sweep(read_sweep(file, ["training.seed=4"]), home / "run")
    assert (
        run_sweep(read_sweep(write_sweep(home, rates(0.1)), ["training.seed=4"]), home / "run") == 0
    )
    assert starts(home) == [(0.1, 4)]


def test_a_journal_that_is_changed_while_the_sweep_runs_is_one_error(home: Path) -> None:
    plan(home, all={"pause": 0.2})
    child = parent(write_sweep(home, rates(0.1, 0.2, 0.3, 0.4)), home / "run", "workers=1")
    wait_until(lambda: len(starts(home)) >= 2)
    SweepDir(home / "run").study.write_bytes(b"no journal\n" * 2000)
    child.join(60)
    assert "the journal of the study was removed or changed" in printed(child, home / "run")
    plan(home)
    with pytest.raises(RunError, match="remove the file"):
        run(home / "sweep.yaml", home)
    SweepDir(home / "run").study.unlink()
    assert run(home / "sweep.yaml", home) == 0
