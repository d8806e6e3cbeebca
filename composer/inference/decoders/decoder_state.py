"""The state of a search: begun by `prefill`, moved on by `advance`, reordered as rows move."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blocks.core.contract import Output, State
from blocks.core.kv_cache import take_rows
from blocks.core.lazy_outputs import LazyOutputs
from composer.inference.decoders.search import Search
from composer.inference.decoders.token_scores import exclude_repeated_ngrams
from composer.model.encoder_decoder import EncoderDecoder, map_leaves, state_leaves
from composer.model.special_tokens import BOS, EOS, PAD

Unchanged = Mapping[int, Tensor]
"""Leaves that have not changed since all rows of a sequence were equal, by their `id`.

The mapping keeps them alive, so no other tensor gets their `id`.
"""


@dataclass(frozen=True)
class DecoderState:
    """The state of all models after the tokens so far, for R rows of B sequences.

    origins: The memories of each model, of B rows.
    sequences: (R,) the row of `origins` that each row belongs to.
    memories: The memories of each model, of R rows.
    length: Tokens after the forced prefix.
    history: (R, t) the tokens so far, padded on the left, if repetitions matter.
    logits: (R, V - EOS) of the next token, if repetitions are penalised.
    """

    states: tuple[State, ...]
    origins: Sequence[Mapping[str, Output]]
    sequences: Tensor
    memories: Sequence[Mapping[str, Output]]
    unchanged: Unchanged
    length: int = 0
    history: Tensor | None = None
    logits: Tensor | None = None

    def reorder(self, rows: Tensor) -> DecoderState:
        """Reorder the states: row i becomes a copy of row `rows[i]` of the same sequence."""
        states = reorder_state(self.states, rows, self.unchanged)
        history = None if self.history is None else self.history[rows]
        return replace(self, states=states, history=history)

    def select(self, rows: Tensor) -> DecoderState:
        """Select the rows `rows`, in this order; a row may be repeated."""
        states = reorder_state(self.states, rows)
        sequences = self.sequences[rows]
        memories = [
            LazyOutputs(origin, lambda output: Output(*reorder_state(output, sequences)))
            for origin in self.origins
        ]
        pairs = zip(state_leaves(self.states), state_leaves(states), strict=True)
        return replace(
            self,
            states=states,
            sequences=sequences,
            memories=memories,
            unchanged={id(new): new for old, new in pairs if id(old) in self.unchanged},
            history=None if self.history is None else self.history[rows],
            logits=None if self.logits is None else self.logits[rows],
        )


@dataclass(frozen=True)
class Prefilled:
    """The state after the forced prefixes.

    log_p: (B, V - EOS) of the next tokens. prefix_log_p: (B,) the scores of the prefixes.
    """

    log_p: Tensor
    state: DecoderState
    prefix_log_p: Tensor


def prefill(search: Search) -> Prefilled:
    """Run the encoders, then the decoders over all forced prefixes in one step."""
    batch, device = search.batch, search.device
    prefixes, rows = batch.prefixes, torch.arange(len(batch.prefixes), device=device)  # (B,)
    target_mask = None if batch.lengths is None else batch.lengths.target_mask()
    memories = [model.encode(batch.sources, target_mask=target_mask) for model in search.models]
    starts: list[State] = []
    for model, memory in zip(search.models, memories, strict=True):
        start = model.start(memory, len(prefixes))
        # a product would copy a tensor that is not contiguous at every step
        starts.append(map_leaves(start, Tensor.contiguous))
    state = DecoderState(tuple(starts), memories, rows, memories, {})

    longest = max(len(prefix) for prefix in prefixes)
    padded = [[BOS, *prefix, *[PAD] * (longest - len(prefix))] for prefix in prefixes]
    ids = torch.tensor(padded, dtype=torch.long, device=device)  # (B, P + 1)
    logits, states = run_step(search.models, ids, state)  # (B, P + 1, V)
    log_p = search.log_probs(logits[:, :-1]).gather(2, ids[:, 1:, None])[..., 0]  # (B, P)
    prefix_log_p = (log_p * (ids[:, 1:] != PAD)).sum(1)
    last = logits[rows, search.prefix_lengths()]  # (B, V)

    history = None
    if search.no_repeat_ngram or search.keeps_history:
        left_padded = [[*[PAD] * (longest - len(prefix)), *prefix] for prefix in prefixes]
        history = torch.tensor(left_padded, dtype=torch.long, device=device)  # (B, P)
    state = replace(
        state,
        states=states,
        unchanged={id(leaf): leaf for leaf in state_leaves(states)},
        history=history,
        logits=last[:, EOS:] if search.keeps_history else None,
    )
    return Prefilled(token_log_probs(search, last, state), state, prefix_log_p)


def advance(search: Search, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
    """Run one step, over the last token of each row. -> `token_log_probs`, the state after it"""
    logits, states = run_step(search.models, tokens[:, None], state)
    last, history = logits[:, -1], state.history
    state = replace(
        state,
        states=states,
        length=state.length + 1,
        history=None if history is None else torch.cat((history, tokens[:, None]), 1),
        logits=last[:, EOS:] if search.keeps_history else None,
    )
    return token_log_probs(search, last, state), state


def run_step(
    models: Sequence[EncoderDecoder], ids: Tensor, state: DecoderState
) -> tuple[Tensor, tuple[State, ...]]:
    """Run all models over the same tokens. ids: (R, T) -> logits (R, T, V), the models' states

    The logits of an ensemble are the log-probabilities of its votes.
    """
    outputs: list[Tensor] = []
    states: list[State] = []
    for model, before, memories in zip(models, state.states, state.memories, strict=True):
        logits, after = model.step(ids, before, memories)
        outputs.append(logits)
        states.append(after)
    if len(models) == 1:
        return outputs[0].float(), tuple(states)
    scored = zip(models, outputs, strict=True)
    votes = torch.stack([model.log_probs(logits).float() for model, logits in scored])
    return votes.logsumexp(0) - math.log(len(models)), tuple(states)


def token_log_probs(search: Search, logits: Tensor, state: DecoderState) -> Tensor:
    """Return log p of the next tokens from eos on, -inf of those that cannot follow.

    Pad and bos never can, and are left out. logits: (R, V) -> (R, V - EOS)
    """
    log_p = search.log_probs(logits)[:, EOS:]
    if search.batch.lengths is not None:
        log_p = search.batch.lengths.allowed(log_p, state.sequences, state.length)
    log_p = search.mask_impossible(log_p)
    if search.no_repeat_ngram and state.history is not None:
        log_p = exclude_repeated_ngrams(log_p, state.history, search.no_repeat_ngram)
    return log_p


def reorder_state(state: State, rows: Tensor, unchanged: Unchanged | None = None) -> State:
    """Return the state with row `rows[i]` as its row i, except for leaves in `unchanged`.

    These may stay if row i and row `rows[i]` belong to the same sequence for every i. Blocks
    never change a tensor in place, so a leaf that is still the tensor from when the beams of a
    sequence were copies of one row has equal rows for all of them. To compare with the last step
    alone would be wrong: one step may change a leaf, and the next leave it alone.
    A leaf that several blocks share is copied once, and shared again.
    """
    return _reorder(state, rows, dict(unchanged or {}))


def _reorder(state: State, rows: Tensor, reordered: dict[int, Tensor]) -> State:
    """Reorder leaves that are not in `reordered` yet, by their `id`, and note them there."""
    # an inner function that calls itself would be a cycle: it would keep every state until Python
    # looks for cycles
    if isinstance(state, tuple):
        return tuple([_reorder(part, rows, reordered) for part in state])
    if id(state) not in reordered:
        reordered[id(state)] = take_rows(state, rows)
    return reordered[id(state)]
