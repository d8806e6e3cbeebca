"""The loop of greedy search and sampling: every hypothesis grows by one token at each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from composer.inference.decoders.decoder_state import (
    DecoderState,
    advance,
    prefill,
    reorder_state,
)
from composer.inference.decoders.search import COMPACT_BELOW, Hypothesis, Search
from composer.model.special_tokens import EOS

Choose = Callable[[Tensor, DecoderState, Tensor], Tensor]
"""log p of the tokens (R, V), their state, each row's place among all (R,) -> columns (R,)"""


class Hypotheses(NamedTuple):
    """Unfinished hypotheses, a row each. A tuple, so that `reorder_state` reorders it."""

    place: Tensor  # (R,) among all hypotheses of the search
    limit: Tensor  # (R,) maximum tokens
    ids: Tensor  # (R, t) tokens so far, without the forced prefix
    length: Tensor  # (R,) tokens that count
    score: Tensor  # (R,) sum of log p
    done: Tensor  # (R,) bool

    def extended(self, tokens: Tensor, gain: Tensor) -> Hypotheses:
        """Append one token to each row that is not done. tokens, gain: (R,)"""
        tokens = tokens.masked_fill(self.done, EOS)
        length = self.length + ~self.done  # (R,)
        return self._replace(
            ids=torch.cat((self.ids, tokens[:, None]), 1),
            length=length,
            score=torch.where(self.done, self.score, self.score + gain),
            done=self.done | (tokens == EOS) | (length >= self.limit),
        )


def decode_token_by_token(
    search: Search, choose: Choose, limits: Tensor, copies: int = 1
) -> list[Hypothesis]:
    """Decode `copies` hypotheses of each row, side by side."""
    prefilled = prefill(search)
    log_p, state = prefilled.log_p, prefilled.state
    if copies > 1:
        rows = state.sequences.repeat_interleave(copies)  # (R,)
        log_p, state = log_p[rows], state.select(rows)
    zeros = torch.zeros_like(state.sequences)  # (R,)
    hypotheses = Hypotheses(
        place=torch.arange(len(zeros), device=zeros.device),
        limit=limits[state.sequences],
        ids=zeros[:, None][:, :0],
        length=zeros,
        score=prefilled.prefix_log_p[state.sequences],
        done=zeros.bool(),
    )
    finished: dict[int, Hypothesis] = {}
    for step in range(int(limits.max())):
        chosen = choose(log_p, state, hypotheses.place)  # (R,)
        gain = log_p.gather(1, chosen[:, None])[:, 0]
        hypotheses = hypotheses.extended(chosen + EOS, gain)
        if search.options.on_token:
            search.options.on_token(int(chosen[0]) + EOS)
        if search.is_check_due(step + 1):
            alive = (~hypotheses.done).nonzero()[:, 0]  # rows of the new R
            if len(alive) == 0:
                break
            if len(alive) <= COMPACT_BELOW * len(hypotheses.done):
                finished |= collect_finished(search, hypotheses, copies)
                hypotheses = Hypotheses(*reorder_state(hypotheses, alive))
                state = state.select(alive)
        log_p, state = advance(search, hypotheses.ids[:, -1], state)
    finished |= collect_finished(search, hypotheses, copies)
    return [finished[place] for place in range(len(finished))]


def collect_finished(search: Search, hypotheses: Hypotheses, copies: int) -> dict[int, Hypothesis]:
    """Return the finished hypotheses by their place."""
    finished = {}
    # `tolist` waits for the accelerator: once for each column
    columns = [column.tolist() for column in hypotheses]
    for place, _, ids, length, score, done in zip(*columns, strict=True):
        if done:
            ended = ids[length - 1] == EOS
            answer = ids[: length - 1] if ended else ids[:length]
            prefix = search.batch.prefixes[place // copies]
            finished[place] = Hypothesis([*prefix, *answer], score, score, ended)
    return finished
