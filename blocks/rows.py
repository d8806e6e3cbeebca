"""`rows`: a stack over the columns of each position of a grid."""

from __future__ import annotations

from torch import Tensor

from blocks.core.contract import (
    Block,
    BlockError,
    Blocks,
    Context,
    Named,
    Output,
    Site,
    State,
    Stream,
)
from blocks.core.functional import mask_cells
from blocks.core.stack import collect_penalties, flatten_penalties


class Rows(Block):
    """Each position of a grid as a sequence of its own: y[t] = f(s[t, 0], s[t, 1] ...), with the
    same stack f for all.

    A bidirectional rnn in it is the row encoder of Deng et al. (2017, section 3.2). The rows of an
    image end where their last real cell is; a cell before it that is not real is zero.

    Settings:
        stack: The blocks; a row of W positions arrives. What has a name outside cannot be read in
            it, nor what has one in it outside; `input` is the row, and every row can read the
            memories of encoders.

    Shapes: (B, T, W, D) -> (B, T, W', D'), where the stack makes (B T, W', D') of (B T, W, D).
    Raises BlockError where a sequence arrives, on a causal site, and where the stack ends with a
    grid, or has a `grid`.
    """

    family = "structure"

    def __init__(self, site: Site, *, stack: Blocks) -> None:
        super().__init__()
        stream = site.grid("rows")
        site.require_full_context("", "`rows`", "move it to the encoder")
        row, names = Stream(stream.width), site.names.branch()
        names.visible, names.declared = {"input": Named(row)}, frozenset()
        self.stack = site.stack(("stack",), stack, stream=row, names=names)
        if self.stack.out.grid:
            fix = (
                "end it with `- select_column: 0`, `- sum_columns`, `- concat_columns` or `-"
                " flatten`"
            )
            raise BlockError(
                "stack",
                "the stack ends with a grid, and each row is one of its own",
                code="kind",
                fix=fix,
            )
        if any(
            block.max_target_ratio for block in self.stack.modules() if isinstance(block, Block)
        ):
            message = "`grid` is as long as the answer, and a row of a grid is not"
            raise BlockError(
                "stack", message, code="kind", fix="write `split_columns` in place of `grid`"
            )
        self.reads_stream = self.stack.reads_stream
        self.out = stream._replace(
            width=self.stack.out.width, columns=self.stack.out.length(stream.columns)
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        rows, mask = (
            mask_cells(x, context.mask).flatten(0, 1),
            row_mask(context.mask),
        )  # (B T, W, D), (B T, W)
        memories = {
            name: Output(*repeat_rows(output, x.shape[1]))
            for name, output in context.memories.items()
        }
        inner = collect_penalties(context)._replace(
            mask=mask,
            named_outputs={"input": Output(rows, mask)},
            memories=memories,
            records=None,
            facts=None,
        )
        y, *_ = self.stack(rows, self.stack.start(rows[:, :1], inner), inner)
        there = context.mask.any(-1)  # (B, T)
        for (name, reduction), value in flatten_penalties(inner.penalties):
            if value.ndim:
                value = (value.view_as(there) * there).sum(1) / there.sum(1).clamp(min=1)  # (B,)
            context.penalty(name, value, reduction)
        return y.unflatten(0, x.shape[:2]), state  # (B, T, W', D')

    def mask(self, mask: Tensor) -> Tensor:
        return self.stack.mask(row_mask(mask)).unflatten(0, mask.shape[:2])


def row_mask(mask: Tensor) -> Tensor:
    """Return the cells of each row up to its last real one: (B, T, W) -> (B T, W)"""
    return mask.flip(2).cumsum(2).flip(2).flatten(0, 1) > 0


def repeat_rows(state: State, times: int) -> State:
    """Return a state of B rows with each of them `times` times, leaf by leaf."""
    if isinstance(state, tuple):
        return tuple(repeat_rows(part, times) for part in state)
    return state.repeat_interleave(times, 0)
