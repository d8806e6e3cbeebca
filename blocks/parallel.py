"""`parallel`: several stacks read the same stream, and their outputs are merged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from blocks.core.contract import (
    Block,
    BlockError,
    Branches,
    Context,
    Fix,
    Named,
    NamedOutputs,
    NoEffect,
    Output,
    Set,
    Site,
    State,
    Stream,
    write,
)
from blocks.core.stack import Stack, compare_streams


class Parallel(Block):
    """Several stacks over the same stream, merged (columns: Chen et al. 2018, section 5).

    sum: y = sum_k f_k(x);   mean: the sum over their number;   max: value by value;
    concat: y = [f_1(x); f_2(x) ...];
    gate: y = sum_k g_k f_k(x), with g for each value a softmax over k of W [f_1(x); f_2(x) ...] +
    b;
    attention: y = sum_k b_k V_k f_k(x), with b a softmax over k of v.tanh(W x + U_k f_k(x) + b),
    the hidden layer as wide as a branch: hierarchical, where each branch reads a memory (Libovicky
    and Helcl 2017, section 3.2).

    Settings:
        branches: Stacks by name, or a list of unnamed ones. They do not see each other; after the
            merge the output of a named one can be read by its name, and so can the names in it.
        merge: sum | mean | concat | gate | max | attention. All but concat need branches of one
            width.

    Shapes: (B, T, D) -> (B, T, .), as wide as a branch, or for concat as all of them; a grid where
    they take one.
    State: each branch's.
    Raises BlockError where there is no branch, where a name is taken, or where lengths, kinds or
    widths differ.
    """

    family = "structure"
    packs = True

    def __init__(
        self,
        site: Site,
        *,
        branches: Branches,
        merge: Literal["sum", "mean", "concat", "gate", "max", "attention"] = "sum",
    ) -> None:
        super().__init__()
        stacks_by_key: list[tuple[str | int, Any]]
        stacks_by_key = (
            list(branches.items()) if isinstance(branches, dict) else list(enumerate(branches))
        )
        if len(branches) == 1 and merge != "sum":
            raise NoEffect("merge", "there is one branch, and nothing to merge it with")
        forks = [site.names.branch() for _ in stacks_by_key]
        stacks = [
            site.stack(("branches", key), stack, names=fork)
            for (key, stack), fork in zip(stacks_by_key, forks, strict=True)
        ]
        self.labels = [key if isinstance(key, str) else None for key, _ in stacks_by_key]
        streams = [stack.out for stack in stacks]
        _check_branches([key for key, _ in stacks_by_key], streams, merge)
        site.names.merge(forks)
        for label, stream in zip(self.labels, streams, strict=True):
            _name_branch(site, label, stream)
        total, self.merge = sum(stream.width for stream in streams), merge
        self.branches = nn.ModuleList(stacks)
        self.gate: nn.Module = nn.Linear(total, total) if merge == "gate" else nn.Identity()
        if merge == "attention":
            if site.stream.first_difference(streams[0]) in ("kind", "length"):
                message = (
                    "`attention` asks at each position that arrives, and the branches end with"
                    " others"
                )
                raise BlockError(
                    "merge",
                    message,
                    code="length",
                    fix=write("merge", "gate", ", or keep the positions"),
                )
            self.gate = BranchAttention(site.stream.width, streams[0].width, len(streams))
        self.out = streams[0]._replace(width=total) if merge == "concat" else streams[0]

    def start(self, x: Tensor, context: Context) -> State:
        return tuple(branch.start(x, context) for branch in self._stacks())

    def make_room(self, state: State, length: int) -> State:
        pairs = zip(self._stacks(), state, strict=True)
        return tuple(branch.make_room(own, length) for branch, own in pairs)

    def initial_outputs(self, x: Tensor, state: State) -> dict[str, Tensor]:
        first: dict[str, Tensor] = {}
        for branch, label, own in zip(self._stacks(), self.labels, state, strict=True):
            first |= branch.initial_outputs(x, own)
            if label is not None:
                first[label] = branch.initial_output(x, own)
        return first

    def forward(
        self, x: Tensor, state: State, context: Context
    ) -> tuple[Tensor, State, NamedOutputs]:
        outputs, after = [], []
        named: dict[str, Output] = {}
        for branch, label, before in zip(self._stacks(), self.labels, state, strict=True):
            y, last, inside = branch(x, before, context)
            named |= inside
            if label is not None:
                named[label] = Output(y, branch.mask(context.mask), last)
            outputs.append(y)
            after.append(last)
        merged = self._merged(x, outputs, context)
        if self.out.grid:
            context.record("image", merged)
        return merged, tuple(after), named

    def _merged(self, x: Tensor, outputs: Sequence[Tensor], context: Context) -> Tensor:
        match self.merge:
            case "attention":
                return cast("BranchAttention", self.gate)(x, outputs, context)
            case "concat":
                return torch.cat(tuple(outputs), -1)
            case "max":
                return reduce(torch.maximum, outputs)
            case "sum":
                return reduce(add, outputs)
            case "mean":
                return reduce(add, outputs) / len(outputs)
        return self._gated(outputs, context)

    def _gated(self, outputs: Sequence[Tensor], context: Context) -> Tensor:
        assert self.gate is not None
        gates = (
            self.gate(torch.cat(tuple(outputs), -1)).unflatten(-1, (len(outputs), -1)).softmax(-2)
        )  # (B, T, K, D)
        context.record("gates", gates)
        return (gates * torch.stack(tuple(outputs), -2)).sum(-2)

    def mask(self, mask: Tensor) -> Tensor:
        return self._stacks()[0].mask(mask)

    def _stacks(self) -> list[Stack]:
        return cast("list[Stack]", list(self.branches))


class BranchAttention(nn.Module):
    """Attention over branches: how much each is read at each position, and the weighted sum of
    linear maps of them.
    """

    def __init__(self, query: int, width: int, branches: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, width)
        self.project = nn.ModuleList(
            nn.Linear(width, 2 * width, bias=False) for _ in range(branches)
        )
        self.score = nn.Linear(width, 1, bias=False)
        for linear in (self.query, *self.project, self.score):
            nn.init.xavier_uniform_(linear.weight)
        nn.init.zeros_(self.query.bias)

    def forward(self, x: Tensor, outputs: Sequence[Tensor], context: Context) -> Tensor:
        """x (B, T, D) and each branch's output (B, T, D') -> (B, T, D')"""
        mapped = torch.stack(
            [project(y) for project, y in zip(self.project, outputs, strict=True)], -2
        )
        keys, values = mapped.chunk(2, -1)  # (B, T, K, D')
        weights = self.score(torch.tanh(self.query(x)[..., None, :] + keys)).softmax(
            -2
        )  # (B, T, K, 1)
        context.record("branches", weights[..., 0])
        return (weights * values).sum(-2)


def _label(key: str | int) -> str:
    return f"`{key}`" if isinstance(key, str) else f"number {key + 1}"


def _check_branches(keys: Sequence[str | int], streams: Sequence[Stream], merge: str) -> None:
    """Raise BlockError where the branches' outputs cannot be merged."""
    if not streams:
        raise BlockError("branches", "there is no branch", fix="write at least one stack")
    first, labels = streams[0], [_label(key) for key in keys]
    for other, stream in zip(labels[1:], streams[1:], strict=True):
        messages: dict[str, tuple[str, str | Fix]] = {
            "kind": (
                f"with {first.described} and {stream.described}",
                "end all alike: with a sequence, or with a grid of as many columns",
            ),
            "length": (
                "with different positions",
                "change the length in all alike, or after the merge",
            ),
            "width": (
                f"{first.width} and {stream.width} wide, and `merge: {merge}` needs one width",
                Fix(
                    f"end {other} with `- linear: {first.width}`, or write `merge: concat`",
                    Set(("merge",), "concat"),
                ),
            ),
        }
        sentence = f"the branches {labels[0]} and {other} end {{}}"
        compare_streams(first, stream, "branches", sentence, messages, any_width=merge == "concat")


def _name_branch(site: Site, label: str | None, stream: Stream) -> None:
    """Let later blocks read a named branch."""
    if label is None:
        return
    try:
        site.names.define(label, Named(stream))
    except BlockError as error:
        raise BlockError("branches", error.message, fix=error.fix, code=error.code) from error
