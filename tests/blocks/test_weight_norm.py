"""Weight normalisation, depthwise kernels and normalised gates against other ways of computing
them.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from blocks.conv import Conv
from blocks.core.contract import BlockError
from blocks.linear import Linear
from blocks.rnn import Rnn
from tests.blocks.single_block import close, keeps_chunks, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("settings", [{}, {"activation": "glu"}, {"width": 2, "bias": False}])
def test_a_linear_map_equals_torch_s_own_parametrisation(settings: dict[str, Any]) -> None:
    block = Linear(site_of(4), weight_norm=True, **settings)
    x, plain = torch.randn(2, 3, 4), Linear(site_of(4), **settings)
    plain.map = parametrizations.weight_norm(
        nn.Linear(4, len(block.gain), bias=settings.get("bias", True))
    )
    adopt(plain.map, block.gain, block.map.weight, block.map.bias)
    close(run(block, x)[0], run(plain, x)[0])


@pytest.mark.parametrize("length", [1, 5])
def test_a_convolution_equals_torch_s_own_parametrisation(length: int) -> None:
    block = Conv(site_of(4, causal="a decoder"), width=3, kernel=2, weight_norm=True)
    theirs = parametrizations.weight_norm(nn.Conv1d(4, 3, 2))
    adopt(theirs, block.gain, block.weight, block.bias)
    x = torch.randn(2, length, 4)
    expected = theirs(nn.functional.pad(x, (0, 0, 1, 0)).transpose(1, 2)).transpose(1, 2)
    close(run(block, x)[0], expected)


def adopt(theirs: nn.Module, gain: Tensor, direction: Tensor, bias: Tensor | None) -> None:
    """Gives torch's parametrised module these values; the gains are made different from the lengths
    first.
    """
    with torch.no_grad():
        gain.mul_(torch.rand_like(gain) + 0.5)
        weight = theirs.parametrizations.weight
        weight.original0.copy_(gain.view_as(weight.original0))
        weight.original1.copy_(direction)
        if bias is not None:
            theirs.bias.copy_(bias.normal_())


def test_initial_weights_of_a_convolution_are_those_without_weight_norm() -> None:
    torch.manual_seed(1)
    plain = Conv(site_of(4))
    torch.manual_seed(1)
    block = Conv(site_of(4), weight_norm=True)
    x = torch.randn(2, 3, 4)
    close(run(block, x)[0], run(plain, x)[0])


def test_the_length_of_a_direction_does_not_matter() -> None:
    block, x = Linear(site_of(4), weight_norm=True), torch.randn(2, 3, 4)
    before = run(block, x)[0]
    with torch.no_grad():
        block.map.weight.mul_(torch.tensor([2.0, 0.1, 30.0, 7.0])[:, None])
    close(run(block, x)[0], before)


@pytest.mark.parametrize("causal", ["", "a decoder"])
@pytest.mark.parametrize("activation", ["none", "glu"])
def test_depthwise_convolves_each_feature_alone(causal: str, activation: str) -> None:
    block = Conv(
        site_of(3, causal=causal, model=5),
        depthwise=True,
        kernel=3,
        dilation=2,
        activation=activation,
    )
    x, left = torch.randn(2, 6, 3), 4 if causal else 2
    padded = nn.functional.pad(x, (0, 0, left, 4 - left))  # (B, 6 + 4, D)
    halves = []
    for half in range(1 if activation == "none" else 2):
        rows = [item + 3 * half for item in range(3)]
        taps = [padded[:, 2 * j : 2 * j + 6] * block.weight[rows, 0, j] for j in range(3)]
        halves.append(sum(taps) + block.bias[rows])
    expected = halves[0] if activation == "none" else halves[0] * torch.sigmoid(halves[1])
    close(run(block, x)[0], expected)


def test_depthwise_keeps_the_width() -> None:
    assert Conv(site_of(3, model=5), depthwise=True, width=3).out.width == 3
    with pytest.raises(BlockError, match="keeps the width that arrives, 3") as error:
        Conv(site_of(3), depthwise=True, width=4)
    assert (error.value.setting, error.value.code) == ("width", "width")


# -------------------------------------------------------------------------------------------
# normalised gates


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """With its equation: (D,) -> (D,)"""
    centred = x - x.mean()
    return gain * centred / (centred.square().mean() + 1e-5).sqrt() + bias


def by_hand(block: Rnn, x: Tensor, cell: str, reset: str) -> Tensor:
    """One row, position by position and gate by gate: (T, D) -> (T, D)"""
    layer, outputs = block.layers[0], []
    w, u, width = layer.arriving.split(4), layer.recurrent.split(4), 4
    h = c = torch.zeros(width)

    def gate(k: int, read: Tensor) -> Tensor:
        return layer_norm(read, layer.gain[k], layer.bias[k])

    for item in x:
        if cell == "lstm":
            i, f, g, o = (gate(k, w[k] @ item + u[k] @ h) for k in range(4))
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        elif cell == "gru":
            r, z = (gate(k, w[k] @ item + u[k] @ h).sigmoid() for k in range(2))
            read = u[2] @ (r * h) if reset == "before" else r * (u[2] @ h)
            h = z * h + (1 - z) * gate(2, w[2] @ item + read).tanh()
        else:
            h = gate(0, w[0] @ item + u[0] @ h).tanh()
        outputs.append(h)
    return torch.stack(outputs)


GATES = [("lstm", "before"), ("gru", "before"), ("gru", "after"), ("tanh", "before")]


@pytest.mark.parametrize(("cell", "reset"), GATES)
def test_each_gate_is_normalised_on_its_own(cell: str, reset: str) -> None:
    block = Rnn(site_of(3), width=4, cell=cell, reset=reset, norm="gates")
    with torch.no_grad():
        for item in (block.layers[0].gain, block.layers[0].bias):
            item.add_(torch.randn_like(item))
    x = torch.randn(2, 5, 3)
    y, _ = run(block, x, mask_of(5, 3))
    close(y[0], by_hand(block, x[0], cell, reset))
    close(y[1, :3], by_hand(block, x[1, :3], cell, reset))


@pytest.mark.parametrize(("cell", "reset"), GATES)
def test_normalised_gates_do_not_depend_on_the_chunks(cell: str, reset: str) -> None:
    block = Rnn(
        site_of(3, causal="a decoder", model=4), cell=cell, reset=reset, norm="gates", layers=2
    )
    keeps_chunks(block, torch.randn(3, 8, 3), [8, 3, 0])


def test_normalised_gates_have_no_projection() -> None:
    with pytest.raises(BlockError, match="has no projection") as error:
        Rnn(site_of(4), projection=2, norm="gates")
    assert error.value.setting == "projection"
