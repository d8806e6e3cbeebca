"""`training.initialization`: every matrix of a block gets the scale of its own inputs, however it
is stored.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from composer.model.builder import build
from composer.model.initializations import INITIALIZATIONS, Default, Orthogonal, UniformScaling
from composer.model.weights import as_matrices, initialize, matrices_with_layouts
from composer.recipe.choices import Initialization
from composer.recipe.recipe import load_text

WIDTH, HEADS, KERNEL, LATENT = 64, 4, 4, 32
SHARE = WIDTH // HEADS
TEXT = f"""recipe: 1
data: {{generate: copy}}
model:
  width: {WIDTH}
  decoder:
    - slstm: {{heads: {HEADS}, short_conv: {KERNEL}}}
    - rg_lru: {{heads: {HEADS}, short_conv: {KERNEL}}}
    - latent_attention: {{heads: {HEADS}, latent: {LATENT}}}
    - conv: {{kernel: 3}}
    - rnn
    - long_conv
"""
INPUTS = {
    "0.directions.readers.0.recurrent": SHARE,
    "0.directions.readers.0.conv.weight": KERNEL,
    "0.directions.readers.0.arriving.0.weight": SHARE,
    "1.directions.readers.0.recurrence_gate.weight": SHARE,
    "2.keys": LATENT,
    "2.values": LATENT,
    "3.weight": 3 * WIDTH,
    "4.layers.0.recurrent": WIDTH,
}


def initialized(initialization: Initialization) -> tuple[Any, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = build(load_text(TEXT), {"target": 20})
    initialize(model, initialization)
    return model, dict(model.decoder.blocks.named_parameters())


@pytest.mark.parametrize("name", INPUTS)
def test_uniform_scaling_divides_by_the_inputs_of_the_map(name: str) -> None:
    _, parameters = initialized(UniformScaling(gain=1.0))
    assert float(parameters[name].detach().std()) == pytest.approx(INPUTS[name] ** -0.5, rel=0.1)


def test_each_output_of_a_matrix_is_orthogonal_to_the_others() -> None:
    model, _ = initialized(Orthogonal(gain=2.0))
    count = 0
    for parameter, layout in matrices_with_layouts(model):
        for matrix in as_matrices(parameter.detach(), layout):
            for part in matrix.flatten(1).split(matrix[0].numel()):
                torch.testing.assert_close(
                    part @ part.T, 4.0 * torch.eye(len(part)), atol=1e-5, rtol=0
                )
                count += 1
    assert count > 50


def test_by_default_the_matrices_of_the_blocks_stay() -> None:
    torch.manual_seed(0)
    before = build(load_text(TEXT), {"target": 20}).decoder.blocks.state_dict()
    _, after = initialized(Default())
    assert all(torch.equal(after[name], before[name]) for name in after)


def test_the_coefficients_of_a_long_convolution_are_no_matrix() -> None:
    torch.manual_seed(0)
    before = build(load_text(TEXT), {"target": 20}).decoder.blocks.state_dict()
    _, after = initialized(Orthogonal())
    name = "5.directions.readers.0.weight"
    assert torch.equal(after[name], before[name])


@pytest.mark.parametrize("kind", INITIALIZATIONS.values())
def test_a_head_may_be_one_number_wide(kind: type[Initialization]) -> None:
    text = (
        TEXT.partition("  width:")[0]
        + "  width: 4\n  decoder: [{latent_attention: {heads: 4, latent: 8}}]\n"
    )
    initialize(build(load_text(text), {"target": 20}), kind())
