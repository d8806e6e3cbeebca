"""Every registered block alone keeps every law, in a decoder and in an encoder, with the settings
of the table.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from blocks.core.functional import default_dtype
from blocks.core.packing import packing_error
from composer.model.weights import MATRICES
from composer.recipe.registry import blocks
from composer.testing import LAWS, PLACES, Case, LawError, check_block, everywhere
from composer.testing.module_laws import compiling
from composer.testing.settings_laws import check_settings, settings_of
from tests import blocks as block_tests
from tests.blocks.inner_stacks import ATTENTION, CGRU, TANH


def variants() -> dict[str, tuple[Mapping[str, Any], ...]]:
    """Return the settings to check by block: `VARIANTS` of the tests in tests/blocks, else the
    defaults alone.
    """
    settings: dict[str, tuple[Mapping[str, Any], ...]] = {name: ({},) for name in blocks()}
    for module in pkgutil.iter_modules(block_tests.__path__, "tests.blocks."):
        if module.name.startswith("tests.blocks.test_"):
            settings |= getattr(importlib.import_module(module.name), "VARIANTS", {})
    return settings


VARIANTS = variants()

CHUNKED = {
    "settings.chunk": "how many positions are computed at once changes speed and memory alone"
}

EXCEPTIONS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(
        (
            "delta_net",
            "gated_delta_net",
            "gated_linear_attention",
            "linear_attention",
            "mamba2",
            "mlstm",
            "retention",
        ),
        CHUNKED,
    ),
    "scale": {
        "gradcheck": "its gradient is another than the function's on purpose, as its own test says",
        "settings.gradient": "it changes the gradient alone, which its own test sees",
        "settings.readers": "they change the gradient alone, which its own test sees",
    },
    "cross_attention": {
        "settings.score": (
            "`location` needs a max_length that the others refuse; its own tests tell the scores"
            " apart"
        ),
        "settings.local": (
            "without `window` it is 10, more than the memories have here; its own tests see what it"
            " does"
        ),
    },
    "mixture_of_experts": {
        "no_side_effects": (
            "training counts which experts are chosen, in a buffer that `finish_step` reads"
        ),
        "settings.balance_rate": (
            "it acts after a training step, which the bench has not, and its own tests have"
        ),
    },
    "active_memory": {
        "settings.recompute": "it computes the same once more, as the tests of recomputation say"
    },
    "repeat": {
        "settings.recompute": "it computes the same once more, as the tests of recomputation say"
    },
    "rg_lru": {
        "initial_output": (
            "an encoder's output has in it what was read from the end, and a copied state has not"
        )
    },
    "slstm": {
        "initial_output": (
            "an encoder's output has in it what was read from the end, and a copied state has not"
        )
    },
    "rwkv7": {
        **CHUNKED,
        "settings.value_residual": (
            "the values are those of an earlier rwkv7, of which the bench has none"
        ),
    },
    "rnn_cell": {
        "settings.width": (
            "it says how wide a `prev` is, of which the bench has none; sennrich2017 needs it"
        )
    },
    "supporting_facts": {
        "gradients": (
            "what chooses learns from told facts alone, which the bench has in training, as its own"
            " test says"
        ),
    },
    "use": {
        "settings.copy": (
            "one use alone shares with nobody; the test of two uses below sees the difference"
        )
    },
}
"""Of each block, the laws (and settings, as `settings.NAME`) that it need not keep, each with its
reason.
"""

COMPILED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("active_memory", {"from": "encoder.grid", "stack": [{"cgru": {"with": "tape"}}]}),
    ("cgru", {"diagonal": True, "gates": "hard"}),
    ("conv", {"activation": "glu"}),
    ("cross_attention", {"score": "additive", "heads": 2, "local": "predicted"}),
    ("differential_attention", {"heads": 2, "positions": "none"}),
    ("discrete_stacks", {"stacks": 2, "cells": 4, "initial_state": {"copy": "encoder.same"}}),
    ("episodic_memory", {"from": "encoder.grid", "query": "encoder", "hops": 2}),
    ("gated_delta_net", {"heads": 2, "decay": "vector"}),
    ("gated_linear_attention", {"heads": 2}),
    ("latent_attention", {"heads": 2, "query_latent": 4}),
    ("mamba2", {"head_width": 6, "state": 5}),
    ("long_conv", {"state": 4}),
    ("mamba", {"state": 2}),
    ("memory_network", {"from": "encoder.grid", "query": "encoder", "linear_start": 0.5}),
    ("mixture_of_experts", {"stack": TANH, "experts": 3}),
    ("mlstm", {"heads": 2}),
    ("nram", {"steps": 2, "registers": 2}),
    ("ntm", {"slots": 5, "slot_width": 3, "write_heads": 2, "initial_state": "learned"}),
    ("parallel", {"branches": {"one": TANH, "two": [{"positions": {}}]}}),
    ("queue_memory", {}),
    (
        "recurrent",
        {"stack": [{"concat": {"of": ["prev.top"]}}, {"rnn": {"as": "top"}}, {"linear": {}}]},
    ),
    ("repeat", {"times": 2, "stack": [{"residual": {"stack": ATTENTION}}, {"feed_forward": {}}]}),
    ("repeat", {"times": "length", "stack": CGRU, "share": True}),
    ("rg_lru", {"heads": 2}),
    ("rnn", {"cell": "gru", "reset": "before"}),
    ("rnn", {"cell": "min_gru"}),
    ("self_attention", {"heads": 2, "window": 3}),
    ("self_attention", {"heads": 2, "kv_heads": 1, "positions": "rotary", "qk_norm": True}),
    ("self_attention", {"heads": 2, "positions": "alibi", "soft_cap": 2.0, "sinks": True}),
    ("slstm", {"short_conv": 2}),
    ("supporting_facts", {"from": "encoder.grid", "query": "encoder", "hops": 2}),
)
"""A sample of the blocks, since compiling takes seconds."""


STACKED = "what it has put away belongs to a row, and would be read by the documents after it"
STORY = "it answers a question about a story, of which a row has one"
GRID = "it works on a grid, and a row of a grid is one document"
LENGTH = "it changes the number of positions, by which documents are told apart"
UNPACKED: Mapping[str, str] = {
    **dict.fromkeys(("deque_memory", "discrete_stacks", "queue_memory", "stack_memory"), STACKED),
    **dict.fromkeys(("episodic_memory", "memory_network", "supporting_facts"), STORY),
    **dict.fromkeys(("active_memory", "grid", "split_columns"), GRID),
    **dict.fromkeys(("pool", "pool_hierarchical", "pyramid"), LENGTH),
}
"""Blocks that arrive at a sequence and cannot be trained on packed rows, each with its reason."""


EVERY_DAY = 2
"""How many variants of each block are checked by the tests that are not slow."""


def test_blocks_that_cannot_be_packed_are_in_the_table() -> None:
    refused = {}
    for name, variants in VARIANTS.items():
        cases = [Case(blocks()[name], settings, place) for settings in variants for place in PLACES]
        accepted = [case for case in cases if case.refusal() is None]
        problems = {str(packing_error(case.build(), case.stream, {}) or "") for case in accepted}
        if accepted and "" not in problems:
            refused[name] = problems
    assert refused == {name: {reason} for name, reason in UNPACKED.items()}


def test_variants_are_of_blocks_that_exist() -> None:
    assert set(VARIANTS) == set(blocks())


@pytest.mark.slow
@default_dtype(torch.float32)
def test_every_exception_has_a_reason_and_is_needed() -> None:
    for name, reasons in EXCEPTIONS.items():
        cases = [
            case for case in everywhere(blocks()[name], *VARIANTS[name]) if case.refusal() is None
        ]
        for law, reason in reasons.items():
            with pytest.raises(LawError):
                check_law(law, cases)
            assert len(reason.split()) > 3


def check_law(law: str, cases: Sequence[Case]) -> None:
    """Check one law, or that of one setting, over the cases of a block."""
    if law in LAWS:
        for case in cases:
            LAWS[law](case)
    else:
        others = {
            setting for setting, _ in settings_of(cases[0].kind) if law != f"settings.{setting}"
        }
        check_settings(cases[0].kind, cases, others)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_block_says_what_weight_decay_falls_on(name: str) -> None:
    """Nobody can see in a shape whether it is a matrix, or a vector for each head: its module says
    it.
    """
    untold: set[str] = set()
    for case in (
        case for case in everywhere(blocks()[name], *VARIANTS[name]) if case.refusal() is None
    ):
        for module in case.build().modules():
            told = {*MATRICES, *getattr(module, "layouts", {})}
            shapes = {key: it.ndim for key, it in module.named_parameters(recurse=False)}
            untold |= {
                f"{type(module).__name__}.{key}"
                for key, ndim in shapes.items()
                if ndim > 1 and key not in told
            }
    assert not untold


@pytest.mark.parametrize("name", VARIANTS)
def test_a_block_keeps_every_law(name: str) -> None:
    without = {"settings": "the next test has it, of all variants"}
    exceptions = {**EXCEPTIONS.get(name, {}), **without}
    check_block(blocks()[name], *VARIANTS[name][:EVERY_DAY], exceptions=exceptions, compiles=False)


@default_dtype(torch.float32)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_setting_of_a_block_has_an_effect(name: str) -> None:
    accepted = [
        case for case in everywhere(blocks()[name], *VARIANTS[name]) if case.refusal() is None
    ]
    exceptions = {law.removeprefix("settings.") for law in EXCEPTIONS.get(name, {})}
    check_settings(blocks()[name], accepted, exceptions)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_a_block_keeps_every_law_with_all_its_variants(name: str) -> None:
    check_block(blocks()[name], *VARIANTS[name], exceptions=EXCEPTIONS.get(name), compiles=False)


@pytest.mark.parametrize(("copy", "uses"), [(False, 1), (True, 2)])
def test_uses_of_a_stack_share_their_parameters_unless_they_are_copies(
    copy: bool, uses: int
) -> None:
    twice = {"branches": [[{"use": {"stack": "shelf", "copy": copy}}] for _ in range(2)]}
    once = {"branches": [[{"use": {"stack": "shelf"}}]]}
    one, two = (Case(blocks()["parallel"], settings).build() for settings in (once, twice))
    assert len(list(two.parameters())) == uses * len(list(one.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "settings"), COMPILED, ids=[name for name, _ in COMPILED])
def test_a_block_compiles(name: str, settings: dict[str, Any]) -> None:
    compiling(next(case for case in everywhere(blocks()[name], settings) if case.refusal() is None))
