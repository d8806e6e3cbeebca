"""N-grams: bits per line of a run, and the optimum on the same lines."""

from __future__ import annotations

import json
from pathlib import Path

import ngrams
import pytest

from composer.data.tasks import TASKS
from composer.data.tasks.sequences import ngrams_optimum
from composer.recipe.recipe import load
from composer.training.train import train

RECIPE = """
recipe: 1
name: predicted
data:
  generate: {dynamic_ngrams: {context: 2, min_length: 12, max_length: 12, train: 40, val: 5, test: 30}}
  tokenizer: {bits: {size: 1, marks: []}}
model:
  width: 4
  embedding: linear
  output: {kind: sigmoid}
  decoder: [rnn]
training: {max_steps: 1, tokens_per_batch: 100}
logging: {wandb: false}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ngrams")
    (folder / "t.yaml").write_text(RECIPE, encoding="utf-8")
    train(load(folder / "t.yaml"), run=folder / "run")
    return folder / "run"


def test_the_optimum_is_that_of_the_test_lines_of_the_run(run: Path) -> None:
    row = ngrams.read_run(run)
    lines = TASKS["dynamic_ngrams"]("test", context=2, min_length=12, max_length=12, test=30).target
    assert row.least == ngrams_optimum(lines, 2)
    assert row.bits == json.loads((run / "run.json").read_text())["scores"]["test/bits_per_sequence"]
    assert row.least < row.bits < 24


def test_a_run_of_another_task_is_refused(run: Path, tmp_path: Path) -> None:
    for name in ("run.json", "recipe.yaml"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    record = json.loads((run / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps({**record, "scores": {}}))
    with pytest.raises(SystemExit, match="no finished run of the task `dynamic_ngrams`"):
        ngrams.read_run(tmp_path)


def test_table() -> None:
    rows = [ngrams.Row("one", 14.5, 12.25), ngrams.Row("two", 13.0, 12.25)]
    assert ngrams.table(rows).splitlines()[2:] == ["| two | 13.00 | 12.25 | 0.75 |", "| one | 14.50 | 12.25 | 2.25 |"]
