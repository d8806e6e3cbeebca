"""Viterbi's algorithm: the most probable answer if a token depends on the last one alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from composer.inference.decoders.decoder_state import DecoderState, advance, prefill
from composer.inference.decoders.search import Hypothesis, Search
from composer.inference.methods import Viterbi
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import EOS

CELLS = 1 << 22
"""Scores computed at once: a word after another one, for a row."""
FIRST_WORD = EOS + 1
"""The first token that does not end an answer."""


def reads_tokens(models: Sequence[EncoderDecoder]) -> bool:
    """True if any decoder reads tokens; if none does, the last token does not matter."""
    return any(model.embedding is not None for model in models)


def viterbi(search: Search, settings: Viterbi) -> list[list[Hypothesis]]:
    """Find the most probable answer of a decoder that depends on the last token (Viterbi 1967).

    best_t(v) = max over u of best_(t-1)(u) p_t(v | u). Such is the decoder of the Markovian Neural
    GPU, or one that reads no tokens. A token costs a step for each word of the vocabulary, or one
    step if no tokens are read.
    """
    search = search.using(settings.precision)
    prefilled = prefill(search)
    limits = search.limits(settings.max_length, settings.max_ratio)  # (B,)
    reached = prefilled.prefix_log_p[:, None] + prefilled.log_p  # (B, V), eos first
    # of the best answer that ends: its score, and its tokens with eos
    best, length = reached[:, 0], torch.ones_like(limits)  # (B,) each
    came_from: list[Tensor] = []
    words = previous_words(search, reached)  # (N, B, C)
    state = prefilled.state
    state = state.select(state.sequences.repeat_interleave(words.shape[-1]))
    for step in range(1, int(limits.max())):
        done = (reached[:, 1:].amax(1) <= best) | (limits <= step)  # (B,)
        if search.is_check_due(step) and bool(done.all()):
            break
        lasts = words if reads_tokens(search.models) else reached[:, 1:].argmax(1)[None, :, None]
        reached, came, state = extend(search, reached[:, 1:], lasts, state)
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
    search: Search, words: Tensor, lasts: Tensor, state: DecoderState
) -> tuple[Tensor, Tensor, DecoderState]:
    """Append one token.

    words: (B, W) the best score with each word as the last; lasts: (N, B, C), see `previous_words`
    -> the best score with each token as the last (B, V), the word before it (B, V), the state after
    """
    scores, words_before, after = [], [], state
    for last in lasts:  # (B, C)
        log_p, after = advance(search, (last + FIRST_WORD).flatten(), state)  # (B C, V)
        totals = words.gather(1, last)[..., None] + log_p.view(*last.shape, -1)  # (B, C, V)
        score, index = totals.max(1)  # (B, V)
        scores.append(score)
        words_before.append(last.gather(1, index))
    score, part = torch.stack(scores).max(0)  # (B, V) each
    return score, torch.stack(words_before).gather(0, part[None])[0], after


def backtrace(
    search: Search, best: Tensor, length: Tensor, came_from: list[Tensor]
) -> list[list[Hypothesis]]:
    """Return the answers of these scores and lengths (B,), read back from their ends."""
    before = torch.stack(came_from).cpu() if came_from else torch.empty(0)  # (L, B, V)
    results = []
    for row, (score, tokens) in enumerate(zip(best.tolist(), length.tolist(), strict=True)):
        ids: list[int] = []
        for at in range(tokens - 2, -1, -1):
            ids.append(int(before[at, row, ids[-1] - EOS if ids else 0]) + FIRST_WORD)
        # if no answer can end within its limit, only the prefix is left
        ended = score > -math.inf
        answer = [*search.batch.prefixes[row], *reversed(ids)]
        results.append([Hypothesis(answer, score, score, ended)])
    return results
