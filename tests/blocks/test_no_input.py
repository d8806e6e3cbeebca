"""`no_input`: later blocks do not depend on the tokens."""

from pathlib import Path

import pytest
import torch

from blocks.no_input import NoInput
from composer.model.builder import build
from composer.testing import check_block
from tests.small_recipes import loaded

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "no_input": ({}, {"width": 5}),
}
"""Settings with which the laws are checked, by block."""

TEXT = """recipe: 1
data: {generate: copy}
model:
  width: 6
  encoder: [{rnn: {as: state}}]
  decoder: [{@}, {rnn: {width: 6, initial_state: {copy: encoder.state}}}]
"""


def test_no_input_satisfies_the_block_laws() -> None:
    check_block(NoInput, {}, {"width": 3})


def test_the_output_ignores_the_target_tokens(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = build(loaded(tmp_path, TEXT.replace("@", "no_input: 3")), {"source": 9, "target": 9})
    sources = {"source": torch.tensor([[5, 6, 2]])}
    one, other = (model(sources, torch.tensor([ids])) for ids in ([1, 4, 5], [1, 8, 7]))
    assert torch.equal(one, other)
    assert model.embedding is None


def test_without_no_input_the_output_depends_on_the_target_tokens(tmp_path: Path) -> None:
    model = build(loaded(tmp_path, TEXT.replace("{@}, ", "")), {"source": 9, "target": 9})
    sources = {"source": torch.tensor([[5, 6, 2]])}
    one, other = (model(sources, torch.tensor([ids])) for ids in ([1, 4, 5], [1, 8, 7]))
    assert not torch.equal(one[:, 1], other[:, 1])


@pytest.mark.parametrize(
    "rest", ["no_input, {concat: heard}", "read: heard", "no_input, read: heard, linear"]
)
def test_what_was_named_before_is_still_heard(rest: str, tmp_path: Path) -> None:
    decoder = f"[{{rnn: {{as: heard}}}}, {rest}, {{cross_attention: {{heads: 2}}}}]"
    text = (
        "recipe: 1\ndata: {generate: copy}\nmodel: {width: 6, encoder: [rnn], decoder:"
        f" {decoder}}}\n"
    )
    torch.manual_seed(1)
    model = build(loaded(tmp_path, text), {"source": 9, "target": 9})
    sources = {"source": torch.tensor([[5, 6, 2]])}
    one, other = (model(sources, torch.tensor([ids])) for ids in ([1, 4, 5], [1, 8, 7]))
    assert not torch.equal(one[:, 1], other[:, 1])
