"""`rnn_cell`: one step of a recurrent cell from a state that has a name, for transitions of several
cells.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Count,
    Fix,
    InitialState,
    Name,
    NoEffect,
    Set,
    Site,
    State,
    write,
)
from blocks.core.initial_state import StateInitializer
from blocks.core.named_inputs import read_named, resolve_streams
from blocks.core.recurrence import build_layer


class RnnCell(Block):
    """A recurrent cell that goes on from a named output, where `rnn` goes on from its own last
    state.

    y_t = cell(x_t, h_t), with h_t the output called `state` at position t, and the cells of `rnn`.
    In a `recurrent`, `state: prev.x` is the output x one step before, so that one state passes
    through several cells in a step: the conditional GRU (dl4mt-tutorial, session 2; Nematus:
    Sennrich et al. 2017, section 2), deep transitions (Pascanu et al. 2014, section 3).

    Settings:
        state: The name of what the cell goes on from, as `prev.state`.
        cell: gru | tanh.
        reset: Of a gru, whether its reset gate comes before the matrix product (as published) or
            after it (fused).
        width: The width of both states; that of `state` unless given, which `prev.x` may need to be
            known.
        initial_state: What `prev` of this block's name reads at the first position: zeros | learned
            | a memory (its mean, projected).

    Shapes: (B, T, D) and (B, T, width) -> (B, T, width). State: that before the first position,
    ((B, width),).
    Raises BlockError where a grid arrives, where `state` is unknown, a grid or of another width,
    for `reset: after` of another cell, and for a state to copy.
    """

    family = "recurrence"

    def __init__(
        self,
        site: Site,
        *,
        state: Name,
        cell: Literal["gru", "tanh"] = "gru",
        reset: Literal["before", "after"] = "before",
        width: Count | None = None,
        initial_state: InitialState = "zeros",
    ) -> None:
        super().__init__()
        stream = site.sequence("rnn_cell")
        before = resolve_streams(site, [state], "state")[0].width
        if width not in (None, before):
            message = f"`{state}` is {before} wide, and the state after it {width}"
            raise BlockError(
                "width",
                message,
                code="width",
                fix=Fix(
                    f"make both equally wide, or write `width: {before}`", Set(("width",), before)
                ),
            )
        if cell != "gru" and reset == "after":
            raise NoEffect(
                "reset", f"`{cell}` has no reset gate", fix="remove `reset`, or write `cell: gru`"
            )
        if isinstance(initial_state, dict):
            message = "a cell goes on from `state`, and has none of its own that could be a copy"
            raise BlockError(
                "initial_state", message, fix=write("initial_state", "learned", ", or a memory")
            )
        self.state = state
        self.layer = build_layer(cell, reset, stream.width, before, None)
        self.out = stream._replace(width=before)
        self.initial = StateInitializer(site, initial_state, (self.layer.sizes,), ())

    def start(self, x: Tensor, context: Context) -> State:
        return self.initial(x.to(next(self.layer.parameters()).dtype), context)

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        (before,) = read_named(x, [self.state], context)  # (B, T, D)
        rows = x.flatten(0, 1)[:, None]  # (B T, 1, .): each position is a step of its own
        y, _ = self.layer(
            rows, (before.flatten(0, 1).to(rows.dtype),), context.mask.flatten()[:, None]
        )
        return y.view_as(before), state

    def initial_output(self, x: Tensor, state: State) -> Tensor:
        initial: Tensor = state[0][0]
        return initial[:, None]
