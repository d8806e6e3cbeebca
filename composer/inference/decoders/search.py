"""A search: its models, a batch of rows, and options; and the hypotheses it returns.

Several models vote with the mean of their probabilities at each step (Sutskever et al. 2014,
section 3.6). Their architectures may differ; their target vocabularies are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from composer.inference.decoders.token_scores import exclude_impossible
from composer.inference.drafts import Draft
from composer.inference.precision import in_precision
from composer.inference.target_lengths import LengthConstraint, token_limit
from composer.model.encoder_decoder import EncoderDecoder, source_mask
from composer.recipe.choices import Precision

COMPACT_BELOW = 0.85
"""Finished rows leave the batch once at most this share is left: each time copies every state."""
SYNC_STEPS = 8
"""Steps between two looks for finished rows on an accelerator, which each look waits for."""


@dataclass(frozen=True)
class Hypothesis:
    """An answer, without bos and eos, including its forced prefix.

    score: The sum of the log-probabilities of its tokens, eos included.
    normalised: The score that ranks hypotheses.
    ended: False if the answer was cut at its maximum length.
    """

    ids: list[int]
    score: float
    normalised: float
    ended: bool


ToTexts = Callable[[Sequence[Sequence[int]]], list[str]]
"""Turns the ids of answers into texts."""


def join_ids(rows: Sequence[Sequence[int]]) -> list[str]:
    """Return the ids of each row as a text, separated by spaces."""
    return [" ".join(map(str, ids)) for ids in rows]


@dataclass(frozen=True)
class Options:
    """Options of a decoding that do not depend on its method.

    n_best: Hypotheses of each row.
    to_texts: Turns ids into the texts that `mbr` compares.
    on_token: Called with each token of a single row that `greedy` or `sample` writes.
    draft: A smaller model that proposes tokens, as `check_draft` allows; it counts the accepted.
    """

    n_best: int = 1
    to_texts: ToTexts = join_ids
    on_token: Callable[[int], None] | None = None
    draft: Draft | None = None


@dataclass(frozen=True)
class RowBatch:
    """B rows that are decoded side by side.

    sources: The encoders' inputs by their keys, see `source_mask`.
    prefixes: The forced tokens of each row's answer.
    numbers: The number of each row, on which the random numbers of sampling depend.
    lengths: The lengths of the answers, for models that allocate positions for them.
    """

    sources: Mapping[str, Tensor]
    prefixes: Sequence[Sequence[int]]
    numbers: Sequence[int]
    lengths: LengthConstraint | None = None


@dataclass(frozen=True)
class Search:
    """A search for the answers of a batch of rows.

    no_repeat_ngram: The length of n-grams that no answer repeats.
    keeps_history: True if the decoder's state holds the tokens so far and the last logits.
    """

    models: Sequence[EncoderDecoder]
    batch: RowBatch
    options: Options = Options()
    no_repeat_ngram: int | None = None
    keeps_history: bool = False

    @property
    def device(self) -> torch.device:
        return self.models[0].device

    def using(
        self,
        precision: Precision,
        no_repeat_ngram: int | None = None,
        ctc_weight: float | None = None,
    ) -> Search:
        """Return the same search in a precision, with these settings of a method."""
        models = in_precision(self.models, precision)
        if ctc_weight is not None:
            models = [model.with_ctc_weight(ctc_weight) for model in models]
        return replace(self, models=models, no_repeat_ngram=no_repeat_ngram)

    def by_draft(self, precision: Precision) -> Search:
        """Return the same search by the draft alone."""
        assert self.options.draft is not None
        models = in_precision([self.options.draft.model], precision)
        return replace(self, models=models, no_repeat_ngram=None)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Return the log-probabilities of tokens; an ensemble's votes are such already."""
        return self.models[0].log_probs(logits) if len(self.models) == 1 else logits

    def mask_impossible(self, log_p: Tensor) -> Tensor:
        """Set log p to -inf where a model made a token impossible. (R, V - EOS)"""
        if any(model.has_impossible_tokens for model in self.models):
            return exclude_impossible(log_p)
        return log_p

    def limits(self, max_length: int, max_ratio: float) -> Tensor:
        """Return the maximum tokens of each answer, with eos, without its prefix. -> (B,)"""
        source_lengths = [0] * len(self.batch.prefixes)
        if self.batch.sources:
            real = [source_mask(source).flatten(1).sum(1) for source in self.batch.sources.values()]
            source_lengths = torch.stack(real).amax(0).tolist()
        counts = [token_limit(length, max_length, max_ratio) for length in source_lengths]
        limits = torch.tensor(counts, device=self.device)
        maxima = [model.max_positions for model in self.models]
        positions = [count for count in maxima if count is not None]
        if positions and not self.batch.sources:
            # each token but the last is read, after bos and the prefix
            left = (min(positions) - self.prefix_lengths()).clamp(min=1)
            limits = torch.minimum(limits, left)
        if self.batch.lengths is not None:
            limits = torch.minimum(limits, self.batch.lengths.left)
        return limits

    def is_check_due(self, step: int) -> bool:
        """True if finished rows are looked for after this step: on a CPU after each."""
        if self.device.type == "cpu" or self.options.on_token is not None:
            return True
        return step % SYNC_STEPS == 0

    def prefix_lengths(self) -> Tensor:
        """Return the number of forced tokens of each row. -> (B,)"""
        return torch.tensor([len(prefix) for prefix in self.batch.prefixes], device=self.device)
