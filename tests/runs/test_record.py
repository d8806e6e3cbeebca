"""run.json is read as it was written."""

from __future__ import annotations

import math
from pathlib import Path

from composer.run_dir import RunDir
from composer.runs.record import Budget, Commit, RunRecord
from tests.run_records import record_of


def test_scores_of_a_model_that_has_diverged_are_read_as_unknown(tmp_path: Path) -> None:
    rows = (
        {"words": 3, "lines": 2, "exact_match": 0.0, "positional_accuracy": 0.0, "bits": math.nan},
    )
    run = RunDir(tmp_path)
    run.write(RunRecord(scores={"test/loss": math.inf}, by_length={"test": rows}))
    record = run.read()
    assert record.scores == {"test/loss": None}
    assert record.by_length["test"][0]["bits"] is None


def test_a_run_that_did_not_look_for_changes_says_nothing_of_them() -> None:
    assert RunRecord(git=Commit("ab")).as_data()["git"] == {"commit": "ab", "dirty": None}
    assert [
        record_of(git=git).git for git in ({"commit": "ab"}, {"commit": "ab", "dirty": True})
    ] == [
        Commit("ab"),
        Commit("ab", dirty=True),
    ]


def test_budgets_are_written_as_they_are_set() -> None:
    data = RunRecord(
        budgets=(Budget(max_steps=4, until_step=4), Budget(max_minutes=1)), recipe_budget=Budget(4)
    ).as_data()
    assert data["budgets"] == [
        {"max_steps": 4, "until_step": 4, "validated": False},
        {"max_minutes": 1},
    ]
    assert data["recipe_budget"] == {"max_steps": 4}
