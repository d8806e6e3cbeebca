"""`window_memory`: each position reads the last positions several times over, each time asking with
what it read.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.attention import (
    RelativeAttention,
    Slots,
    last_slots,
    no_slots,
    slot_distances,
    visible_slots,
)
from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Count,
    Few,
    NoEffect,
    Proportion,
    Site,
    State,
    write,
)
from blocks.core.functional import last_positions
from blocks.core.kv_cache import append

QUESTION = 0.1
"""Each number of the first question, which is the same for all."""
RECTIFIED = 0.5
"""The share of rectified features in the paper."""


class WindowMemory(Block):
    """End-to-end memory network as a language model (Sukhbaatar et al. 2015, section 5), tied
    layer-wise.

    With m_i = A x_i + T_A(t - i) and c_i = C x_i + T_C(t - i) of the position t and those before
    it, u_0 = 0.1 and in each hop p_i = softmax_i(u_k.m_i), o_k = sum_i p_i c_i, u_(k+1) = f(H u_k +
    o_k), with f = relu for a share of the features and f(a) = a for the others. What leaves is the
    last u. `memory_network` is the one for stories.

    Settings:
        hops: How often the memory is read, 1 or more.
        window: How many positions it has: the position itself and the window - 1 before it, 2 or
            more.
        width: Features of u; `model.width` by default.
        relu: The share of the features that are rectified, 0 to 1.

    Shapes: (B, T, .) -> (B, T, width). State: what was made of the last positions (B, 2, window -
    1, width), and their mask (B, window - 1).
    Raises BlockError where a grid arrives, and for a window of 1.
    """

    family = "memory"

    def __init__(
        self,
        site: Site,
        *,
        hops: Few = 6,
        window: Count = 100,
        width: Count | None = None,
        relu: Proportion = RECTIFIED,
    ) -> None:
        super().__init__()
        stream = site.sequence("window_memory")
        if window == 1:
            raise BlockError(
                "window",
                "of one position there is nothing to choose from",
                fix=write("window", 100),
            )
        self.hops, self.window, self.width = hops, window, width or site.width
        rectified = round(relu * self.width)
        if relu != RECTIFIED and rectified == round(RECTIFIED * self.width):
            raise NoEffect("relu", f"of {self.width} features as many are rectified by default")
        self.sizes = [self.width - rectified, rectified]
        self.maps = nn.Linear(stream.width, 2 * self.width, bias=False)
        self.times = RelativeAttention(self.width, window - 1, future=False)
        self.between = nn.Linear(self.width, self.width, bias=False)
        self.out = stream._replace(width=self.width)

    def start(self, x: Tensor, context: Context) -> State:
        pairs = x.new_zeros(x.shape[0], 2, self.window - 1, self.width)
        return pairs, context.once(no_slots, context.mask, self.window - 1)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        pairs = append(
            state[0], self.maps(x).unflatten(-1, (2, -1)).transpose(1, 2), 2
        )  # (B, 2, N, d)
        seen = context.once(append, state[1], context.mask, 1)  # (B, N)
        mask = context.once(visible_slots, seen, x.shape[1], self.window, True)  # (B, 1, T, N)
        distance = context.once(slot_distances, seen, x.shape[1], True)  # (1, T, N)
        slots = Slots(pairs[:, :1], pairs[:, 1:], mask, distance)  # of one head
        unrecorded = context._replace(records=None)  # hops would look like positions
        u = x.new_full((x.shape[0], 1, x.shape[1], self.width), QUESTION)  # (B, 1, T, d)
        for _ in range(self.hops):
            # attention divides by sqrt(d), and the paper does not
            o = self.times(u * self.width**0.5, slots, unrecorded, 0.0)
            linear, rectified = (self.between(u) + o).split(self.sizes, -1)
            u = torch.cat((linear, F.relu(rectified)), -1)
        last = last_positions(
            pairs.transpose(1, 2), context.mask.sum(1), self.window - 1
        ).transpose(1, 2)
        return u[:, 0], (last, context.once(last_slots, seen, context.mask, self.window - 1))
