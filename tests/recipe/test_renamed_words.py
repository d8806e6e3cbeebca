"""A word that the language had once is refused with the new one, at its place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from composer.recipe import registry, schema_generator
from tests.small_recipes import SMALL, assert_fault, old_words, refused

FAKE = {
    "block.standardise": "norm",
    "block.self_attention.hands": "heads",
    "block.residual.layers": "stack: [...]",
    "training.budget": "max_steps",
    "earlystopping.waits": "patience",
    "optimizers.adamantine": "adam",
    "optimizers.adam.beta": "betas: [0.9, 0.98]",
}


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The language with a few made-up old words."""
    monkeypatch.setattr(registry, "RENAMED", FAKE)
    rules = schema_generator.generate()
    monkeypatch.setattr(schema_generator, "load", lambda: rules)


@pytest.mark.parametrize(
    ("text", "place", "message", "hint"),
    [
        (
            SMALL.replace("[norm]", "[standardise]"),
            "5:13:renamed",
            "`standardise` is called `norm` now",
            "write `norm`",
        ),
        (SMALL.replace("[norm]", "[{standardise: rms}]"), "5:14:renamed", "is called `norm` now", "write `norm`"),
        (SMALL.replace("64", "64\n  standardise: {kind: rms}"), "5:3:renamed", "is called `norm` now", "write `norm`"),
        (SMALL.replace("[norm]", "[{self_attention: {hands: 4}}]"), "5:31:renamed", "`heads` now", "write `heads`"),
        (SMALL.replace("64", "64\n  self_attention: {hands: 4}"), "5:20:renamed", "`heads` now", "write `heads`"),
        (
            SMALL.replace("[norm]", "[{residual: {layers: [norm]}}]"),
            "5:25:renamed",
            "`layers` is called `stack` now",
            "write `stack: [...]`",
        ),
        (f"{SMALL}training: {{budget: 3}}\n", "6:12:renamed", "is called `max_steps` now", "write `max_steps`"),
        (f"{SMALL}training: {{early_stopping: {{waits: 3}}}}\n", "6:29:renamed", "`patience` now", "write `patience`"),
        (f"{SMALL}training: {{optimizer: adamantine}}\n", "6:23:renamed", "is called `adam` now", "write `adam`"),
        (
            f"{SMALL}training: {{optimizer: {{adam: {{beta: 1}}}}}}\n",
            "6:31:renamed",
            "`beta` is called `betas` now",
            "write `betas: [0.9, 0.98]`",
        ),
    ],
)
def test_an_old_word_is_refused_with_the_new_one(
    renamed: None, tmp_path: Path, text: str, place: str, message: str, hint: str
) -> None:
    (fault,) = refused(tmp_path, text)
    assert_fault(fault, place, message, hint)
    assert fault.hint == hint


def test_an_old_word_is_refused_on_the_command_line_too(renamed: None, tmp_path: Path) -> None:
    (fault,) = refused(tmp_path, SMALL, ["training.budget=3"])
    assert (fault.file, fault.column, fault.code) == ("<command line>", 10, "renamed")


def test_no_fix_names_an_old_word() -> None:
    """Every text of the sources counts; `refused` looks at the fix of every fault that a test plants."""
    root = Path(registry.__file__).parents[2]
    texts = {
        (path.name, node.value)
        for path in [*root.glob("composer/**/*.py"), *root.glob("blocks/**/*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not sorted((name, text) for name, text in texts if old_words(text))
    assert old_words("write `- sum` or `{grid: {room: 2}}`") == old_words("put `[sum, {room: 1}]` before it")
    assert sorted(old_words("write `- sum` or `{grid: {room: 2}}`")) == ["room", "sum"]
    assert not old_words("write `merge: sum`, or `sum_columns`")


def test_every_entry_of_the_table_names_an_old_word_and_a_new_one() -> None:
    rules = schema_generator.generate()
    definitions = {**rules["$defs"], "recipe": rules}
    for key, new in registry.RENAMED.items():
        owner, _, old = key.rpartition(".")
        words = definitions[owner]["properties"]
        assert old not in words, f"`{key}` is a word of the language again"
        assert new.partition(":")[0] in words, f"`{new}`, which replaces `{key}`, is no word of the language"
