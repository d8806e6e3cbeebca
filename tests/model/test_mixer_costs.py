"""What `plan` says of the mixers: the bytes of the state that a decoder really has, and FLOPs that
grow with length.
"""

from __future__ import annotations

import pytest
import torch

from composer.checks.planner import plan
from composer.model import costs
from composer.model.builder import build, vocabulary_bounds
from composer.recipe.recipe import Recipe, load_text
from tests.blocks.single_block import leaves

MIXERS = [
    *(
        "linear_attention: {short_conv: 3}",
        "gated_delta_net: {heads: 4}",
        "mamba: {}",
        "mamba2: {head_width: 16}",
    ),
    *(
        "mlstm: {}",
        "rwkv7: {heads: 4}",
        "rg_lru: {short_conv: 4}",
        "long_conv: {}",
        "retention: {heads: 4}",
        "slstm: {}",
    ),
]


def decoder_of(block: str) -> Recipe:
    return load_text(
        f"recipe: 1\ndata: {{generate: copy}}\nmodel:\n  width: 24\n  decoder:\n    - {block}\n"
    )


@pytest.mark.parametrize("block", MIXERS)
def test_the_bytes_of_a_state_are_those_of_the_state_before_and_after_a_step(block: str) -> None:
    recipe = decoder_of(block)
    (row,) = (row for row in plan(recipe).rows if row.block == block.partition(":")[0])
    model = build(recipe, vocabulary_bounds(recipe))
    start = model.start({}, 1)
    _, after = model.step(torch.tensor([[1, 4, 5]]), start, {})
    for state in (start, after):
        assert (
            row.state_bytes == sum(leaf.numel() * leaf.element_size() for leaf in leaves(state)) > 0
        )


@pytest.mark.parametrize("block", MIXERS)
def test_flops_grow_with_the_length(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flops = []
    for tokens in (256, 512, 1024):
        monkeypatch.setattr(costs, "TOKENS", tokens)
        (row,) = (
            row for row in plan(decoder_of(block)).rows if row.block == block.partition(":")[0]
        )
        flops.append(row.flops)
    assert flops[2] - flops[1] == 2 * (flops[1] - flops[0]) > 0
    # a long convolution reads its last chunk once more, for the state, whatever the length
    assert flops[1] == flops[0] * 2 or block.startswith("long_conv")
