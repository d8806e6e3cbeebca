"""Whole stacks against what torch has of them, and against what can be counted by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from blocks.conv import Conv
from blocks.core.contract import Block, BlockError
from blocks.linear import Linear
from blocks.positions import Positions
from blocks.repeat import Repeat
from blocks.rnn import Rnn
from blocks.self_attention import SelfAttention
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.recipe import load
from tests.blocks.single_block import close, mask_of, run, site_of, stack_of

pytestmark = pytest.mark.usefixtures("float64")

# -------------------------------------------------------------------------------------------
# torch's Transformer

TRANSFORMER = """recipe: 1
data: {{parallel: {{train: {{source: s.txt, target: t.txt}}}}}}
model:
  width: 8
  encoder:
    - repeat:
        times: 2
        stack:
          - residual: {{norm: {norm}, stack: [self_attention: 2]}}
          - residual: {{norm: {norm}, stack: [feed_forward: {{hidden: 12,
                activation: {activation}}}]}}
    - norm
  decoder:
    - repeat:
        times: 3
        stack:
          - residual: {{norm: {norm}, stack: [self_attention: 2]}}
          - residual: {{norm: {norm}, stack: [cross_attention: {{heads: 2}}]}}
          - residual: {{norm: {norm}, stack: [feed_forward: {{hidden: 12,
                activation: {activation}}}]}}
    - norm
"""


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_equals_torch_s_transformer(tmp_path: Path, norm: str, activation: str) -> None:
    (tmp_path / "t.yaml").write_text(TRANSFORMER.format(norm=norm, activation=activation))
    model = build(load(tmp_path / "t.yaml"), {"source": 11, "target": 13})
    noise(model)
    source, target = ids(11, 6, 4, 1), ids(13, 5, 2, 7)
    logits = model({"source": source}, target)
    theirs = torchs(model, norm, activation, source, target)
    close(logits[target != 0], theirs[target != 0])


def ids(vocabulary: int, *lengths: int) -> Tensor:
    """Random rows of these lengths, padded with 0."""
    mask = mask_of(*lengths)
    return torch.randint(1, vocabulary, mask.shape) * mask


def noise(module: nn.Module) -> None:
    """Makes every parameter count: no bias is zero, no gain is one."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def torchs(
    model: EncoderDecoder, norm: str, activation: str, source: Tensor, target: Tensor
) -> Tensor:
    """The logits by nn.TransformerEncoder and nn.TransformerDecoder with the weights of `model`."""
    settings: dict[str, Any] = {
        "dim_feedforward": 12,
        "dropout": 0.0,
        "activation": activation,
        "batch_first": True,
        "norm_first": norm == "pre",
    }
    layer, upper = (
        nn.TransformerEncoderLayer(8, 2, **settings),
        nn.TransformerDecoderLayer(8, 2, **settings),
    )
    encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(upper, 3, nn.LayerNorm(8))
    reader = model.readers()["source"]
    for stack, module in ((reader.stack, encoder), (model.decoder, decoder)):
        module.load_state_dict(renamed(stack.inner()[0], stack.inner()[1]))
    memory = encoder(reader.embedding(source), src_key_padding_mask=source == 0)
    later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    y = decoder(
        model.embedding(target),
        memory,
        tgt_mask=later,
        tgt_key_padding_mask=target == 0,
        memory_key_padding_mask=source == 0,
    )
    return model.output(y)


def renamed(layers: nn.Module, last: nn.Module) -> dict[str, Tensor]:
    """The weights of a repeat of residuals, and of the norm after it, under torch's names."""
    state = {f"norm.{key}": value for key, value in last.normalise.state_dict().items()}
    for index, stack in enumerate(layers.stacks):
        for place, residual in enumerate(stack.inner(), 1):
            (inner,) = residual.stack.inner()
            state |= {
                f"layers.{index}.norm{place}.{key}": value
                for key, value in residual.norm.state_dict().items()
            }
            state |= {
                f"layers.{index}.{key}": value
                for key, value in INNER[type(inner).__name__](inner).items()
            }
    return state


def of_self_attention(block: nn.Module) -> dict[str, Tensor]:
    return attention("self_attn", block.project.weight, block.project.bias, block)


def of_cross_attention(block: nn.Module) -> dict[str, Tensor]:
    weight = torch.cat((block.query.weight, block.project.weight))
    return attention(
        "multihead_attn", weight, torch.cat((block.query.bias, block.project.bias)), block
    )


def attention(name: str, weight: Tensor, bias: Tensor, block: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.in_proj_weight": weight,
        f"{name}.in_proj_bias": bias,
        f"{name}.out_proj.weight": block.merge.weight,
        f"{name}.out_proj.bias": block.merge.bias,
    }


def of_feed_forward(block: nn.Module) -> dict[str, Tensor]:
    return {
        "linear1.weight": block.expand.weight,
        "linear1.bias": block.expand.bias,
        "linear2.weight": block.contract.weight,
        "linear2.bias": block.contract.bias,
    }


INNER = {
    "SelfAttention": of_self_attention,
    "CrossAttention": of_cross_attention,
    "FeedForward": of_feed_forward,
}


# -------------------------------------------------------------------------------------------
# receptive fields


def stacked(causal: str, *blocks: Mapping[str, Any]) -> Block:
    """A stack of these blocks where a sequence 4 wide arrives."""
    stack = stack_of(site_of(4, causal=causal), blocks)
    noise(stack)
    return stack


def reads(stack: Block, length: int = 24) -> Tensor:
    """Which position's output depends on which position: (T, T), by the Jacobian where it is not
    zero.
    """
    x = torch.randn(1, length, stack.out.width)
    return jacobian(lambda x: run(stack, x)[0], x).abs().sum((0, 2, 3, 5)) > 0


def band(back: int, ahead: int, length: int = 24) -> Tensor:
    """What reads as far back and ahead: (T, T)."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance <= back) & (-distance <= ahead)


CONVS: list[tuple[list[tuple[int, int]], int, int]] = [
    ([(3, 1)], 1, 1),
    ([(3, 1), (3, 1), (3, 1)], 3, 3),
    ([(5, 1), (3, 1)], 3, 3),
    ([(2, 1), (2, 1)], 0, 2),
    ([(4, 1)], 1, 2),
]
"""Kernels and dilations without gaps, and how far the stack reads back and ahead in an encoder."""


@pytest.mark.parametrize(("layers", "back", "ahead"), CONVS)
def test_stacked_convolutions_have_the_expected_receptive_field(
    layers: list[tuple[int, int]], back: int, ahead: int
) -> None:
    blocks = [
        {"block": Conv, "kernel": kernel, "dilation": by, "activation": "glu"}
        for kernel, by in layers
    ]
    assert torch.equal(reads(stacked("", *blocks)), band(back, ahead))
    assert torch.equal(reads(stacked("a decoder", *blocks)), band(back + ahead, 0))


def test_dilated_convolutions_have_the_expected_receptive_field() -> None:
    """Kernels of 3 at distances 1, 2, 4 see 1 + 2 (1 + 2 + 4) positions; alone, the last one sees
    every fourth.
    """
    blocks = [{"block": Conv, "dilation": by, "depthwise": by == 2} for by in (1, 2, 4)]
    mixed = [{"block": Linear}, *blocks]
    assert torch.equal(reads(stacked("", *mixed)), band(7, 7))
    assert torch.equal(reads(stacked("a decoder", *mixed)), band(14, 0))
    distance = torch.arange(24)[:, None] - torch.arange(24)
    assert torch.equal(reads(stacked("a decoder", blocks[2])), (distance % 4 == 0) & band(8, 0))
    assert torch.equal(reads(stacked("", blocks[2])), (distance % 4 == 0) & band(4, 4))


@pytest.mark.parametrize("positions", ["none", "relative", "rotary", "transformer_xl"])
def test_self_attention_windows_have_the_expected_receptive_field(positions: str) -> None:
    blocks = [
        {"block": SelfAttention, "heads": 2, "window": window, "positions": positions}
        for window in (3, 4)
    ]
    assert torch.equal(reads(stacked("", *blocks)), band(5, 5))
    assert torch.equal(reads(stacked("a decoder", *blocks)), band(5, 0))


def test_attention_and_recurrent_blocks_read_every_position() -> None:
    everything = [
        {"block": SelfAttention, "heads": 2},
        {"block": Rnn, "cell": "gru"},
        {"block": Rnn, "cell": "lstm", "norm": "gates"},
    ]
    for block in everything:
        assert torch.equal(reads(stacked("a decoder", block), 9), band(9, 0, 9))
    assert reads(stacked("", everything[0]), 9).all()
    assert reads(stacked("", {"block": Rnn, "bidirectional": True}), 9).all()
    assert torch.equal(reads(stacked("", everything[1]), 9), band(9, 0, 9))


# -------------------------------------------------------------------------------------------
# iterations


def sinusoid(at: int, width: int) -> Tensor:
    angles = torch.tensor([at / 10_000 ** (2 * i / width) for i in range(width // 2)])
    return torch.cat((angles.sin(), angles.cos()))


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("kind", ["sinusoidal", "learned"])
def test_positions_add_the_iteration(share: bool, kind: str) -> None:
    counted = {"block": Positions, "kind": kind, "per_iteration": True}
    if share and kind == "sinusoidal":
        pytest.skip("nothing has parameters that could be shared")
    block = Repeat(site_of(4, causal="a decoder"), times=3, stack=[counted], share=share)
    x, y = torch.zeros(1, 5, 4), torch.zeros(1, 5, 4)
    for iteration, stack in enumerate([*block.stacks] * 3 if share else block.stacks):
        table = stack.inner()[0].table
        places = (
            torch.stack([sinusoid(at, 4) for at in range(5)]) if table is None else table.weight[:5]
        )
        y = y + places + sinusoid(iteration, 4)
    torch.testing.assert_close(run(block, x)[0], y, atol=1e-6, rtol=0)


def test_the_innermost_repeat_sets_the_iteration() -> None:
    inner = {"block": Repeat, "times": 2, "stack": [{"block": Positions, "per_iteration": True}]}
    block = Repeat(site_of(4), times=3, stack=[inner])
    places = torch.stack([sinusoid(at, 4) for at in range(5)])
    expected = 6 * places + 3 * (sinusoid(0, 4) + sinusoid(1, 4))
    torch.testing.assert_close(run(block, torch.zeros(1, 5, 4))[0][0], expected, atol=1e-6, rtol=0)


def test_outside_of_a_repeat_the_iteration_is_zero() -> None:
    site = site_of(4)
    with pytest.raises(BlockError, match="no `repeat` around it") as refused:
        Positions(replace(site, path=("model", "decoder", 0, "positions")), per_iteration=True)
    assert refused.value.setting == "per_iteration"
    for path in (
        ("model", "decoder", 0, "repeat", "stack", 0, "positions"),
        ("model", "stacks", "shelf", 0),
    ):
        assert Positions(replace(site, path=path), per_iteration=True).per_iteration
