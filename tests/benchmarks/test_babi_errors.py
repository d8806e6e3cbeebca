"""bAbI errors: those of `evaluate`, of the restart with the lowest training error."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import babi
from benchmarks.babi import PUBLISHED, Run
from composer.evaluation.scores import evaluate
from composer.recipe.recipe import load
from composer.training.train import train

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = """
recipe: 1
name: small
data:
  babi: {folder: tasks, tasks: [1, 2], val: 0.2, words: 4}
  tokenizer: {word: {split: spaces}}
model:
  width: 4
  encoders: {question: [rnn], story: [sum_columns]}
  decoder: [{rnn: {initial_state: question}}, {cross_attention: {from: story, heads: 1}}]
training: {max_steps: 2, tokens_per_batch: 16}
logging: {wandb: false}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train two seeds on two tasks at once, and one run on the first task."""
    folder = tmp_path_factory.mktemp("babi")
    (folder / "tasks").mkdir()
    for task, places in ((1, ("hall", "attic")), (2, ("hall", "cellar", "yard"))):
        lines = [
            f"1 A went to {places[n % len(places)]}.\n2 Where is"
            f" A?\t{places[n % len(places)]}\t1\n{n * ''}3 B ran {n} times.\n4 Who ran?\tB\t3\n"
            for n in range(12)
        ]
        for split in ("train", "test"):
            (folder / "tasks" / f"qa{task}_where_{split}.txt").write_text(
                "".join(lines), encoding="utf-8"
            )
    (folder / "small.yaml").write_text(RECIPE, encoding="utf-8")
    for seed in (2, 1):
        train(
            load(folder / "small.yaml", [f"training.seed={seed}"]),
            run=folder / "runs" / "both" / f"seed-{seed}",
        )
    train(
        load(folder / "small.yaml", ["data.babi.tasks=[1]", "name=one"]),
        run=folder / "runs" / "1" / "seed-1",
    )
    return folder / "runs"


def test_the_errors_are_those_of_evaluate(trained: Path) -> None:
    runs = babi.find_runs([trained])
    assert [(run.name, run.recipe, run.seed, run.tasks) for run in runs] == [
        ("1/seed-1", "one", 1, (1,)),
        ("both/seed-1", "small", 1, (1, 2)),
        ("both/seed-2", "small", 2, (1, 2)),
    ]
    path = trained / "both" / "seed-2"
    right = evaluate(path, "train")
    assert runs[2].train == pytest.approx(100 * (1 - right["train/exact_match"]))
    assert runs[2].loss == right["train/loss"]
    both = evaluate(path)["test/exact_match"]
    assert runs[2].test is not None
    assert sum(runs[2].test.values()) / 2 == pytest.approx(100 * (1 - both))


def run(seed: int, train: float, loss: float, test: float | None) -> Run:
    return Run(f"x/seed-{seed}", "x", seed, (3,), train, loss, None if test is None else {3: test})


def test_runs_are_selected_by_training_error_and_never_by_test_error() -> None:
    runs = [
        run(1, 5.0, 0.3, 1.0),
        run(2, 4.0, 0.9, 50.0),
        run(3, 4.0, 0.8, 40.0),
        run(4, 0.0, 0.0, None),
    ]
    assert babi.select_run(runs) is runs[2]
    assert babi.select_run(runs[3:]) is None
    lines = babi.table(runs, "end_to_end").splitlines()
    assert lines[2] == "| 3 | 40.0 | 4.0 | 1.0, 50.0, 40.0, unfinished |"
    assert lines[4] == "- measured: mean error 40.0 % of 1 tasks, 1 failed (above 5 %)"
    assert lines[5] == "- published (end_to_end): mean error 13.9 % of 20 tasks"
    assert "| 3 | unfinished | unfinished | unfinished |" in babi.table(runs[3:], "end_to_end")


def test_every_recipe_of_the_folder_has_a_published_result() -> None:
    published = {
        path.stem: babi.published_name(load(path).name)
        for path in sorted((RECIPES / "babi").glob("*.yaml"))
    }
    assert published == {name: name for name in PUBLISHED}
    assert babi.published_name("mine") == "end_to_end"
