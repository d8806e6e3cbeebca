"""Recurrent layers whose gates are normalised one by one: a loop over the positions, since no fused kernel does it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from blocks.core.contract import State
from blocks.core.recurrence import Cell, Recurrence, each_gate, keep


class Normed(Recurrence):
    """Layer normalisation of each gate (Ba et al. 2016; Chen et al. 2018, section 3).

    LN_k(a) = g_k (a - mean) / sqrt(var + 1e-5) + b_k, of the sum a of what arrives and what recurs.
    `gain` and `bias` have a row for each gate; W and U have the gates' rows one below the other.
    """

    def __init__(self, arriving: int, width: int, gates: int) -> None:
        super().__init__()
        self.sizes = (width,)
        self.arriving = nn.Parameter(torch.empty(gates * width, arriving))
        self.recurrent = nn.Parameter(torch.empty(gates * width, width))
        self.gain = nn.Parameter(torch.ones(gates, width))
        self.bias = nn.Parameter(torch.zeros(gates, width))
        each_gate(self.arriving, width, nn.init.xavier_uniform_)
        each_gate(self.recurrent, width, nn.init.orthogonal_)

    def forward(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        outputs = []
        arriving = F.linear(x.to(self.arriving.dtype), self.arriving)  # (B, T, gates D)
        for one, real in zip(arriving.unbind(1), mask.unbind(1), strict=True):
            after = self.step(one, state)
            state = tuple(keep(real, new, old) for new, old in zip(after, state, strict=True))
            outputs.append(state[0])
        return torch.stack(outputs, 1), state

    def step(self, arriving: Tensor, state: State) -> tuple[Tensor, ...]:
        """The state after one position. arriving: W x of all gates (B, gates D)"""
        raise NotImplementedError

    def norm(self, gates: Tensor, first: int = 0) -> tuple[Tensor, ...]:
        """Each gate normalised on its own, the one of row `first` first. (B, n D) -> n times (B, D)"""
        width = self.sizes[0]
        each = F.layer_norm(gates.unflatten(-1, (-1, width)), (width,))  # (B, n, D)
        rows = slice(first, first + each.shape[-2])
        return torch.addcmul(self.bias[rows], each, self.gain[rows]).unbind(-2)


class NormedLstm(Normed):
    """i, f, o = sigmoid(LN(W x + U h)); c' = f c + i tanh(LN_g(W_g x + U_g h)); h' = o tanh(c')"""

    def __init__(self, arriving: int, width: int) -> None:
        super().__init__(arriving, width, 4)
        self.sizes = (width, width)
        nn.init.ones_(self.bias.detach()[1])  # to forget little before training

    def step(self, arriving: Tensor, state: State) -> tuple[Tensor, ...]:
        h, c = state
        i, f, g, o = self.norm(arriving + F.linear(h, self.recurrent))
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class NormedGru(Normed):
    """r, z = sigmoid(LN(W x + U h)); h' = (1 - z) n + z h, with n = tanh(LN_n(W_n x + U_n (r h))) for reset before,
    n = tanh(LN_n(W_n x + r U_n h)) for reset after.
    """

    def __init__(self, arriving: int, width: int, reset: str) -> None:
        super().__init__(arriving, width, 3)
        self.after = reset == "after"

    def step(self, arriving: Tensor, state: State) -> tuple[Tensor, ...]:
        (h,) = state
        width = self.sizes[0]
        gates, candidate = arriving.split((2 * width, width), dim=-1)
        recurrent, inner = self.recurrent.split((2 * width, width))
        r, z = (torch.sigmoid(each) for each in self.norm(gates + F.linear(h, recurrent)))
        read = r * F.linear(h, inner) if self.after else F.linear(r * h, inner)
        n = torch.tanh(self.norm(candidate + read, 2)[0])
        return (n + z * (h - n),)


class NormedTanh(Normed):
    """h' = tanh(LN(W x + U h))"""

    def __init__(self, arriving: int, width: int) -> None:
        super().__init__(arriving, width, 1)

    def step(self, arriving: Tensor, state: State) -> tuple[Tensor, ...]:
        return (torch.tanh(self.norm(arriving + F.linear(state[0], self.recurrent))[0]),)


def normed(cell: Cell, reset: str, arriving: int, width: int) -> Recurrence:
    """One layer in one direction."""
    if cell == "lstm":
        return NormedLstm(arriving, width)
    return NormedTanh(arriving, width) if cell == "tanh" else NormedGru(arriving, width, reset)
