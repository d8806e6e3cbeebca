"""Each law catches its break: small broken blocks."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from blocks.core.contract import Block, BlockError, Context, Count, Rate, Site, State
from composer.testing import LawError, check_block


class Sum(Block):
    """A block that keeps every law: a weighted sum of the positions so far."""

    def __init__(self, site: Site, *, scale: Count = 2) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.randn(site.stream.width))
        self.out = site.sequence("sum")

    def start(self, x: Tensor, context: Context) -> State:
        return x.new_zeros(x.shape[0], self.out.width), torch.zeros(
            x.shape[0], dtype=torch.long, device=x.device
        )

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        real = x * context.mask[..., None]
        y = state[0][:, None] + real.cumsum(1)
        return x + self.scale * self.weight * y, (
            state[0] + real.sum(1),
            state[1] + context.mask.sum(1),
        )


class LeaksIntoTheNextDocument(Sum):
    packs = True


class LeaksAlmostNothing(Sum):
    """A decay of 1e-12 in place of a reset: no output shows it."""

    packs = True

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        if context.starts is None:
            return super().forward(x, state, context)
        total, outputs = state[0], []
        for arriving, begins in zip(
            (x * context.mask[..., None]).unbind(1), context.starts.unbind(1), strict=True
        ):
            total = torch.where(begins[:, None], 1e-12, 1.0) * total + arriving
            outputs.append(total)
        return x + self.scale * self.weight * torch.stack(outputs, 1), (
            total,
            state[1] + context.mask.sum(1),
        )


class Forgets(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x, self.start(x, context), context)


class ForgetsWhatItReturns(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, (total, count) = super().forward(x, state, context)
        return y, (total - 0.5 * (x[:, -1] if x.shape[1] == 1 else 0.0), count)


class CountsPadding(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, (_, count) = super().forward(x, state, context)
        return y, (state[0] + x.sum(1), count)


class LooksAhead(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return y + 0.1 * torch.cat((x[:, 1:], x[:, :1] * 0), 1), state


class LooksAheadUnseenByAutograd(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return y + x.detach().amax(1, keepdim=True), state


class LooksAheadByName(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return y + context.named_outputs["earlier"].states.flip(1), state


class CountsWhatComes(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return y / context.mask.sum(1).clamp(min=1)[:, None, None], state


class SeesPadding(Block):
    """The mean of a whole row, padding too."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        site.require_full_context("", "a mean", "move it to the encoder")
        self.out = site.sequence("seespadding")

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return x + x.mean(1, keepdim=True), state


class RemembersPadding(Block):
    """Its state, of no use in an encoder but to be copied, is the sum of all positions."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        site.require_full_context("", "a sum", "move it to the encoder")
        self.out = site.sequence("rememberspadding")

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return x, x.sum(1)


class EmptyRowIsNaN(Block):
    """The mean of the real positions; of an empty row, 0 / 0."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        site.require_full_context("", "a mean", "move it to the encoder")
        self.out = site.sequence("emptyrowisnan")

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        mean = (x * context.mask[..., None]).sum(1) / context.mask.sum(1, keepdim=True)
        return x + mean[:, None], state


class MixesRows(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return (y + x[:1].sum() if self.training else y), state


class BatchSecond(Sum):
    def start(self, x: Tensor, context: Context) -> State:
        total, count = super().start(x, context)
        return total.T, count

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, (total, count) = super().forward(x, (state[0].T, state[1]), context)
        return y, (total.T, count)


class NumbersItsRows(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return y * (1 + torch.arange(len(x), device=x.device)[:, None, None]), state


class StartsFromX(Sum):
    def start(self, x: Tensor, context: Context) -> State:
        total, count = super().start(x, context)
        return total + x[:, 0].sum(-1, keepdim=True), count


class CopiesWhatItKeeps(Sum):
    def start(self, x: Tensor, context: Context) -> State:
        return super().start(x, context), context.memories["encoder"].states

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, after = super().forward(x, state[0], context)
        return y, (after, state[1].clone())


class KeepsOnSelf(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        self.last = x
        return super().forward(x, state, context)


class CountsOnSelf(Sum):
    def __init__(self, site: Site, *, scale: Count = 2) -> None:
        super().__init__(site, scale=scale)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        self.calls += 1
        return super().forward(x, state, context)


class ChangesInPlace(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        total, count = state
        y, after = super().forward(x, (total.clone(), count), context)
        total.copy_(after[0])
        return y, (total, after[1])


class ChangesInPlaceWhileDecoding(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, (total, count) = super().forward(x, state, context)
        return y, ((total if torch.is_grad_enabled() else state[0].copy_(total)), count)


class AppendsBehindTheNewest(Sum):
    """States share what was appended to them; whoever goes on from an older one comes after the
    newest.
    """

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, after = super().forward(x, (getattr(state[0], "appended", state[0]), state[1]), context)
        if not torch.is_grad_enabled():
            state[0].appended = after[0]
        return y, after


class Idle(Sum):
    def __init__(self, site: Site, *, scale: Count = 2) -> None:
        super().__init__(site, scale=scale)
        self.idle = nn.Linear(3, 3)


class StopsAtAGrid(Sum):
    """A sequence's block that does not say so."""

    def __init__(self, site: Site, *, scale: Count = 2) -> None:
        super().__init__(
            replace(site, stream=site.stream._replace(grid=False, columns=0)), scale=scale
        )


class RefusesWithoutHelp(Sum):
    def __init__(self, site: Site, *, scale: Count = 2) -> None:
        if site.stream.grid:
            raise BlockError("", "a grid arrives", code="kind")
        super().__init__(site, scale=scale)


class LeavesGaps(Block):
    """Loses every other position, and leaves it where it is."""

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.out = site.sequence("leaves_gaps")._replace(length_ratio=Fraction(1, 2))

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return x[:, : (x.shape[1] + 1) // 2], state

    def mask(self, mask: Tensor) -> Tensor:
        return mask[:, ::2] & (torch.arange((mask.shape[1] + 1) // 2) != 1)


class Invariant(Sum):
    """A bias before a softmax over the same axis."""

    def __init__(self, site: Site, *, scale: Count = 2) -> None:
        super().__init__(site, scale=scale)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward((x + self.bias).softmax(-1), state, context)


class DeadKnob(Sum):
    def __init__(self, site: Site, *, scale: Count = 2, temperature: float = 1.0) -> None:
        super().__init__(site, scale=scale)


class DeadRate(Sum):
    def __init__(self, site: Site, *, scale: Count = 2, dropout: Rate = 0.0) -> None:
        super().__init__(site, scale=scale)


class DeadWord(Sum):
    def __init__(self, site: Site, *, kind: Literal["plain", "shifted", "moved"] = "plain") -> None:
        super().__init__(site, scale=2 if kind == "plain" else 3)


class Detaches(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x.detach(), state, context)


class WidensHalf(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return (y.float() if y.dtype is torch.bfloat16 else y), state


class ExpectsItsOwnType(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return torch.lerp(y, x, self.weight), state


class Unsaved(Sum):
    def __init__(self, site: Site, *, scale: Count = 2) -> None:
        super().__init__(site, scale=scale)
        self.shift = torch.randn(()).item()

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        return super().forward(x + self.shift, state, context)


class AsksTheDevice(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        if bool((state[1] < 0).any()):
            return x, state
        return super().forward(x, state, context)


class BreaksTheGraph(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        torch._dynamo.graph_break()
        return super().forward(x, state, context)


class SaysAnotherWidth(Sum):
    def __init__(self, site: Site, *, scale: Count = 2) -> None:
        super().__init__(site, scale=scale)
        self.out = site.stream._replace(width=3)

    def start(self, x: Tensor, context: Context) -> State:
        return x.new_zeros(x.shape[0], len(self.weight)), torch.zeros(
            x.shape[0], dtype=torch.long, device=x.device
        )


class PosesForPictures(Sum):
    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        y, state = super().forward(x, state, context)
        return (y if context.records is None else y * 0.5), state


BROKEN: list[tuple[type[Block], str]] = [
    (Forgets, "chunks"),
    (ForgetsWhatItReturns, "chunks"),
    (CountsWhatComes, "chunks"),
    (CountsPadding, "ragged_chunks"),
    (LooksAhead, "causality"),
    (LooksAheadUnseenByAutograd, "causality"),
    (LooksAheadByName, "causality"),
    (SeesPadding, "padding"),
    (RemembersPadding, "last_state"),
    (EmptyRowIsNaN, "padding"),
    (MixesRows, "independent_rows"),
    (LeaksIntoTheNextDocument, "packing"),
    (LeaksAlmostNothing, "packing"),
    (BatchSecond, "reordering"),
    (NumbersItsRows, "reordering"),
    (StartsFromX, "start_ignores_values"),
    (CopiesWhatItKeeps, "unchanged_leaves"),
    (KeepsOnSelf, "no_side_effects"),
    (CountsOnSelf, "no_side_effects"),
    (ChangesInPlace, "no_side_effects"),
    (ChangesInPlaceWhileDecoding, "kept_states"),
    (AppendsBehindTheNewest, "rollback"),
    (StopsAtAGrid, "grid_or_refusal"),
    (RefusesWithoutHelp, "grid_or_refusal"),
    (LeavesGaps, "shapes"),
    (Idle, "gradients"),
    (Invariant, "gradients"),
    (DeadKnob, "settings"),
    (DeadRate, "settings"),
    (DeadWord, "settings"),
    (Detaches, "gradcheck"),
    (WidensHalf, "bfloat16"),
    (ExpectsItsOwnType, "bfloat16"),
    (Unsaved, "saving"),
    (AsksTheDevice, "meta"),
    (BreaksTheGraph, "compiling"),
    (SaysAnotherWidth, "shapes"),
    (PosesForPictures, "recording"),
]


def test_the_sound_block_keeps_every_law() -> None:
    check_block(Sum, {}, {"scale": 3}, compiles=False)


@pytest.mark.parametrize(("block", "law"), BROKEN, ids=[block.__name__ for block, _ in BROKEN])
def test_a_break_is_caught_by_its_law(block: type[Block], law: str) -> None:
    with pytest.raises(LawError) as raised:
        check_block(block, compiles=law == "compiling")
    assert raised.value.law == law, raised.value
    assert str(raised.value).startswith(f"invariant `{law}`: {block.__name__}(")


class NoOut(Block):
    def __init__(self, site: Site) -> None:
        super().__init__()


class NoParent(Block):
    def __init__(self, site: Site) -> None:
        self.out = site.sequence("no_parent")


@pytest.mark.parametrize(
    ("block", "fix"),
    [
        (NoOut, 'write `self.out = site.sequence("NAME")` in its'),
        (NoParent, "call it first in its"),
    ],
)
def test_a_constructor_that_lacks_something_is_told_what_to_write(
    block: type[Block], fix: str
) -> None:
    with pytest.raises(LawError, match=re.escape(fix)) as raised:
        check_block(block)
    assert f"`{block.__name__}` cannot be built: it" in str(raised.value)
