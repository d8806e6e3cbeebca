"""What a recipe over stories must agree on, told before a model is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.errors import RecipeError
from tests.small_recipes import loaded, places, refused

STORIES = """recipe: 1
data:
  babi: {folder: x, tasks: [1, 2]}
  tokenizer: {word: {split: spaces}}
model:
  width: 8
  encoders: {story: [sum_columns], question: [rnn]}
  decoder: [{rnn: {initial_state: question}}, {cross_attention: {from: story}}]
training: {max_epochs: 3}
"""

FAULTS = [
    ("{word: {split: spaces}}", "word", ["4:14:tokenizer"]),
    ("{word: {split: spaces}}", "{word: {joint: true}}", ["4:3:tokenizer"]),
    ("{word: {split: spaces}}", "char", ["4:14:tokenizer"]),
    ("  tokenizer: {word: {split: spaces}}\n", "", ["3:3:tokenizer"]),
    ("tasks: [1, 2]", "tasks: []", ["3:21:empty"]),
    ("tasks: [1, 2]", "tasks: [0]", ["3:29:bound"]),
    ("tasks: [1, 2]", "tasks: 1", ["3:28:type"]),
    ("tasks: [1, 2]", "tsks: [1]", ["3:21:unknown"]),
    ("tasks: [1, 2]", "tasks: [1], val: 1.0", ["3:38:bound"]),
    (", question: [rnn]", "", ["7:3:encoders"]),
    ("question: [rnn]", "query: [rnn]", ["7:3:encoders"]),
    ("encoders: {story: [sum_columns], question: [rnn]}", "encoder: [rnn]", ["7:3:encoders"]),
    ("  encoders: {story: [sum_columns], question: [rnn]}\n", "", ["5:1:encoders"]),
    ("2]}", "2]}\n  generate: copy", ["4:3:exclusive"]),
]


@pytest.mark.parametrize(("old", "new", "told"), FAULTS)
def test_faults_have_their_place(tmp_path: Path, old: str, new: str, told: list[str]) -> None:
    text = STORIES.replace(old, new)
    assert text != STORIES
    assert places(refused(tmp_path, text)) == told


def test_a_stack_of_a_story_begins_with_a_grid(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, STORIES)
    assert {row.block for row in recipe.plan().rows} >= {"sum_columns", "cross_attention"}
    with pytest.raises(RecipeError, match="`rnn` works on a sequence, and a grid arrives"):
        loaded(tmp_path, STORIES.replace("[sum_columns]", "[rnn]")).plan()
    with pytest.raises(RecipeError, match="`sum_columns`"):
        loaded(tmp_path, STORIES.replace("question: [rnn]", "question: [sum_columns]")).plan()


def test_early_stopping_needs_validation_questions(tmp_path: Path) -> None:
    text = STORIES.replace("{max_epochs: 3}", "{early_stopping: {patience: 1}}")
    loaded(tmp_path, text)
    without = text.replace("2]}", "2], val: 0}")
    assert [fault.code for fault in loaded(tmp_path, without).plan().warnings] == ["unused"]


def test_a_question_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    text = STORIES.replace("  width: 8\n", "  width: 8\n  embedding: one_hot\n").replace(
        "[rnn]", "[identity]"
    )
    text = text.replace("{rnn: {initial_state: question}}", "rnn")
    with pytest.raises(RecipeError, match="nothing reads `question`"):
        loaded(tmp_path, text).plan()
