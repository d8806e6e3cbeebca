"""The fix of a fault that only a built model shows names what can be written there."""

from __future__ import annotations

import re

import pytest

from composer.checks.planner import plan
from composer.errors import Fault, RecipeError
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
            (
                "encoder: [rnn, {pool: {as: gist}}], decoder: [{rnn: {as: top}}, {concat: tpo},"
                " cross_attention]"
            ),
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
            "write `self_attention`, or with `from` the name of another encoder",
        ),
        (
            "decoder: [rnn, cross_attention]",
            "there is nothing to read here: no encoder comes before",
            "give the model an encoder, or use `self_attention`",
        ),
        (
            "decoder: [rnn, {cross_attention: {from: top}}]",
            "no memory is called `top`",
            "write the name of an encoder that comes before; of two that read each other none does",
        ),
        (
            (
                "encoders: {a: [{cross_attention: {from: b}}], b: [{cross_attention: {from: a}}]},"
                " decoder: [rnn]"
            ),
            "no memory is called `b`",
            "write the name of an encoder that comes before; of two that read each other none does",
        ),
        (
            "decoder: [{use: top}]",
            "no stack is called `top`",
            "define it: `model: {stacks: {top: [...]}}`",
        ),
        (
            "stacks: {top: [rnn]}, decoder: [{use: tops}, {use: top}]",
            "no stack is called `tops`; did you mean `top`?",
            "write one of `top`",
        ),
        (
            "decoder: [rnn], output: {ctc: {}}",
            "CTC reads the frames of an encoder, and the model has none",
            "remove `ctc`, or add an encoder",
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


def test_an_override_below_a_choice_names_its_words() -> None:
    text = f"{HEAD}model: {{width: 16, decoder: [rnn]}}\n"
    with pytest.raises(RecipeError) as raised:
        load_text(text, overrides=["training.optimizer.lr=3"])
    (fault,) = raised.value.faults
    words = [
        "adadelta",
        "adafactor",
        "adagrad",
        "adam",
        "adamw",
        "muon",
        "rmsprop",
        "schedule_free",
        "sgd",
    ]
    assert fault.hint == f"the names are {', '.join(f'`{word}`' for word in words)}"


@pytest.mark.parametrize(
    ("block", "setting", "fix"),
    [
        ("self_attention: {heads: 4, kv_heads: 3}", "kv_heads", "write `kv_heads: 2`"),
        (
            "self_attention: {heads: 16, qk_norm: true}",
            "qk_norm",
            "remove `qk_norm`, or write fewer `heads`",
        ),
        (
            "latent_attention: {heads: 5}",
            "heads",
            "write `heads: 4`, or choose a width that 5 divides",
        ),
        ("latent_attention: {rotary_width: 5}", "rotary_width", "write `rotary_width: 6`"),
        (
            "differential_attention: {heads: 16}",
            "heads",
            "write `heads: 8`, or choose a width that 32 divides",
        ),
        ("differential_attention: {heads: 8, positions: rotary}", "positions", "write `heads: 4`"),
        (
            "mixture_of_experts: {stack: [linear], experts: 2, top_k: 3}",
            "top_k",
            "write `top_k: 2` or less",
        ),
        (
            "mixture_of_experts: {stack: [rnn: {}], experts: 2}",
            "rnn",
            "write blocks that work at each position alone",
        ),
    ],
)
def test_a_fault_of_attention_and_experts_stands_at_its_setting(
    block: str, setting: str, fix: str
) -> None:
    text = f"{HEAD}model:\n  width: 16\n  decoder:\n    - norm\n    - {block}\n"
    with pytest.raises(RecipeError) as raised:
        plan(load_text(text))
    (fault,) = raised.value.faults
    before, after = (
        text.splitlines()[6][part]
        for part in (slice(fault.column - 1), slice(fault.column - 1, None))
    )
    assert fault.line == 7
    assert before.endswith(f"{setting}: ") or after.startswith(f"{setting}: ")
    assert fix in fault.hint


@pytest.mark.parametrize(
    "inner", ["conv", "self_attention", "reverse", "gated_delta_net", "rnn: {bidirectional: true}"]
)
def test_a_block_of_an_expert_that_reads_other_positions_is_refused_at_its_line_in_encoders_too(
    inner: str,
) -> None:
    blocks = (
        "    - mixture_of_experts:\n        stack:\n          - feed_forward\n          -"
        " residual:\n              - "
    )
    text = f"{HEAD}model:\n  width: 16\n  decoder: [cross_attention]\n  encoder:\n{blocks}{inner}\n"
    with pytest.raises(RecipeError, match=f"`{inner.partition(':')[0]}` reads more") as raised:
        plan(load_text(text))
    (fault,) = raised.value.faults
    assert (fault.line, fault.column) == (len(text.splitlines()), 17)
    plan(load_text(text.replace(f"- {inner}\n", "- feed_forward\n")))
    outside = text.replace(f"- {inner}\n", "- feed_forward\n") + f"    - {inner}\n"
    plan(load_text(outside))


def faults_of(encoder: str, decoder: str) -> list[Fault]:
    """The faults of a model 24 wide whose decoder has a block at line 9."""
    text = (
        f"{HEAD}model:\n  width: 24\n  encoder:\n    - {encoder}\n  decoder:\n    -"
        f" cross_attention\n    - {decoder}\n"
    )
    try:
        plan(load_text(text))
    except RecipeError as error:
        return list(error.faults)
    return []


HEADS_THAT_DIVIDE = [
    *(
        "linear_attention",
        "gated_linear_attention",
        "delta_net",
        "gated_delta_net",
        "mlstm",
        "slstm",
    ),
    *("rwkv7", "rg_lru", "latent_attention", "differential_attention"),
]
SHORT_CONV = [
    *(
        "linear_attention",
        "retention",
        "gated_linear_attention",
        "delta_net",
        "gated_delta_net",
        "mlstm",
        "slstm",
    ),
    *("mamba", "mamba2", "rg_lru"),
]
STATES = [*SHORT_CONV, "rwkv7", "long_conv"]
CHUNK = [word for word in STATES if word not in ("mamba", "slstm", "rg_lru", "long_conv")]
DIFFERENTIAL = "differential_attention: {{heads: {}, positions: rotary}}"
EXPERTS = "mixture_of_experts: {{stack: [linear], experts: 2, top_k: {}}}"
SMALL = {"mamba2": "head_width: 16", "retention": "heads: 4"}
"""What a block needs where 24 features arrive."""


@pytest.mark.parametrize(
    ("block", "setting", "fixed"),
    [
        *(
            (f"{word}: {{heads: 5}}", "heads", f"{word}: {{heads: 4}}")
            for word in HEADS_THAT_DIVIDE
            if word != "retention"
        ),
        ("retention: {heads: 5, state: 6}", "heads", "retention: {heads: 4, state: 6}"),
        *((f"{word}: {{short_conv: -1}}", "short_conv", "") for word in SHORT_CONV),
        *((f"{word}: {{short_conv: 1001}}", "short_conv", "") for word in SHORT_CONV),
        *(
            (f"{word}: {{chunk: 0}}", "chunk", "")
            for word in STATES
            if word not in ("mamba", "slstm", "rg_lru", "long_conv")
        ),
        (
            "self_attention: {heads: 4, kv_heads: 3}",
            "kv_heads",
            "self_attention: {heads: 4, kv_heads: 2}",
        ),
        (
            "self_attention: {heads: 4, kv_heads: 8}",
            "kv_heads",
            "self_attention: {heads: 4, kv_heads: 4}",
        ),
        (
            "self_attention: {heads: 8, positions: rotary}",
            "positions",
            "self_attention: {heads: 6, positions: rotary}",
        ),
        (DIFFERENTIAL.format(4), "positions", DIFFERENTIAL.format(3)),
        ("latent_attention: {latent: 1}", "latent", "latent_attention: {latent: 2}"),
        (
            "latent_attention: {query_latent: 1}",
            "query_latent",
            "latent_attention: {query_latent: 2}",
        ),
        (
            "latent_attention: {rotary_width: 3}",
            "rotary_width",
            "latent_attention: {rotary_width: 4}",
        ),
        ("retention: {heads: 4, state: 5}", "state", "retention: {heads: 4, state: 6}"),
        ("long_conv: {state: 5}", "state", "long_conv: {state: 6}"),
        ("delta_net: {head_width: 1}", "head_width", "delta_net: {head_width: 2}"),
        ("gated_delta_net: {state: 1}", "state", "gated_delta_net: {state: 2}"),
        ("mamba2: {head_width: 7}", "head_width", "mamba2: {head_width: 6}"),
        ("mamba2: {head_width: 16, groups: 2}", "groups", "mamba2: {head_width: 16, groups: 1}"),
        (EXPERTS.format(3), "top_k", EXPERTS.format(2)),
    ],
)
def test_a_bad_setting_of_a_mixer_is_refused_where_it_stands_and_its_fix_is_one(
    block: str, setting: str, fixed: str
) -> None:
    word = block.partition(":")[0]
    if setting in ("short_conv", "chunk"):
        value = {"short_conv": 4, "chunk": 64}[setting]
        fixed = f"{word}: {{{', '.join(filter(None, (f'{setting}: {value}', SMALL.get(word))))}}}"
    (fault,) = faults_of("linear", block)
    assert fault.line == 9
    assert fault.path.endswith(f".{word}.{setting}")
    changed = {part for part in re.findall(r"\w+: \w+", fixed) if part not in block}
    assert setting in ("short_conv", "chunk") or all(f"`{part}`" in fault.hint for part in changed)
    assert not faults_of("linear", fixed)


@pytest.mark.parametrize("word", STATES)
def test_a_state_of_another_size_or_block_is_not_copied(word: str) -> None:
    other = {"rwkv7": "heads: 2", "rg_lru": "short_conv: 2", "slstm": "short_conv: 2"}.get(
        word, "state: 8"
    )
    own = SMALL.get(word, "")
    copying = f"{word}: {{initial_state: {{copy: encoder.top}}{', ' * bool(own)}{own}}}"
    for encoder in (
        f"{word}: {{as: top, {other}{', ' * bool(own)}{own}}}",
        "rnn: {as: top}",
        "linear: {as: top}",
    ):
        (fault,) = faults_of(encoder, copying)
        assert (fault.line, fault.path.rpartition(".")[2]) == (9, "initial_state")
        assert f"this starts from the state of `{word}`" in fault.message
        assert f"copy from a `{word}` with the same settings" in fault.hint
    assert not faults_of(f"{word}: {{as: top{', ' * bool(own)}{own}}}", copying)
    assert not faults_of("linear", copying.replace("{copy: encoder.top}", "encoder"))


NO_PARAMETERS = "repeat: {times: length, stack: [{gated_delta_net: {heads: 4, as: top}}]}"
"""A block that is refused before it looks at its stack."""
REFUSED_BLOCKS = ("gated_delta_net: {heads: 5, as: top}", NO_PARAMETERS)


@pytest.mark.parametrize("encoder", REFUSED_BLOCKS)
@pytest.mark.parametrize(
    "decoder",
    [
        "gated_delta_net: {heads: 4, initial_state: {copy: encoder.top}}",
        "stack_memory: {initial_state: {copy: encoder.top}}",
        "cross_attention: {from: encoder.top}",
    ],
)
def test_what_depends_on_a_block_that_is_refused_is_not_reported(
    encoder: str, decoder: str
) -> None:
    (fault,) = faults_of(encoder, decoder)
    assert fault.line == 6


@pytest.mark.parametrize(
    "around", ["{}", "recurrent: [{}, {{concat: prev.top}}]", "residual: [{}, {{concat: top}}]"]
)
def test_a_name_that_a_refused_block_would_give_is_not_reported_where_it_is_read(
    around: str,
) -> None:
    first = around.format(f"{{{NO_PARAMETERS}}}" if around != "{}" else NO_PARAMETERS)
    (fault,) = faults_of("linear", f"{first}\n    - concat: top")
    assert "cannot have parameters of their own" in fault.message


def test_a_fault_of_its_own_is_reported_after_a_refused_block() -> None:
    faults = faults_of(
        REFUSED_BLOCKS[0], "gated_delta_net: {heads: 7, initial_state: {copy: encoder.top}}"
    )
    assert [fault.line for fault in faults] == [6, 9]
    faults = faults_of(NO_PARAMETERS, "cross_attention: {from: encoder.tip}")
    assert [fault.line for fault in faults] == [6, 9]
