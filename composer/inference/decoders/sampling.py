"""Sampling: draw each token by its probability."""

from __future__ import annotations

import math
from dataclasses import replace
from zlib import crc32

import torch
from torch import Tensor

from composer.inference.decoders.decoder_state import DecoderState, prefill
from composer.inference.decoders.search import Hypothesis, Search
from composer.inference.decoders.speculative import SpeculativeDecoder
from composer.inference.decoders.token_by_token import decode_token_by_token
from composer.inference.decoders.token_scores import draw_from_cdf, top_k
from composer.inference.methods import Sample
from composer.model.special_tokens import EOS


def sample(search: Search, settings: Sample) -> list[list[Hypothesis]]:
    """Sample tokens by their probability.

    A row's answers depend on the seed and the row's number, not on its batch.
    """
    search = replace(search, keeps_history=settings.repetition_penalty > 1.0)
    drafting = search.by_draft(settings.precision) if search.options.draft else None
    search = search.using(settings.precision, settings.no_repeat_ngram)
    limits = search.limits(settings.max_length, settings.max_ratio)
    longest, n_best = int(limits.max()), search.options.n_best

    def distribution(log_p: Tensor, logits: Tensor | None, history: Tensor | None) -> Tensor:
        return token_probabilities(settings, log_p, logits, history)

    if drafting is not None:
        uniforms = uniform_draws(search, settings.seed, 3 * longest)
        decoder = SpeculativeDecoder(search, drafting, distribution, longest, prefill(search))
        finished = [decoder.decode(own) for own in uniforms.unflatten(1, (3, longest))]
    else:
        uniforms = uniform_draws(search, settings.seed, longest)  # (B N, L)

        def choose(log_p: Tensor, state: DecoderState, places: Tensor) -> Tensor:
            p = distribution(log_p, state.logits, state.history)  # (R, V)
            return draw_from_cdf(p, uniforms[places, state.length])

        finished = decode_token_by_token(search, choose, limits, n_best)
    rows = [finished[at : at + n_best] for at in range(0, len(finished), n_best)]
    return [sorted(row, key=lambda hypothesis: -hypothesis.normalised) for row in rows]


def token_probabilities(
    settings: Sample, log_p: Tensor, logits: Tensor | None, history: Tensor | None
) -> Tensor:
    """Return the probabilities by which tokens are drawn; their sum need not be 1. -> (R, V)"""
    scores = log_p
    if logits is not None and history is not None:
        scores = penalise_repetitions(log_p, logits, history, settings.repetition_penalty)
    values = (scores - scores.amax(-1, keepdim=True)) / settings.temperature  # (R, V)
    return truncate(values, settings.top_k, settings.top_p, settings.min_p).double().softmax(-1)


def uniform_draws(search: Search, seed: int, length: int) -> Tensor:
    """Return uniform numbers in [0, 1), a row for each hypothesis. -> (B N, length)"""
    generator = torch.Generator()
    rows = []
    for number in search.batch.numbers:
        for copy in range(search.options.n_best):
            generator.manual_seed(crc32(f"{seed} {number} {copy}".encode()))
            rows.append(torch.rand(length, generator=generator))
    return torch.stack(rows).to(search.device)


def penalise_repetitions(log_p: Tensor, logits: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Return the logits, lower for tokens of the history, -inf where log p is. -> (R, V)"""
    seen = torch.zeros_like(log_p, dtype=torch.bool)  # (R, V)
    columns = (history - EOS).clamp(min=0)  # (R, t) padding becomes eos, which no history has
    is_word = torch.arange(log_p.shape[1], device=log_p.device) > 0
    seen = seen.scatter(1, columns, True) & is_word
    lower = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lower, logits).masked_fill(log_p.isneginf(), -torch.inf)


def truncate(values: Tensor, top_k: int | None, top_p: float | None, min_p: float | None) -> Tensor:
    """Set scores outside top-k, top-p and min-p to -inf. values: (R, V), maximum 0 -> (R, V)

    Of tokens with equal scores, those with smaller ids are inside: there are never more than k.
    """
    if top_k is not None and top_k < values.shape[1]:
        values = truncate_to_top_k(values, top_k)
    if top_p is not None and top_p < 1.0:
        ordered, tokens = values.sort(descending=True, stable=True)  # (R, V) each
        probabilities = ordered.softmax(-1)  # (R, V)
        # the first token that reaches top_p is inside
        outside = probabilities.cumsum(-1) - probabilities >= top_p
        values = values.masked_fill(outside.scatter(1, tokens, outside), -torch.inf)
    return values if min_p is None else values.masked_fill(values < math.log(min_p), -torch.inf)


def truncate_to_top_k(values: Tensor, count: int) -> Tensor:
    """Set all but the `count` largest numbers of each row to -inf. (R, V) -> (R, V)"""
    best, columns = top_k(values, count + 1)  # (R, count + 1) each
    last = best[:, -2:-1]  # (R, 1)
    is_tied = (last == best[:, -1:]) & last.isfinite()  # (R, 1)
    # to ask an accelerator whether there is a tie takes longer than to resolve it
    if values.device.type == "cpu" and not is_tied.any():
        outside = torch.full_like(values, -torch.inf)  # (R, V)
        return outside.scatter(1, columns[:, :-1], best[:, :-1])
    above, tied = values > last, values == last  # (R, V) each
    room = count - above.sum(1, keepdim=True)  # (R, 1)
    return values.masked_fill(~(above | (tied & (tied.cumsum(1) <= room))), -torch.inf)
