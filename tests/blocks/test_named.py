"""`concat`, `add`, `multiply` and `read`: named outputs beside the stream, and in its place."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from blocks.add import Add
from blocks.concat import Concat
from blocks.core.contract import Block, BlockError, Named, Output, Site, Stream
from blocks.multiply import Multiply
from blocks.read import Read
from tests.blocks.single_block import close, context_of, mask_of, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "add": ({"of": ["earlier"]}, {"of": ["earlier", "encoder.summary"], "scale": 0.7}),
    "concat": ({"of": ["narrow"]}, {"of": ["input", "narrow", "encoder.summary"]}),
    "multiply": ({"of": ["earlier"]}, {"of": ["encoder.summary", "input"]}),
    "read": ({"of": "narrow"}, {"of": "encoder.summary"}),
}
"""Settings with which the laws are checked, by block."""

READERS = [Concat, Add, Multiply, Read]
A, B = torch.randn(2, 3, 2), torch.randn(2, 3, 2)


def site_with_names() -> Site:
    memories = {
        "encoder": Named(Stream(2)),
        "encoder.gist": Named(Stream(2, length_ratio=Fraction(0))),
    }
    site = site_of(2, causal="a decoder", memories=memories)
    site.names.define("a", Named(Stream(2)))
    site.names.define("slow", Named(Stream(2, length_ratio=Fraction(1, 2))))
    site.names.define("wide", Named(Stream(3)))
    return site


@pytest.mark.parametrize(
    ("reader", "expected"),
    [(Concat, torch.cat((B, A, B), -1)), (Add, B + A + B), (Multiply, B * A * B)],
)
def test_the_stream_comes_first(reader: type[Block], expected: torch.Tensor) -> None:
    block = reader(site_with_names(), of=["a", "input"])
    y, _ = block(B, (), context_of(mask_of(3, 3), a=A, input=B))
    close(y, expected)
    assert block.out.width == expected.shape[-1]


def test_a_named_output_takes_the_place_of_the_stream() -> None:
    block = Read(site_with_names(), of="wide")
    wide = torch.randn(2, 3, 3)
    assert torch.equal(block(B, (), context_of(mask_of(3, 3), wide=wide))[0], wide)
    assert block.out.width == 3


@pytest.mark.parametrize("reader", READERS)
def test_a_single_position_is_broadcast_to_all(reader: type[Block]) -> None:
    gist = torch.randn(2, 1, 2)
    memories = {"encoder.gist": Output(gist, mask_of(1, 1))}
    short, _ = reader(site_with_names(), of="encoder.gist")(
        B, (), context_of(mask_of(3, 3), memories)
    )
    full, _ = reader(site_with_names(), of="a")(
        B, (), context_of(mask_of(3, 3), a=gist.expand(-1, 3, -1))
    )
    close(short, full)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("b", "name", "nothing here is called `b`"),
        ("slow", "length", "`slow` has 1/2 positions per token, and the stream here 1"),
        ("encoder", "length", "`encoder` has the positions of an encoder"),
    ],
)
def test_streams_with_other_positions_are_refused(
    reader: type[Block], name: str, code: str, message: str
) -> None:
    with pytest.raises(BlockError, match=message) as error:
        reader(site_with_names(), of=name)
    assert (error.value.setting, error.value.code) == ("of", code)


@pytest.mark.parametrize("reader", [Add, Multiply])
def test_another_width_is_refused(reader: type[Block]) -> None:
    with pytest.raises(BlockError, match="`wide` is 3 wide, and the stream here 2") as error:
        reader(site_with_names(), of=["a", "wide"])
    assert error.value.code == "width"


def test_named_outputs_have_the_length_ratio_of_the_stream() -> None:
    site = site_with_names()
    assert Concat(
        replace(site, stream=Stream(5, length_ratio=Fraction(1, 2))), of="slow"
    ).out == Stream(7, False, Fraction(1, 2))
