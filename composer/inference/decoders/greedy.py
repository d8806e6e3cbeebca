"""Greedy search."""

from __future__ import annotations

import torch
from torch import Tensor

from composer.inference.decoders.decoder_state import DecoderState, prefill
from composer.inference.decoders.search import Hypothesis, Search
from composer.inference.decoders.speculative import SpeculativeDecoder
from composer.inference.decoders.token_by_token import decode_token_by_token
from composer.inference.decoders.token_scores import top_k
from composer.inference.methods import Greedy


def greedy(search: Search, settings: Greedy) -> list[list[Hypothesis]]:
    """Greedy search: choose the most probable token at every position."""
    drafting = search.by_draft(settings.precision) if search.options.draft else None
    search = search.using(settings.precision, settings.no_repeat_ngram, settings.ctc_weight)
    limits = search.limits(settings.max_length, settings.max_ratio)  # (B,)
    if drafting is None:
        answers = decode_token_by_token(search, most_probable, limits)
        return [[answer] for answer in answers]
    limit = int(limits[0])
    decoder = SpeculativeDecoder(search, drafting, one_hot_argmax, limit, prefill(search))
    return [[decoder.decode(torch.zeros(3, limit, device=search.device))]]


def most_probable(log_p: Tensor, state: DecoderState, places: Tensor) -> Tensor:
    """Return the column of the most probable token of each row. (R, V) -> (R,)"""
    return top_k(log_p, 1)[1][:, 0]


def one_hot_argmax(log_p: Tensor, logits: Tensor | None, history: Tensor | None) -> Tensor:
    """Return the probability 1 for the most probable token, else 0. (R, V) -> (R, V)"""
    return torch.zeros_like(log_p, dtype=torch.float64).scatter(1, top_k(log_p, 1)[1], 1.0)
