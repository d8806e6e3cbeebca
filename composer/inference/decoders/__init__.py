"""What the ways of searching for an answer share: hypotheses, decoder states, length constraints,
ensembles.

Their settings are classes in `composer.inference.methods`.

Several models vote by the mean of their probabilities at each step (Sutskever et al. 2014, section
3.6). They may be of any architecture; their target vocabularies are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blocks.core.contract import Output, State
from blocks.core.kv_cache import take_rows
from blocks.core.lazy_outputs import LazyOutputs
from composer.inference.drafts import Draft
from composer.inference.precision import in_precision
from composer.inference.target_lengths import LengthConstraint, token_limit
from composer.model.encoder_decoder import (
    EncoderDecoder,
    is_impossible,
    map_leaves,
    source_mask,
    state_leaves,
)
from composer.model.special_tokens import BOS, EOS, PAD
from composer.recipe.choices import Precision

COMPACT_BELOW = 0.85
"""Rows that are done leave the batch when no more than this share is left: each time, every state
is copied.
"""
SYNC_STEPS = 8
"""Steps between two checks which rows are done: each waits for the accelerator. On a CPU every step
is checked.
"""


class Hypothesis(NamedTuple):
    """An answer, without bos and eos, a forced prefix included.

    `score` is the sum of the log-probabilities of its tokens, eos counted; `normalised` is what
    hypotheses are ranked by; `ended` is False where the answer was cut at its maximum length.
    """

    ids: list[int]
    score: float
    normalised: float
    ended: bool


ToTexts = Callable[[Sequence[Sequence[int]]], list[str]]
"""From the ids of answers to their texts."""


def join_ids(rows: Sequence[Sequence[int]]) -> list[str]:
    """Return the ids of each row as one text, with spaces between."""
    return [" ".join(map(str, ids)) for ids in rows]


class Search(NamedTuple):
    """What a decoder is to search. See `composer.inference.decode.decode_all`."""

    models: Sequence[EncoderDecoder]
    sources: Mapping[str, Tensor]  # ids or features by the encoders' keys, see `source_mask`
    prefixes: Sequence[Sequence[int]]  # B of them
    n_best: int
    numbers: Sequence[int]  # B of them
    sizes: LengthConstraint | None = None  # of models that make room for their answer
    to_texts: ToTexts = join_ids
    no_repeat_ngram: int | None = None  # length of n-grams that an answer has once at most
    # given each token of the first row, greedy or sampled, as it comes
    on_token: Callable[[int], None] | None = None
    # whether the tokens so far and the logits are part of the decoder's state
    keeps_history: bool = False
    draft: Draft | None = None  # what proposes tokens of the only row; greedy or sampled
    drafting: Search | None = None  # the same for the draft

    @property
    def device(self) -> torch.device:
        return self.models[0].device

    def using(
        self,
        precision: Precision,
        no_repeat_ngram: int | None = None,
        ctc_weight: float | None = None,
    ) -> Search:
        """Return the search in a precision, for answers in which no n-gram of this length repeats."""
        models = in_precision(self.models, precision)
        if ctc_weight is not None:
            models = [model.with_ctc_weight(ctc_weight) for model in models]
        drafting = None
        if self.draft is not None:
            drafting = self._replace(models=[self.draft.model], draft=None).using(precision)
        return self._replace(models=models, no_repeat_ngram=no_repeat_ngram, drafting=drafting)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return what is added up of each token, from the logits of the only model, or of an
        ensemble's votes.
        """
        return self.models[0].log_probs(logits) if len(self.models) == 1 else logits

    def possible(self, log_p: Tensor) -> Tensor:
        """Set log p to -inf of what a model made impossible. Most make nothing so, and no step
        looks. (R, V - EOS)
        """
        return (
            exclude_impossible(log_p)
            if any(model.has_impossible_tokens for model in self.models)
            else log_p
        )

    def limits(self, max_length: int, max_ratio: float) -> Tensor:
        """Return the maximum tokens of each row's answer, eos counted, a forced prefix not. -> (B,)"""
        source = [0] * len(self.prefixes)
        if self.sources:
            real = [source_mask(source).flatten(1).sum(1) for source in self.sources.values()]
            source = torch.stack(real).amax(0).tolist()
        limits = torch.tensor(
            [token_limit(length, max_length, max_ratio) for length in source], device=self.device
        )
        positions = [
            model.max_positions for model in self.models if model.max_positions is not None
        ]
        # each token but the last is read, after bos and the prefix
        if positions and not self.sources:
            limits = torch.minimum(limits, (min(positions) - self.prefix_lengths()).clamp(min=1))
        return limits if self.sizes is None else torch.minimum(limits, self.sizes.left)

    def is_check_due(self, step: int) -> bool:
        """Return whether to check after a step which rows are done."""
        return self.device.type == "cpu" or self.on_token is not None or step % SYNC_STEPS == 0

    def prefix_lengths(self) -> Tensor:
        """Return the number of forced tokens. -> (B,)"""
        return torch.tensor([len(prefix) for prefix in self.prefixes], device=self.device)


Distribution = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]
"""log p of the tokens (R, V), their logits (R, V) and the tokens so far (R, t) -> the p by which to
draw (R, V).
"""


class DecoderState(NamedTuple):
    """How far the rows have come: a state for each model, and what its decoder reads."""

    states: tuple[State, ...]
    origins: Sequence[Mapping[str, Output]]  # of B rows
    sequences: Tensor  # (R,) the row of `origins` that each row belongs to
    memories: Sequence[Mapping[str, Output]]  # of R rows
    unchanged: Unchanged
    length: int = 0  # tokens after the forced prefix
    history: Tensor | None = (
        None  # (R, t) the tokens so far, padded on the left; where repetitions matter
    )
    logits: Tensor | None = None  # (R, V - EOS) of the next token; where repetitions are penalised

    def reorder(self, rows: Tensor) -> DecoderState:
        """Reorder the states: row i becomes a copy of row `rows[i]` of the same sequence."""
        history = None if self.history is None else self.history[rows]
        return self._replace(
            states=reorder_state(self.states, rows, self.unchanged), history=history
        )

    def select(self, rows: Tensor) -> DecoderState:
        """Select the rows `rows`, in this order; a row may be repeated."""
        states = reorder_state(self.states, rows)
        sequences = self.sequences[rows]
        memories = [
            LazyOutputs(origin, lambda it: Output(*reorder_state(it, sequences)))
            for origin in self.origins
        ]
        pairs = zip(state_leaves(self.states), state_leaves(states), strict=True)
        unchanged = {id(new): new for old, new in pairs if id(old) in self.unchanged}
        history, logits = (None if it is None else it[rows] for it in (self.history, self.logits))
        return DecoderState(
            states, self.origins, sequences, memories, unchanged, self.length, history, logits
        )


def prefill(search: Search) -> tuple[Tensor, DecoderState, Tensor]:
    """Run the encoders and the forced prefixes, in one step. -> log p, decoder state, log p of the
    prefixes (B,)
    """
    batch = len(search.prefixes)
    target_mask = None if search.sizes is None else search.sizes.target_mask()
    origins = [model.encode(search.sources, target_mask=target_mask) for model in search.models]
    starts = tuple(
        map_leaves(
            model.start(origin, batch), Tensor.contiguous
        )  # else products copy what they read at every step
        for model, origin in zip(search.models, origins, strict=True)
    )
    position = DecoderState(starts, origins, torch.arange(batch, device=search.device), origins, {})
    longest = max(len(prefix) for prefix in search.prefixes)
    rows = [[BOS, *prefix, *[PAD] * (longest - len(prefix))] for prefix in search.prefixes]
    ids = torch.tensor(rows, dtype=torch.long, device=search.device)  # (B, P + 1)
    logits, position = run_step(search.models, ids, position)  # (B, P + 1, V)
    prefix_log_p = (
        search.log_probs(logits[:, :-1]).gather(2, ids[:, 1:, None])[..., 0] * (ids[:, 1:] != PAD)
    ).sum(1)
    last = logits[torch.arange(batch, device=search.device), search.prefix_lengths()]  # (B, V)
    position = position._replace(
        unchanged={id(leaf): leaf for leaf in state_leaves(position.states)}
    )
    if search.no_repeat_ngram or search.keeps_history:
        padded = [[*[PAD] * (longest - len(prefix)), *prefix] for prefix in search.prefixes]
        position = position._replace(
            history=torch.tensor(padded, dtype=torch.long, device=search.device)
        )  # (B, P)
    position = position._replace(logits=last[:, EOS:] if search.keeps_history else None)
    return token_log_probs(search, last, position), position, prefix_log_p


def advance(search: Search, tokens: Tensor, position: DecoderState) -> tuple[Tensor, DecoderState]:
    """Run one step. tokens: (R,) the last token of each row. -> log p of the next, see
    `token_log_probs`; state
    """
    history = (
        None if position.history is None else torch.cat((position.history, tokens[:, None]), 1)
    )
    position = position._replace(length=position.length + 1, history=history)
    logits, position = run_step(search.models, tokens[:, None], position)
    position = position._replace(logits=logits[:, -1, EOS:] if search.keeps_history else None)
    return token_log_probs(search, logits[:, -1], position), position


def run_step(
    models: Sequence[EncoderDecoder], ids: Tensor, position: DecoderState
) -> tuple[Tensor, DecoderState]:
    """Run all models over the same positions. ids: (R, T) -> logits, or the ensemble's log p, (R,
    T, V)
    """
    inputs = zip(models, position.states, position.memories, strict=True)
    results = [model.step(ids, state, memories) for model, state, memories in inputs]
    position = position._replace(states=tuple(state for _, state in results))
    if len(results) == 1:
        return results[0][0].float(), position
    scored = zip(models, results, strict=True)
    votes = torch.stack(
        [model.log_probs(logits).float() for model, (logits, _) in scored]
    )  # (models, R, T, V)
    return votes.logsumexp(0) - math.log(len(results)), position


def token_log_probs(search: Search, logits: Tensor, position: DecoderState) -> Tensor:
    """Return log p of the tokens that can follow, eos first: pad and bos never can. -> (R, V - EOS)

    It is -inf of what cannot follow, which so takes no place in a beam.
    """
    log_p = search.log_probs(logits)[:, EOS:]  # (R, V - EOS)
    if search.sizes is not None:
        log_p = search.sizes.allowed(log_p, position.sequences, position.length)
    log_p = search.possible(log_p)
    if search.no_repeat_ngram and position.history is not None:
        log_p = exclude_repeated_ngrams(log_p, position.history, search.no_repeat_ngram)
    return log_p


def draw_from_cdf(probabilities: Tensor, uniforms: Tensor) -> Tensor:
    """Return the token at which the cumulative probability passes a number; the sum need not be 1.

    probabilities: (R, V) of 64 bits, uniforms: (R,) -> columns (R,)
    """
    sums = probabilities.cumsum(-1)  # (R, V)
    # of a number that is not below the last sum, the token is the last one that can be drawn at all
    below = uniforms.double() * sums[:, -1]  # (R,)
    return torch.searchsorted(sums, below[:, None], right=True)[:, 0].clamp(max=sums.shape[1] - 1)


def exclude(log_p: Tensor, tokens: Tensor) -> Tensor:
    """Set log p of these tokens to -inf, in rows where others remain. log_p, tokens: (R, V) -> (R,
    V)
    """
    remaining = log_p.masked_fill(tokens, -torch.inf)
    return torch.where(remaining.isneginf().all(1, keepdim=True), log_p, remaining)


def exclude_impossible(log_p: Tensor) -> Tensor:
    """Set to -inf the tokens that a model made impossible, unless no token remained. (R, V) -> (R,
    V)
    """
    return exclude(log_p, is_impossible(log_p))


def exclude_repeated_ngrams(log_p: Tensor, history: Tensor, size: int) -> Tensor:
    """Set to -inf the tokens that would end an n-gram of the history, unless no token remained.

    log_p: (R, V - EOS); history: (R, t), padded on the left -> (R, V - EOS)
    """
    rows, length = history.shape
    if length < size:
        return log_p
    ngrams = history.unfold(1, size, 1)  # (R, t - n + 1, n)
    last = history[:, None, length - size + 1 :]  # (R, 1, n - 1)
    repeated = (ngrams[..., :-1] == last).all(-1)  # (R, t - n + 1)
    tokens = ngrams[..., -1].masked_fill(~repeated, PAD)  # (R, t - n + 1); no answer has PAD
    excluded = torch.zeros(
        rows, log_p.shape[1] + EOS, dtype=torch.bool, device=log_p.device
    )  # (R, V)
    return exclude(log_p, excluded.scatter(1, tokens, True)[:, EOS:])


Unchanged = Mapping[int, Tensor]
"""Leaves that no step has changed since the rows of one sequence were equal, by their `id`; it
keeps them alive.
"""


def reorder_state(state: State, rows: Tensor, unchanged: Unchanged | None = None) -> State:
    """Return the state with row `rows[i]` as its row i; leaves in `unchanged` are passed on as they
    are.

    Leaving them is right when, for every i, row i and row `rows[i]` belong to the same sequence.
    Blocks never change a tensor in place, so a leaf that is still the very tensor that was there
    when the beams of a sequence were copies of one row has equal rows for all of them: to reorder
    it would be to copy it. To compare with the step before would not do: a leaf may be changed by
    one step, reordered, and left alone by the next.
    A leaf that several blocks share is copied once, and shared again.
    """
    return _reorder(state, rows, dict(unchanged or {}))


def _reorder(state: State, rows: Tensor, reordered: dict[int, Tensor]) -> State:
    """Reorder leaves that are not in `reordered` yet, by their `id`, and note them there."""
    # no inner function that calls itself: it would be a cycle, which keeps every state until Python
    # looks for cycles
    if isinstance(state, tuple):
        return tuple([_reorder(part, rows, reordered) for part in state])
    if id(state) not in reordered:
        reordered[id(state)] = take_rows(state, rows)
    return reordered[id(state)]
