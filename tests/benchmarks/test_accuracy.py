"""Accuracy by length: what runs have kept, what is asked now and kept, and how it is told."""

from __future__ import annotations

import json
from pathlib import Path

import accuracy
import pytest
from accuracy import Row, Share

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
    """The run as it was trained, and nothing can be measured."""
    (trained / accuracy.KEPT).unlink(missing_ok=True)
    monkeypatch.setattr(accuracy, "measured", None)
    return trained


def pretend(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What is measured from now on, every length with half of its lines right."""
    calls = []

    def measured(_: Path, task: str, length: int, lines: int) -> Share:
        assert task == "copy"
        calls.append((length, lines))
        return Share(lines, 0.5, 0.75)

    monkeypatch.setattr(accuracy, "measured", measured)
    return calls


def change(run: Path, **changes: object) -> str:
    """Changes run.json; what it was before."""
    before = (run / "run.json").read_text()
    (run / "run.json").write_text(json.dumps({**json.loads(before), **changes}))
    return before


def test_the_lengths_of_a_runs_own_test_are_read(run: Path) -> None:
    kept = json.loads((run / "run.json").read_text())["by_length"]["test"]
    found = accuracy.row(run)
    assert found.shares == {each["tokens"]: Share(3, each["exact_match"], each["positional_accuracy"]) for each in kept}
    assert found[1:6] == ("short", 1, "copy", 6, (4, 6))
    assert found.name == f"{run.parent.name}/seed-1"


def test_further_lengths_are_measured_as_evaluate_does(trained: Path) -> None:
    (trained / accuracy.KEPT).unlink(missing_ok=True)
    found = accuracy.row(trained, [6, 9], 5)
    assert (found.lengths, sorted(found.shares)) == ((4, 6, 6, 9), [4, 6, 9])
    assert [found.shares[length].lines for length in (4, 6, 9)] == [3, 3, 5]
    asked_as_in_training = accuracy.measured(trained, "copy", 4, 3)
    assert asked_as_in_training[:3] == found.shares[4][:3]
    with pytest.raises(DataError, match="of the 2 test pairs of length 1 could be found"):
        accuracy.row(trained, [1], 2)


def test_what_was_asked_is_kept_until_the_run_is_trained_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pretend(monkeypatch)
    first = accuracy.row(run, [8, 9], 5)
    assert calls == [(8, 5), (9, 5)]
    assert accuracy.row(run, [9, 8], 5).shares == first.shares
    assert calls == [(8, 5), (9, 5)]
    accuracy.row(run, [8], 7)
    assert calls[2:] == [(8, 7)]
    before = change(run, ended_at="later")
    accuracy.row(run, [8], 5)
    assert calls[3:] == [(8, 5)]
    (run / "run.json").write_text(before)


def test_a_half_run_one_is_shown_and_not_asked(run: Path) -> None:
    before = change(run, status="running")
    found = accuracy.row(run, [8], 5)
    (run / "run.json").write_text(before)
    assert (found.shares, found.lengths) == (None, (4, 6, 8))
    assert accuracy.table("copy", [found]).splitlines() == [
        "| copy at length | 4 | 6 | 8 |",
        "|---|---|---|---|",
        f"| {found.name} | half-run | half-run | half-run |",
    ]


def test_words_of_a_source() -> None:
    assert accuracy.words_of("binary_addition", {"max_length": 5}, 7) == 7 + 1 + 7
    assert accuracy.words_of("reverse", {"symbols": 4, "test": 50}, 9) == 9


def test_a_run_without_lengths_is_refused(run: Path) -> None:
    recipe = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(RECIPE.replace("test_lengths: [4, 6]", "test_lengths: null"))
    with pytest.raises(SystemExit, match="ask for some with --lengths"):
        accuracy.row(run)
    (run / "recipe.yaml").write_text(
        RECIPE.replace("copy: {symbols: 3, max_length: 6, test_lengths: [4, 6]", "number_words: {maximum: 9999")
    )
    with pytest.raises(SystemExit, match="no task that has `test_lengths`"):
        accuracy.row(run, [8])
    (run / "recipe.yaml").write_text(recipe)


def made(recipe: str, seed: int, shares: dict[int, Share] | None, task: str = "copy") -> Row:
    return Row(f"{recipe}-{seed}", recipe, seed, task, 6, (4, 8), shares)


ROWS = [
    made("lstm", 2, None),
    made("gpu", 1, {4: Share(10, 1.0, 1.0), 8: Share(1000, 0.9996, 0.99999)}),
    made("lstm", 1, {4: Share(10, 0.0, 0.25), 8: Share(10, 0.29, 0.5, "3 of 10 answers were cut")}),
    made("other", 1, {8: Share(20, 0.0, 0.0)}, task="sort"),
]


def test_tables_stand_by_task_recipe_and_seed() -> None:
    tasks = accuracy.together(ROWS)
    assert {task: [each.name for each in rows] for task, rows in tasks.items()} == {
        "copy": ["lstm-1", "lstm-2", "gpu-1"],
        "sort": ["other-1"],
    }
    assert accuracy.table("copy", tasks["copy"]).splitlines() == [
        "| copy at length | 4 (10 lines) | 8 (10 or 1,000 lines) |",
        "|---|---|---|",
        "| lstm-1 | 0 % (25.0 %) | 29.0 % (50.0 %) |",
        "| lstm-2 | half-run | half-run |",
        "| gpu-1 | 100 % | 99.9 % (99.9 %) |",
        "",
        "lstm-1 at 8: 3 of 10 answers were cut.",
    ]
    assert accuracy.table("sort", tasks["sort"]).splitlines()[2] == "| other-1 | not asked | 0 % (0 %) |"


def test_bits_stand_behind_the_shares() -> None:
    rows = [made("ntm", 1, {4: Share(10, 1.0, 1.0, bits=0.00123), 8: Share(10, 0.0, 0.5, bits=277.9)})]
    assert accuracy.table("copy", rows).splitlines()[2] == "| ntm-1 | 100 %, 0.0012 bits | 0 % (50.0 %), 278 bits |"


def test_picture(tmp_path: Path) -> None:
    assert accuracy.label("lstm", ROWS) == "lstm (2 seeds, 1 of them half-run)"
    assert accuracy.label("gpu", ROWS) == "gpu"
    accuracy.draw(accuracy.together(ROWS), tmp_path / "f.svg")
    assert "<svg" in (tmp_path / "f.svg").read_text()
