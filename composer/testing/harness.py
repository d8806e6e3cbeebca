"""Test harness for one block: a site to build it at, random batches to run it on, and comparisons
of what it returns.

Every size differs from every other one, so that an axis taken for another is found out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar, cast

import torch
from torch import Tensor

from blocks.core.contract import (
    Block,
    BlockError,
    Context,
    Fix,
    Named,
    Output,
    Path,
    Site,
    State,
    Stream,
)
from blocks.core.fixes import as_fix
from blocks.core.scope import Scope
from composer.model.builder import Builder, checked_block
from composer.model.encoder_decoder import map_leaves
from composer.recipe.data_sections import Data
from composer.recipe.model_sections import Model
from composer.recipe.recipe import Recipe
from composer.recipe.section import BlockSpec, output_names, python_name

Place = Literal["decoder", "encoder"]
Made = TypeVar("Made")

WIDTH, NARROW, READ = 12, 4, 6
"""Widths of the stream (and of the model), of the output named `narrow`, and of the memories."""
LENGTHS = (7, 3, 5, 1, 0)
"""Real positions of each row; the batch is as long as the longest."""
SOURCES = (4, 9, 1, 6, 3)
"""Real positions of each row of a memory."""
COLUMNS = 3
"""Columns of a grid."""
HOLES = ((1, 1), (3, 0), (3, 2))
"""Cells of a grid, position and column, that are not real in any row; each position keeps one."""
TOLERANCE = 1e-8
STACKS: dict[str, Sequence[BlockSpec]] = {
    "shelf": [BlockSpec("linear", {"activation": "tanh"})],
    "other_shelf": [BlockSpec("rnn", {"cell": "tanh"})],
}
MEMORIES = ("encoder", "encoder.input", "encoder.earlier")
GRIDS = ("encoder.grid", "encoder.earlier_grid")


LOOK_FOR = {
    "form": (
        "the contract, `blocks/core/contract.py`: `start(x, context)`, `forward(x, state, context)"
        " -> (y, state)`"
    ),
    "grid_or_refusal": (
        "code that assumes (B, T, D): refuse grids with `site.sequence`, and say in `fix` what to"
        " write"
    ),
    "shapes": (
        "`self.out` or `mask` that says something else than `forward` returns, or a width of"
        " its own"
    ),
    "no_side_effects": (
        "an in-place operation on what arrives, or an attribute that `forward` sets; return it as"
        " state"
    ),
    "start_ignores_values": (
        "`start` that computes with x; it may use its batch size, type and device only"
    ),
    "initial_output": (
        "`initial_output` that ignores a copied state, or reads another part of it than `forward`"
    ),
    "kept_states": "a state that is changed in place when there are no gradients",
    "packing": (
        "`packs` of a block that is not at work at one position alone, or a row's state that a"
        " document reads"
    ),
    "rollback": "an append to memory that several states share, behind what the newest of them has",
    "reordering": (
        "a state with a leaf that is no tensor or does not have the batch first, or one shared by"
        " all rows"
    ),
    "causality": (
        "a softmax, mean, norm or convolution over time without a causal mask or left padding"
    ),
    "chunks": (
        "a position, sum or penalty that starts at 0 in every chunk and is not carried in the state"
    ),
    "ragged_chunks": (
        "a counter or cache that advances at masked positions, or is one for all rows instead of"
        " one each"
    ),
    "last_state": (
        "the state after the last column of the batch; take it after each row's last real position"
    ),
    "padding": (
        "a softmax, mean, norm or convolution that reads masked positions, or a division by 0 real"
        " ones"
    ),
    "reach": (
        "initial weights by which each step multiplies what it keeps by far more than 1, or by"
        " nearly 0"
    ),
    "independent_rows": "a mean or norm over the batch (dimension 0), or a reshape that mixes rows",
    "unchanged_leaves": (
        "a `clone`, `cat` or arithmetic on a leaf that this step only reads; return the same tensor"
    ),
    "lifting": (
        "a `prev` name that is read from the context and was not resolved through `site`, or a rate"
        " of progress"
    ),
    "recording": (
        "a computation inside `if context.records is not None` (or penalties) that the output"
        " uses too"
    ),
    "gradients": (
        "a parameter that the output does not use, a `detach`, or a bias before a softmax or a norm"
    ),
    "gradcheck": (
        "a `detach`, a `.data`, a rounding, or an autograd function whose backward is another"
        " function's"
    ),
    "bfloat16": (
        "an epsilon or a mask value beyond the type's range, or a tensor made without"
        " `dtype=x.dtype`"
    ),
    "saving": "a tensor that decides the output and is neither a parameter nor a persistent buffer",
    "meta": (
        "`item()`, `tolist()` or a branch on a tensor's value, or a tensor made without"
        " `device=x.device`"
    ),
    "compiling": (
        "Python control flow over tensors' values, `item()`, or a call that torch.compile cannot"
        " trace"
    ),
    "settings": (
        "a setting that nothing uses, or one that matters only beside another: raise `NoEffect`"
        " elsewhere"
    ),
    "training": (
        "a logarithm, square root or division that can meet 0, or a parameter that no output"
        " depends on"
    ),
    "idle_rows": (
        "a count without `context.mask`, or a softmax or division that has nothing real to go by"
    ),
    "precisions": (
        "code that computes with the `weight` of a linear map, or in a type other than that of the"
        " weights"
    ),
    "searching": "`step` that differs from `forward`, or a state that a search cannot reorder",
}
"""What usually breaks a law: where to look first."""


class LawError(AssertionError):
    """A block breaks a law of the contract. `law` is its name, `block`, `place` and `settings` say
    of what.
    """

    def __init__(
        self, law: str, block: str, place: str, settings: Mapping[str, object], detail: str
    ) -> None:
        self.law, self.block, self.place, self.settings, self.detail = (
            law,
            block,
            place,
            dict(settings),
            detail,
        )
        where = f" in {'an' if place.startswith('encoder') else 'a'} {place}" if place else ""
        settings_text = ", ".join(f"{key}={value!r}" for key, value in self.settings.items())
        super().__init__(
            f"invariant `{law}`: {block}({settings_text}){where}: {detail}. Look for"
            f" {LOOK_FOR[law]}."
        )


class Batch(NamedTuple):
    """What a block reads: one batch. The board and the memories as in `Context`."""

    x: Tensor  # (B, T, D), of a grid (B, T, W, D)
    mask: Tensor  # (B, T), of a grid (B, T, W)
    board: dict[str, Output]
    memories: dict[str, Output]


class BlockOutput(NamedTuple):
    """What a block makes of it."""

    y: Tensor  # (B, T', D'), of a grid (B, T', W', D')
    mask: Tensor  # (B, T'), of a grid (B, T', W')
    state: State

    @property
    def real(self) -> Tensor:
        """The output with zeros where nothing is real: what laws compare."""
        return self.y.masked_fill(~self.mask[..., None], 0.0)


@dataclass(frozen=True)
class Case:
    """One block with its settings in one place: what a law is tried on.

    `arriving` is the stream's width, and `columns` its columns: 0 where a sequence arrives.
    """

    kind: type[Block]
    settings: Mapping[str, Any] = field(default_factory=dict)
    place: Place = "decoder"
    arriving: int = WIDTH
    columns: int = 0
    made: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def causal(self) -> bool:
        return self.place == "decoder"

    @property
    def stream(self) -> Stream:
        """The stream that arrives."""
        return Stream(self.arriving, grid=self.columns > 0, columns=self.columns)

    def reads(self, name: str) -> bool:
        """Whether anything in its settings reads this name."""
        return f"'{name}'" in repr(self.settings)

    def broken(self, law: str, detail: str) -> NoReturn:
        """Raise LawError."""
        place = f"{self.place} where a grid arrives" if self.columns else self.place
        raise LawError(law, self.kind.__name__, place, self.settings, detail)

    def build(self, seed: int = 1, *, noise: float = 0.2) -> Block:
        """Build the block in evaluation mode, with noise on every parameter, so that no zero hides
        what it multiplies.

        Raises BlockError where the block is refused.
        """
        settings = {python_name(key): value for key, value in self.settings.items()}
        with fixed_seed(seed):
            block = checked_block(self.kind(site(self), **settings))
            for parameter in block.parameters() if noise else ():
                if parameter.dtype.is_floating_point and not parameter.is_meta:
                    parameter.data += noise * torch.randn_like(parameter)
        return block.eval()

    def exact(self, seed: int = 1) -> Block:
        """Build the block in double precision: what is compared then differs by rounding, or it
        differs.
        """
        return self.build(seed).double()

    def once(self, make: Callable[..., Made], *arguments: Hashable) -> Made:
        """Return `make(self, *arguments)`, cached for all laws, which must not modify it."""
        if (make, *arguments) not in self.made:
            self.made[make, *arguments] = make(self, *arguments)
        return cast(Made, self.made[make, *arguments])

    def shared(self) -> Block:
        """Return the block of `exact`, shared by all laws: evaluation mode, no gradients."""
        block = self.once(Case.exact).eval()
        block.zero_grad()
        return block

    def batch(
        self, lengths: Sequence[int] = LENGTHS, *, longest: int | None = None, seed: int = 2
    ) -> Batch:
        """Return the batch of `random_batch`, one for all laws."""
        return self.once(random_batch, tuple(lengths), longest, seed)

    def output(self) -> BlockOutput:
        """Return the outputs for the first batch, computed once for all laws."""
        return self.once(first_output)

    def refusal(self) -> BlockError | None:
        """Return why the block is refused with these settings; None where it is not."""
        try:
            self.build()
        except BlockError as error:
            return error
        return None


class HarnessBuilder(Builder):
    """The builder of the stacks inside the block; the first fault is raised, since there is no
    recipe to point into.
    """

    def fault(self, code: str, path: Path, message: str, fix: str | Fix = "") -> None:
        raise BlockError("stack", message, code=code, fix=as_fix(fix).text)

    def related_places(self, site: Site, message: str) -> str:
        return ""


def site(case: Case) -> Site:
    """Return the site of a case: `input`, `earlier` and `narrow` can be read, and what an encoder
    left.
    """
    stream, same = case.stream, copied_block(case)
    names = Scope.root(stream, declared=set(output_names(list(case.settings.values()))))
    names.define("earlier", Named(stream))
    names.define("narrow", Named(stream._replace(width=NARROW)))
    memories = {name: Named(Stream(READ)) for name in MEMORIES}
    memories["encoder.summary"] = Named(Stream(case.arriving, length_ratio=Fraction(0)))
    memories |= {name: Named(Stream(READ, grid=True, columns=COLUMNS)) for name in GRIDS}
    if same is not None:
        memories["encoder.same"] = Named(same.out, same.state_kind)
    recipe = SimpleNamespace(model=Model(width=WIDTH, stacks=STACKS), data=Data(), joint=False)
    builder = HarnessBuilder(cast(Recipe, recipe))
    stacks = (builder.stack, builder.dry_build, builder.shared_stack)
    return Site(
        stream,
        WIDTH,
        names,
        memories,
        ["encoder"],
        "a decoder" if case.causal else "",
        ("block",),
        *stacks,
    )


@contextmanager
def fixed_seed(seed: int) -> Iterator[None]:
    """Seed the random numbers of the default device; those of a CPU go on afterwards as if nothing
    had been drawn.
    """
    with torch.random.fork_rng(devices=[]):
        if torch.get_default_device().type == "cpu":
            # `torch.manual_seed` writes down who calls it, for each kind of device that is not
            # there: a fifth of a law
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield


def copied_block(case: Case) -> Block | None:
    """Build the block in an encoder for `{copy: encoder.same}`, if the case copies it."""
    copied = {
        key: value for key, value in case.settings.items() if value == {"copy": "encoder.same"}
    }
    if not copied:
        return None
    others = {key: value for key, value in case.settings.items() if key not in copied}
    return replace(case, settings=others, place="encoder").build()


def random_batch(
    case: Case, lengths: Sequence[int] = LENGTHS, longest: int | None = None, seed: int = 2
) -> Batch:
    """Draw a random batch in double precision, with these numbers of real positions, padded to
    `longest`.
    """
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    total = max(lengths) if longest is None else longest

    def random(*size: int) -> Tensor:
        return torch.randn(len(lengths), *size, generator=generator, dtype=torch.float64)

    mask, cells = length_mask(lengths, total), (total, case.columns) if case.columns else (total,)
    if case.columns:
        mask = cell_mask(mask, case.columns)
    x = random(*cells, case.arriving)
    board = {"input": Output(x, mask)}
    board["earlier"] = Output(random(*cells, case.arriving), mask)
    board["narrow"] = Output(random(*cells, NARROW), mask)
    there = length_mask([SOURCES[row % len(SOURCES)] for row in range(len(lengths))], max(SOURCES))
    memories = {name: Output(random(max(SOURCES), READ), there) for name in MEMORIES}
    memories["encoder.summary"] = Output(random(1, case.arriving), there[:, :1])
    cells_there = cell_mask(there, COLUMNS)
    memories |= {name: Output(random(max(SOURCES), COLUMNS, READ), cells_there) for name in GRIDS}
    batch, same = Batch(x, mask, board, memories), copied_block(case)
    if same is None:
        return batch
    # what the same block leaves in the encoder, with its last state
    x = torch.cat([memories["encoder"].states] * (case.arriving // READ + 1), -1)[
        ..., : case.arriving
    ]
    with torch.no_grad():
        made = run(same.double(), batch._replace(x=x, mask=there))
    return batch._replace(
        memories={**memories, "encoder.same": Output(made.y, made.mask, made.state)}
    )


def length_mask(lengths: Sequence[int], total: int) -> Tensor:
    """Return the mask of rows of these lengths: (B, total)"""
    return torch.arange(total) < torch.tensor(lengths)[:, None]


def cell_mask(mask: Tensor, columns: int) -> Tensor:
    """Return the mask of a grid with these positions, less the holes: (B, T) -> (B, T, W)"""
    there = torch.ones(mask.shape[1], columns, dtype=torch.bool)
    for position, column in HOLES:
        there[position : position + 1, column : column + 1] = False
    return mask[..., None] & there


def real_rows(mask: Tensor) -> Tensor:
    """Return the positions of which anything is real: (B, T) or (B, T, W) -> (B, T)"""
    return mask.flatten(2).any(-1) if mask.ndim > 2 else mask


def expand_as(which: Tensor, states: Tensor) -> Tensor:
    """Reshape a mask of rows (B,) or positions (B, T) to broadcast over their states."""
    return which.view(*which.shape, *[1] * (states.ndim - which.ndim))


def map_outputs(batch: Batch, change: Callable[[Output], Output], memories: bool = False) -> Batch:
    """Return the batch with every named output and memory changed, `input` like the stream."""
    x, mask, *_ = change(Output(batch.x, batch.mask))
    board = {name: change(output) for name, output in batch.board.items()}
    board["input"] = Output(x, mask)
    read = (
        {name: change(output) for name, output in batch.memories.items()}
        if memories
        else batch.memories
    )
    return Batch(x, mask, board, read)


def map_tensors(batch: Batch, change: Callable[[Tensor], Tensor]) -> Batch:
    """Return the batch with every tensor changed: states, masks and last states, of the memories
    too.
    """

    def changed(output: Output) -> Output:
        return Output(change(output.states), change(output.mask), map_leaves(output.last, change))

    return map_outputs(batch, changed, memories=True)


def mix(
    batch: Batch, other: Batch, choose: Callable[[Tensor, Tensor], Tensor], memories: bool = False
) -> Batch:
    """Return the batch with states (B, T, ...) chosen from its own and those of another."""

    def mixed(mine: dict[str, Output], theirs: dict[str, Output]) -> dict[str, Output]:
        return {
            name: mine[name]._replace(states=choose(mine[name].states, theirs[name].states))
            for name in mine
        }

    board = mixed(batch.board, other.board)
    read = mixed(batch.memories, other.memories) if memories else batch.memories
    return Batch(board["input"].states, batch.mask, board, read)


def positions(batch: Batch, start: int, stop: int | None = None) -> Batch:
    """Return positions `start` to `stop` (exclusive) of the stream and of the named outputs."""
    return map_outputs(
        batch, lambda output: Output(output.states[:, start:stop], output.mask[:, start:stop])
    )


def rows(batch: Batch, index: Sequence[int] | Tensor) -> Batch:
    """Return the rows of `index`, in its order, of everything."""
    return map_tensors(batch, lambda leaf: leaf.index_select(0, torch.as_tensor(index)))


def gather(batch: Batch, where: Tensor, mask: Tensor) -> Batch:
    """Return in each row the positions of `where` (B, T), of which those of `mask` are real."""
    row = torch.arange(len(where))[:, None]

    def take(output: Output) -> Output:
        there = output.mask[row, where]  # (B, T), of a grid (B, T, W)
        return Output(output.states[row, where], there & expand_as(mask, there))

    return map_outputs(batch, take)


def single_row(batch: Batch, row: int) -> Batch:
    """Return one row cut to its length."""
    return positions(rows(batch, [row]), 0, max(int(real_rows(batch.mask)[row].sum()), 1))


def cut_memories(batch: Batch) -> Batch:
    """Return a batch of one row, its memories cut to their lengths."""

    def cut(output: Output) -> Output:
        length = int(real_rows(output.mask).sum())
        return Output(output.states[:, :length], output.mask[:, :length], output.last)

    return batch._replace(memories={name: cut(output) for name, output in batch.memories.items()})


def cast_batch(batch: Batch, dtype: torch.dtype) -> Batch:
    """Return the batch in another precision."""
    return map_tensors(batch, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf)


def context_of(batch: Batch) -> Context:
    """Return the context of a batch."""
    return Context(batch.mask, dict(batch.board), batch.memories)


def start(block: Block, batch: Batch) -> State:
    """Return the state before the first position, made as the model makes it: of no tokens."""
    x = batch.x.new_zeros(batch.x.shape[0], 1, batch.x.shape[-1])
    return block.start(x, Context(batch.mask.new_ones(x.shape[:2]), {}, batch.memories))


def run(block: Block, batch: Batch, state: State = None) -> BlockOutput:
    """Run a block over a batch, from `state` or from its start."""
    y, after, *_ = block(
        batch.x, start(block, batch) if state is None else state, context_of(batch)
    )
    return BlockOutput(y, block.mask(batch.mask), after)


def first_output(case: Case) -> BlockOutput:
    """Run the block of a case over its first batch."""
    return run(case.shared(), case.batch())


def max_difference(one: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors; infinite where either is not finite, or shapes
    differ.
    """
    if one.shape != other.shape:
        return float("inf")
    if one.numel() == 0:
        return 0.0
    gap = (one.double() - other.double()).abs().max().item()
    return gap if gap == gap else float("inf")


def expect_equal(case: Case, law: str, mine: Tensor, theirs: Tensor, detail: str) -> None:
    """Raise LawError where two tensors differ, with the numbers."""
    if mine.shape != theirs.shape:
        case.broken(
            law, f"{detail}: the shape is {tuple(mine.shape)}, and should be {tuple(theirs.shape)}"
        )
    if mine.numel() == 0 or (gap := max_difference(mine, theirs)) <= TOLERANCE:
        return
    if not math.isfinite(gap):
        case.broken(law, f"{detail}: not finite")
    where = torch.unravel_index((mine.double() - theirs.double()).abs().argmax(), mine.shape)
    case.broken(law, f"{detail}: differs by {gap:.3g} at {[int(index) for index in where]}")
