"""Greedy and beam search by hand over the models of `bare.py`: caches grow by `torch.cat`, finished
sentences stay.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.bare import BOS, EOS, GRU, Transformer

Lines = list[list[int]]


def greedy(model: Transformer | GRU, source: Tensor, limit: int) -> Lines:
    """Decode one step per token."""
    state = model.begin(source)
    ids = torch.full((len(source), 1), BOS, device=source.device)
    done, tokens = torch.zeros_like(ids[:, 0], dtype=torch.bool), []
    for position in range(limit):
        logits, state = model.step(ids, position, state)
        ids = logits.argmax(-1, keepdim=True)
        tokens.append(ids)
        done |= ids[:, 0] == EOS
        if done.all():
            break
    return cut_at_eos(torch.cat(tokens, 1))


def beam(
    model: Transformer | GRU, source: Tensor, limit: int, size: int, length_penalty: float
) -> Lines:
    """Search with a beam in which finished hypotheses keep their places; ranked by log p / ((5 + n)
    / 6) ^ penalty.
    """
    state, batch, device = model.begin(source, size), len(source), source.device
    score = torch.full((batch, size), -torch.inf, device=device)
    score[:, 0] = 0.0
    last = torch.full((batch * size, 1), BOS, device=device)
    ids, done = last[:, :0], torch.zeros(batch * size, dtype=torch.bool, device=device)
    for position in range(limit):
        logits, state = model.step(last, position, state)
        gain = logits.float().log_softmax(-1)
        gain[done] = -torch.inf
        gain[done, EOS] = torch.inf
        total, best = (score[..., None] + gain.view(batch, size, -1)).flatten(1).topk(size)
        rows = (
            torch.arange(batch, device=device)[:, None] * size + best // gain.shape[1]
        ).flatten()
        score = torch.where(done[rows], score.flatten()[rows], total.flatten()).view(batch, size)
        last = (best % gain.shape[1]).view(-1, 1)
        ids, done = torch.cat((ids[rows], last), 1), done[rows] | (last[:, 0] == EOS)
        if done.all():
            break
        state = state.reorder(rows)
    lengths = (ids != EOS).sum(1).view(batch, size) + 1
    best = (score / ((5 + lengths) / 6) ** length_penalty).argmax(1)
    return cut_at_eos(ids.view(batch, size, -1)[torch.arange(batch, device=device), best])


def cut_at_eos(ids: Tensor) -> Lines:
    return [[*row, EOS][: [*row, EOS].index(EOS)] for row in ids.tolist()]


def in_batches(lines: Lines, size: int, decode: Callable[[Tensor], Lines]) -> Lines:
    """Decode all lines in batches of similar length; return them in their own order."""
    order = sorted(range(len(lines)), key=lambda row: -len(lines[row]))
    outputs: Lines = [[]] * len(lines)
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        padded = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor([*lines[row], EOS]) for row in rows], batch_first=True
        )
        for row, output in zip(rows, decode(padded), strict=True):
            outputs[row] = output
    return outputs
