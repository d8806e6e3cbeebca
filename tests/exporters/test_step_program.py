"""The graph of a decoding step: the model's own numbers, at any sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer.errors import RunError
from composer.exporters.step_program import (
    SIZES,
    Interface,
    Program,
    StepModule,
    example_step,
    export_step,
)
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.recipe import load_text

RECIPE = """
recipe: 1
data: {generate: copy}
model:
  width: 16
  encoder: [positions, {residual: [{self_attention: {heads: 2}}]}]
  decoder:
    - {residual: [{self_attention: {heads: 2}}]}
    - {rnn: {cell: gru, initial_state: encoder}}
    - {residual: [cross_attention]}
"""
DECODER = """
recipe: 1
data: {parallel: {train: {target: a.txt}}}
model:
  width: 12
  decoder:
    - BLOCK
"""
WITHOUT_A_SOURCE = (
    "delta_net: {heads: 2}",
    "gated_delta_net: {heads: 2}",
    "gated_linear_attention: {heads: 2}",
    "latent_attention: {heads: 2}",
    "linear_attention: {heads: 2}",
    "long_conv",
    "mamba",
    "mamba2: {head_width: 6}",
    "mlstm: {heads: 2}",
    "ntm: {slots: 5}",
    "recurrent: {stack: [rnn]}",
    "retention: {heads: 2}",
    "rg_lru: {heads: 2}",
    "rnn: {cell: min_gru}",
    "rwkv7: {heads: 2}",
    "self_attention: {heads: 3, window: 3}",
    "self_attention: {heads: 2, kv_heads: 1, positions: rotary}",
    "self_attention: {heads: 4, kv_heads: 2, soft_cap: 3.0}",
    "self_attention: {heads: 4, kv_heads: 2, sinks: true}",
    "slstm",
)


def model_of(text: str) -> EncoderDecoder:
    torch.manual_seed(1)
    return build(load_text(text), {"source": 20, "target": 20}).eval()


def module_of(model: EncoderDecoder) -> StepModule:
    ids, state, memories = example_step(model, *SIZES[0])
    return StepModule(model, Interface.observe(model, ids, state, memories)[0], state)


def assert_same(
    program: Program, module: StepModule, rows: int, tokens: int, positions: int
) -> None:
    """The graph computes what the model does, and hands on what the model makes anew."""
    inputs = module.interface.inputs(*example_step(module.model, rows, tokens, positions))
    # some say that a size is not 1, and compute as well if it is
    graph = program.graph.module(check_guards=False)
    with torch.no_grad():
        torch.testing.assert_close(graph(*inputs), module(*inputs))


def test_a_step_is_exported_for_any_sizes_and_one_row_too() -> None:
    module = module_of(model_of(RECIPE))
    program = export_step(module)
    assert not any(program.above_one)
    for sizes in ((5, 9, 7), (1, 3, 4), (2, 1, 1), (1, 1, 1)):
        assert_same(program, module, *sizes)


def test_a_step_is_exported_for_sources_of_any_lengths() -> None:
    text = RECIPE.replace(
        "encoder: [positions, {residual: [{self_attention: {heads: 2}}]}]",
        "encoders: {a: [rnn], b: [rnn]}",
    )
    text = text.replace("initial_state: encoder", "").replace(
        "cross_attention]", "{cross_attention: {from: a}}, {cross_attention: {from: b}}]"
    )
    torch.manual_seed(1)
    model = build(load_text(text), {"a": 20, "b": 20, "target": 20}).eval()
    module = module_of(model)
    memories = model.encode(
        {"a": torch.tensor([[5, 6, 7, 8]] * 2), "b": torch.tensor([[9, 9]] * 2)}
    )
    state = model.step(torch.ones(2, 3, dtype=torch.long), model.start(memories, 2), memories)[1]
    inputs = module.interface.inputs(torch.full((2, 1), 5), state, memories)
    with torch.no_grad():
        assert torch.allclose(
            export_step(module).graph.module()(*inputs)[0], module(*inputs)[0], atol=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("block", WITHOUT_A_SOURCE)
def test_a_step_of_each_mixer_is_exported_for_any_sizes(block: str) -> None:
    module = module_of(model_of(DECODER.replace("BLOCK", block)))
    program = export_step(module)
    least = 2 if any(program.above_one) else 1
    for rows, positions in ((5, 7), (least, 3), (least, 40)):
        assert_same(program, module, rows, 1, positions)


def test_a_write_in_place_that_fixes_a_size_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def scan(a: torch.Tensor, b: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(b)
        y.unbind(1)[0].copy_(torch.addcmul(b[:, 0], a[:, 0], before))
        return y

    monkeypatch.setattr("blocks.core.selective_scan.scan", scan)
    with pytest.raises(RunError, match="its graph works for one input size only"):
        export_step(module_of(model_of(DECODER.replace("BLOCK", "mamba"))))


def test_a_step_that_cannot_be_traced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, x: torch.Tensor, state: Any, context: Any) -> tuple[torch.Tensor, Any]:
        if torch.compiler.is_compiling():
            raise NotImplementedError("a block of one's own")
        return x, state

    monkeypatch.setattr("blocks.identity.Identity.forward", forward)
    with pytest.raises(RunError, match=r"cannot be exported: .*a block of one's own"):
        export_step(module_of(model_of(DECODER.replace("BLOCK", "identity"))))


def test_words_whose_vectors_would_be_made_at_every_token_are_refused() -> None:
    """A convolution over all of them takes more than a second of a vocabulary of 3,000."""
    recipe = RECIPE + "  output: {kind: {cnn: {kernels: [1, 2], features: [3, 4]}}}\n"
    with pytest.raises(RunError, match="cannot be exported: `cnn` computes the vectors"):
        export_step(module_of(model_of(recipe)))
