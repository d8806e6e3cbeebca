"""Hints after a finished training, from its validation curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from composer.evaluation.hints import training_hints
from composer.recipe.canonical_form import BUDGET_KEYS
from composer.recipe.sections import EarlyStopping, Training
from composer.runs.record import UsedCheckpoints
from composer.training.summary import describe_weights

STEPS = Training(max_steps=500)


def rows(losses: Sequence[float | None]) -> list[dict[str, float | None]]:
    return [{"step": 100 * at, "val/loss": loss} for at, loss in enumerate(losses, start=1)]


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ([5.0, 4.0, 3.0, 2.0], "still falling"),
        ([5.0, 3.0, 2.0, 3.0, 4.0], "lowest after step 300 of 500"),
        ([5.0, 3.0, 3.0, 2.99, 2.99], "had converged"),
        ([5.0, None, math.nan, 4.0, 3.0], "still falling"),
    ],
)
def test_the_learning_curve_gives_one_hint(losses: list[float | None], said: str) -> None:
    (line,) = training_hints(rows(losses), {"train": 1000, "val": 100, "test": 100}, 10.0, STEPS)
    assert said in line


@pytest.mark.parametrize("losses", [[], [5.0, 4.0], [1.0, 0.01, 0.02, 0.03]])
def test_nothing_is_concluded_from_little(losses: list[float]) -> None:
    assert training_hints(rows(losses), {}, 10.0, STEPS) == []


def with_training(
    losses: Sequence[float], trained: Sequence[float]
) -> list[dict[str, float | None]]:
    """The rows of validations, with rows of the training in the middle of the steps before each."""
    between = [{"step": 100 * at + 50, "train/loss": loss} for at, loss in enumerate(trained)]
    return [*between, *rows(losses)]


@pytest.mark.parametrize(
    ("losses", "trained", "said"),
    [
        (
            [5.0, 3.0, 2.0, 3.0, 4.0],
            [5.0, 4.0, 3.5, 2.0, 1.5],
            "while train/loss fell: the model overfits",
        ),
        ([5.0, 4.0, 3.0, 2.9, 3.1, 3.0], [5.0, 4.5, 4.0, 3.6, 3.9, 3.7], "this is no overfitting"),
        ([5.0, 4.0, 2.9, 3.1], [5.0, 4.5, 3.7, 3.6], "one validation after it says little"),
    ],
)
def test_a_model_overfits_where_only_its_training_loss_falls(
    losses: list[float], trained: list[float], said: str
) -> None:
    (line,) = training_hints(with_training(losses, trained), {}, 10.0, STEPS)
    assert said in line
    assert ".0" not in line


def test_few_epochs_are_the_first_hint() -> None:
    (line,) = training_hints(rows([5.0, 3.0, 4.0, 5.0]), {}, 0.35, STEPS)
    assert line.startswith("trained for only 0.35 epochs")
    assert "overfits" not in line


@pytest.mark.parametrize(
    "losses", [[5.0, 3.0, 2.0, 3.0, 4.0], [5.0, 4.0, 3.0, 2.0], [5.0, 3.0, 3.0, 2.99, 2.99]]
)
def test_nothing_is_concluded_from_a_validation_of_unknown_tokens(losses: list[float]) -> None:
    (line,) = training_hints(rows(losses), {}, 10.0, STEPS, unknown=0.98)
    assert line.startswith("98% of the validation's tokens are unknown to the tokenizer")
    assert training_hints(rows(losses), {}, 10.0, STEPS, unknown=0.5) == training_hints(
        rows(losses), {}, 10.0, STEPS
    )


def test_what_was_stopped_early_may_not_go_on() -> None:
    (line,) = training_hints(
        rows([5.0, 3.0]), {}, 0.35, replace(STEPS, early_stopping=EarlyStopping(goal=0.9))
    )
    assert line.endswith("unless `training.early_stopping` has ended it")


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (STEPS, "a larger `training.max_steps` goes on"),
        (Training(max_minutes=3.0), "a larger `training.max_minutes` goes on"),
        (
            replace(STEPS, max_epochs=2),
            "a larger `training.max_steps` and `training.max_epochs` goes on",
        ),
    ],
)
def test_a_longer_training_is_by_the_recipes_own_budget(budget: Training, words: str) -> None:
    (line,) = training_hints(rows([5.0, 4.0, 3.0, 2.0]), {}, 10.0, budget)
    assert words in line
    assert [key for key in BUDGET_KEYS if key in line] == [
        key for key in BUDGET_KEYS if budget.limits[key] is not None
    ]


def test_few_validation_or_test_pairs_are_a_hint() -> None:
    assert training_hints([], {"train": 20, "val": 1, "test": 99}, 10.0, STEPS) == [
        "val has 1 pair and test has 99 pairs: so few that scores vary by chance"
    ]
    assert training_hints([], {"train": 20, "val": 5, "test": 100}, 10.0, STEPS)[0].startswith(
        "val has 5 pairs: "
    )


@pytest.mark.parametrize(
    ("how", "names", "said"),
    [
        ("best", ["step-00000748.ckpt"], "of step 748, the best by val/bleu"),
        ("last", ["step-00001000.ckpt"], "of step 1,000, the last"),
        ("average", ["step-00000001.ckpt", "step-00000002.ckpt"], "the average of steps 1, 2"),
    ],
)
def test_describe_weights_names_the_checkpoints(how: str, names: list[str], said: str) -> None:
    assert describe_weights(UsedCheckpoints(how, tuple(names)), "val/bleu") == said
