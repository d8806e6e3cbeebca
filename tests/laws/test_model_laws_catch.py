"""Each law of a whole model catches its break: one small model, with one thing wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from blocks.core.contract import Output, State
from composer.model.builder import build
from composer.model.encoder_decoder import NO_INPUTS, EncoderDecoder, StepInputs
from composer.model.special_tokens import PAD, UNK
from composer.recipe.recipe import load
from composer.testing import LawError, check_model, model_laws
from composer.testing.model_laws import expect_equal_logits, searching

RECIPE = """\
recipe: 1
data: {generate: copy}
model:
  width: 6
  encoder: [{rnn: {cell: gru}}]
  decoder: [{rnn: {cell: gru}}, {residual: [cross_attention]}]
"""
GRIDS = """\
recipe: 1
data: {generate: copy}
model:
  width: 6
  encoder:
    - grid: {columns: 2, max_length_ratio: 2}
    - repeat: {times: length, share: true, stack: [cgru]}
    - select_column
  decoder: [source_state]
"""


class ForgetsItsState(EncoderDecoder):
    def step(
        self, ids: Tensor, state: State, memories: Mapping[str, Output]
    ) -> tuple[Tensor, State]:
        return super().step(ids, self.start(memories, len(ids)), memories)


class StepsOverPadding(EncoderDecoder):
    def step(
        self, ids: Tensor, state: State, memories: Mapping[str, Output]
    ) -> tuple[Tensor, State]:
        return super().step(ids.masked_fill(ids == PAD, UNK), state, memories)


class KnowsTheAnswer(EncoderDecoder):
    def forward(
        self, sources: Mapping[str, Tensor], target: Tensor, beside: StepInputs = NO_INPUTS
    ) -> Tensor:
        logits = super().forward(sources, target, beside)
        return logits + 0.1 * logits.flip(1)


class ReadsPadding(EncoderDecoder):
    def encode(
        self,
        sources: Mapping[str, Tensor],
        beside: StepInputs = NO_INPUTS,
        target_mask: Tensor | None = None,
    ) -> dict[str, Output]:
        return super().encode(
            {key: ids.masked_fill(ids == PAD, UNK) for key, ids in sources.items()},
            beside,
            target_mask,
        )


class MakesRoomForTheLongest(EncoderDecoder):
    """Each row is given as much room as the longest answer of its batch needs."""

    def encode(
        self,
        sources: Mapping[str, Tensor],
        beside: StepInputs = NO_INPUTS,
        target_mask: Tensor | None = None,
    ) -> dict[str, Output]:
        return super().encode(
            sources, beside, None if target_mask is None else torch.ones_like(target_mask)
        )


class DecodesWithoutRoom(EncoderDecoder):
    """A search would not ask for the size that was trained."""

    def forward(
        self, sources: Mapping[str, Tensor], target: Tensor, beside: StepInputs = NO_INPUTS
    ) -> Tensor:
        return self.step(
            target, self.start(memories := self.encode(sources), len(target)), memories
        )[0]


class KnowsItsRows(EncoderDecoder):
    def step(
        self, ids: Tensor, state: State, memories: Mapping[str, Output]
    ) -> tuple[Tensor, State]:
        logits, state = super().step(ids, state, memories)
        return logits * (1 + torch.arange(len(ids))[:, None, None]), state


class StepsWithMoreConfidence(EncoderDecoder):
    def step(
        self, ids: Tensor, state: State, memories: Mapping[str, Output]
    ) -> tuple[Tensor, State]:
        logits, state = super().step(ids, state, memories)
        return logits * (2 if ids.shape[1] == 1 else 1), state


class PrefersTheLast(EncoderDecoder):
    def step(
        self, ids: Tensor, state: State, memories: Mapping[str, Output]
    ) -> tuple[Tensor, State]:
        logits, state = super().step(ids, state, memories)
        return logits.flip(-1), state


class Overflows(EncoderDecoder):
    def forward(
        self, sources: Mapping[str, Tensor], target: Tensor, beside: StepInputs = NO_INPUTS
    ) -> Tensor:
        logits = super().forward(sources, target, beside)
        return logits / (0 if logits.dtype is torch.bfloat16 else 1)


class OverflowsInSteps(EncoderDecoder):
    def step(
        self, ids: Tensor, state: State, memories: Mapping[str, Output]
    ) -> tuple[Tensor, State]:
        logits, state = super().step(ids, state, memories)
        return logits / (0 if logits.dtype is torch.bfloat16 else 1), state


class Diverges(EncoderDecoder):
    def forward(
        self, sources: Mapping[str, Tensor], target: Tensor, beside: StepInputs = NO_INPUTS
    ) -> Tensor:
        return super().forward(sources, target, beside) * (float("nan") if self.training else 1.0)


class SavesHalf(EncoderDecoder):
    def state_dict(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        return {
            key: value
            for key, value in super().state_dict(*arguments, **named).items()
            if key != "output.bias"
        }


class CountsRows(EncoderDecoder):
    """Counts what it reads, of a device that has no rows, too."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.register_buffer("rows", torch.zeros(()))

    def forward(
        self, sources: Mapping[str, Tensor], target: Tensor, beside: StepInputs = NO_INPUTS
    ) -> Tensor:
        self.get_buffer("rows").add_(len(target))
        return super().forward(sources, target, beside)


class HasAnIdlePart(EncoderDecoder):
    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.idle = nn.Linear(2, 2)


BROKEN: list[tuple[type[EncoderDecoder], Callable[[EncoderDecoder], None]]] = [
    (ForgetsItsState, model_laws.chunks),
    (StepsOverPadding, model_laws.ragged_chunks),
    (KnowsTheAnswer, model_laws.causality),
    (ReadsPadding, model_laws.padding),
    (MakesRoomForTheLongest, model_laws.padding),
    (DecodesWithoutRoom, model_laws.chunks),
    (KnowsItsRows, model_laws.reordering),
    (StepsWithMoreConfidence, searching),
    (PrefersTheLast, searching),
    (Overflows, model_laws.bfloat16),
    (OverflowsInSteps, model_laws.precisions),
    (Diverges, model_laws.training),
    (HasAnIdlePart, model_laws.training),
    (CountsRows, model_laws.idle_rows),
    (SavesHalf, model_laws.saving),
]
OF_GRIDS = (MakesRoomForTheLongest, DecodesWithoutRoom)
"""Breaks that only a model whose answers have a size can have."""


def made(folder: Path, text: str) -> EncoderDecoder:
    file = folder / "small.yaml"
    file.write_text(text, encoding="utf-8")
    torch.manual_seed(0)
    return build(load(file), {"source": 11, "target": 12})


@pytest.mark.parametrize("text", [RECIPE, GRIDS], ids=["sequences", "grids"])
def test_the_sound_model_keeps_every_law_and_is_left_as_it_was(text: str, tmp_path: Path) -> None:
    sound = made(tmp_path, text)
    before = {key: value.clone() for key, value in sound.state_dict().items()}
    check_model(sound)
    assert all(torch.equal(value, before[key]) for key, value in sound.state_dict().items())
    assert sound.training


@pytest.mark.parametrize(("kind", "law"), BROKEN, ids=[kind.__name__ for kind, _ in BROKEN])
def test_a_break_is_caught(kind: type[EncoderDecoder], law: Any, tmp_path: Path) -> None:
    sound = made(tmp_path, GRIDS if kind in OF_GRIDS else RECIPE)
    model = kind(sound.encoders, sound.embedding, sound.decoder, sound.output, sound.width).eval()
    with pytest.raises(LawError) as raised:
        law(model)
    assert raised.value.law == law.__name__


@pytest.mark.parametrize("size", [1.0, 1e17])
def test_logits_differ_by_more_than_the_rounding_of_the_largest(size: float) -> None:
    logits = size * torch.randn(2, 3, dtype=torch.float64)
    expect_equal_logits("chunks", logits * (1 + 1e-15), logits, "")
    for wrong in (logits * (1 + 1e-5), logits.masked_fill(logits == logits.max(), torch.inf)):
        with pytest.raises(LawError, match="the logits differ"):
            expect_equal_logits("chunks", wrong, logits, "")
