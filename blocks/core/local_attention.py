"""Where attention looks: everywhere, or at a window of the memory that moves (Luong et al. 2015, section 3.2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from blocks.core.contract import BlockError, State, Stream


class Sight(NamedTuple):
    """What each query sees: a mask, broadcastable to (B, H, T, S), and what multiplies its weights, if anything."""

    mask: Tensor
    fade: Tensor | None
    state: State


class Local(nn.Module):
    """Sees everything. A window stands in the subclasses."""

    def start(self, mask: Tensor) -> State:
        """The state before the first position. mask: (B, 1, 1, S)"""
        return ()

    def forward(self, query: Tensor, mask: Tensor, real: Tensor, state: State) -> Sight:
        """query (B, T, D), mask (B, 1, 1, S) of the memory, real (B, T) of the queries."""
        return Sight(mask, None, state)


class Monotonic(Local):
    """p_t = t: the window of position t stands around t, and at a row's end it waits. State: positions so far (B,)."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def start(self, mask: Tensor) -> State:
        return torch.zeros(mask.shape[0], dtype=torch.long, device=mask.device)

    def forward(self, query: Tensor, mask: Tensor, real: Tensor, state: State) -> Sight:
        last = mask.sum(-1)[:, 0] - 1  # (B, 1)
        centre = (state[:, None] + torch.arange(query.shape[1], device=mask.device)).minimum(last)  # (B, T)
        near = offsets(centre[:, None], mask).abs() <= self.window  # (B, 1, T, S)
        return Sight(mask & near, None, state + real.sum(1))


class Predicted(Local):
    """p_t = S sigmoid(v.tanh(W q)), for each head its own; what is far from it counts little, as under a Gaussian."""

    def __init__(self, window: int, query: int, width: int, heads: int) -> None:
        super().__init__()
        self.window = window
        self.query = nn.Linear(query, width, bias=False)
        self.vectors = nn.Parameter(torch.empty(heads, width // heads))
        nn.init.xavier_uniform_(self.query.weight)
        nn.init.xavier_uniform_(self.vectors)

    def forward(self, query: Tensor, mask: Tensor, real: Tensor, state: State) -> Sight:
        hidden = torch.tanh(self.query(query)).unflatten(-1, self.vectors.shape)  # (B, T, H, d)
        part = torch.sigmoid(torch.einsum("bthd,hd->bht", hidden, self.vectors))
        part = part.to(torch.promote_types(part.dtype, torch.float32))  # bfloat16 has no odd position above 256
        distance = offsets(part * mask.sum(-1), mask)  # (B, H, T, S)
        fade = torch.exp(-2 * (distance / self.window).square())  # the deviation is window / 2
        return Sight(mask & (distance.abs() <= self.window), fade, state)


def offsets(centre: Tensor, mask: Tensor) -> Tensor:
    """How far each position is from each centre: (B, H, T) -> (B, H, T, S)"""
    return torch.arange(mask.shape[-1], device=mask.device) - centre[..., None]


def local_of(local: str, window: int, query: int, width: int, heads: int) -> Local:
    """Where a query `query` wide looks, with a hidden layer `width` wide where that is predicted."""
    if local == "none":
        return Local()
    return Monotonic(window) if local == "monotonic" else Predicted(window, query, width, heads)


def local_fits(local: str, window: int | None, asked: Stream, memories: int) -> None:
    """Raises BlockError where there is no window, or nothing that it could move with, or over."""
    if local == "none":
        if window is not None:
            raise BlockError(
                "window",
                "there is a window, and nothing says where it stands",
                fix="write `local: monotonic` or `local: predicted`, or remove `window`",
            )
        return
    if asked.pace == 0:
        raise BlockError(
            "local",
            "a local window needs a query for each position, and here is one for all",
            fix="remove `local`, or read a query that moves",
        )
    if memories > 1:
        raise BlockError(
            "local",
            "a window stands in one memory, and `from` names several",
            fix="remove `local`, or name one memory in `from`",
        )
