"""No block reads a matrix past its adapter, and merged weights answer as adapters do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from composer.checks.built_model import unreached_by_loss
from composer.model.adapters import LowRank, adapter_sites, add_adapters
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder, example_ids, example_sources
from composer.recipe.recipe import Recipe, load
from composer.runs.adapters import merge_adapters
from tests.laws.test_recipes import DIFFERENT, SMALL, name, small, vocabularies
from tests.recipes.model_sizes import size_overrides
from tests.samples import sampled


def adapted(path: Path) -> Recipe:
    """Return a recipe of a small size with adapters in all its stacks."""
    plain = small(path)
    stacks = [f"encoders.{key}" for key in plain.model.encoders or ()]
    stacks += ["encoder"] if plain.model.encoder else []
    stacks += ["decoder"] if plain.model.decoder else []
    blocks = ", ".join(f"'{stack}'" for stack in stacks)
    setting = f"training.adapters={{lora: {{rank: 2, blocks: [{blocks}]}}}}"
    return load(path, [*size_overrides(path, SMALL), setting])


def answers(model: EncoderDecoder) -> torch.Tensor:
    sources, ids = example_sources(model, 4), example_ids(model, 4)
    return model(sources, ids)


@pytest.mark.parametrize("path", sampled(DIFFERENT, 8), ids=name)
def test_every_adapter_is_read(path: Path) -> None:
    recipe = adapted(path)
    sizes = vocabularies(recipe)
    model, plain = build(recipe, sizes), build(recipe, sizes)
    sites = adapter_sites(recipe, model)
    assert sites is not None
    if sites.shared:
        pytest.skip("a matrix is tied to an embedding")
    lost = unreached_by_loss(model)  # what no short pair reads
    add_adapters(recipe, model)
    for module in model.modules():
        if isinstance(module, LowRank):
            nn.init.normal_(module.up, std=0.1)
    unread = unreached_by_loss(model)
    for site in sites.sites:
        (adapter,) = site.module.parametrizations[site.name]
        assert id(site.matrix) in lost or id(adapter.up) not in unread
    plain.load_state_dict(merge_adapters(model.state_dict()))
    with torch.no_grad():
        torch.manual_seed(1)
        expected = answers(plain.eval())
        torch.manual_seed(1)
        assert torch.equal(answers(model.eval()), expected)
