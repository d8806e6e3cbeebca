"""`self_attention`: every position reads every position it may see."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from blocks.core.attention import (
    BUCKETS,
    AlibiAttention,
    BucketAttention,
    RelativeAttention,
    Slots,
    Softmax,
    TransformerXlAttention,
    attention,
    check_groups,
    check_heads,
    join_heads,
    last_slots,
    no_slots,
    slot_distances,
    visible_slots,
)
from blocks.core.attention_parts import AttentionParts, attention_parts
from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Count,
    NoEffect,
    Positive,
    Rate,
    Site,
    State,
    remove,
)
from blocks.core.functional import (
    RmsNorm,
    check_rms_width,
    count_positions,
    last_positions,
    no_positions,
)
from blocks.core.kv_cache import append
from blocks.core.packing import run_documents
from blocks.core.rotary import Rotary, apply_rotary, check_rotary, rotary_angles

HEADS, T5_DISTANCE = 8, 128
Positions = Literal["none", "relative", "rotary", "transformer_xl", "alibi", "t5"]
Biases = Literal["all", "none", "qkv"] | bool
"""all | none | qkv; true is all, and false none."""


class SelfAttention(Block):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, section 3.2).

    y = W_o concat_h softmax(q_h k_h^T / sqrt(d)) v_h

    q, k and v are linear in x, and d = D / H unless `head_width` is set. `positions` add to this:

    relative: k_j + a_ij and v_j + b_ij instead of k_j and v_j, learned for each distance i - j
    (Shaw et al. 2018, equations 3 and 4).

    rotary: q_i and k_j are turned by angles that grow with i and j (Su et al. 2021, equation 34).

    transformer_xl: (q_i + u) k_j + (q_i + v) W_r R_(i-j) instead of q_i k_j, with the sinusoids R
    of a distance, and u and v learned for each head of each layer (Dai et al. 2019, section 3.3).

    alibi: -2^(-8h/H) |i - j| is added to the scores of head h = 1, ..., H, in an encoder for later
    positions too (Press et al. 2022, arXiv 2108.12409, section 3). It holds for any number of
    heads, as in the paper; the authors' code takes every other slope of twice as many heads for
    those beyond a power of 2.

    t5: a learned number of each head and bucket of distances is added to the scores, for 32 buckets
    that grow with the distance (Raffel et al. 2020, arXiv 1910.10683, section 2.1). The paper's
    layers share theirs; here each has its own.

    Settings:
        heads: How many heads; without `head_width` they divide the width that arrives.
        dropout: Probability of dropping an attention weight, 0 <= dropout < 1.
        window: How far it sees: the position itself and the window - 1 before it (in an encoder,
            after it too). Without it, everything; with it, decoding keeps a state of fixed size.
        positions: What it knows of distances: none | relative | rotary | transformer_xl | alibi |
            t5.
        max_distance: Of `relative` and `t5` positions, from where on all distances are one, 1 or
            more; 16 of `relative` and 128 of `t5` ones by default.
        bias: What has biases: all | none | qkv; true for q, k, v and y, as `all`, false for none.
        kv_heads: How many heads of keys and values there are, each for heads / kv_heads heads of
            queries; they divide `heads` (grouped-query attention: Ainslie et al. 2023, arXiv
            2305.13245; 1: multi-query attention, Shazeer 2019, arXiv 1911.02150). As many as
            `heads` by default.
        head_width: The width d of a head; the width that arrives, divided by the heads, unless
            given.
        rotary: How `rotary` positions turn q and k: {base, share, scaling}; all of a head by base
            10,000 unless given.
        qk_norm: Whether q and k of each head are normalised, before they are turned: g q /
            sqrt(mean(q^2) + 1e-5), with a g of each feature that all heads share, one for q and one
            for k. So Dehghani et al. 2023 (arXiv 2302.05442, section 2), with the root mean square
            in place of layer normalisation; Henry et al. 2020 (arXiv 2010.04245) have one g in
            place of 1/sqrt(D/H).
        soft_cap: The bound c of the scores, above 0: c tanh(score / c) (Gemma Team 2024, arXiv
            2408.00118, section 2), before alibi is added.
        sinks: Whether each head has a learned score of reading nothing, in the denominator of its
            softmax (OpenAI 2025, arXiv 2508.10925).

    With `soft_cap` or `sinks` no fused kernel computes it: all scores of a batch are in memory.

    Shapes: (B, T, D) -> (B, T, D).
    State: keys and values, (B, G, N, d) each, G of `kv_heads`, their mask (B, N); with rotary
    positions, their number so far (B,).
    Raises BlockError where a grid arrives, where heads do not divide D or `kv_heads` the heads, for
    rotary positions where what is turned is not of even width, for `qk_norm` of heads of one
    feature, and for settings that change nothing: `max_distance` of other positions than `relative`
    or `t5` ones, `rotary` of other than `rotary` ones, and in a
    window of 1 what chooses among positions.
    """

    family = "attention"
    packs = True

    def __init__(
        self,
        site: Site,
        *,
        heads: Count = HEADS,
        dropout: Rate = 0.0,
        window: Count | None = None,
        positions: Positions = "none",
        max_distance: Count | None = None,
        bias: Biases = True,
        kv_heads: Count | None = None,
        head_width: Count | None = None,
        rotary: Rotary | None = None,
        qk_norm: bool = False,
        soft_cap: Positive | None = None,
        sinks: bool = False,
    ) -> None:
        super().__init__()
        stream = site.sequence("self_attention")
        width = stream.width
        if head_width is None:
            check_heads(heads, width)
        check_groups(heads, kv_heads)
        _check_distance(positions, window, max_distance)
        if rotary is not None and positions != "rotary":
            message = "only `rotary` positions are turned"
            raise NoEffect("rotary", message, fix="remove it, or write `positions: rotary`")
        if window == 1:
            _check_no_choice(positions, qk_norm, soft_cap, sinks)
            default_heads = (
                heads == HEADS or width % HEADS or kv_heads is not None or head_width is not None
            )
            if positions == "none" and not (default_heads or dropout or sinks):
                message = (
                    "in a window of 1 all heads see the position itself, and nothing to choose from"
                )
                raise NoEffect("heads", message)
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.dropout, self.window, self.causal = dropout, window, bool(site.causal)
        self.head_width = head_width or width // heads
        inner, has_biases = heads * self.head_width, bias not in ("none", False)
        self.project = nn.Linear(
            width, inner + 2 * self.kv_heads * self.head_width, bias=has_biases
        )
        self.merge = nn.Linear(inner, width, bias=bias in ("all", True))
        self.out = stream
        nn.init.xavier_uniform_(self.project.weight, gain=0.5**0.5)
        nn.init.xavier_uniform_(self.merge.weight)
        for part in (self.project, self.merge):
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        self.rotary = Rotary.parse(rotary) if positions == "rotary" else None
        if self.rotary is not None:
            self.turned_width = _turned_width(self.rotary, self.head_width, heads, width)
        if qk_norm:
            check_rms_width(
                self.head_width, "qk_norm", remove("qk_norm", ", or write fewer `heads`")
            )
        self.norms = nn.ModuleList(RmsNorm(self.head_width) for _ in range(2)) if qk_norm else None
        self.softmax = Softmax(heads, soft_cap, sinks)
        self.relative = _build_relative(
            positions, heads, width, self.head_width, window, max_distance, future=not self.causal
        )

    def attention_parts(self) -> AttentionParts:
        heads = (self.heads, self.kv_heads, self.kv_heads)
        return attention_parts(self.project, self.merge, heads, [self.head_width] * 3)

    def start(self, x: Tensor, context: Context) -> State:
        return self._start(x, context)

    def _start(self, x: Tensor, context: Context) -> State:
        # `start` itself frees the parameters of a sharded block, so that no `forward` may call it
        if not self.causal:
            return ()
        num_kept = 0 if self.window is None else self.window - 1
        # two tensors: products of one in which both stand would copy it at every step
        none = x.new_zeros(x.shape[0], self.kv_heads, num_kept, self.head_width)
        state = none, none, context.once(no_slots, context.mask, num_kept)
        return state if self.rotary is None else (*state, context.once(no_positions, context.mask))

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        projected = self.project(x)  # (B, T, (H + 2 G) d)
        if context.starts is None:
            attended, after = self._mix(projected, state, context)
        else:
            attended, after = run_documents(self._mix, self._start, projected, context)
        return self.merge(attended), after

    def _mix(self, projected: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        """Return the result of all heads, (B, T, H d), and the state after it."""
        projected = projected.unflatten(-1, (-1, self.head_width)).transpose(
            1, 2
        )  # (B, H + 2 G, T, d)
        query, keys, values = projected.split((self.heads, self.kv_heads, self.kv_heads), 1)
        counted = state[3:]
        if self.rotary is not None or self.norms is not None:
            query, keys = self._turn(query, keys, counted[0] if counted else None, context)
            counted = (context.once(count_positions, counted[0], context.mask),) if counted else ()
        attended, after = self._read(query, keys, values, state[:3], context)
        return join_heads(attended), (*after, *counted)

    def _turn(
        self, query: Tensor, keys: Tensor, before: Tensor | None, context: Context
    ) -> tuple[Tensor, Tensor]:
        """Return queries (B, H, T, d) and keys (B, G, T, d), normalised and turned by the angles of
        their positions.
        """
        if self.norms is not None:
            query, keys = (norm(x) for norm, x in zip(self.norms, (query, keys), strict=True))
        if self.rotary is not None:
            angles = context.once(
                rotary_angles, context.mask, before, self.turned_width, self.rotary
            )
            query, keys = apply_rotary(query, *angles), apply_rotary(keys, *angles)
        return query, keys

    def _read(
        self, query: Tensor, keys: Tensor, values: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State]:
        """Return the result (B, H, T, d) and the state. keys, values: (B, G, T, d)"""
        if not self.causal:
            return self._attend(query, keys, values, context.mask, context), ()
        keys_before, values_before, seen_before = state
        if seen_before.shape[1] == 0 and self.window is None and self.relative is None:
            dropout = self.dropout if self.training else 0.0
            attended = attention(
                query,
                keys,
                values,
                None,
                context,
                causal=True,
                dropout=dropout,
                softmax=self.softmax,
            )
            return attended, (keys, values, context.mask)
        keys, values = (
            append(keys_before, keys, 2),
            append(values_before, values, 2),
        )  # (B, G, N, d)
        seen = context.once(append, seen_before, context.mask, 1)  # (B, N)
        attended = self._attend(query, keys, values, seen, context)
        if self.window is None:
            return attended, (keys, values, seen)
        lengths, count = context.mask.sum(1), self.window - 1
        keys, values = (
            last_positions(x.transpose(1, 2), lengths, count).transpose(1, 2)
            for x in (keys, values)
        )
        return attended, (keys, values, context.once(last_slots, seen, context.mask, count))

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, context: Context
    ) -> Tensor:
        """Attend from queries, the last of the slots, to the visible ones of `seen` (B, N)."""
        length, dropout = query.shape[2], self.dropout if self.training else 0.0
        mask = context.once(
            visible_slots, seen, length, self.window, self.causal
        )  # (B, 1, T or 1, N)
        if self.relative is None:
            return attention(
                query, keys, values, mask, context, dropout=dropout, softmax=self.softmax
            )
        distance = context.once(
            slot_distances, seen, length, self.window is not None
        )  # (B or 1, T, N)
        return self.relative(
            query, Slots(keys, values, mask, distance), context, dropout, self.softmax
        )


def _build_relative(
    positions: str,
    heads: int,
    width: int,
    head_width: int,
    window: int | None,
    max_distance: int | None,
    future: bool,
) -> RelativeAttention | TransformerXlAttention | AlibiAttention | BucketAttention | None:
    """Build the attention that knows distances, if any. future: Whether a position may be before
    another.
    """
    match positions:
        case "relative":
            furthest = max_distance or 16 if window is None else min(max_distance or 16, window - 1)
            return RelativeAttention(head_width, furthest, future)
        case "transformer_xl":
            return TransformerXlAttention(width, heads, head_width, window, future)
        case "alibi":
            return AlibiAttention(heads)
        case "t5":
            return BucketAttention(heads, max_distance or T5_DISTANCE, future)
    return None


def _turned_width(rotary: Rotary, head_width: int, heads: int, width: int) -> int:
    """Return the number of a head's features that are turned. Raises BlockError if it is odd."""
    if rotary.share == 1.0:
        check_rotary(head_width, heads, width)
    return rotary.turned_width(head_width)


def _check_distance(positions: str, window: int | None, max_distance: int | None) -> None:
    """Raise NoEffect for a largest distance that nothing asks for, or that is beyond the window."""
    if max_distance is None:
        return
    if window is not None and max_distance >= window:
        message = f"in a window of {window} no distance is above {window - 1}"
        fix = f"remove it, or write `max_distance: {window - 1}`" if window > 1 else ""
        raise NoEffect("max_distance", message, fix=fix)
    if positions not in ("relative", "t5"):
        message = "only `relative` and `t5` positions have a largest distance"
        raise NoEffect("max_distance", message, fix="remove it, or write `positions: relative`")
    if positions == "t5" and max_distance <= BUCKETS // 2:
        message = f"`t5` positions tell {BUCKETS // 2} distances apart in any case"
        fix = f"write {BUCKETS // 2 + 1} or more, or `positions: relative`"
        raise BlockError("max_distance", message, fix=fix)


def _check_no_choice(positions: str, qk_norm: bool, soft_cap: float | None, sinks: bool) -> None:
    """Raise NoEffect for what changes no weight, where the position itself is all that is seen.

    Its distance is 0; its weight is 1, whatever its score, unless there are sinks.
    """
    if positions in ("rotary", "alibi") or (positions == "transformer_xl" and not sinks):
        message = "the position itself is all that is seen, and its distance is 0"
        raise NoEffect("positions", message, fix="remove `positions`, or write `window: 2` or more")
    for setting, value in (("qk_norm", qk_norm), ("soft_cap", soft_cap)):
        if value and not sinks:
            message = "the position itself is all that is seen, whatever its score"
            raise NoEffect(
                setting, message, fix=f"remove `{setting}`, or write `window: 2` or more"
            )
