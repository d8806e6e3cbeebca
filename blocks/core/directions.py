"""Blocks that read each row once where they stand on a causal site, and both ways in an encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from torch import Tensor, nn

from blocks.core.contract import Context, Site, State
from blocks.core.functional import state_dtype
from blocks.core.initial_state import StateInitializer
from blocks.core.recurrence import reverse


class Reader(nn.Module):
    """What reads a row from its first position to its last. `sizes` are the widths of what its
    state is made of.
    """

    sizes: tuple[int, ...]

    def start(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        """Return the state before the first position, made of leaves (B, size)."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, state: tuple[Tensor, ...], mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """x: (B, T, .), mask: (B, T) -> (B, T, .), the state after each row's last real position"""
        raise NotImplementedError


class Directions(nn.Module):
    """A reader, and in an encoder a second one for each row from its end; their outputs are summed.

    Its state is a tuple of theirs, each in float32 at least. A copied state is that of the same
    direction, and where there was one, of that one.
    """

    def __init__(
        self,
        site: Site,
        build: Callable[[], Reader],
        initial_state: str | dict[str, str],
        kind: tuple[object, ...],
    ) -> None:
        super().__init__()
        directions = 1 if site.causal else 2
        readers = [build() for _ in range(directions)]
        self.readers = nn.ModuleList(readers)
        self.initial = StateInitializer(
            site, initial_state, tuple(reader.sizes for reader in readers), kind
        )

    def start(self, x: Tensor, context: Context) -> State:
        """Return the state before the first position. x: any (B, 1, .)"""
        states = self.initial(x.to(state_dtype(x)), context)
        if self.initial.copied:
            copied = [states[min(index, len(states) - 1)] for index in range(len(self.readers))]
            return tuple(tuple(map(_in_state_precision, state)) for state in copied)
        readers = cast(Iterable[Reader], self.readers)
        return tuple(reader.start(*leaves) for reader, leaves in zip(readers, states, strict=True))

    def forward(self, x: Tensor, state: State, mask: Tensor) -> tuple[Tensor, State]:
        """x: (B, T, .), mask: (B, T) -> (B, T, .), in the readers' precision"""
        y, last = self.readers[0](x, state[0], mask)
        if len(self.readers) == 1:
            return y, (last,)
        z, first = self.readers[1](reverse(x, mask), state[1], mask)
        return y + reverse(z, mask), (last, first)


def _in_state_precision(leaf: Tensor) -> Tensor:
    return leaf.to(state_dtype(leaf)) if leaf.is_floating_point() else leaf
