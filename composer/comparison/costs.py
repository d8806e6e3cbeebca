"""What two models cost: parameters, FLOPs and state, of the whole and of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from composer.comparison.sources import Side
from composer.model.builder import Builder
from composer.model.planner import BlockFailed, Tally, measure, parameters_of, vocabulary_bounds
from composer.recipe.recipe import Recipe
from composer.run_dir import recorded_vocabularies


@dataclass(frozen=True)
class Costs:
    """What a model costs; FLOPs and bytes for one pair as `plan` counts them.

    `parts` are the parameters of the encoders, the decoder, and of embeddings and output, each counted once.
    `vocabularies` are those of the tokenizer where `trained`, else the bounds that the recipe sets.
    """

    parameters: int
    flops: int
    state_bytes: int
    parts: Mapping[str, int]
    vocabularies: Mapping[str, int]
    trained: bool

    def as_json(self) -> Mapping[str, Any]:
        return asdict(self)


def costs(one: Side, other: Side) -> tuple[Costs, Costs]:
    """The costs of both. Where both have the same data and tokenizer, a recipe has the vocabularies of the other's run.

    Raises RecipeError where a model cannot be built.
    """
    known = [sizes(each) for each in (one, other)]
    if one.recipe.dataset == other.recipe.dataset:
        known = [known[0] or known[1], known[1] or known[0]]
    first = cost_of(one.recipe, known[0])
    alike = one.recipe.model == other.recipe.model and known[0] == known[1]
    same_bounds = known[1] or vocabulary_bounds(other.recipe) == first.vocabularies
    return first, first if alike and same_bounds else cost_of(other.recipe, known[1])


def sizes(side: Side) -> dict[str, int]:
    """The vocabularies of a run, as far as run.json knows them."""
    kept, needed = recorded_vocabularies(side.record) or {}, vocabulary_bounds(side.recipe)
    return {key: kept[key] for key in needed} if needed.keys() <= kept.keys() else {}


def cost_of(recipe: Recipe, vocabularies: Mapping[str, int]) -> Costs:
    """What one model costs. Raises RecipeError with its faults."""
    bounds = vocabularies or vocabulary_bounds(recipe)
    builder = Builder(recipe)
    with torch.device("meta"):
        model = builder.model(bounds)
    builder.finish()
    try:
        tallies, flops = measure(model)
    except BlockFailed:
        recipe.plan()  # which tells why, with its place
        raise
    state = tallies.get(id(model.decoder), Tally()).state_bytes
    named = {_title(each.memory): each.stack for each in model.readers().values()}
    parts = _shares({**named, "decoder": model.decoder, "embeddings and output": model})
    return Costs(parameters_of(model), flops, state, parts, bounds, bool(vocabularies))


def _title(memory: str) -> str:
    return memory if memory == "encoder" else f"encoder {memory}"


def _shares(modules: Mapping[str, nn.Module]) -> dict[str, int]:
    """How many numbers each has that none before it has."""
    seen: set[int] = set()
    found = {}
    for name, module in modules.items():
        own = {id(each): each.numel() for each in module.parameters() if id(each) not in seen}
        seen |= own.keys()
        found[name] = sum(own.values())
    return found
