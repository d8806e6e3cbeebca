"""Accuracy by length: scores from run.json, measured and cached ones, tables and charts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import accuracy
from benchmarks.accuracy import Accuracy, Row
from composer.data.tasks.numbers import BinaryAddition
from composer.data.tasks.sequences import Reverse
from composer.errors import DataError
from composer.recipe.recipe import load
from composer.training.train import train

RECIPE = """
recipe: 1
name: short
data:
  generate: {copy: {symbols: 3, max_length: 6, test_lengths: [4, 6], train: 30, val: 5, test: 3}}
  tokenizer: {word: {split: spaces}}
model:
  width: 4
  encoder: [rnn]
  decoder: [source_state]
training: {max_steps: 2, tokens_per_batch: 100}
logging: {wandb: false}
decoding: greedy
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accuracy")
    (folder / "t.yaml").write_text(RECIPE, encoding="utf-8")
    train(load(folder / "t.yaml"), run=folder / "seed-1")
    return folder / "seed-1"


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the trained run without a cache, where measuring fails."""
    (trained / accuracy.CACHE_FILE).unlink(missing_ok=True)
    monkeypatch.setattr(accuracy, "measure", None)
    return trained


def replace_measure(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Replace `measure` so that every length has half of its lines right; return its calls."""
    calls = []

    def measure(_: Path, task: str, length: int, lines: int) -> Accuracy:
        assert task == "copy"
        calls.append((length, lines))
        return Accuracy(lines, 0.5, 0.75)

    monkeypatch.setattr(accuracy, "measure", measure)
    return calls


def change(run: Path, **changes: object) -> str:
    """Change run.json and return its previous text."""
    before = (run / "run.json").read_text()
    (run / "run.json").write_text(json.dumps({**json.loads(before), **changes}))
    return before


def test_the_lengths_of_a_runs_own_test_are_read(run: Path) -> None:
    by_length = json.loads((run / "run.json").read_text())["by_length"]["test"]
    row = accuracy.read_run(run)
    recorded = {
        entry["words"]: Accuracy(3, entry["exact_match"], entry["positional_accuracy"])
        for entry in by_length
    }
    assert row.accuracies == recorded
    assert row[1:6] == ("short", 1, "copy", 6, (4, 6))
    assert row.name == f"{run.parent.name}/seed-1"


def test_further_lengths_are_measured_as_evaluate_does(trained: Path) -> None:
    (trained / accuracy.CACHE_FILE).unlink(missing_ok=True)
    row = accuracy.read_run(trained, [6, 9], 5)
    assert (row.lengths, sorted(row.accuracies)) == ((4, 6, 6, 9), [4, 6, 9])
    assert [row.accuracies[length].lines for length in (4, 6, 9)] == [3, 3, 5]
    same_lines = accuracy.measure(trained, "copy", 4, 3)
    assert same_lines[:3] == row.accuracies[4][:3]
    with pytest.raises(DataError, match="of the 2 test pairs of length 1 could be found"):
        accuracy.read_run(trained, [1], 2)


def test_measurements_are_cached_until_the_run_is_trained_further(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = replace_measure(monkeypatch)
    first = accuracy.read_run(run, [8, 9], 5)
    assert calls == [(8, 5), (9, 5)]
    assert accuracy.read_run(run, [9, 8], 5).accuracies == first.accuracies
    assert calls == [(8, 5), (9, 5)]
    accuracy.read_run(run, [8], 7)
    assert calls[2:] == [(8, 7)]
    before = change(run, ended_at="later")
    accuracy.read_run(run, [8], 5)
    assert calls[3:] == [(8, 5)]
    (run / "run.json").write_text(before)


def test_an_unfinished_run_is_listed_and_not_measured(run: Path) -> None:
    before = change(run, status="running")
    row = accuracy.read_run(run, [8], 5)
    (run / "run.json").write_text(before)
    assert (row.accuracies, row.lengths) == (None, (4, 6, 8))
    assert accuracy.table("copy", [row]).splitlines() == [
        "| copy at length | 4 | 6 | 8 |",
        "|---|---|---|---|",
        f"| {row.name} | unfinished | unfinished | unfinished |",
    ]


def test_the_number_of_source_words_follows_the_task() -> None:
    assert accuracy.source_words(BinaryAddition(max_length=5), 7) == 7 + 1 + 7
    assert accuracy.source_words(Reverse(symbols=4, test=50), 9) == 9


def test_a_run_without_lengths_is_refused(run: Path) -> None:
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(RECIPE.replace("test_lengths: [4, 6]", "test_lengths: null"))
    with pytest.raises(SystemExit, match="name some with --lengths"):
        accuracy.read_run(run)
    (run / "recipe.yaml").write_text(
        RECIPE.replace(
            "copy: {symbols: 3, max_length: 6, test_lengths: [4, 6]", "number_words: {maximum: 9999"
        )
    )
    with pytest.raises(SystemExit, match="no task that has `test_lengths`"):
        accuracy.read_run(run, [8])
    (run / "recipe.yaml").write_text(recipe)


def row_of(
    recipe: str, seed: int, accuracies: dict[int, Accuracy] | None, task: str = "copy"
) -> Row:
    return Row(f"{recipe}-{seed}", recipe, seed, task, 6, (4, 8), accuracies)


ROWS = [
    row_of("lstm", 2, None),
    row_of("gpu", 1, {4: Accuracy(10, 1.0, 1.0), 8: Accuracy(1000, 0.9996, 0.99999)}),
    row_of(
        "lstm",
        1,
        {4: Accuracy(10, 0.0, 0.25), 8: Accuracy(10, 0.29, 0.5, "3 of 10 answers were cut")},
    ),
    row_of("other", 1, {8: Accuracy(20, 0.0, 0.0)}, task="sort"),
]


def test_rows_are_grouped_by_task_recipe_and_seed() -> None:
    tasks = accuracy.group_by_task(ROWS)
    assert {task: [row.name for row in rows] for task, rows in tasks.items()} == {
        "copy": ["lstm-1", "lstm-2", "gpu-1"],
        "sort": ["other-1"],
    }
    assert accuracy.table("copy", tasks["copy"]).splitlines() == [
        "| copy at length | 4 (10 lines) | 8 (10 or 1,000 lines) |",
        "|---|---|---|",
        "| lstm-1 | 0 % (25.0 %) | 29.0 % (50.0 %) |",
        "| lstm-2 | unfinished | unfinished |",
        "| gpu-1 | 100 % | 99.9 % (99.9 %) |",
        "",
        "lstm-1 at 8: 3 of 10 answers were cut.",
    ]
    assert (
        accuracy.table("sort", tasks["sort"]).splitlines()[2]
        == "| other-1 | not measured | 0 % (0 %) |"
    )


def test_bits_follow_the_accuracies() -> None:
    rows = [
        row_of(
            "ntm",
            1,
            {4: Accuracy(10, 1.0, 1.0, bits=0.00123), 8: Accuracy(10, 0.0, 0.5, bits=277.9)},
        )
    ]
    assert (
        accuracy.table("copy", rows).splitlines()[2]
        == "| ntm-1 | 100 %, 0.0012 bits | 0 % (50.0 %), 278 bits |"
    )


def test_the_chart_has_a_line_for_each_recipe(tmp_path: Path) -> None:
    assert accuracy.legend_label("lstm", ROWS) == "lstm (2 seeds, 1 of them unfinished)"
    assert accuracy.legend_label("gpu", ROWS) == "gpu"
    accuracy.draw(accuracy.group_by_task(ROWS), tmp_path / "f.svg")
    assert "<svg" in (tmp_path / "f.svg").read_text()
