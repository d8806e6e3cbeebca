"""Rotary positions of other bases, of a part of a head and stretched, against the published
formulas.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.contract import BlockError, NoEffect
from blocks.core.rotary import Rotary, rotary_angles
from blocks.self_attention import SelfAttention
from tests.blocks.single_block import close, mask_of, run, site_of

pytestmark = pytest.mark.usefixtures("float64")

HEADS, WIDTH, TURNED = 2, 8, 4
X = torch.randn(1, 6, 12, dtype=torch.float64)


def linear_rates(rates: list[float], base: float, factor: float) -> list[float]:
    return [rate / factor for rate in rates]


def llama3_rates(
    rates: list[float],
    base: float,
    factor: float,
    original_length: int,
    low_factor: float,
    high_factor: float,
) -> list[float]:
    """By wavelengths, as the authors' code has it."""
    made = []
    for rate in rates:
        wavelength = 2 * math.pi / rate
        if wavelength < original_length / high_factor:
            made.append(rate)
        elif wavelength > original_length / low_factor:
            made.append(rate / factor)
        else:
            smooth = (original_length / wavelength - low_factor) / (high_factor - low_factor)
            made.append((1 - smooth) * rate / factor + smooth * rate)
    return made


def yarn_rates(
    rates: list[float],
    base: float,
    factor: float,
    original_length: int,
    fast: float,
    slow: float,
    truncate: bool,
) -> list[float]:
    """The ramp of the authors' code, over features."""
    width = 2 * len(rates)

    def feature(turns: float) -> float:
        return width * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = feature(fast), feature(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    made = []
    for index, rate in enumerate(rates):
        ramp = min(max((index - low) / max(high - low, 0.001), 0), 1)
        made.append(rate / factor * ramp + rate * (1 - ramp))
    return made


YARN = {"factor": 8.0, "original_length": 400, "fast": 16.0, "slow": 1.0}
SCALINGS: list[tuple[str, dict[str, Any], Any]] = [
    ("linear", {"factor": 4.0}, linear_rates),
    (
        "llama3",
        {"factor": 8.0, "original_length": 900, "low_factor": 1.0, "high_factor": 4.0},
        llama3_rates,
    ),
    ("yarn", {**YARN, "truncate": True}, yarn_rates),
    ("yarn", {**YARN, "truncate": False}, yarn_rates),
]


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize(
    ("kind", "settings", "expected"), SCALINGS, ids=[kind for kind, _, _ in SCALINGS]
)
def test_stretched_angles_are_the_published_ones(
    kind: str, settings: dict[str, Any], expected: Any, base: float
) -> None:
    rates = expected([base ** (-i / 16) for i in range(16)], base, **settings)
    rotary = Rotary.parse({"base": base, "scaling": {kind: settings}})
    gain = 0.1 * math.log(settings["factor"]) + 1 if kind == "yarn" else 1.0
    where = torch.arange(50)[:, None] * torch.tensor(rates)
    cos, sin = rotary_angles(torch.ones(1, 50, dtype=torch.bool), None, 32, rotary)
    torch.testing.assert_close(cos[0, 0].double(), gain * where.cos(), atol=1e-4, rtol=0)
    torch.testing.assert_close(sin[0, 0].double(), gain * where.sin(), atol=1e-4, rtol=0)


def test_an_attention_factor_stands_for_that_of_the_factor() -> None:
    scaling = {"yarn": {**YARN, "attention_factor": 1.5}}
    cos, _ = rotary_angles(
        torch.ones(1, 1, dtype=torch.bool), None, 4, Rotary.parse({"scaling": scaling})
    )
    assert cos.unique().tolist() == [1.5]


def turned(x: Tensor, at: int, base: float) -> Tensor:
    """The first features as complex numbers, each multiplied by e^(i t w); the others as they are.
    x: (d,)
    """
    rates = torch.tensor([base ** (-2 * i / TURNED) for i in range(TURNED // 2)])
    pairs = torch.view_as_complex(x[:TURNED].clone().view(-1, 2)) * torch.polar(
        torch.ones(len(rates)), at * rates
    )
    return torch.cat((torch.view_as_real(pairs).flatten(), x[TURNED:]))


@pytest.mark.parametrize("causal", ["", "a decoder"])
@pytest.mark.parametrize(
    ("bias", "has_biases"),
    [("all", (True, True)), ("qkv", (True, False)), ("none", (False, False))],
)
def test_a_part_of_wider_heads_is_turned_by_another_base(
    causal: str, bias: Any, has_biases: tuple[bool, bool]
) -> None:
    rotary = Rotary(base=100.0, share=TURNED / WIDTH)
    block = SelfAttention(
        site_of(12, causal=causal),
        heads=HEADS,
        head_width=WIDTH,
        positions="rotary",
        rotary=rotary,
        bias=bias,
    )
    assert (block.project.bias is not None, block.merge.bias is not None) == has_biases
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    y, _ = run(block, X, mask_of(6))
    query, keys, values = (
        part.unflatten(-1, (HEADS, WIDTH)) for part in block.project(X[0]).chunk(3, -1)
    )  # (T, H, d)
    for at in range(6):
        heads = []
        for head in range(HEADS):
            seen = range(at + 1 if causal else 6)
            scores = [
                turned(query[at, head], at, 100.0) @ turned(keys[j, head], j, 100.0) for j in seen
            ]
            heads.append(
                (torch.stack(scores) / math.sqrt(WIDTH)).softmax(0) @ values[: len(seen), head]
            )
        close(y[0, at], block.merge(torch.cat(heads)))


@pytest.mark.parametrize(
    ("head_width", "share"), [(2, 0.1), (3, 1.0), (3, 0.5), (7, 0.3), (7, 0.95), (64, 0.3)]
)
def test_the_share_that_is_named_in_place_of_another_can_be_turned(
    head_width: int, share: float
) -> None:
    with pytest.raises(BlockError) as raised:
        Rotary(share=share).turned_width(head_width)
    named = float(raised.value.fix.text.removeprefix("write `share: ").removesuffix("`"))
    assert named <= 1
    assert Rotary(share=named).turned_width(head_width) % 2 == 0


def test_a_head_of_one_feature_has_no_share_that_is_turned() -> None:
    with pytest.raises(BlockError) as raised:
        Rotary(share=0.5).turned_width(1)
    assert raised.value.fix.text == "write fewer `heads`"


@pytest.mark.parametrize(
    ("rotary", "inside", "fix"),
    [
        ({"share": 0.4}, ("share",), "write `share: 0.5`"),
        ({"scaling": {}}, ("scaling",), "write one of"),
        ({"scaling": {"linear": {"factor": 2.0}, "yarn": YARN}}, ("scaling",), "write one of"),
        (
            {"scaling": {"llama3": {"factor": 2.0, "low_factor": 4.0}}},
            ("scaling", "llama3"),
            "`high_factor`",
        ),
        ({"scaling": {"yarn": {**YARN, "slow": 16.0}}}, ("scaling", "yarn"), "`fast`"),
    ],
)
def test_what_cannot_be_turned_is_refused(
    rotary: dict[str, Any], inside: tuple[str, ...], fix: str
) -> None:
    with pytest.raises(BlockError) as raised:
        SelfAttention(site_of(16), heads=2, positions="rotary", rotary=rotary)  # type: ignore[arg-type]
    assert (raised.value.setting, raised.value.inside) == ("rotary", inside)
    assert fix in raised.value.fix.text


@pytest.mark.parametrize("positions", ["none", "alibi"])
def test_turning_without_rotary_positions_is_a_setting_without_effect(positions: Any) -> None:
    with pytest.raises(NoEffect) as raised:
        SelfAttention(site_of(16), heads=2, positions=positions, rotary=Rotary(base=100.0))
    assert raised.value.setting == "rotary"
