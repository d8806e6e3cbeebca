"""Every registered block alone keeps every law, in a decoder and in an encoder, with the settings of the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from composer.recipe.registry import blocks
from composer.testing import PLACES, Case, LawError, check_block
from composer.testing.harness import COLUMNS
from composer.testing.module_laws import compiling

RNN = [{"rnn": {"cell": "tanh"}}]
ATTENTION = [{"self_attention": {"heads": 2}}]
TANH = [{"linear": {"activation": "tanh"}}]
NARROWER = [{"linear": {"width": 6}}]
CGRU = [{"cgru": {"kernel": [3, 2]}}]
WIDER = [{"linear": {"width": 16, "activation": "tanh"}}, {"rnn": {"cell": "gru", "as": "inside"}}]

VARIANTS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "active_memory": (
        {"from": "encoder.grid", "stack": [{"cgru": {"with": "tape"}}]},
        {
            "from": "encoder.earlier_grid",
            "stack": [{"repeat": {"times": 2, "stack": CGRU}}, {"cgru": {"with": "tape"}}],
            "write": "all",
            "recompute": True,
        },
    ),
    "add": ({"of": ["earlier"]}, {"of": ["earlier", "encoder.summary"], "scale": 0.7}),
    "source_state": ({}, {"from": "encoder.earlier"}),
    "no_input": ({}, {"width": 5}),
    "cgru": (
        {},
        {"kernel": [1, 1], "gates": "plain", "diagonal": True, "with": "narrow"},
        {"kernel": [2, 3], "gates": "hard", "candidate": "hard", "bias": 0.0, "saturation": 0.5},
        {"dropout": 0.3, "saturation": 0.1, "with": "earlier"},
        {"dropout": 0.1, "dropout_by": "length"},
    ),
    "select_column": ({}, {"index": 2}),
    "concat": ({"of": ["narrow"]}, {"of": ["input", "narrow", "encoder.summary"]}),
    "pool_hierarchical": ({}, {"max_length": 3, "activation": "none"}, {"max_length": 6, "activation": "sigmoid"}),
    "conv": (
        {},
        {"kernel": 4, "dilation": 2, "activation": "glu", "width": 5},
        {"stride": 2},
        {"kernel": 1},
        {"depthwise": True, "kernel": 2, "activation": "glu"},
        {"weight_norm": True, "activation": "tanh"},
    ),
    "conv2d": ({}, {"kernel": [1, 3], "activation": "tanh"}, {"kernel": [4, 2], "activation": "glu", "width": 5}),
    "cross_attention": (
        {},
        {"heads": 3, "merge": "average", "dropout": 0.3},
        {"score": "general", "heads": 2, "values": "encoder.earlier"},
        {"score": "additive", "heads": 3, "query": "narrow", "sqrt_length": True},
        {"score": "additive", "heads": 2, "merge": "average", "local": "predicted", "window": 1},
        {"score": "fine_grained", "from": ["encoder", "encoder.earlier"], "dropout": 0.3},
        {"score": "location", "max_length": 5, "heads": 2, "local": "monotonic", "window": 1},
        {"heads": 2, "keys": "encoder.earlier", "values": "encoder", "local": "monotonic", "window": 2},
        {"heads": 4, "from": ["encoder", "encoder.summary"], "query": "encoder.summary"},
        {"score": "general", "heads": 3, "local": "predicted", "window": 3, "from": "encoder.earlier"},
    ),
    "deque_memory": ({}, {"width": 5}, {"initial_state": {"copy": "encoder.same"}}),
    "discrete_stacks": (
        {"stacks": 2, "cells": 4},
        {"stacks": 3, "cells": 3, "depth": 3, "no_op": False},
        {"stacks": 2, "cells": 5, "rounding": "evaluation", "depth": 1},
        {"stacks": 2, "cells": 4, "initial_state": {"copy": "encoder.same"}},
    ),
    "dropout": ({}, {"rate": 0.3}),
    "feed_forward": ({}, {"hidden": 5, "activation": "swiglu"}, {"hidden": 5, "dropout": 0.3}),
    "flatten": ({},),
    "grid": ({}, {"columns": 2, "max_length_ratio": 1.0}),
    "highway": ({"stack": RNN}, {"stack": ATTENTION}, {"stack": TANH}),
    "identity": ({},),
    "linear": ({}, {"width": 5, "activation": "glu"}, {"bias": False, "weight_norm": True}),
    "maxout": ({}, {"pieces": 3, "width": 5}),
    "memory_network": (
        {"from": "encoder.grid", "query": "encoder.earlier", "time": 5},
        {
            "from": "encoder.earlier_grid",
            "tying": "layer_wise",
            "encoding": "bag",
            "hops": 2,
            "width": 5,
            "time": 0,
            "slots": 9,
        },
        {"hops": 1, "noise": 0.5, "linear_start": 0.5, "answer": "words", "query": "encoder.summary"},
        {"from": "encoder.grid", "tying": "layer_wise", "query": "encoder", "answer": "words", "time": 3, "noise": 0.0},
    ),
    "multiply": ({"of": ["earlier"]}, {"of": ["encoder.summary", "input"]}),
    "norm": ({}, {"kind": "rms"}),
    "nram": ({"steps": 3}, {"steps": 2, "registers": 2, "hidden": 5, "layers": 2, "entropy": 0.3}),
    "ntm": (
        {"slots": 5, "slot_width": 3},
        {"slots": 6, "slot_width": 2, "read_heads": 2, "write_heads": 3, "memory": "random"},
        {"slots": 7, "slot_width": 3, "shift": 3, "memory": "learned", "initial_state": "learned"},
        {"slots": 4, "slot_width": 3, "shift": 0, "initial_state": "encoder"},
        {"slots": 5, "slot_width": 2, "read_heads": 2, "initial_state": {"copy": "encoder.same"}},
        {"slots": 5, "slot_width": 2, "initial_state": "encoder.grid"},
    ),
    "parallel": (
        {"branches": {"one": RNN, "two": ATTENTION}},
        {"branches": [RNN, TANH, [{"identity": {}}]], "merge": "max"},
        {"branches": {"one": WIDER, "two": TANH}, "merge": "concat"},
        {"branches": [TANH, ATTENTION], "merge": "gate"},
        {"branches": [[{"conv": {}}], [{"cross_attention": {}}]], "merge": "mean"},
        {"branches": {"one": RNN, "two": [{"cross_attention": {"heads": 2}}], "three": TANH}, "merge": "attention"},
        {"branches": [CGRU, [{"conv2d": {}}], TANH], "merge": "gate"},
        {"branches": {"one": [{"grid": {}}], "two": [*TANH, {"grid": {}}]}, "merge": "mean"},
        {"branches": [CGRU, TANH], "merge": "attention"},
        {"branches": [[{"select_column": {}}], [{"sum_columns": {}}]], "merge": "max"},
        {"branches": [NARROWER, [*NARROWER, {"cross_attention": {"score": "dot", "heads": 2}}]]},
    ),
    "pool": ({"how": "last"}, {"how": "mean"}, {"how": "max"}, {"how": "attention"}),
    "positions": ({}, {"kind": "learned"}, {"kind": "learned", "max_length": 3, "per_iteration": True}),
    "queue_memory": ({}, {"width": 5}, {"initial_state": {"copy": "encoder.same"}}),
    "recurrent": (
        {
            "stack": [
                {"concat": {"of": ["prev.top"]}},
                {"rnn": {"cell": "gru", "initial_state": "encoder", "as": "top"}},
            ]
        },
        {
            "stack": [
                {"linear": {"as": "lifted"}},
                {"cross_attention": {"query": "prev.state", "as": "read"}},
                {"concat": {"of": ["input", "lifted", "earlier"]}},
                {"rnn": {"cell": "lstm", "initial_state": "learned", "as": "state"}},
                {"concat": {"of": ["read", "encoder.summary"]}},
            ]
        },
        {"stack": [{"conv": {}}, {"self_attention": {"heads": 2}}]},
        {
            "stack": [
                {"residual": {"stack": [{"add": {"of": ["prev.up"]}}, {"linear": {"activation": "tanh", "as": "up"}}]}},
                {"conv": {}},
            ]
        },
        {
            "stack": [
                {"recurrent": {"stack": [{"concat": {"of": ["prev.deep"]}}, {"linear": {"as": "deep", "width": 3}}]}},
                {"concat": {"of": ["prev.out", "deep"]}},
                {"linear": {"activation": "tanh", "as": "out"}},
            ]
        },
        {
            "stack": [
                {"recurrent": {"stack": [{"linear": {"as": "low", "width": 3}}, {"concat": {"of": ["prev.low"]}}]}},
                {"linear": {"as": "flat"}},
            ]
        },
        {
            "stack": [
                {"concat": {"of": ["prev.state", "prev.deep"]}},
                {
                    "recurrent": {
                        "stack": [
                            {"linear": {"as": "deep", "width": 3}},
                            {"concat": {"of": ["prev.deep", "prev.state"]}},
                            {"rnn": {"cell": "gru", "initial_state": "encoder", "as": "state"}},
                        ]
                    }
                },
            ]
        },
        {
            "stack": [
                {
                    "parallel": {
                        "branches": {"left": [{"concat": {"of": ["prev.left"]}}, *TANH], "right": TANH},
                        "merge": "concat",
                    }
                }
            ]
        },
    ),
    "repeat": (
        {"times": 2, "stack": ATTENTION},
        {"times": 3, "stack": WIDER},
        {"times": 2, "stack": [*RNN, *TANH], "share": True},
        {"times": 3, "stack": TANH, "relaxation": {"sets": 2}},
        {"times": "length", "stack": [{"conv": {}}, {"linear": {"activation": "tanh", "as": "made"}}], "share": True},
        {"times": "length", "stack": CGRU, "share": True, "relaxation": {"sets": 2}},
        {"times": 2, "stack": [*CGRU, {"conv2d": {"activation": "tanh"}}]},
    ),
    "residual": (
        {"stack": ATTENTION, "norm": "pre"},
        {"stack": [{"rnn": {"cell": "gru"}}], "norm": "post", "dropout": 0.3},
        {"stack": [{"residual": {"stack": [{"conv": {}}]}}, {"cross_attention": {}}], "scale": 0.5},
        {"stack": CGRU, "norm": "post"},
    ),
    "reverse": ({},),
    "rnn": (
        {},
        {"cell": "tanh", "layers": 2, "dropout": 0.3},
        {"cell": "gru", "reset": "before", "initial_state": "learned"},
        {"cell": "gru", "reset": "after", "layers": 2, "width": 10},
        {"cell": "lstm", "projection": 8, "initial_state": "encoder"},
        {"cell": "tanh", "initial_state": "encoder.grid"},
        {"layers": 2, "initial_state": {"copy": "encoder.same"}},
        {"cell": "gru", "initial_state": {"copy": "encoder.same"}},
        {"bidirectional": True},
        {"cell": "gru", "reset": "after", "bidirectional": True, "layers": 2},
        {"bidirectional": True, "layers": 2, "projection": 8, "initial_state": "learned"},
        {"norm": "gates", "initial_state": "learned"},
        {"norm": "gates", "cell": "gru", "bidirectional": True, "width": 8},
        {"norm": "gates", "cell": "gru", "reset": "after", "layers": 2},
        {"norm": "gates", "cell": "tanh"},
    ),
    "scale": ({"factor": 0.3}, {"factor": 0.3, "gradient": 2.0}),
    "self_attention": (
        {"heads": 2, "dropout": 0.3},
        {"heads": 3, "window": 3},
        {"heads": 1, "window": 1},
        {"heads": 2, "positions": "relative", "max_distance": 3},
        {"heads": 2, "positions": "rotary"},
        {"heads": 3, "positions": "relative", "window": 3, "dropout": 0.3},
        {"heads": 3, "positions": "rotary", "window": 3},
    ),
    "stack_memory": ({}, {"width": 5}, {"initial_state": {"copy": "encoder.same"}}),
    "sum_columns": ({},),
    "supporting_facts": (
        {"from": "encoder.grid", "query": "encoder", "hops": 2},
        {"from": "encoder.earlier_grid", "query": "encoder.summary", "encoding": "position", "width": 5},
        {"query": "encoder.earlier", "hops": 3, "margin": 0.5},
    ),
    "use": ({"stack": "shelf"}, {"stack": "other_shelf", "copy": True}),
}

EXCEPTIONS: Mapping[str, Mapping[str, str]] = {
    "scale": {
        "gradcheck": "its gradient is another than the function's on purpose, as its own test says",
        "settings.gradient": "it changes the gradient alone, which its own test sees",
    },
    "cross_attention": {
        "settings.score": "`location` needs a max_length that the others refuse; its own tests tell the scores apart",
        "settings.local": "without `window` it is 10, more than the memories have here; its own tests see what it does",
    },
    "active_memory": {"settings.recompute": "it computes the same once more, as the tests of recomputation say"},
    "repeat": {"settings.recompute": "it computes the same once more, as the tests of recomputation say"},
    "supporting_facts": {
        "gradients": "what chooses learns from told facts alone, of which the bench has none, as its own test says",
        "settings.margin": "it is for told facts, of which the bench has none; its own test sees it",
    },
    "use": {"settings.copy": "one use alone shares with nobody; the test of two uses below sees the difference"},
}
"""Of each block, the laws (and settings, as `settings.NAME`) that it need not keep, each with its reason."""

COMPILED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("active_memory", {"from": "encoder.grid", "stack": [{"cgru": {"with": "tape"}}]}),
    ("cgru", {"diagonal": True, "gates": "hard"}),
    ("conv", {"activation": "glu"}),
    ("cross_attention", {"score": "additive", "heads": 2, "local": "predicted"}),
    ("discrete_stacks", {"stacks": 2, "cells": 4, "initial_state": {"copy": "encoder.same"}}),
    ("memory_network", {"from": "encoder.grid", "query": "encoder", "linear_start": 0.5}),
    ("nram", {"steps": 2, "registers": 2}),
    ("ntm", {"slots": 5, "slot_width": 3, "write_heads": 2, "initial_state": "learned"}),
    ("parallel", {"branches": {"one": TANH, "two": [{"positions": {}}]}}),
    ("queue_memory", {}),
    ("recurrent", {"stack": [{"concat": {"of": ["prev.top"]}}, {"rnn": {"as": "top"}}, {"linear": {}}]}),
    ("repeat", {"times": 2, "stack": [{"residual": {"stack": ATTENTION}}, {"feed_forward": {}}]}),
    ("repeat", {"times": "length", "stack": CGRU, "share": True}),
    ("rnn", {"cell": "gru", "reset": "before"}),
    ("self_attention", {"heads": 2, "window": 3}),
    ("supporting_facts", {"from": "encoder.grid", "query": "encoder", "hops": 2}),
)
"""A sample of the blocks, since compiling takes seconds."""


def test_every_block_stands_in_the_table() -> None:
    assert list(blocks()) == sorted(VARIANTS)


def test_every_exception_has_a_reason_and_is_needed() -> None:
    for name, reasons in EXCEPTIONS.items():
        for law, reason in reasons.items():
            others = {each: why for each, why in reasons.items() if each != law}
            with pytest.raises(LawError):
                check_block(blocks()[name], *VARIANTS[name], exceptions=others, compiles=False)
            assert len(reason.split()) > 3


@pytest.mark.parametrize("name", VARIANTS)
def test_a_block_keeps_every_law(name: str) -> None:
    check_block(blocks()[name], *VARIANTS[name], exceptions=EXCEPTIONS.get(name), compiles=False)


@pytest.mark.parametrize(("copy", "uses"), [(False, 1), (True, 2)])
def test_uses_of_a_stack_share_their_parameters_unless_they_are_copies(copy: bool, uses: int) -> None:
    twice = {"branches": [[{"use": {"stack": "shelf", "copy": copy}}] for _ in range(2)]}
    once = {"branches": [[{"use": {"stack": "shelf"}}]]}
    one, two = (Case(blocks()["parallel"], settings).build() for settings in (once, twice))
    assert len(list(two.parameters())) == uses * len(list(one.parameters()))


@pytest.mark.parametrize(("name", "settings"), COMPILED, ids=[name for name, _ in COMPILED])
def test_a_block_compiles(name: str, settings: dict[str, Any]) -> None:
    cases = [Case(blocks()[name], settings, place, columns=columns) for place in PLACES for columns in (0, COLUMNS)]
    compiling(next(case for case in cases if case.refusal() is None))
