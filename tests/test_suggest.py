"""Suggestions: the closest word, words of other toolkits, and words that are too far."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from composer.errors import RecipeError
from composer.recipe.recipe import load_text
from composer.recipe.sections import Training
from composer.suggest import (
    OTHER_WORDS,
    TRAINER_KEYS,
    closest_word,
    did_you_mean,
    suggested_form,
    valid_name,
)


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("haeds", "heads"),
        ("cpoy", "copy"),
        ("wrmup", "warmup"),
        ("CrossAttention", "cross_attention"),
        ("RNN", "rnn"),
        ("n\u043erm", "norm"),
        ("lr", "learning_rate"),
        ("num_beams", "beam"),
        ("no", "false"),
    ],
)
def test_a_misspelt_or_foreign_word_is_known(word: str, other: str) -> None:
    assert closest_word(word, ["nram", other, "dropout"]) == other


def test_the_same_words_in_another_order_are_nearest() -> None:
    blocks = ["memory_network", "stack_memory", "window_memory"]
    assert closest_word("memory_stack", blocks) == "stack_memory"
    assert closest_word("Memory_Window", blocks) == "window_memory"


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("mask", "as"),
        ("layers", "vars"),
        ("clip", "recipe"),
        ("head_dim", "heads"),
        ("warmup_steps", "max_steps"),
        ("dropout:0.1", "dropout"),
        ("zzz", "heads"),
    ],
)
def test_another_word_is_no_misspelling(word: str, other: str) -> None:
    assert did_you_mean(word, [other]) == ""


def test_a_word_of_another_toolkit_may_be_a_word_and_its_settings() -> None:
    assert suggested_form("lstm", ["rnn", "linear"]) == "rnn: {cell: lstm}"
    assert suggested_form("rope", ["positions", "rotary"]) == "positions: rotary"
    assert suggested_form("rope", ["absolute", "rotary"]) == "rotary"
    assert did_you_mean("lstm", ["rnn", "linear"]) == "; did you mean `rnn`?"


def test_no_word_of_ours_is_another_word_for_something_else_where_both_are() -> None:
    assert not [
        form for form, others in OTHER_WORDS.items() if form.partition(":")[0] in others.split()
    ]


def test_a_letter_that_is_not_ascii_is_named() -> None:
    expected = (
        "; it has the character `\u043e` (U+043E, Cyrillic small letter o); did you mean `norm`?"
    )
    assert did_you_mean("n\u043erm", ["norm"]) == expected


@pytest.mark.parametrize(
    ("text", "name"), [("a b", "a_b"), ("1st", "x1st"), ("gr\u00f6\u00dfe", "gr_e")]
)
def test_a_valid_name_has_letters_digits_and_lines(text: str, name: str) -> None:
    assert valid_name(text) == name


@pytest.mark.parametrize("argument", TRAINER_KEYS)
def test_what_stands_for_an_argument_of_lightning_is_there(argument: str) -> None:
    recipe = (
        "recipe: 1\ndata: {generate: copy}\nmodel: {width: 4, decoder: [norm]}\ntrainer:"
        f" {{{argument}: 1}}\n"
    )
    with pytest.raises(RecipeError) as raised:
        load_text(recipe)
    (fault,) = raised.value.faults
    assert (fault.code, fault.hint) == ("refused", TRAINER_KEYS[argument])
    named = re.findall(r"`training\.(\w+)", fault.hint)
    assert {*named} <= {setting.name for setting in fields(Training)}
    assert named or "`logging`" in fault.hint or "`--run DIR`" in fault.hint


def test_a_folder_for_a_run_is_no_key_of_a_recipe() -> None:
    assert TRAINER_KEYS["default_root_dir"] == "use `--run DIR` on the command line"
