"""Beam search: the `size` best hypotheses of each sequence side by side."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from composer.errors import RunError
from composer.inference.decoders import (
    COMPACT_BELOW,
    Hypothesis,
    Search,
    advance,
    prefill,
    reorder_state,
)
from composer.inference.methods import Beam
from composer.model.special_tokens import EOS, PAD


def beam(search: Search, settings: Beam) -> list[list[Hypothesis]]:
    """Beam search with a length penalty (Wu et al. 2016, section 7).

    A hypothesis y of n tokens, eos counted, is ranked by log p(y) / ((5 + n) / 6) ^ length_penalty.
    A hypothesis that ends keeps its place in the beam, so that the beam of the others narrows
    (Sutskever et al. 2014, section 3.2) and a beam of 1 is greedy search. A sequence is done when
    nothing that is still growing could come to a better rank than what is asked for; a hypothesis
    that was cut ranks behind all that ended.
    """
    size, length_penalty = settings.size, settings.length_penalty
    if search.n_best > size:
        raise RunError.of(
            f"a beam of {size} has no {search.n_best} best answers",
            f"write `--beam {search.n_best}`",
        )
    search = search.using(settings.precision, settings.no_repeat_ngram, settings.ctc_weight)
    log_p, position, prefix_log_p = prefill(search)
    beams = initial_beams(
        search, prefix_log_p, search.limits(settings.max_length, settings.max_ratio), size
    )
    layout = Layout.of(torch.ones_like(beams.num_open), size)
    stops = set(beams.limit.tolist())
    results: dict[int, list[Hypothesis]] = {}
    for step in range(1, max(stops) + 1):
        beams, parents, tokens = expand(beams, layout, log_p, step, length_penalty)
        lay_out = step == 1
        if lay_out or step in stops or search.is_check_due(step):
            # log p only falls, and no answer is longer than the limit, so its penalty bounds every
            # rank to come
            bound = beams.score[:, :1] / beams.penalty(beams.limit, length_penalty)  # (B, 1)
            done = (beams.rank[:, -1:] >= bound)[:, 0] | (beams.limit <= step)  # (B,)
            results |= finished_hypotheses(search, beams, done, step, length_penalty, results)
            needed = int(beams.num_open.masked_fill(done, 0).sum())
            if needed == 0:
                break
            lay_out |= needed <= COMPACT_BELOW * len(layout.slots)
        if lay_out:
            going = (~done).nonzero()[:, 0]  # rows of the new B
            beams, parents, tokens = (
                Beams(*reorder_state(beams, going)),
                parents[going],
                tokens[going],
            )
            layout = Layout.of(beams.num_open, size)
            position = position.select(parents.flatten()[layout.slots])
        else:
            position = position.reorder(parents.flatten()[layout.slots])
        log_p, position = advance(search, tokens.flatten()[layout.slots], position)
    return [results[row] for row in range(len(results))]


class Beams(NamedTuple):
    """The hypotheses of B sequences: K that grow, best first, and the N best that have ended."""

    row: Tensor  # (B,) of the search
    prefix_length: Tensor  # (B,) tokens of the forced prefix
    limit: Tensor  # (B,) tokens at most after it
    num_open: Tensor  # (B,) how many may still grow
    score: Tensor  # (B, K) sum of log p of those that grow; -inf where there is none
    ids: Tensor  # (B, K, t) their tokens, the prefix left out
    rank: Tensor  # (B, N) normalised score of those that have ended; -inf where there is none
    ended_score: Tensor  # (B, N)
    ended_ids: Tensor  # (B, N, t), padded

    def penalty(self, tokens: int | Tensor, length_penalty: float) -> Tensor:
        """Return the length penalty, by which a score is divided; `tokens` without the prefix. ->
        (B, 1)
        """
        return ((5.0 + self.prefix_length + tokens) / 6.0).pow(length_penalty)[:, None]


class Layout(NamedTuple):
    """The rows of hypotheses in the batch: sequences whose beams have narrowed have fewer."""

    slots: Tensor  # (R,) which of the B K hypotheses each row is
    rows: Tensor  # (B, K) which row each hypothesis is; of those without one, a row of the same sequence

    @classmethod
    def of(cls, num_open: Tensor, size: int) -> Layout:
        """Give each sequence as many rows as it has open hypotheses, at least 1."""
        column = torch.arange(size, device=num_open.device)  # (K,)
        slots = (column < num_open[:, None]).flatten().nonzero()[:, 0]  # (R,)
        first = num_open.cumsum(0) - num_open  # (B,)
        return cls(slots, first[:, None] + torch.minimum(column, num_open[:, None] - 1))


def initial_beams(search: Search, prefix_log_p: Tensor, limits: Tensor, size: int) -> Beams:
    """Return one empty hypothesis for each row of the search."""
    batch, device = len(prefix_log_p), prefix_log_p.device
    rows = torch.arange(batch, device=device)  # (B,)
    score = torch.full((batch, size), -torch.inf, device=device)  # (B, K)
    score[:, 0] = prefix_log_p
    none = torch.full((batch, search.n_best), -torch.inf, device=device)  # (B, N)
    empty = torch.empty(batch, size, 0, dtype=torch.long, device=device)  # (B, K, 0)
    num_open = torch.full_like(rows, size)
    return Beams(
        rows,
        search.prefix_lengths(),
        limits,
        num_open,
        score,
        empty,
        none,
        none,
        empty[:, : search.n_best],
    )


def expand(
    beams: Beams, layout: Layout, log_p: Tensor, step: int, length_penalty: float
) -> tuple[Beams, Tensor, Tensor]:
    """Extend every hypothesis by one token. -> beams, the row each came from (B, K), its last token
    (B, K)
    """
    score, came_from, tokens = top_candidates(beams, layout, log_p)  # (B, K)
    ids = torch.cat((gather_ids(beams.ids, came_from), tokens[..., None]), 2)  # (B, K, t)
    ends = tokens == EOS  # (B, K)
    # what ends here is merged with the best N that have ended before
    ended_score = score.masked_fill(~ends, -torch.inf)  # (B, K)
    rank = torch.cat(
        (beams.rank, ended_score / beams.penalty(step, length_penalty)), 1
    )  # (B, N + K)
    rank, order = rank.topk(beams.rank.shape[1])  # (B, N)
    ended_ids = torch.cat(
        (torch.nn.functional.pad(beams.ended_ids, (0, 1), value=PAD), ids), 1
    )  # (B, N + K, t)
    beams = beams._replace(
        num_open=beams.num_open - (ends & (score > -torch.inf)).sum(1),
        rank=rank,
        ended_score=torch.cat((beams.ended_score, ended_score), 1).gather(1, order),
        ended_ids=gather_ids(ended_ids, order),
    )
    score, order = score.masked_fill(ends, -torch.inf).topk(score.shape[1])  # (B, K)
    beams = beams._replace(score=score, ids=gather_ids(ids, order))
    return beams, layout.rows.gather(1, came_from.gather(1, order)), tokens.gather(1, order)


def top_candidates(beams: Beams, layout: Layout, log_p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best continuations, as many as are open.

    -> scores, which of the K hypotheses they continue, tokens, (B, K) each
    """
    batch, size = beams.score.shape
    # more continuations of one hypothesis cannot be among the best
    count = min(size, log_p.shape[1])
    gain, chosen = top_k(log_p, count)  # (R, count)
    total = beams.score.flatten()[layout.slots, None] + gain  # (R, count)
    grid = total.new_full((batch * size, count), -torch.inf).index_copy(
        0, layout.slots, total
    )  # (B K, count)
    words = chosen.new_zeros(batch * size, count).index_copy(
        0, layout.slots, chosen
    )  # (B K, count)
    score, index = grid.view(batch, -1).topk(size)  # (B, K)
    full = torch.arange(size, device=score.device) >= beams.num_open[:, None]  # (B, K)
    tokens = words.view(batch, -1).gather(1, index) + EOS  # (B, K)
    return score.masked_fill(full, -torch.inf), index.div(count, rounding_mode="floor"), tokens


BLOCK, LARGE = 64, 1 << 17
"""Columns of which `top_k` takes the maximum first, where there are so many numbers that it is
worth it.
"""


def top_k(log_p: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest numbers of each row, and their columns; `topk` reads a large
    vocabulary more slowly.

    The largest are in the `count` blocks with the largest maxima, or behind the last whole block.
    log_p: (R, V)
    """
    blocks = log_p.shape[1] // BLOCK
    if log_p.numel() < LARGE or blocks <= 2 * count:
        return log_p.max(-1, keepdim=True) if count == 1 else log_p.topk(count)
    blocked, rest = (
        log_p[:, : blocks * BLOCK].unflatten(1, (blocks, BLOCK)),
        log_p[:, blocks * BLOCK :],
    )
    chosen = blocked.amax(-1).topk(count)[1]  # (R, count)
    best = blocked.gather(1, chosen[..., None].expand(-1, -1, BLOCK)).flatten(
        1
    )  # (R, count * BLOCK)
    values, places = torch.cat((best, rest), 1).topk(count)  # (R, count)
    block = chosen.gather(1, (places // BLOCK).clamp(max=count - 1))  # (R, count)
    # the column, of what is behind the last whole block
    behind = places - count * BLOCK + blocks * BLOCK
    return values, torch.where(places < count * BLOCK, block * BLOCK + places % BLOCK, behind)


def gather_ids(ids: Tensor, order: Tensor) -> Tensor:
    """Reorder rows of ids. ids: (B, M, t), order: (B, n) -> (B, n, t)"""
    return ids.gather(1, order[..., None].expand(-1, -1, ids.shape[2]))


def finished_hypotheses(
    search: Search,
    beams: Beams,
    done: Tensor,
    step: int,
    length_penalty: float,
    results: dict[int, list[Hypothesis]],
) -> dict[int, list[Hypothesis]]:
    """Return the hypotheses of the sequences that are done and not yet in `results`, by row."""
    here = [
        at
        for at, (row, over) in enumerate(zip(beams.row.tolist(), done.tolist(), strict=True))
        if over and row not in results
    ]
    if not here:
        return {}
    of = Beams(*reorder_state(beams, torch.tensor(here, device=done.device)))
    # `tolist` waits for the accelerator: of each column once, never of a single row
    all_ended = (of.ended_ids.tolist(), of.ended_score.tolist(), of.rank.tolist())
    all_cut = (
        of.ids.tolist(),
        of.score.tolist(),
        (of.score / of.penalty(step, length_penalty)).tolist(),
    )
    answers = {}
    for at, row in enumerate(of.row.tolist()):
        prefix = list(search.prefixes[row])
        ended = zip(*(column[at] for column in all_ended), strict=True)
        cut = zip(*(column[at] for column in all_cut), strict=True)
        best = [
            Hypothesis(prefix + ids[: ids.index(EOS)], score, rank, True)
            for ids, score, rank in ended
            if rank > -torch.inf
        ]
        best += [
            Hypothesis(prefix + ids, score, rank, False)
            for ids, score, rank in cut
            if rank > -torch.inf
        ]
        answers[row] = best[: search.n_best]
    return answers
