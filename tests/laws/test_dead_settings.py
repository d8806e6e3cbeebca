"""Beside any other setting of its block, every setting is refused or changes something; a failure lists what does not.

A value is compared with the setting left out, over the variants of a block and over its shortest variant with one other
setting changed.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from blocks.core.contract import Block, BlockError
from composer.model.builder import python_name
from composer.recipe.registry import blocks
from composer.testing import PLACES, Case
from composer.testing.block_laws import with_fixed_seed
from composer.testing.harness import COLUMNS, context_of, max_difference, positions, random_batch, run, start
from composer.testing.settings_laws import MIN_DIFFERENCE, candidate_values, changed, setting_value, settings_of
from tests.laws.test_blocks import VARIANTS

SMALL = 12
"""Larger numbers reach beyond the rows of the bench."""
EXCEPTIONS = {
    ("active_memory", "recompute"): "changes time and memory alone",
    ("repeat", "recompute"): "changes time and memory alone",
    ("cross_attention", "local"): "a window of 10 is more than the memories of the bench have",
    ("cross_attention", "from"): "names what is read without it, too",
    ("cross_attention", "keys"): "names what is read without it, too",
    ("cross_attention", "values"): "names what is read without it, too",
    ("cross_attention", "window"): "reaches over all rows of the bench",
    ("discrete_stacks", "cells"): "are more than the rows of the bench fill",
    ("memory_network", "from"): "names what is read without it, too",
    ("memory_network", "slots"): "are fewer than the sentences of the bench",
    ("memory_network", "noise"): "draws the same ages from one seed and few sentences",
    ("rnn_cell", "width"): "says the width of `state` once more, which `prev` may need",
    ("source_state", "from"): "names what is read without it, too",
    ("supporting_facts", "from"): "names what is read without it, too",
    ("cross_attention", "query"): "names the stream itself",
    ("self_attention", "max_distance"): "is the furthest in the window, as without it",
    ("use", "copy"): "needs a second use, which the bench has not; the planner refuses it at the only one",
    ("scale", "gradient"): "is the factor, as without it",
    ("cgru", "reset_bias"): "is the bias, as without it",
}
"""Settings of which some values equal what holds without them, and why."""

Signature = tuple[Any, list[torch.Tensor]]


def signature(case: Case) -> Signature | None:
    """All that a setting may change: shapes, parameters, outputs, gradients, training; None where it is refused."""
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
    return (block.out, block.max_target_ratio), parts


def in_training(case: Case, block: Block) -> Iterator[torch.Tensor]:
    batch = random_batch(case)
    penalties: dict[str, list[torch.Tensor]] = {}
    facts = torch.tensor([[0, 1]]).expand(len(batch.x), 2) if "facts" in case.kind.__name__.lower() else None
    context = context_of(batch)._replace(penalties=penalties, progress=torch.tensor(0.25), facts=facts)
    block.train()
    y, *_ = with_fixed_seed(lambda: block(batch.x, start(block, batch), context))
    yield y[block.mask(batch.mask)]
    yield torch.tensor([sum(value.item() for value in values) for values in penalties.values()], dtype=torch.float64)


def same(one: Signature, two: Signature) -> bool:
    if one[0] != two[0] or len(one[1]) != len(two[1]):
        return False
    return all(max_difference(a, b) <= MIN_DIFFERENCE for a, b in zip(one[1], two[1], strict=True))


def without(case: Case, setting: str) -> Case:
    return replace(case, settings={key: value for key, value in case.settings.items() if key != setting})


def values_of(kind: type[Block], variants: Sequence[Case]) -> list[tuple[str, Any]]:
    """Settings of a block, not inside others, with values that are not their defaults."""
    pairs = []
    for setting, hint in settings_of(kind):
        if "." in setting:
            continue
        tried = [*candidate_values(hint), *(setting_value(case, setting) for case in variants)]
        default = inspect.signature(kind).parameters[python_name(setting)].default
        fit = [value for value in tried if value not in (default, None) and not (type(value) is int and value > SMALL)]
        pairs += [(setting, value) for value in fit]
    return pairs


def dead_settings(name: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each setting of a block and its value that change nothing, with the other settings."""
    variants = [Case(blocks()[name], settings) for settings in VARIANTS[name]]
    pairs, known = values_of(blocks()[name], variants), dict[str, Signature | None]()

    def of(case: Case) -> Signature | None:
        key = json.dumps((dict(case.settings), case.place, case.columns), sort_keys=True)
        if key not in known:
            known[key] = signature(case)
        return known[key]

    for place, columns in product(PLACES, (0, COLUMNS)):
        cases = [replace(case, place=place, columns=columns) for case in variants]
        cases = [case for case in cases if of(case) is not None]
        shortest = min(cases, key=lambda case: len(case.settings), default=None)
        cases += [changed(shortest, *pair) for pair in pairs] if shortest else []
        for case, (setting, value) in product(cases, pairs):
            one, two = of(without(case, setting)), of(changed(case, setting, value))
            if one is not None and two is not None and same(one, two):
                yield setting, value, dict(without(case, setting).settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_no_setting_is_without_effect_beside_another(name: str) -> None:
    dead = [found for found in dead_settings(name) if (name, found[0]) not in EXCEPTIONS]
    assert not dead, "\n".join(f"{name}.{setting}: {value!r} beside {others}" for setting, value, others in dead)
