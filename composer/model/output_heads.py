"""Output heads: from decoder outputs to logits, some with a cheaper training cost."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import BlockError
from blocks.core.fixes import Fix, Set, write
from blocks.core.functional import no_autocast
from composer.model.characters import CharacterCnn, has_numbers
from composer.model.encoder_decoder import NEVER, OutputHead
from composer.model.output_kinds import Adaptive, Cnn
from composer.model.special_tokens import EOS, NUM_SPECIAL

BEYOND_VOCABULARY = "vocabulary"
"""Code of the error of a number that the vocabulary is too small for; its message ends with the
vocabulary's size.
"""
ROWS_AT_ONCE = 1024
"""Words whose characters are convolved at once where no gradient is needed: few enough not to fill
the memory.
"""


class LinearOutput(nn.Linear, OutputHead):
    """Linear map to a logit for each token: W y + b."""

    bias: nn.Parameter | None  # type: ignore[assignment]

    def __init__(self, width: int, vocabulary: int, has_bias: bool = True) -> None:
        super().__init__(width, vocabulary)
        nn.init.normal_(self.weight, std=width**-0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if not has_bias:
            self.bias = None


class SigmoidOutput(OutputHead):
    """Sigmoid for each bit of the answer's vectors, and one for eos.

    p(v) = (1 - s_end) prod_b s_b^(v_b) (1 - s_b)^(1 - v_b) and p(eos) = s_end, as logits over all
    tokens: v l of the vector v, and l_end + sum_b softplus(l_b) of eos. The vocabulary has the
    vectors in numeric order, the first digit being the most significant.
    """

    vectors: Tensor
    has_impossible_tokens = True

    def __init__(self, width: int, bits: int) -> None:
        super().__init__()
        self.in_features, self.out_features = width, NUM_SPECIAL + 2**bits
        self.map = nn.Linear(width, bits + 1)
        nn.init.normal_(self.map.weight, std=width**-0.5)
        nn.init.zeros_(self.map.bias)
        places = torch.arange(bits - 1, -1, -1)
        vectors = (torch.arange(2**bits)[:, None] >> places) & 1
        self.register_buffer(
            "vectors", vectors.to(torch.get_default_dtype()), persistent=False
        )  # (2^n, n)

    def forward(self, y: Tensor) -> Tensor:
        logits = self.map(y)  # (B, T, n + 1)
        bits, end = logits[..., :-1], logits[..., -1:]
        end = end + F.softplus(bits).sum(-1, keepdim=True)  # (B, T, 1)
        never = torch.full_like(end, NEVER)
        special = [never] * NUM_SPECIAL
        special[EOS] = end
        return torch.cat([*special, F.linear(bits, self.vectors.to(bits.dtype))], -1)  # (B, T, V)

    def measure(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {**super().measure(outputs, target), "bits": target_bits(outputs, target)}


def target_bits(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cost in bits of an answer's vectors per position, from logits, without eos.

    logits: (B, T, V), target: ids (B, T) -> (B, T), 0 where there is no vector.
    """
    log_p = logits[..., NUM_SPECIAL:].float().log_softmax(-1)
    log_p = log_p.gather(-1, (target - NUM_SPECIAL).clamp(min=0)[..., None])[..., 0]
    return -log_p.masked_fill(target < NUM_SPECIAL, 0.0) / math.log(2)


class IdentityOutput(OutputHead):
    """The decoder's last output as logits of all tokens but the special ones.

    Raises BlockError where the decoder does not end as wide as there are tokens.
    """

    has_impossible_tokens = True

    def __init__(self, width: int, vocabulary: int) -> None:
        if width != (tokens := vocabulary - NUM_SPECIAL):
            message = f"the decoder ends {width} wide, and there are {tokens} tokens to choose from"
            fix = "end it with what makes one logit a token, or write `kind: linear`"
            raise BlockError("", message, fix=fix, code="width")
        super().__init__()
        self.in_features, self.out_features = width, vocabulary

    def forward(self, y: Tensor) -> Tensor:
        return F.pad(y, (NUM_SPECIAL, 0), value=NEVER)  # (B, T, V)


class AdaptiveOutput(OutputHead):
    """Adaptive softmax: a softmax over the first ids and a token for each cluster of later ones.

    p(w) = p(w | y) for w below the first cutoff, else p(cluster | y) p(w | cluster, y), with the
    logits W_i V_i y of cluster i = 1, 2, ... of the width D / d^i:
    torch.nn.AdaptiveLogSoftmaxWithLoss. It is exact, and quick where the ids of rare tokens are
    large, as those of the tokenizer `word` are.

    Raises BlockError where the cutoffs do not ascend within the vocabulary, or a cluster would have
    no width.
    """

    trains_on_cost = True

    def __init__(self, width: int, vocabulary: int, settings: Adaptive) -> None:
        super().__init__()
        cutoffs, div_value = settings.cutoffs, settings.div_value
        clusters = max(1, len(cutoffs))
        if width < div_value**clusters:
            message = (
                f"cluster {clusters} would have no width: {width} / {div_value:g}^{clusters} is"
                " below 1"
            )
            raise BlockError("div_value", message, fix="divide by less, or write fewer cutoffs")
        check_cutoffs(cutoffs, vocabulary)
        self.in_features, self.out_features = width, vocabulary
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(width, vocabulary, cutoffs, div_value)

    def forward(self, y: Tensor) -> Tensor:
        with no_autocast(y):
            log_p: Tensor = self.softmax.log_prob(self._rows(y))  # (B T, V)
        return log_p.view(*y.shape[:-1], -1)

    def cost(self, y: Tensor, target: Tensor) -> Tensor:
        if y.is_meta:  # the clusters of the targets are unknown
            return -self(y).gather(-1, target[..., None])[..., 0]
        with no_autocast(y):
            rows = self._rows(y)  # (B T, D)
            if not has_numbers(y):
                return -self._expected(rows).view_as(target)
            log_p: Tensor = self.softmax(rows, target.flatten()).output  # (B T,)
            # several processes wait for the gradient of every parameter, of a cluster without a
            # target here too
            unread = torch.stack([tail(rows[:1]).sum() for tail in self.softmax.tail]).sum() * 0.0
        return unread - log_p.view_as(target)

    def _expected(self, rows: Tensor) -> Tensor:
        """Return a result that takes the memory of a batch with even clusters. (N, D) -> (N,)"""
        log_p = self.softmax.head(rows).log_softmax(-1)[:, 0]
        share = len(rows) // (1 + len(self.softmax.tail))
        for at, tail in enumerate(self.softmax.tail, start=1):
            part = tail(rows[at * share : (at + 1) * share]).log_softmax(-1)[
                :, 0
            ]  # (N / clusters,)
            log_p = log_p + torch.cat([log_p.new_zeros(len(log_p) - len(part)), part])
        return log_p

    def _rows(self, y: Tensor) -> Tensor:
        """Return all positions, in the type of the weights. (B, T, D) -> (B T, D)"""
        # PyTorch's module gives its result the input's type, and fails where autocast computes in a
        # wider one (44724)
        return y.flatten(0, -2).to(self.softmax.head.weight.dtype)


class SampledOutput(LinearOutput):
    """Linear map to a logit for each token that trains on a few of them.

    The cost of a token t is -log softmax over t and the other samples of l_w - log q_w, with l = W
    y + b and q_w the probability that w is among the samples. They are distinct, of the
    distribution p(w) ~ log(1 + 1 / (w + 1)) over the ids from 0, and those of all positions of a
    batch: rare tokens should have large ids, as those of the tokenizer `word` are. Validation,
    evaluation and decoding compute all logits.

    Raises BlockError where there are no more tokens than samples.
    """

    trains_on_cost = True
    draws_samples = True

    def __init__(self, width: int, vocabulary: int, samples: int, has_bias: bool = True) -> None:
        check_samples(samples, vocabulary)
        super().__init__(width, vocabulary, has_bias)
        self.samples = samples

    def cost(self, y: Tensor, target: Tensor) -> Tensor:
        samples, tau = sample_ids(self.samples, self.out_features, y.device)
        bias = y.new_zeros(self.out_features) if self.bias is None else self.bias  # (V,)
        logits = F.linear(y, self.weight[samples], bias[samples])  # (B, T, S)
        true = (y * self.weight[target]).sum(-1) + bias[target]  # (B, T)
        return sampled_cost(logits, true, samples, target, tau, self.out_features)


class CnnOutput(OutputHead):
    """Scalar products with vectors made of each word's characters.

    l_w = y . (P f(w) + M c_w), with f the convolution and highway layers of the embedding
    `characters`, P and M linear and c_w a short vector learned for each word: what its characters
    do not tell. With `samples` it trains on few of the words, as `sampled` does; else each step
    makes the vectors of all.

    Raises BlockError as `characters` and `sampled` do.
    """

    def __init__(self, out_width: int, vocabulary: int, settings: Cnn) -> None:
        super().__init__()
        samples, correction = settings.samples, settings.correction
        if samples is not None:
            check_samples(samples, vocabulary)
        self.in_features, self.out_features, self.samples = out_width, vocabulary, samples
        self.trains_on_cost = self.draws_samples = settings.trains_on_cost
        self.characters = CharacterCnn(
            vocabulary,
            settings.width,
            settings.kernels,
            settings.features,
            settings.highway,
            settings.max_length,
        )
        self.characters.drawn = vocabulary if samples is None else samples
        self.map = nn.Linear(self.characters.out_features, out_width, bias=False)
        self.correction = nn.Embedding(vocabulary, correction) if correction else None
        self.mix = nn.Linear(correction, out_width, bias=False) if correction else None
        if self.correction is not None:
            nn.init.zeros_(self.correction.weight)
        self.memo: tuple[Any, Tensor] | None = None

    def rows(self, ids: Tensor) -> Tensor:
        """Return the vectors with which the products of these words are. (N,) -> (N, D)"""
        rows: Tensor = self.map(self.characters(ids))
        if self.correction is None or self.mix is None:
            return rows
        return rows + self.mix(self.correction(ids))

    def all_rows(self) -> Tensor:
        """Return the rows of all words, (V, D); cached without gradients."""
        ids = torch.arange(self.out_features, device=self.map.weight.device)
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self.rows(ids)
        tensors = [
            (id(tensor), tensor._version, tensor.dtype)
            for tensor in (*self.parameters(), *self.buffers())
        ]
        key = (
            ids.device,
            torch.is_autocast_enabled("cpu"),
            torch.is_autocast_enabled("cuda"),
            tensors,
        )
        if self.memo is None or self.memo[0] != key:
            self.memo = key, torch.cat([self.rows(some) for some in ids.split(ROWS_AT_ONCE)])
        return self.memo[1]

    def train(self, mode: bool = True) -> CnnOutput:
        self.memo = None
        return super().train(mode)

    def forward(self, y: Tensor) -> Tensor:
        return F.linear(y, self.all_rows().to(y.dtype))  # (B, T, V)

    def cost(self, y: Tensor, target: Tensor) -> Tensor:
        assert self.samples is not None
        samples, tau = sample_ids(self.samples, self.out_features, y.device)
        rows = self.rows(torch.cat((samples, target.flatten())))  # (S + B T, D)
        true = (y * rows[len(samples) :].view_as(y)).sum(-1)  # (B, T)
        return sampled_cost(
            F.linear(y, rows[: len(samples)]), true, samples, target, tau, self.out_features
        )


def check_cutoffs(cutoffs: Sequence[int], vocabulary: int) -> None:
    """Raise BlockError if cutoffs give no cluster, do not ascend, or exceed the vocabulary."""
    within = sorted({cutoff for cutoff in cutoffs if cutoff < vocabulary}) or [
        max(1, vocabulary // 5)
    ]
    fix = Fix(f"write `adaptive: {{cutoffs: {within}}}`", Set(("cutoffs",), within))
    if not cutoffs:
        raise BlockError("cutoffs", "no cluster begins anywhere", fix=fix)
    if max(cutoffs) >= vocabulary:
        message = f"no token has the id {max(cutoffs):,}: the vocabulary has {vocabulary:,} tokens"
        raise BlockError("cutoffs", message, fix=fix, code=BEYOND_VOCABULARY)
    if any(one >= other for one, other in itertools.pairwise(cutoffs)):
        raise BlockError("cutoffs", "these numbers do not ascend", fix=fix)


def check_samples(samples: int, vocabulary: int) -> None:
    """Raise BlockError where nothing is saved by sampling."""
    if samples >= vocabulary:
        message = (
            f"{samples:,} samples are no fewer than all: the vocabulary has {vocabulary:,} tokens"
        )
        fix = write("samples", max(1, vocabulary // 10), ", or another `kind`")
        raise BlockError("samples", message, fix=fix, code=BEYOND_VOCABULARY)


def log_uniform(ids: Tensor, vocabulary: int) -> Tensor:
    """Return the probability of each id in one draw: log((w + 2) / (w + 1)) / log(V + 1)."""
    return torch.log1p(1.0 / (ids + 1.0)) / math.log(vocabulary + 1)


def sample_ids(samples: int, vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Draw distinct ids, and return the time tau by which these had come, of all ids at rates p(w).
    -> (S,), ()

    Id w comes first after a time of Exp(p(w)), and those are taken that come first. So w is among
    them with probability 1 - exp(-p(w) tau), if tau is when the next one comes (Kool et al. 2019,
    section 3.3).
    """
    ids = torch.arange(vocabulary, device=device)
    times = torch.empty(vocabulary, device=device).exponential_() / log_uniform(
        ids, vocabulary
    )  # (V,)
    first = times.topk(samples + 1, largest=False)
    return first.indices[:-1], first.values[-1]


def sampled_cost(
    logits: Tensor, true: Tensor, samples: Tensor, target: Tensor, tau: Tensor, vocabulary: int
) -> Tensor:
    """Return -log softmax of the target among the samples, corrected by inclusion probability.

    logits: of the samples (B, T, S), true: of the target (B, T), samples: (S,), target: ids (B, T)
    -> (B, T)
    """

    def log_q(ids: Tensor) -> Tensor:
        return torch.log(-torch.expm1(-log_uniform(ids, vocabulary) * tau))

    exact = torch.promote_types(logits.dtype, torch.float32)
    others = (logits.to(exact) - log_q(samples)).masked_fill(
        samples == target[..., None], -torch.inf
    )  # (B, T, S)
    true = true.to(exact) - log_q(target)
    # not `logaddexp` of two: where the target is the only sample, no other is left, and its
    # gradient would be NaN
    return torch.cat((true[..., None], others), -1).logsumexp(-1) - true
