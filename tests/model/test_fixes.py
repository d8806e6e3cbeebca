"""The fix of a fault that only a built model shows names what can be written there."""

from __future__ import annotations

import pytest

from composer.errors import RecipeError
from composer.model.planner import plan
from composer.recipe.recipe import load_text

HEAD = "recipe: 1\ndata: {generate: copy}\n"


@pytest.mark.parametrize(
    ("model", "message", "fix"),
    [
        (
            "encoder: [rnn], decoder: [{cross_attention: {query: top}}]",
            "nothing here is called `top`",
            "name an earlier block `as: top`; what can be read here: `input`",
        ),
        (
            "encoder: [{rnn: {as: top}}], decoder: [cross_attention, {concat: top}]",
            "nothing here is called `top`",
            "name an earlier block `as: top`; what can be read here: `input`",
        ),
        (
            "encoder: [rnn, {pool: {as: gist}}], decoder: [{rnn: {as: top}}, {concat: tpo}, cross_attention]",
            "did you mean `top`?",
            "write `top`; what can be read here: `input`, `top`, `encoder`, `encoder.gist`",
        ),
        (
            "encoder: [rnn], decoder: [cross_attention, {concat: encodr}]",
            "nothing here is called `encodr`",
            "name an earlier block `as: encodr`; what can be read here: `input`",
        ),
        (
            "encoder: [cross_attention, rnn], decoder: [cross_attention]",
            "an encoder has no memory of its own, and no encoder comes before",
            "write `self_attention`; to read another source, name its encoder so that it sorts before this one",
        ),
        (
            "decoder: [rnn, cross_attention]",
            "there is nothing to read here: no encoder comes before",
            "give the model an encoder, or use `self_attention`",
        ),
        (
            "decoder: [select_column, rnn]",
            "`select_column` works on a grid, and a sequence arrives",
            "remove it: nothing here leaves a grid",
        ),
    ],
)
def test_a_name_that_cannot_be_read_gets_an_exact_fix(model: str, message: str, fix: str) -> None:
    with pytest.raises(RecipeError) as raised:
        plan(load_text(f"{HEAD}model: {{width: 16, {model}}}\n"))
    fault = raised.value.faults[0]
    assert message in fault.message
    assert fault.hint == fix


def test_an_override_of_the_optimizer_names_its_setting() -> None:
    for optimizer, word in (("", "adam"), ("training: {optimizer: sgd}\n", "sgd")):
        text = f"{HEAD}model: {{width: 16, decoder: [rnn]}}\n{optimizer}"
        with pytest.raises(RecipeError) as raised:
            load_text(text, overrides=["training.optimizer.lr=3"])
        (fault,) = raised.value.faults
        written = f"`optimizer: {{{word}: {{learning_rate: 3}}}}`"
        assert fault.hint == f"write {written}, on the command line `training.optimizer.{word}.learning_rate=3`"


@pytest.mark.parametrize(
    ("block", "setting", "fix"),
    [
        ("self_attention: {heads: 4, kv_heads: 3}", "kv_heads", "write `kv_heads: 2`"),
        ("self_attention: {heads: 16, qk_norm: true}", "qk_norm", "remove `qk_norm`, or write fewer `heads`"),
        ("latent_attention: {heads: 5}", "heads", "write `heads: 4`, or choose a width that 5 divides"),
        ("latent_attention: {rotary_width: 5}", "rotary_width", "write `rotary_width: 6`"),
        ("differential_attention: {heads: 16}", "heads", "write `heads: 8`, or choose a width that 32 divides"),
        ("differential_attention: {heads: 8, positions: rotary}", "positions", "write `heads: 4`"),
        ("mixture_of_experts: {stack: [linear], experts: 2, top_k: 3}", "top_k", "write `top_k: 2` or less"),
        ("mixture_of_experts: {stack: [rnn: {}], experts: 2}", "rnn", "write blocks that work at each position alone"),
    ],
)
def test_a_fault_of_attention_and_experts_stands_at_its_setting(block: str, setting: str, fix: str) -> None:
    text = f"{HEAD}model:\n  width: 16\n  decoder:\n    - norm\n    - {block}\n"
    with pytest.raises(RecipeError) as raised:
        plan(load_text(text))
    (fault,) = raised.value.faults
    before, after = (text.splitlines()[6][part] for part in (slice(fault.column - 1), slice(fault.column - 1, None)))
    assert fault.line == 7
    assert before.endswith(f"{setting}: ") or after.startswith(f"{setting}: ")
    assert fix in fault.hint


@pytest.mark.parametrize(
    "inner", ["conv", "self_attention", "reverse", "gated_delta_net", "rnn: {bidirectional: true}"]
)
def test_a_block_of_an_expert_that_reads_other_positions_is_refused_at_its_line_in_encoders_too(inner: str) -> None:
    blocks = (
        "    - mixture_of_experts:\n        stack:\n          - feed_forward\n          - residual:\n              - "
    )
    text = f"{HEAD}model:\n  width: 16\n  decoder: [cross_attention]\n  encoder:\n{blocks}{inner}\n"
    with pytest.raises(RecipeError, match=f"`{inner.partition(':')[0]}` reads more") as raised:
        plan(load_text(text))
    (fault,) = raised.value.faults
    assert (fault.line, fault.column) == (len(text.splitlines()), 17)
    plan(load_text(text.replace(f"- {inner}\n", "- feed_forward\n")))
    outside = text.replace(f"- {inner}\n", "- feed_forward\n") + f"    - {inner}\n"
    plan(load_text(outside))
