"""`cross_attention`: every position reads what an encoder left."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from blocks.core.attention import attention, check_heads, join_heads, open_empty_rows, split_heads
from blocks.core.attention_scores import (
    Coverage,
    LocalMask,
    build_score,
    build_window,
    check_score,
    check_window,
    cover,
    no_coverage,
    projection_widths,
)
from blocks.core.contract import (
    Block,
    Context,
    Count,
    Memories,
    Memory,
    Name,
    NoEffect,
    NonNegative,
    Rate,
    Site,
    State,
)
from blocks.core.functional import apply_dropout
from blocks.core.named_inputs import (
    MemorySource,
    optional_linear,
    project_memories,
    read_named,
    resolve_sources,
    resolve_streams,
)


class CrossAttention(Block):
    """Attention over a memory: softmax of scores, y_t = sum_s softmax_s(e_ts) v_s.

    scaled_dot: e = q_h.k_h / sqrt(D/H), y = W_o concat_h(...), with q linear in x, k and v in the
    memory (Vaswani et al. 2017, section 3.2.3). The others return the values as they are: dot: e =
    q.k; general: e = q.W k; location: e = (W q)_s (Luong et al. 2015, section 3.1); additive: e =
    v.tanh(W q + U k + b), the hidden layer as wide as the model (Bahdanau et al. 2015, appendix
    A.1.2); fine_grained: additive with a v_f, and so a softmax, for each feature f of the values
    (Choi et al. 2018, arXiv 1803.11407).

    Settings:
        heads: How many heads; they divide `model.width`, and for the scores that return the values
            as they are the memory's width: each head compares by itself and reads its share of the
            values.
        score: scaled_dot | dot | general | additive | location | fine_grained.
        from: The memory to read: an encoder's name, or `encoder.x` for its output named x. The only
            encoder where there is one; with two it must be given. Several in a list are read by one
            softmax, with linear maps of its own for the values of each, to `model.width` (flat:
            Libovicky and Helcl 2017, section 3.1).
        query: A name that is read in place of the stream, as `prev.state`; of one position for all,
            by all.
        keys: What the keys are made of, where the memory is another output of the same encoder. By
            default `from`.
        values: What is read, likewise.
        local: none | monotonic | predicted. Where to look: at all, or at a window around p_t = t,
            or around p_t = S sigmoid(v.tanh(W q)) of the row's S positions, its weights times
            exp(-2 (s - p_t)^2 / window^2) (Luong et al. 2015, section 3.2).
        window: How many positions it reaches to each side of p_t; 10 by default.
        merge: concat | average. What the heads' weights do: each reads its share of the values, or
            their mean reads the whole.
        max_length: How many positions the score `location` has a row for; later ones are not seen.
        sqrt_length: Whether what is read is multiplied by sqrt(S), S the row's length (Gehring et
            al. 2017, 3.5).
        gate: Whether what is read is multiplied by sigmoid(w.q + b), one number for each position
            (Xu et al. 2015, arXiv 1502.03044, section 4.2.1).
        doubly_stochastic: The weight of a penalty sum_s (1 - sum_t a_ts)^2 in training, so that all
            positions are read equally (Xu et al. 2015, equation 14); a is the mean over heads. The
            loss beside it is a mean over tokens, the paper's a sum.
        dropout: Probability of dropping an attention weight, 0 <= dropout < 1.

    Shapes: (B, T, .) reads (B, S, .) -> (B, T, model.width) for scaled_dot and for several
    memories, else as wide as the values. State: keys and values (B, H, S, .), mask (B, 1, 1, S),
    and for monotonic the positions so far (B,);
    for the penalty, how much of 1 each source position has still to be read (B, S), their mask (B,
    S), and the penalty so far (B,).
    Raises BlockError where a grid arrives or is to be read, where there is no memory, or several
    and no `from`, where heads or widths do not fit, and where a setting lacks another that it
    needs.
    """

    family = "attention"

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = 1,
        score: Literal[
            "scaled_dot", "dot", "general", "additive", "location", "fine_grained"
        ] = "scaled_dot",
        from_: Memories | None = None,
        query: Name | None = None,
        keys: Memory | None = None,
        values: Memory | None = None,
        local: Literal["none", "monotonic", "predicted"] = "none",
        window: Count | None = None,
        merge: Literal["concat", "average"] = "concat",
        max_length: Count | None = None,
        sqrt_length: bool = False,
        gate: bool = False,
        doubly_stochastic: NonNegative = 0.0,
        dropout: Rate = 0.0,
    ) -> None:
        super().__init__()
        stream = site.sequence("cross_attention")
        query_stream = stream if query is None else resolve_streams(site, [query], "query")[0]
        sources, width = resolve_sources(site, from_, keys, values), site.width
        several, projects = sum(source.values for source in sources) > 1, score == "scaled_dot"
        check_score(score, heads, max_length, query_stream.width, sources)
        check_window(local, window, query_stream, 2 if several else 1)
        features = width if projects or several else sources[-1].width
        _check_merge(heads, merge)
        if not several:
            _check_one_position(
                site, sources[-1], heads, local, dropout, sqrt_length, doubly_stochastic
            )
        _check_heads(heads, score, merge, local, query_stream.width, width, features)
        made = projection_widths(
            score,
            query_stream.width,
            width,
            heads,
            max_length,
            features if projects or several else 0,
        )
        self.named, self.sources, self.made = query, sources, made
        self.query = optional_linear(query_stream.width, made.query, bias=score != "location")
        # A bias of keys alone would add the same to every score.
        self.project, *more = (
            optional_linear(source.width, source.wide(made), bias=projects and source.values)
            for source in sources
        )
        self.more = nn.ModuleList(more)
        self.merge = optional_linear(features, features if projects else 0, bias=True)
        self.gate = optional_linear(query_stream.width, 1, bias=True) if gate else None
        self.doubly_stochastic = doubly_stochastic
        self.score = build_score(score, heads, width, features, max_length)
        self.local = build_window(local, window or 10, query_stream.width, width, heads)
        self.slices = features if score == "fine_grained" else 1 if merge == "average" else heads
        self.fused = self.score.product and self.slices == heads and local != "predicted"
        self.sqrt_length, self.dropout = sqrt_length, dropout
        self.out = stream._replace(width=features)

    def start(self, x: Tensor, context: Context) -> State:
        keys, values, mask = project_memories(
            self.sources, (self.project, *self.more), self.made, context
        )
        # Where nothing is real the softmax is spread over padding; zero values make what it reads
        # zero.
        values = split_heads(values * mask[..., None], self.slices)  # (B, H, S, D/H)
        real = self.score.seen(mask)  # (B, S)
        seen = open_empty_rows(real[:, None, None])  # (B, 1, 1, S)
        coverage = no_coverage(real, values) if self.doubly_stochastic else ()
        return self.score.keys(keys), values, seen, self.local.start(seen), coverage

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        keys, values, mask, place, coverage = state
        query = x if self.named is None else read_named(x, [self.named], context)[0]
        sight = self.local(query, mask, context.mask, place)
        mapped = self.score.queries(self.query(query))
        y, coverage = self._read(mapped, keys, values, sight, coverage, context)  # (B, T, D)
        if self.sqrt_length:
            y = y * mask.sum(-1).sqrt().to(y.dtype)
        if self.gate is not None:
            y = y * torch.sigmoid(self.gate(query))
        return self.merge(y), (keys, values, mask, sight.state, coverage)

    def _read(
        self,
        query: Tensor,
        keys: State,
        values: Tensor,
        sight: LocalMask,
        coverage: State,
        context: Context,
    ) -> tuple[Tensor, State]:
        is_penalised = self.doubly_stochastic > 0 and context.penalties is not None
        if self.fused and not is_penalised:
            dropout, scale = self.dropout if self.training else 0.0, self.score.scale
            y = attention(query, keys, values, sight.mask, context, dropout=dropout, scale=scale)
            return join_heads(y), coverage
        scores = self.score(query, keys, values.shape[2])  # (B, H, T, S)
        weights = scores.masked_fill(~sight.mask, -math.inf).softmax(-1)
        if sight.fade is not None:
            weights = weights * sight.fade.to(weights.dtype)
        if self.slices == 1:
            weights = weights.mean(1, keepdim=True)
        if context.records is not None:
            self._record(weights, context)
        if is_penalised:
            coverage = self._penalise(coverage, weights, context)
        return join_heads(apply_dropout(weights, self.dropout, self.training) @ values), coverage

    def _penalise(self, before: Coverage, weights: Tensor, context: Context) -> Coverage:
        """Add to the loss what the penalty grows by, so that the chunks of a row add up to that of
        all positions.
        """
        after = cover(before, weights, context.mask)
        growth = after.penalty - before.penalty  # (B,)
        context.penalty("doubly_stochastic", self.doubly_stochastic * growth, "sum")
        return after

    def _record(self, weights: Tensor, context: Context) -> None:
        one = weights if self.score.heads == self.slices else weights.mean(1, keepdim=True)
        context.record("weights", one.transpose(1, 2))  # (B, T, H, S)


def _check_merge(heads: int, merge: str) -> None:
    """Raise NoEffect where there is one head to average."""
    if merge == "average" and heads == 1:
        message = "the mean of one head is that head"
        raise NoEffect("merge", message, fix="remove `merge`, or write `heads: 2` or more")


def _check_one_position(
    site: Site,
    source: MemorySource,
    heads: int,
    local: str,
    dropout: float,
    sqrt_length: bool,
    doubly_stochastic: float,
) -> None:
    """Raise NoEffect for what chooses among positions, or counts them, where the only memory has
    one for all.
    """
    if site.memories[source.memory].stream.length_ratio != 0:
        return
    message = f"`{source.memory}` has one position for all, and "
    if sqrt_length:
        raise NoEffect("sqrt_length", f"{message}sqrt(1) is 1")
    if doubly_stochastic:
        raise NoEffect("doubly_stochastic", f"{message}each query reads all of it")
    if local == "monotonic":
        raise NoEffect("local", f"{message}all of it is near")
    if heads > 1 and not dropout and local == "none":
        raise NoEffect("heads", f"{message}every head reads it alike")


def _check_heads(
    heads: int, score: str, merge: str, local: str, query_width: int, width: int, features: int
) -> None:
    """Raise BlockError where heads cannot have equal shares of what they compare, predict from, or
    read.
    """
    compared = {"scaled_dot": width, "additive": width, "dot": query_width}.get(score, heads)
    for shared in (
        compared,
        width if local == "predicted" else heads,
        features if merge == "concat" else heads,
    ):
        check_heads(heads, shared)
