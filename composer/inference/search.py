"""What every decoder works with: the question, the position that the models have reached, and an answer.

Several models vote by the mean of their probabilities at each step (Sutskever et al. 2014, section 3.6). They may be of
any architecture; their target vocabularies are the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blocks.core.contract import Output, State
from composer.errors import RunError
from composer.inference.state import LazyRows, Unchanged, all_of, carried, reorder_state
from composer.inference.target_lengths import LengthConstraint, token_limit
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.vocabulary import BOS, EOS, PAD

SPARSE = 0.85
"""Rows that are done leave the batch when no more than this share is left: each time, every state is copied."""
SYNC_STEPS = 8
"""Steps between two questions to an accelerator which rows are done. On a CPU the answer is free."""


class Hypothesis(NamedTuple):
    """An answer, without bos and eos, a forced prefix included.

    `score` is the sum of the log-probabilities of its tokens, eos counted; `normalised` is what hypotheses are ranked
    by; `ended` is False where the answer was cut at its maximum length.
    """

    ids: list[int]
    score: float
    normalised: float
    ended: bool


class Search(NamedTuple):
    """A question to a decoder. See `composer.inference.decode.decode`."""

    models: Sequence[EncoderDecoder]
    sources: Mapping[str, Tensor]  # ids (B, S), of a story (B, N, W), by the encoders' keys
    prefixes: Sequence[Sequence[int]]  # B of them
    n_best: int
    numbers: Sequence[int]  # B of them
    sizes: LengthConstraint | None = None  # of models that make room for their answer

    @property
    def device(self) -> torch.device:
        return self.models[0].device

    def limits(self, max_length: int, max_ratio: float) -> Tensor:
        """How many tokens each row's answer may have, eos counted, a forced prefix not. -> (B,)"""
        source = [0] * len(self.prefixes)
        if self.sources:
            source = torch.stack([(ids != PAD).flatten(1).sum(1) for ids in self.sources.values()]).amax(0).tolist()
        limits = torch.tensor([token_limit(each, max_length, max_ratio) for each in source], device=self.device)
        return limits if self.sizes is None else torch.minimum(limits, self.sizes.left)

    def is_check_due(self, step: int) -> bool:
        """Whether to look after a step which rows are done."""
        return self.device.type == "cpu" or step % SYNC_STEPS == 0

    def known(self) -> Tensor:
        """How many tokens are forced. -> (B,)"""
        return torch.tensor([len(prefix) for prefix in self.prefixes], device=self.device)


class Position(NamedTuple):
    """How far the rows have come: a state for each model, and what its decoder reads."""

    states: tuple[State, ...]
    origins: Sequence[Mapping[str, Output]]  # of B rows
    sequences: Tensor  # (R,) the row of `origins` that each row belongs to
    memories: Sequence[Mapping[str, Output]]  # of R rows
    unchanged: Unchanged
    written: int = 0  # tokens beside the forced prefix

    def moved(self, rows: Tensor) -> Position:
        """Row i is now a copy of row `rows[i]` of the same sequence."""
        return self._replace(states=reorder_state(self.states, rows, self.unchanged))

    def kept(self, rows: Tensor) -> Position:
        """Only the rows `rows`, in this order; a row may be there several times."""
        states = reorder_state(self.states, rows)
        sequences = self.sequences[rows]
        memories = [LazyRows(origin, sequences) for origin in self.origins]
        unchanged = carried(self.states, states, self.unchanged)
        return self._replace(states=states, sequences=sequences, memories=memories, unchanged=unchanged)


def prefill(search: Search) -> tuple[Tensor, Position, Tensor]:
    """Reads the sources and the forced prefixes, in one step. -> log p, position, log p of the prefixes (B,)"""
    batch = len(search.prefixes)
    room = None if search.sizes is None else search.sizes.room()
    origins = [model.encode(search.sources, room=room) for model in search.models]
    starts = tuple(model.start(origin, batch) for model, origin in zip(search.models, origins, strict=True))
    position = Position(starts, origins, torch.arange(batch, device=search.device), origins, {})
    longest = max(len(prefix) for prefix in search.prefixes)
    rows = [[BOS, *prefix, *[PAD] * (longest - len(prefix))] for prefix in search.prefixes]
    ids = torch.tensor(rows, dtype=torch.long, device=search.device)  # (B, P + 1)
    logits, position = run_step(search.models, ids, position)  # (B, P + 1, V)
    known = (logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0] * (ids[:, 1:] != PAD)).sum(1)
    last = logits[torch.arange(batch, device=search.device), search.known()]  # (B, V)
    return writable(search, last, position), position._replace(unchanged=all_of(position.states)), known


def advance(search: Search, tokens: Tensor, position: Position) -> tuple[Tensor, Position]:
    """One step. tokens: (R,) the last token of each row. -> log p of the next one, see `writable`; position"""
    logits, position = run_step(search.models, tokens[:, None], position._replace(written=position.written + 1))
    return writable(search, logits[:, -1], position), position


def run_step(models: Sequence[EncoderDecoder], ids: Tensor, position: Position) -> tuple[Tensor, Position]:
    """All models over the same positions. ids: (R, T) -> logits, or what the models agree on, (R, T, V)"""
    steps = [
        model.step(ids, state, memories)
        for model, state, memories in zip(models, position.states, position.memories, strict=True)
    ]
    position = position._replace(states=tuple(state for _, state in steps))
    if len(steps) == 1:
        return steps[0][0].float(), position
    votes = torch.stack([logits.float().log_softmax(-1) for logits, _ in steps])
    return votes.logsumexp(0) - math.log(len(steps)), position


def writable(search: Search, logits: Tensor, position: Position) -> Tensor:
    """log p of the tokens that can be written, of which eos is the first: pad and bos never are. -> (R, V - EOS)"""
    log_p = logits.log_softmax(-1)[:, EOS:]
    return log_p if search.sizes is None else search.sizes.allowed(log_p, position.sequences, position.written)


def check_same_kind(models: Sequence[EncoderDecoder]) -> None:
    """Raises RunError where models cannot vote together."""
    sizes = sorted({model.vocabulary for model in models})
    if len(sizes) > 1:
        told = " and ".join(map(str, sizes))
        raise RunError.of(
            f"models of an ensemble must have one target vocabulary, and these have {told} tokens",
            "train them with the same tokenizer",
        )
    keys = {tuple(sorted(model.encoders)) for model in models}
    if len(keys) > 1:
        told = " and ".join(", ".join(each) or "nothing" for each in sorted(keys))
        raise RunError.of(
            f"models of an ensemble must read the same sources, and these read {told}",
            "give their encoders the same names",
        )
