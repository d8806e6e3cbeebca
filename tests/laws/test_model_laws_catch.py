"""Each law of a whole model catches its break: one small model, with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blocks.core.contract import Output, State
from composer.build import build
from composer.model import NOTHING, PAD, UNK, Beside, EncoderDecoder
from composer.recipe import load
from composer.testing import LawError, check_model, whole
from composer.testing.search import searching

RECIPE = """\
recipe: 1
data: {generate: copy}
model:
  width: 6
  encoder: [{rnn: {cell: gru}}]
  decoder: [{rnn: {cell: gru}}, {residual: [cross_attention]}]
"""


class ForgetsItsState(EncoderDecoder):
    def step(self, ids: Tensor, state: State, memories: Mapping[str, Output]) -> tuple[Tensor, State]:
        return super().step(ids, self.start(memories, len(ids)), memories)


class StepsOverPadding(EncoderDecoder):
    def step(self, ids: Tensor, state: State, memories: Mapping[str, Output]) -> tuple[Tensor, State]:
        return super().step(ids.masked_fill(ids == PAD, UNK), state, memories)


class KnowsTheAnswer(EncoderDecoder):
    def forward(self, sources: Mapping[str, Tensor], target: Tensor, beside: Beside = NOTHING) -> Tensor:
        logits = super().forward(sources, target, beside)
        return logits + 0.1 * logits.flip(1)


class ReadsPadding(EncoderDecoder):
    def encode(self, sources: Mapping[str, Tensor], beside: Beside = NOTHING) -> dict[str, Output]:
        return super().encode({key: ids.masked_fill(ids == PAD, UNK) for key, ids in sources.items()}, beside)


class KnowsItsRows(EncoderDecoder):
    def step(self, ids: Tensor, state: State, memories: Mapping[str, Output]) -> tuple[Tensor, State]:
        logits, state = super().step(ids, state, memories)
        return logits * (1 + torch.arange(len(ids))[:, None, None]), state


class StepsWithMoreConfidence(EncoderDecoder):
    def step(self, ids: Tensor, state: State, memories: Mapping[str, Output]) -> tuple[Tensor, State]:
        logits, state = super().step(ids, state, memories)
        return logits * (2 if ids.shape[1] == 1 else 1), state


class PrefersTheLast(EncoderDecoder):
    def step(self, ids: Tensor, state: State, memories: Mapping[str, Output]) -> tuple[Tensor, State]:
        logits, state = super().step(ids, state, memories)
        return logits.flip(-1), state


class Overflows(EncoderDecoder):
    def forward(self, sources: Mapping[str, Tensor], target: Tensor, beside: Beside = NOTHING) -> Tensor:
        logits = super().forward(sources, target, beside)
        return logits / (0 if logits.dtype is torch.bfloat16 else 1)


class Diverges(EncoderDecoder):
    def forward(self, sources: Mapping[str, Tensor], target: Tensor, beside: Beside = NOTHING) -> Tensor:
        return super().forward(sources, target, beside) * (float("nan") if self.training else 1.0)


class SavesHalf(EncoderDecoder):
    def state_dict(self, *given: Any, **named: Any) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict(*given, **named).items() if key != "output.bias"}


class HasAnIdlePart(EncoderDecoder):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.idle = nn.Linear(2, 2)


BROKEN: list[tuple[type[EncoderDecoder], Callable[[EncoderDecoder], None]]] = [
    (ForgetsItsState, whole.chunks),
    (StepsOverPadding, whole.ragged_chunks),
    (KnowsTheAnswer, whole.causality),
    (ReadsPadding, whole.padding),
    (KnowsItsRows, whole.reordering),
    (StepsWithMoreConfidence, searching),
    (PrefersTheLast, searching),
    (Overflows, whole.bfloat16),
    (Diverges, whole.training),
    (HasAnIdlePart, whole.training),
    (SavesHalf, whole.saving),
]


@pytest.fixture
def sound(tmp_path: Any) -> EncoderDecoder:
    file = tmp_path / "small.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    torch.manual_seed(0)
    return build(load(file), {"source": 11, "target": 12})


def test_the_sound_model_keeps_every_law_and_is_left_as_it_was(sound: EncoderDecoder) -> None:
    before = {key: value.clone() for key, value in sound.state_dict().items()}
    check_model(sound)
    assert all(torch.equal(value, before[key]) for key, value in sound.state_dict().items())
    assert sound.training


@pytest.mark.parametrize(("kind", "law"), BROKEN, ids=[kind.__name__ for kind, _ in BROKEN])
def test_a_break_is_caught(sound: EncoderDecoder, kind: type[EncoderDecoder], law: Any) -> None:
    model = kind(sound.encoders, sound.embedding, sound.decoder, sound.output).eval()
    with pytest.raises(LawError) as raised:
        law(model)
    assert raised.value.law == law.__name__
