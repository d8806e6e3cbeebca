"""Greedy decoding and sampling, one hypothesis per row; minimum Bayes risk, which chooses among
samples.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple
from zlib import crc32

import torch
from torch import Tensor

from composer.errors import RunError
from composer.inference.decoders import (
    COMPACT_BELOW,
    DecoderState,
    Hypothesis,
    Search,
    advance,
    draw_from_cdf,
    prefill,
    reorder_state,
)
from composer.inference.decoders.beam_search import top_k as best_tokens
from composer.inference.decoders.speculative import decode_speculatively
from composer.inference.methods import Greedy, Mbr, Sample
from composer.model.special_tokens import EOS
from composer.recipe.metrics import METRICS

Choose = Callable[[Tensor, DecoderState, Tensor], Tensor]
"""log p of the tokens (R, V), the state behind it, each row's place among all (R,) -> columns of
log p (R,).
"""


def greedy(search: Search, settings: Greedy) -> list[list[Hypothesis]]:
    """Greedy search: choose the most probable token at every position."""
    search = search.using(settings.precision, settings.no_repeat_ngram, settings.ctc_weight)
    limits = search.limits(settings.max_length, settings.max_ratio)  # (B,)
    if search.draft is not None:
        numbers = torch.zeros(3, int(limits[0]), device=search.device)
        return [
            [decode_speculatively(search, one_hot_argmax, int(limits[0]), numbers, prefill(search))]
        ]
    return [
        [finished]
        for finished in decode_single(
            search, lambda log_p, _, __: best_tokens(log_p, 1)[1][:, 0], limits, 1
        )
    ]


def sample(search: Search, settings: Sample) -> list[list[Hypothesis]]:
    """Sample tokens by their probability. A row's answers depend on the seed and its number, not on
    its batch.
    """
    search = search._replace(keeps_history=settings.repetition_penalty > 1.0)
    search = search.using(settings.precision, settings.no_repeat_ngram)
    limits = search.limits(settings.max_length, settings.max_ratio)
    longest = int(limits.max())

    def distribution(log_p: Tensor, logits: Tensor | None, history: Tensor | None) -> Tensor:
        scores = log_p if logits is None or history is None else penalise(log_p, logits, history)
        values = (scores - scores.amax(-1, keepdim=True)) / settings.temperature  # (R, V)
        return truncate(values, settings.top_k, settings.top_p, settings.min_p).double().softmax(-1)

    penalise = partial(penalise_repetitions, penalty=settings.repetition_penalty)
    if search.draft is None:
        uniforms = uniform_draws(search, settings.seed, longest)  # (B N, L)

        def choose(log_p: Tensor, position: DecoderState, places: Tensor) -> Tensor:
            p = distribution(log_p, position.logits, position.history)  # (R, V)
            return draw_from_cdf(p, uniforms[places, position.length])

        finished = decode_single(search, choose, limits, search.n_best)
    else:
        prefilled = prefill(search)
        numbers = uniform_draws(search, settings.seed, 3 * longest).unflatten(
            1, (3, longest)
        )  # (N, 3, L)
        finished = [
            decode_speculatively(search, distribution, longest, own, prefilled) for own in numbers
        ]
    return [
        sorted(finished[at : at + search.n_best], key=lambda hypothesis: -hypothesis.normalised)
        for at in range(0, len(finished), search.n_best)
    ]


def one_hot_argmax(log_p: Tensor, logits: Tensor | None, history: Tensor | None) -> Tensor:
    """Return probabilities that are 1 of the most probable token: those of greedy search. (R, V) ->
    (R, V)
    """
    return torch.zeros_like(log_p, dtype=torch.float64).scatter(1, best_tokens(log_p, 1)[1], 1.0)


class Hypotheses(NamedTuple):
    """Hypotheses so far: one row for each hypothesis in the batch."""

    place: Tensor  # (R,) among all hypotheses of the search
    limit: Tensor  # (R,) tokens at most
    ids: Tensor  # (R, t) tokens so far, the forced prefix left out
    length: Tensor  # (R,) how many of them count
    score: Tensor  # (R,) sum of log p
    done: Tensor  # (R,) bool

    def extended(self, tokens: Tensor, gain: Tensor) -> Hypotheses:
        """Append one token to each row that is not done. tokens, gain: (R,)"""
        tokens = tokens.masked_fill(self.done, EOS)
        length = self.length + ~self.done  # (R,)
        done = self.done | (tokens == EOS) | (length >= self.limit)  # (R,)
        score = torch.where(self.done, self.score, self.score + gain)
        return self._replace(
            ids=torch.cat((self.ids, tokens[:, None]), 1), length=length, score=score, done=done
        )


def decode_single(search: Search, choose: Choose, limits: Tensor, copies: int) -> list[Hypothesis]:
    """Decode `copies` hypotheses for each row, side by side. Rows that are done leave the batch."""
    log_p, position, prefix_log_p = prefill(search)
    if copies > 1:
        rows = position.sequences.repeat_interleave(copies)  # (R,)
        position, log_p = position.select(rows), log_p[rows]
    none = torch.zeros_like(position.sequences)  # (R,)
    places = torch.arange(len(none), device=none.device)  # (R,)
    empty, score = none[:, None][:, :0], prefix_log_p[position.sequences]  # (R, 0), (R,)
    state = Hypotheses(places, limits[position.sequences], empty, none, score, none.bool())
    finished: dict[int, Hypothesis] = {}
    for step in range(int(limits.max())):
        chosen = choose(log_p, position, state.place)  # (R,)
        state = state.extended(chosen + EOS, log_p.gather(1, chosen[:, None])[:, 0])
        if search.on_token:
            search.on_token(int(chosen[0]) + EOS)
        if search.is_check_due(step + 1):
            alive = (~state.done).nonzero()[:, 0]  # rows of the new R
            if len(alive) == 0:
                break
            if len(alive) <= COMPACT_BELOW * len(state.done):
                finished |= collect_finished(search, state, copies)
                state, position = Hypotheses(*reorder_state(state, alive)), position.select(alive)
        log_p, position = advance(search, state.ids[:, -1], position)
    finished |= collect_finished(search, state, copies)
    return [finished[place] for place in range(len(finished))]


def collect_finished(search: Search, state: Hypotheses, copies: int) -> dict[int, Hypothesis]:
    """Return the finished hypotheses by their index."""
    finished = {}
    columns = (state.place, state.length, state.score, state.done, state.ids)
    for place, length, score, done, ids in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        if done:
            ended = ids[length - 1] == EOS
            answer = ids[: length - 1] if ended else ids[:length]
            finished[place] = Hypothesis(
                [*search.prefixes[place // copies], *answer], score, score, ended
            )
    return finished


def uniform_draws(search: Search, seed: int, length: int) -> Tensor:
    """Return uniform numbers in [0, 1) for each copy of each row, one a token. -> (B copies,
    length)
    """
    generator = torch.Generator()
    rows = []
    for number in search.numbers:
        for copy in range(search.n_best):
            generator.manual_seed(crc32(f"{seed} {number} {copy}".encode()))
            rows.append(torch.rand(length, generator=generator))
    return torch.stack(rows).to(search.device)


def penalise_repetitions(log_p: Tensor, logits: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Return the logits in which tokens of the history are less probable; impossible ones stay it.
    -> (R, V)
    """
    seen = torch.zeros_like(log_p, dtype=torch.bool)  # (R, V)
    columns = (history - EOS).clamp(min=0)  # (R, t) padding is eos, of which no history has any
    seen = seen.scatter(1, columns, True) & (torch.arange(log_p.shape[1], device=log_p.device) > 0)
    penalised = torch.where(
        seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits
    )
    return penalised.masked_fill(log_p.isneginf(), -torch.inf)


def truncate(values: Tensor, top_k: int | None, top_p: float | None, min_p: float | None) -> Tensor:
    """Set the scores of tokens outside top-k, top-p and min-p to -inf. (R, V), their maximum 0 ->
    (R, V)

    Of tokens with equal scores those with smaller ids are inside, so that there are never more than
    k.
    """
    if top_k is not None and top_k < values.shape[1]:
        values = truncate_to_top_k(values, top_k)
    if top_p is not None and top_p < 1.0:
        ordered, tokens = values.sort(descending=True, stable=True)  # (R, V) each
        probabilities = ordered.softmax(-1)  # (R, V)
        # the first token that reaches it is inside
        outside = probabilities.cumsum(-1) - probabilities >= top_p
        values = values.masked_fill(outside.scatter(1, tokens, outside), -torch.inf)
    return values if min_p is None else values.masked_fill(values < math.log(min_p), -torch.inf)


def truncate_to_top_k(values: Tensor, top_k: int) -> Tensor:
    """Set all but the k largest numbers of each row to -inf, of equal ones those behind. (R, V) ->
    (R, V)
    """
    best, columns = best_tokens(values, top_k + 1)  # (R, k + 1) each
    last = best[:, -2:-1]  # (R, 1)
    is_tied = (last == best[:, -1:]) & last.isfinite()  # (R, 1)
    # to ask an accelerator whether there is a tie takes longer than to look for it
    if values.device.type == "cpu" and not is_tied.any():
        outside = torch.full_like(values, -torch.inf)  # (R, V)
        return outside.scatter(1, columns[:, :-1], best[:, :-1])
    above, tied = values > last, values == last  # (R, V) each
    room = top_k - above.sum(1, keepdim=True)  # (R, 1)
    return values.masked_fill(~(above | (tied & (tied.cumsum(1) <= room))), -torch.inf)


def mbr(search: Search, settings: Mbr) -> list[list[Hypothesis]]:
    """Minimum Bayes risk: the sample with the highest mean score against all samples (Eikema & Aziz
    2020, section 5).

    The mean over the samples is an estimate of the expected score of an answer, which its
    log-probability is not. Where a model makes room for its answer, the answers of different
    lengths are compared by log-probability.
    """
    if search.n_best > settings.samples:
        fix = f"write `decoding.mbr.samples={search.n_best}` or more"
        raise RunError.of(f"{settings.samples} samples have no {search.n_best} best answers", fix)
    drawing = Sample(
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=settings.seed,
        no_repeat_ngram=settings.no_repeat_ngram,
        precision=settings.precision,
        max_length=settings.max_length,
        max_ratio=settings.max_ratio,
    )
    rows = sample(search._replace(n_best=settings.samples), drawing)
    return [best_by_utility(search, hypotheses, settings.metric) for hypotheses in rows]


def best_by_utility(search: Search, hypotheses: list[Hypothesis], metric: str) -> list[Hypothesis]:
    """Return the n best of one row's samples by their mean score against all of them, each text
    once.
    """
    texts = search.to_texts([hypothesis.ids for hypothesis in hypotheses])
    counts, scorer = Counter(texts), METRICS[metric].scorer(of_sentences=True)
    # of each text the most probable
    by_text = dict(zip(reversed(texts), reversed(hypotheses), strict=True))
    candidates = []
    for text in counts:
        total = sum(
            count * scorer.sentence_score(text, [other]).score for other, count in counts.items()
        )
        hypothesis, utility = by_text[text], total / len(texts)
        candidates.append(
            (utility, hypothesis._replace(normalised=hypothesis.score if search.sizes else utility))
        )
    candidates.sort(key=lambda pair: -pair[0])
    return [hypothesis for _, hypothesis in candidates[: search.n_best]]
