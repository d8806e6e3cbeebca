"""Decoding in a lower precision: close to float32, converted once, and nothing of the model
changes.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer.errors import RunError
from composer.inference import precision
from composer.inference.methods import DECODERS
from composer.inference.precision import Int8Linear, SmallLinear, in_precision
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import BOS, EOS
from composer.recipe.recipe import load_text
from tests.inference.small_models import decode

RECIPE = """
recipe: 1
data: {generate: copy}
model:
  width: 32
  encoder: [positions, {residual: [{self_attention: {heads: 2}}]}, {rnn: {cell: lstm}}]
  decoder: [{rnn: {cell: gru}}, {residual: [cross_attention]}, {residual: [feed_forward]}]
"""
SOURCES = {"source": [[5, 7, 6], [9, 4, 4, 8, 6], [5]] * 8}


@pytest.fixture
def model() -> EncoderDecoder:
    torch.manual_seed(1)
    return build(load_text(RECIPE), {"source": 20, "target": 20}).eval()


def logits(model: EncoderDecoder) -> Tensor:
    ids = torch.tensor([[5, 7, 6, 2], [9, 4, 4, 2]] * 8)
    with torch.no_grad():
        return model({"source": ids}, ids)


@pytest.mark.parametrize(("name", "tolerance"), [("bfloat16", 0.05), ("int8", 0.05)])
def test_logits_are_close_and_the_model_stays_as_it_was(
    model: EncoderDecoder, name: Any, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "LARGE", 32 * 32)
    before, state = logits(model), {key: value.clone() for key, value in model.state_dict().items()}
    (lower,) = in_precision([model], name)
    gap = (logits(lower).float() - before).abs().max() / before.abs().max()
    assert 0 < gap < tolerance
    assert {key: value.dtype for key, value in model.state_dict().items()} == dict.fromkeys(
        state, torch.float32
    )
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert torch.equal(logits(model), before)


def test_every_linear_map_is_converted(
    model: EncoderDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "LARGE", 64 * 32)
    (lower,) = in_precision([model], "int8")
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    kinds = [type(module) for module in lower.modules() if isinstance(module, nn.Linear)]
    assert kinds == [
        Int8Linear if linear.weight.numel() >= 64 * 32 else SmallLinear for linear in linears
    ]
    assert len(set(kinds)) == 2


@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_a_model_is_converted_again_when_its_weights_have_changed(
    model: EncoderDecoder, name: Any
) -> None:
    ((first,), (again,)) = (in_precision([model], name) for _ in range(2))
    assert again is first
    with torch.no_grad():
        model.output.weight.mul_(2.0)  # type: ignore[union-attr]
    (changed,) = in_precision([model], name)
    assert changed is not first
    assert not torch.allclose(logits(changed).float(), logits(first).float())


def test_int8_rows_do_not_depend_on_the_others_of_their_batch() -> None:
    linear = Int8Linear(nn.Linear(16, 24))
    rows = torch.randn(40, 16) * torch.logspace(-3, 3, 40)[:, None]
    together = linear(rows)
    assert torch.equal(together, torch.cat([linear(row[None]) for row in rows]))
    assert torch.isfinite(linear(torch.zeros(1, 16))).all()


def test_a_map_of_medium_size_is_in_int8_for_few_rows_and_in_bfloat16_for_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "MEDIUM", 16 * 24)
    linear = nn.Linear(16, 24)
    few, many = torch.randn(precision.MIN_ROWS - 1, 16), torch.randn(precision.MIN_ROWS, 16)
    medium = precision.fastest(linear)
    assert torch.equal(medium(few), Int8Linear(linear)(few))
    assert torch.equal(medium(many), SmallLinear(linear)(many))
    assert not torch.equal(medium(few), linear(few))


def test_float32_is_the_model_itself(model: EncoderDecoder) -> None:
    assert in_precision([model], "float32")[0] is model


@pytest.mark.parametrize("decoding", ["greedy", "beam", "sample"])
@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_answers_have_the_scores_of_float32(
    model: EncoderDecoder, decoding: str, name: str
) -> None:
    settings = {"max_length": 6, "precision": name}
    answers = decode([model], SOURCES, DECODERS[decoding](**settings))
    for source, (best, *_) in zip(SOURCES["source"], answers, strict=True):
        tokens = [*best.ids, EOS] if best.ended else best.ids
        with torch.no_grad():
            log_p = model(
                {"source": torch.tensor([[*source, EOS]])}, torch.tensor([[BOS, *tokens[:-1]]])
            ).log_softmax(-1)
        assert best.score == pytest.approx(
            log_p[0, range(len(tokens)), tokens].sum().item(), abs=0.02 * len(tokens)
        )


def test_int8_is_refused_without_onednn(
    model: EncoderDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(RunError, match="needs oneDNN"):
        in_precision([model], "int8")


def test_int8_is_refused_where_there_is_no_cpu(model: EncoderDecoder) -> None:
    with pytest.raises(RunError, match="`int8` is for CPUs, and the model is on meta"):
        in_precision([copy.deepcopy(model).to("meta")], "int8")
