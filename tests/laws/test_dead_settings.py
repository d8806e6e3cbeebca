"""Beside any other setting of its block, every setting is refused or changes something; a failure
lists what does not.

A value is compared with the setting left out, over the variants of a block and over its shortest
variant with one other setting changed. At a border, the values of a setting
must not all act alike: there it is dead, and must be refused.
"""

from __future__ import annotations

import ast
import inspect
import json
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from blocks.core.contract import Block, BlockError, Bounds, Kind, Penalties, reduce_penalties
from composer.recipe.registry import blocks
from composer.recipe.section import python_name
from composer.testing import PLACES, Case
from composer.testing.block_laws import with_fixed_seed
from composer.testing.harness import (
    COLUMNS,
    WIDTH,
    context_of,
    max_difference,
    positions,
    random_batch,
    run,
    start,
)
from composer.testing.settings_laws import (
    MIN_DIFFERENCE,
    candidate_values,
    changed,
    setting_value,
    settings_of,
)
from tests.laws.test_blocks import VARIANTS
from tests.samples import sampled

SMALL = 12
"""Larger numbers reach beyond the rows of the bench."""
MIXERS = (
    "delta_net",
    "gated_delta_net",
    "gated_linear_attention",
    "linear_attention",
    "mamba2",
    "mlstm",
)
MIXERS += ("retention", "rwkv7")
CHUNKED = {(word, "chunk"): "changes time and memory alone" for word in MIXERS}
EXCEPTIONS = {
    **CHUNKED,
    **{
        (word, setting): "is what the width gives, as without it"
        for word in MIXERS
        for setting in ("head_width", "state")
    },
    ("mamba2", "heads"): "are what the width gives, as without them",
    ("active_memory", "recompute"): "changes time and memory alone",
    ("repeat", "recompute"): "changes time and memory alone",
    ("rwkv7", "value_residual"): "reads an earlier rwkv7, of which the bench has none",
    ("cross_attention", "local"): "a window of 10 is more than the memories of the bench have",
    ("cross_attention", "from"): "names what is read without it, too",
    ("cross_attention", "keys"): "names what is read without it, too",
    ("cross_attention", "values"): "names what is read without it, too",
    ("cross_attention", "window"): "reaches over all rows of the bench",
    ("discrete_stacks", "cells"): "are more than the rows of the bench fill",
    ("episodic_memory", "from"): "names what is read without it, too",
    ("latent_attention", "head_width"): "is what the width has for each head, as without it",
    ("latent_attention", "latent"): "is four times a head, as without it",
    ("latent_attention", "rotary_width"): "is half of a head, as without it",
    ("memory_network", "from"): "names what is read without it, too",
    ("memory_network", "slots"): "are fewer than the sentences of the bench",
    ("memory_network", "noise"): "draws the same ages from one seed and few sentences",
    ("mixture_of_experts", "balance_rate"): "acts after a training step, which the bench has not",
    ("rnn_cell", "width"): "says the width of `state` once more, which `prev` may need",
    ("source_state", "from"): "names what is read without it, too",
    ("supporting_facts", "from"): "names what is read without it, too",
    ("cross_attention", "query"): "names the stream itself",
    ("self_attention", "max_distance"): "is the furthest in the window, as without it",
    ("self_attention", "kv_heads"): "are as many as the heads, as without them",
    ("self_attention", "head_width"): "is what the width has for each head, as without it",
    ("self_attention", "bias"): "is `all`, as without it",
    (
        "use",
        "copy",
    ): "needs a second use, which the bench has not; the planner refuses it at the only one",
    ("scale", "gradient"): "is the factor, as without it",
    ("cgru", "reset_bias"): "is the bias, as without it",
}
"""Settings of which some values equal what holds without them, and why."""

BORDERS: dict[type, tuple[float, ...]] = {int: (0, 1, 2, WIDTH), float: (0.0, 1.0)}
STREAMS = ((WIDTH, 0), (WIDTH, COLUMNS), (1, 0), (WIDTH, 1))
"""Width and columns of what arrives."""
ONE = "encoder.summary"
AT_BORDERS: dict[str, tuple[dict[str, Any], ...]] = {
    "ntm": ({"slots": 1, "shift": 0, "slot_width": 3}, {"slots": 2, "shift": 0, "slot_width": 1}),
    "cross_attention": (
        {"from": ONE},
        {"from": ONE, "score": "additive"},
        {"from": ONE, "score": "general"},
    ),
    "discrete_stacks": ({"stacks": 1, "depth": 1, "cells": 1},),
    "nram": ({"steps": 1, "registers": 1},),
    "self_attention": (
        {"window": 1, "heads": 4},
        {"window": 1, "positions": "relative", "heads": 4},
    ),
    "memory_network": ({"from": ONE, "query": ONE, "time": 1}, {"hops": 1, "time": 1}),
    "rnn": ({"width": 1, "cell": "gru"}, {"width": 1, "norm": "gates"}),
}
"""Settings of blocks of which several are at a border at once."""
EXCEPTIONS_AT_BORDERS = {
    **CHUNKED,
    ("active_memory", "recompute"): "changes time and memory alone",
    ("repeat", "recompute"): "changes time and memory alone",
    ("use", "copy"): "needs a second use, which the bench has not",
    ("rwkv7", "value_residual"): "reads an earlier rwkv7, of which the bench has none",
    ("rnn_cell", "width"): "says the width of `state` once more",
    ("conv", "width"): "says the only width that a depthwise convolution may have once more",
    ("cross_attention", "keys"): "names what is read without it, too",
    ("cross_attention", "values"): "names what is read without it, too",
    (
        "discrete_stacks",
        "cells",
    ): "are at least as many as `depth`, and then as many as the bench has",
    ("discrete_stacks", "initial_state"): "is rounded to the same in a bench of one feature",
    ("positions", "per_iteration"): "is 0 in the first iteration, and the bench has one",
    ("memory_network", "encoding"): "is for words, and one that is a sentence has one place",
    ("memory_network", "noise"): "draws the same ages from one seed and few sentences",
    ("mixture_of_experts", "balance_rate"): "acts after a training step, which the bench has not",
    ("self_attention", "max_distance"): "is the only one that a window of 2 has",
    ("self_attention", "heads"): "are what divides the width, which the default does not",
}
"""Settings of which the bench tries no value that is not as without them, and why."""
REFUSED: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("ntm", {"slots": 1, "shift": 0, "order": "write_address_read"}, "order"),
    ("cross_attention", {"from": ONE, "heads": 2}, "heads"),
    ("cross_attention", {"from": ONE, "local": "monotonic"}, "local"),
    ("cross_attention", {"from": ONE, "sqrt_length": True}, "sqrt_length"),
    ("cross_attention", {"from": ONE, "doubly_stochastic": 1.0}, "doubly_stochastic"),
    (
        "self_attention",
        {"window": 1, "positions": "relative", "heads": 4, "max_distance": 1},
        "max_distance",
    ),
    ("self_attention", {"window": 1, "positions": "alibi", "sinks": True, "heads": 4}, "positions"),
    ("self_attention", {"heads": 1, "kv_heads": 1}, "kv_heads"),
    ("self_attention", {"window": 1, "qk_norm": True, "heads": 4}, "qk_norm"),
    ("self_attention", {"window": 1, "soft_cap": 2.0, "heads": 4}, "soft_cap"),
    ("memory_network", {"time": 1, "noise": 0.0}, "noise"),
    ("memory_network", {"from": ONE, "noise": 0.5}, "noise"),
    ("supporting_facts", {"from": ONE, "query": "encoder", "hops": 2}, "from"),
    ("episodic_memory", {"from": ONE, "query": "encoder"}, "from"),
    ("episodic_memory", {"query": ONE, "encoding": "bag"}, "encoding"),
    ("rnn", {"width": 1, "norm": "gates"}, "norm"),
)
REFUSED_OF_ONE_FEATURE: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("conv", {"depthwise": True}, "depthwise"),
    ("norm", {}, ""),
    ("residual", {"stack": [{"identity": {}}], "norm": "post"}, "norm"),
    ("residual", {"stack": [{"identity": {}}], "norm": "pre"}, "norm"),
)

Signature = tuple[Any, list[torch.Tensor]]


def signature(case: Case) -> Signature | None:
    """All that a setting may change: shapes, parameters, outputs, gradients, training; None where
    it is refused.
    """
    try:
        block = case.exact()
    except (BlockError, TypeError):  # a case without a setting that it needs
        return None
    batch = random_batch(case)
    batch = batch._replace(x=batch.x.requires_grad_())
    made = run(block, batch)
    if made.y.requires_grad:
        made.y[made.mask].sum().backward()
    parts = [*(parameter.detach() for parameter in block.parameters()), made.y[made.mask].detach()]
    parts += [] if batch.x.grad is None else [batch.x.grad]
    with torch.no_grad():
        parts.append(run(block, positions(random_batch(case), 0, 1), made.state).y)
        parts += in_training(case, block)
        block.eval().set_progress(1.0)  # as a trained model decodes
        parts.append(run(block, random_batch(case)).real)
        if case.arriving == 1:  # one feature may have one sign, of which a rectifier shows nothing
            parts.append(run(block, batch._replace(x=-batch.x.detach())).real)
    return (block.out, block.max_target_ratio), parts


class Signatures:
    """The signatures of cases, each computed once."""

    def __init__(self) -> None:
        self.known: dict[str, Signature | None] = {}

    def of(self, case: Case) -> Signature | None:
        key = json.dumps(
            (dict(case.settings), case.place, case.arriving, case.columns), sort_keys=True
        )
        if key not in self.known:
            self.known[key] = signature(case)
        return self.known[key]


def in_training(case: Case, block: Block) -> Iterator[torch.Tensor]:
    batch = random_batch(case)
    penalties: Penalties = {}
    facts = torch.tensor([[0, 1]]).expand(len(batch.x), 2)
    context = context_of(batch)._replace(
        penalties=penalties, progress=torch.tensor(0.25), facts=facts
    )
    block.train()
    y, *_ = with_fixed_seed(lambda: block(batch.x, start(block, batch), context))
    yield y[block.mask(batch.mask)]
    yield torch.tensor(
        [value.item() for value in reduce_penalties(penalties).values()], dtype=torch.float64
    )


def same(one: Signature, two: Signature) -> bool:
    if one[0] != two[0] or len(one[1]) != len(two[1]):
        return False
    return all(max_difference(a, b) <= MIN_DIFFERENCE for a, b in zip(one[1], two[1], strict=True))


def without(case: Case, setting: str) -> Case:
    return replace(
        case, settings={key: value for key, value in case.settings.items() if key != setting}
    )


def values_of(kind: type[Block], variants: Sequence[Case]) -> list[tuple[str, Any]]:
    """Settings of a block, not inside others, with values that are not their defaults."""
    pairs = []
    for setting, hint in settings_of(kind):
        if "." in setting:
            continue
        tried = [*candidate_values(hint), *(setting_value(case, setting) for case in variants)]
        default = inspect.signature(kind).parameters[python_name(setting)].default
        fit = [
            value
            for value in tried
            if value not in (default, None) and not (type(value) is int and value > SMALL)
        ]
        pairs += [(setting, value) for value in fit]
    return pairs


def dead_settings(name: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each setting of a block and its value that change nothing, with the other settings."""
    variants = [Case(blocks()[name], settings) for settings in VARIANTS[name]]
    pairs, of = values_of(blocks()[name], variants), Signatures().of

    for place, columns in product(PLACES, (0, COLUMNS)):
        cases = [replace(case, place=place, columns=columns) for case in variants]
        cases = [case for case in cases if of(case) is not None]
        shortest = min(cases, key=lambda case: len(case.settings), default=None)
        cases += [changed(shortest, *pair) for pair in pairs] if shortest else []
        for case, (setting, value) in product(cases, pairs):
            one, two = of(without(case, setting)), of(changed(case, setting, value))
            if one is not None and two is not None and same(one, two):
                yield setting, value, dict(without(case, setting).settings)


@pytest.mark.parametrize("name", sampled([*VARIANTS], 0, 2))
def test_no_setting_is_without_effect_beside_another(name: str) -> None:
    dead = [result for result in dead_settings(name) if (name, result[0]) not in EXCEPTIONS]
    assert not dead, "\n".join(
        f"{name}.{setting}: {value!r} beside {others}" for setting, value, others in dead
    )


def border_values(hint: Any) -> list[Any]:
    """Values of a type at its borders, and every word."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return list(arguments)
    if origin in (typing.Union, types.UnionType):
        return [value for part in arguments for value in border_values(part)]
    if origin is typing.Annotated:
        kinds = [note.name for note in arguments[1:] if isinstance(note, Kind)]
        bounds = next((note for note in arguments[1:] if isinstance(note, Bounds)), Bounds())
        one = [ONE] if kinds and kinds[0] in ("memory", "memories", "initial_state") else []
        return (
            one
            if kinds
            else [number for number in BORDERS.get(arguments[0], ()) if number in bounds]
        )
    return (
        [None]
        if hint is type(None)
        else [False, True]
        if hint is bool
        else list(BORDERS.get(hint, ()))
    )


def dead_at_borders(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each setting no value of which changes anything beside others at their borders, with
    these.
    """
    kind = blocks()[name]
    at_borders = [Case(kind, settings) for settings in AT_BORDERS.get(name, ())]
    variants = [*at_borders, *(Case(kind, settings) for settings in VARIANTS[name])]
    borders = [
        (setting, value) for setting, hint in settings_of(kind) for value in border_values(hint)
    ]
    borders = [pair for pair in borders if "." not in pair[0]]
    tried: dict[str, list[Any]] = {}
    for setting, value in map(
        ast.literal_eval, dict.fromkeys(map(repr, [*borders, *values_of(kind, variants)]))
    ):
        default = inspect.signature(kind).parameters[python_name(setting)].default
        if value != default or type(value) is not type(default):
            tried.setdefault(setting, []).append(value)
    signatures = Signatures()
    for place, (arriving, columns) in product(PLACES, STREAMS):
        placed = [
            replace(case, place=place, arriving=arriving, columns=columns) for case in variants
        ]
        alive = [case for case in placed if signatures.of(case) is not None]
        changing = [
            *alive[: len(at_borders)],
            *([min(alive, key=lambda case: len(case.settings))] if alive else []),
        ]
        cases = [*alive, *(changed(case, *pair) for case in changing for pair in borders)]
        for case, setting in product(cases, tried):
            base = without(case, setting)
            values = map(
                signatures.of, (base, *(changed(base, setting, value) for value in tried[setting]))
            )
            # each computed where those before are alike
            accepted = (value for value in values if value is not None)
            first, second = next(accepted, None), next(accepted, None)
            if (
                first
                and second
                and same(first, second)
                and all(same(first, other) for other in accepted)
            ):
                yield setting, dict(base.settings)


@pytest.mark.parametrize("name", sampled([*VARIANTS], 0, 1))
def test_no_setting_is_dead_beside_others_at_their_borders(name: str) -> None:
    dead = [
        result for result in dead_at_borders(name) if (name, result[0]) not in EXCEPTIONS_AT_BORDERS
    ]
    assert not dead, "\n".join(f"{name}.{setting} beside {others}" for setting, others in dead)


@pytest.mark.parametrize(
    ("name", "settings", "setting"), [*REFUSED, *REFUSED_OF_ONE_FEATURE], ids=str
)
def test_what_is_dead_at_a_border_is_refused_where_it_stands(
    name: str, settings: dict[str, Any], setting: str
) -> None:
    arriving = 1 if (name, settings, setting) in REFUSED_OF_ONE_FEATURE else WIDTH
    refusal = Case(blocks()[name], settings, "encoder", arriving=arriving).refusal()
    assert refusal is not None
    assert (refusal.setting, bool(refusal.fix.text)) == (setting, True)


def test_heads_that_choose_nothing_are_refused_where_the_width_would_take_the_default() -> None:
    refusal = Case(blocks()["self_attention"], {"window": 1, "heads": 4}, arriving=16).refusal()
    assert refusal is not None
    assert refusal.setting == "heads"
