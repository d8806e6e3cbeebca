"""The laws of searching: what a decoder writes, and the score it tells, are those of the model that was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composer.inference.decode import Hypothesis, decode
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.vocabulary import BOS, EOS, PAD
from composer.testing.model_laws import SOURCES, broken, rows, sentences

TOLERANCE = 1e-3
"""Decoders add up single precision."""
PREFIXES: tuple[tuple[int, ...], ...] = ((), (4, 3), (5,), ())
LONGEST = 7
DECODERS: tuple[Mapping[str, Mapping[str, Any]], ...] = (
    {"greedy": {"max_length": LONGEST}},
    {"beam": {"size": 1, "length_penalty": 0.0, "max_length": LONGEST}},
    {"beam": {"size": 3, "max_length": LONGEST}},
)


def searching(model: EncoderDecoder) -> None:
    """Greedy search writes the most probable tokens of `forward`, a beam of 1 the same, and scores are `forward`'s."""
    model.eval()
    for prefixes in (((),) * len(PREFIXES), PREFIXES):
        greedy, narrow, wide = (written(model, decoding, prefixes) for decoding in DECODERS)
        for row, prefix in enumerate(prefixes):
            expect_most_probable(model, row, greedy[row], len(prefix))
            if narrow[row].ids != greedy[row].ids:
                broken("searching", f"a beam of 1 writes {narrow[row].ids}, and greedy search {greedy[row].ids}")
            for found in (greedy[row], narrow[row], wide[row]):
                expect_prefix_and_score(model, row, found, prefix)


def written(
    model: EncoderDecoder, decoding: Mapping[str, Mapping[str, Any]], prefixes: Sequence[Sequence[int]]
) -> list[Hypothesis]:
    """The best hypothesis of each row."""
    return [best[0] for best in decode([model], sentences(model).sources, decoding, prefixes)]


def expect_most_probable(model: EncoderDecoder, row: int, found: Hypothesis, known: int) -> None:
    """Raises LawError where a token after the `known` ones is not the most probable one of those that it can be."""
    tokens = [*found.ids, *([EOS] if found.ended else [])]
    logits = told_by_forward(model, row, found)[: len(tokens)]
    logits[:, [PAD, BOS]] = float("-inf")
    if model.room:
        logits = of_size(logits, SOURCES[row])
    for at, token in enumerate(tokens[known:], known):
        if logits[at, token] < logits[at].max() - TOLERANCE:
            broken(
                "searching",
                f"greedy search writes {token} at position {at} of row {row}, and `forward` thinks "
                f"{int(logits[at].argmax())} more probable",
            )


def of_size(logits: Tensor, own: int) -> Tensor:
    """What the tokens can be where an answer has a size: of a source's `own` size it ends there at the latest.

    A longer one is of its own size: it ends there, and not before. logits: (T, V), one for each token of the answer.
    """
    size = max(len(logits), own)
    end, last = torch.arange(logits.shape[1]) == EOS, torch.arange(len(logits)) == size - 1
    early = ~last & (size > own)
    return logits.masked_fill((last[:, None] & ~end) | (early[:, None] & end), float("-inf"))


def expect_prefix_and_score(model: EncoderDecoder, row: int, found: Hypothesis, prefix: Sequence[int]) -> None:
    """Raises LawError where the forced prefix is missing, or where the score is not what `forward` says."""
    if found.ids[: len(prefix)] != list(prefix):
        broken("searching", f"row {row} must begin with {list(prefix)}, and is {found.ids}")
    tokens = torch.tensor([*found.ids, *([EOS] if found.ended else [])], dtype=torch.long)
    scores = told_by_forward(model, row, found)[: len(tokens)].log_softmax(-1)
    score = scores.gather(1, tokens[:, None]).sum().item()
    if abs(score - found.score) > TOLERANCE * max(1.0, abs(score)):
        broken("searching", f"the score of {found.ids} in row {row} is {found.score:.5g}, and by `forward` {score:.5g}")


def told_by_forward(model: EncoderDecoder, row: int, found: Hypothesis) -> Tensor:
    """The logits of a training pass over an answer: (T + 1, V)"""
    with torch.no_grad():
        return model(rows(sentences(model), row).sources, torch.tensor([[BOS, *found.ids]]))[0].float()
