"""Viterbi's algorithm: the most probable answer of all, where a token depends on the last one
alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from composer.inference.decoders import (
    DecoderState,
    Hypothesis,
    Search,
    advance,
    prefill,
)
from composer.inference.methods import Viterbi
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import EOS

CELLS = 1 << 22
"""Scores that are computed at once, for each row of every word after every other."""
FIRST_WORD = EOS + 1
"""The first word: what can be written and does not end an answer."""


def reads_tokens(models: Sequence[EncoderDecoder]) -> bool:
    """Return whether any decoder reads tokens. If none does, the best token is best after every
    other.
    """
    return any(model.embedding is not None for model in models)


def viterbi(search: Search, settings: Viterbi) -> list[list[Hypothesis]]:
    """Find the most probable answer of all, for a decoder that depends on the last token alone
    (Viterbi 1967).

    best_t(v) = max over u of best_(t-1)(u) p_t(v | u). Such is the decoder of the Markovian Neural
    GPU, or one that reads no tokens. A token costs a step for each word of the vocabulary; one,
    where no tokens are read.
    """
    search = search.using(settings.precision)
    log_p, position, prefix_log_p = prefill(search)
    limits = search.limits(settings.max_length, settings.max_ratio)  # (B,)
    reached = prefix_log_p[:, None] + log_p  # (B, V), of which eos is the first
    best, length = (
        reached[:, 0],
        torch.ones_like(limits),
    )  # (B,) of the answer that ends: its score, tokens with eos
    came_from: list[Tensor] = []
    words = previous_words(search, reached)  # (N, B, C)
    position = position.select(position.sequences.repeat_interleave(words.shape[-1]))
    for step in range(1, int(limits.max())):
        done = (reached[:, 1:].amax(1) <= best) | (limits <= step)  # (B,)
        if search.is_check_due(step) and bool(done.all()):
            break
        lasts = words if reads_tokens(search.models) else reached[:, 1:].argmax(1)[None, :, None]
        reached, came, position = extend(search, reached[:, 1:], lasts, position)
        came_from.append(came.int())
        score = reached[:, 0].masked_fill(limits <= step, -torch.inf)  # (B,)
        better = score > best  # (B,)
        best, length = torch.where(better, score, best), length.masked_fill(better, step + 1)
    return backtrace(search, best, length, came_from)


def previous_words(search: Search, reached: Tensor) -> Tensor:
    """Return the candidates for the last word, in parts that are scored together. -> (N, B, C)"""
    batch, vocabulary = reached.shape
    words = vocabulary - 1 if reads_tokens(search.models) else 1
    together = min(words, max(1, CELLS // (batch * vocabulary)))
    parts = torch.arange(-(-words // together) * together, device=reached.device)  # (N C,)
    return parts.clamp(max=words - 1).view(-1, 1, together).expand(-1, batch, -1)


def extend(
    search: Search, words: Tensor, lasts: Tensor, position: DecoderState
) -> tuple[Tensor, Tensor, DecoderState]:
    """Append one token. words: (B, W) the best score with each as the last; lasts: (N, B, C), see
    `previous_words`.

    -> the best score with each token as the last (B, V), the word before it (B, V), the position
    after it
    """
    scores, befores, after = [], [], position
    for last in lasts:  # (B, C)
        log_p, after = advance(search, (last + FIRST_WORD).flatten(), position)  # (B C, V)
        score, index = (words.gather(1, last)[..., None] + log_p.view(*last.shape, -1)).max(
            1
        )  # (B, V)
        scores.append(score)
        befores.append(last.gather(1, index))
    score, part = torch.stack(scores).max(0)  # (B, V) each
    return score, torch.stack(befores).gather(0, part[None])[0], after


def backtrace(
    search: Search, best: Tensor, length: Tensor, came_from: list[Tensor]
) -> list[list[Hypothesis]]:
    """Return the best answers of these scores and lengths (B,), read from their ends by the
    back-pointers.
    """
    before = torch.stack(came_from).cpu() if came_from else torch.empty(0)  # (L, B, V)
    results = []
    for row, (score, tokens) in enumerate(zip(best.tolist(), length.tolist(), strict=True)):
        ids: list[int] = []
        for at in range(tokens - 2, -1, -1):
            ids.append(int(before[at, row, ids[-1] - EOS if ids else 0]) + FIRST_WORD)
        # where no answer can end within its limit, nothing of it but the prefix is left
        ended = score > -math.inf
        results.append([Hypothesis([*search.prefixes[row], *reversed(ids)], score, score, ended)])
    return results
