"""Beam search: the `size` best hypotheses of each sequence side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from composer.errors import RunError
from composer.inference.decoders.decoder_state import advance, prefill, reorder_state
from composer.inference.decoders.search import COMPACT_BELOW, Hypothesis, Search
from composer.inference.decoders.token_scores import top_k
from composer.inference.methods import Beam
from composer.model.special_tokens import EOS, PAD


def beam(search: Search, settings: Beam) -> list[list[Hypothesis]]:
    """Beam search with a length penalty (Wu et al. 2016, section 7).

    A hypothesis y of n tokens, eos included, is ranked by log p(y) / ((5 + n) / 6) ^
    length_penalty. A hypothesis that ends keeps its place in the beam, so the beam of the others
    narrows (Sutskever et al. 2014, section 3.2), and a beam of 1 is greedy search. A sequence is
    done when no open hypothesis can still reach a better rank than the n best; a hypothesis that
    was cut ranks behind all that ended.
    """
    size, length_penalty = settings.size, settings.length_penalty
    if (n_best := search.options.n_best) > size:
        fix = f"write `--beam {n_best}`"
        raise RunError.of(f"a beam of {size} has no {n_best} best answers", fix)
    search = search.using(settings.precision, settings.no_repeat_ngram, settings.ctc_weight)
    prefilled = prefill(search)
    log_p, state = prefilled.log_p, prefilled.state
    limits = search.limits(settings.max_length, settings.max_ratio)
    beams = initial_beams(search, prefilled.prefix_log_p, limits, size)
    layout = Layout.of(torch.ones_like(beams.num_open), size)
    stops = set(beams.limit.tolist())
    results: dict[int, list[Hypothesis]] = {}
    for step in range(1, max(stops) + 1):
        beams, parents, tokens = expand(beams, layout, log_p, step, length_penalty)
        changes_layout = step == 1
        if changes_layout or step in stops or search.is_check_due(step):
            # log p only falls, and no answer is longer than the limit, so its penalty bounds
            # every rank to come
            bound = beams.score[:, :1] / beams.penalty(beams.limit, length_penalty)  # (B, 1)
            done = (beams.rank[:, -1:] >= bound)[:, 0] | (beams.limit <= step)  # (B,)
            new = [row for row in beams.row[done].tolist() if row not in results]
            results |= ranked_hypotheses(search, beams, new, step, length_penalty)
            needed = int(beams.num_open.masked_fill(done, 0).sum())
            if needed == 0:
                break
            changes_layout |= needed <= COMPACT_BELOW * len(layout.slots)
        if changes_layout:
            going = (~done).nonzero()[:, 0]  # rows of the new B
            beams = Beams(*reorder_state(beams, going))
            parents, tokens = parents[going], tokens[going]
            layout = Layout.of(beams.num_open, size)
            state = state.select(parents.flatten()[layout.slots])
        else:
            state = state.reorder(parents.flatten()[layout.slots])
        log_p, state = advance(search, tokens.flatten()[layout.slots], state)
    return [results[row] for row in range(len(results))]


class Beams(NamedTuple):
    """The hypotheses of B sequences: K open ones, best first, and the N best that have ended.

    A tuple, so that `reorder_state` reorders it.
    """

    row: Tensor  # (B,) of the search
    prefix_length: Tensor  # (B,) tokens of the forced prefix
    limit: Tensor  # (B,) maximum tokens after it
    num_open: Tensor  # (B,) open hypotheses
    score: Tensor  # (B, K) sum of log p of the open ones; -inf where there is none
    ids: Tensor  # (B, K, t) their tokens, without the prefix
    rank: Tensor  # (B, N) normalised score of those that have ended; -inf where there is none
    ended_score: Tensor  # (B, N)
    ended_ids: Tensor  # (B, N, t), padded

    def penalty(self, tokens: int | Tensor, length_penalty: float) -> Tensor:
        """Return the divisor of scores of answers with `tokens` after the prefix. -> (B, 1)"""
        return ((5.0 + self.prefix_length + tokens) / 6.0).pow(length_penalty)[:, None]


@dataclass(frozen=True)
class Layout:
    """The rows of hypotheses in the batch: sequences whose beams have narrowed have fewer.

    slots: (R,) which of the B K hypotheses each row is.
    rows: (B, K) the row of each hypothesis; if it has none, a row of the same sequence.
    """

    slots: Tensor
    rows: Tensor

    @classmethod
    def of(cls, num_open: Tensor, size: int) -> Layout:
        """Give each sequence as many rows as it has open hypotheses, at least 1."""
        column = torch.arange(size, device=num_open.device)  # (K,)
        slots = (column < num_open[:, None]).flatten().nonzero()[:, 0]  # (R,)
        first = num_open.cumsum(0) - num_open  # (B,)
        return cls(slots, first[:, None] + torch.minimum(column, num_open[:, None] - 1))


def initial_beams(search: Search, prefix_log_p: Tensor, limits: Tensor, size: int) -> Beams:
    """Return one empty hypothesis for each row of the search."""
    batch, n_best, device = len(prefix_log_p), search.options.n_best, prefix_log_p.device
    rows = torch.arange(batch, device=device)  # (B,)
    score = torch.full((batch, size), -torch.inf, device=device)  # (B, K)
    score[:, 0] = prefix_log_p
    none = torch.full((batch, n_best), -torch.inf, device=device)  # (B, N)
    empty = torch.empty(batch, size, 0, dtype=torch.long, device=device)  # (B, K, 0)
    return Beams(
        row=rows,
        prefix_length=search.prefix_lengths(),
        limit=limits,
        num_open=torch.full_like(rows, size),
        score=score,
        ids=empty,
        rank=none,
        ended_score=none,
        ended_ids=empty[:, :n_best],
    )


def expand(
    beams: Beams, layout: Layout, log_p: Tensor, step: int, length_penalty: float
) -> tuple[Beams, Tensor, Tensor]:
    """Extend every hypothesis by one token.

    -> beams, the row each hypothesis came from (B, K), its last token (B, K)
    """
    score, came_from, tokens = top_candidates(beams, layout, log_p)  # (B, K)
    ids = torch.cat((gather_ids(beams.ids, came_from), tokens[..., None]), 2)  # (B, K, t)
    ends = tokens == EOS  # (B, K)
    # those that end here are merged with the best N that have ended before
    ended_score = score.masked_fill(~ends, -torch.inf)  # (B, K)
    ended_rank = ended_score / beams.penalty(step, length_penalty)  # (B, K)
    rank, order = torch.cat((beams.rank, ended_rank), 1).topk(beams.rank.shape[1])  # (B, N)
    before = torch.nn.functional.pad(beams.ended_ids, (0, 1), value=PAD)  # (B, N, t)
    beams = beams._replace(
        num_open=beams.num_open - (ends & (score > -torch.inf)).sum(1),
        rank=rank,
        ended_score=torch.cat((beams.ended_score, ended_score), 1).gather(1, order),
        ended_ids=gather_ids(torch.cat((before, ids), 1), order),
    )
    score, order = score.masked_fill(ends, -torch.inf).topk(score.shape[1])  # (B, K)
    beams = beams._replace(score=score, ids=gather_ids(ids, order))
    return beams, layout.rows.gather(1, came_from.gather(1, order)), tokens.gather(1, order)


def top_candidates(beams: Beams, layout: Layout, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best continuations, as many as are open.

    -> scores, the hypotheses (of K) that they continue, tokens, (B, K) each
    """
    batch, size = beams.score.shape
    # more continuations of one hypothesis cannot be among the best
    count = min(size, log_p.shape[1])
    gain, chosen = top_k(log_p, count)  # (R, count)
    total = beams.score.flatten()[layout.slots, None] + gain  # (R, count)
    grid = total.new_full((batch * size, count), -torch.inf)  # (B K, count)
    grid = grid.index_copy(0, layout.slots, total)
    words = chosen.new_zeros(batch * size, count).index_copy(0, layout.slots, chosen)
    score, index = grid.view(batch, -1).topk(size)  # (B, K)
    is_closed = torch.arange(size, device=score.device) >= beams.num_open[:, None]  # (B, K)
    tokens = words.view(batch, -1).gather(1, index) + EOS  # (B, K)
    hypotheses = index.div(count, rounding_mode="floor")
    return score.masked_fill(is_closed, -torch.inf), hypotheses, tokens


def gather_ids(ids: Tensor, order: Tensor) -> Tensor:
    """Reorder rows of ids. ids: (B, M, t), order: (B, n) -> (B, n, t)"""
    return ids.gather(1, order[..., None].expand(-1, -1, ids.shape[2]))


def ranked_hypotheses(
    search: Search, beams: Beams, rows: list[int], step: int, length_penalty: float
) -> dict[int, list[Hypothesis]]:
    """Return the n best hypotheses of these rows of the search: those that ended, then cut ones."""
    if not rows:
        return {}
    wanted = torch.isin(beams.row, torch.tensor(rows, device=beams.row.device))
    done = Beams(*reorder_state(beams, wanted.nonzero()[:, 0]))
    cut_rank = done.score / done.penalty(step, length_penalty)
    # `tolist` waits for the accelerator: once for each column, not for each row
    ended = zip(done.ended_ids.tolist(), done.ended_score.tolist(), done.rank.tolist(), strict=True)
    cut = zip(done.ids.tolist(), done.score.tolist(), cut_rank.tolist(), strict=True)
    answers = {}
    for row, ended_columns, cut_columns in zip(done.row.tolist(), ended, cut, strict=True):
        best = []
        for ids, score, rank in zip(*ended_columns, strict=True):
            if rank > -torch.inf:
                best.append((ids[: ids.index(EOS)], score, rank, True))
        for ids, score, rank in zip(*cut_columns, strict=True):
            if rank > -torch.inf:
                best.append((ids, score, rank, False))
        prefix = search.batch.prefixes[row]
        answers[row] = [
            Hypothesis([*prefix, *ids], score, rank, has_ended)
            for ids, score, rank, has_ended in best[: search.options.n_best]
        ]
    return answers
