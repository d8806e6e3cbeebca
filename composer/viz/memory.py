"""What a run's memories held, sentence by sentence, and what was written to them and read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import Record
from composer.data.sources import TARGET
from composer.model.builder import encoder_stacks
from composer.model.vocabulary import EOS, SPECIAL_TOKENS
from composer.recipe.recipe import Recipe, source_path
from composer.viz.axis_labels import Tokens, named, passes, sides_of, what_is_read

READS, BOTTOM, WRITES = "read_weights", "read_weights_bottom", "write_weights"
STRENGTHS, STACKS, HOPS, REGISTERS, HALTING = "strengths", "stacks", "hops", "registers", "halting"
"""What memories call what they record."""
LEAST = 0.02
"""What is never more than this is white in a picture: where that is all, at the edge, nothing is drawn."""
FEW, STEPS = 4, 40
"""Stacks that are drawn, and steps of a machine, at most."""
EMPTY = -1.0
"""What a discrete stack holds where it holds nothing."""


@dataclass(frozen=True)
class Panel:
    """One map: a value for each row and, across, each position. A cell is white at `low` and full at 1."""

    title: str
    rows: list[str]  # R
    columns: list[str]  # T
    values: np.ndarray  # (R, T)
    low: float = 0.0


@dataclass(frozen=True)
class Table:
    """Words in cells that are shaded by numbers from 0 to 1. `title` says what the rows and columns are about."""

    title: str
    corner: str
    rows: list[str]  # R
    columns: list[str]  # C
    texts: list[list[str]]  # R of C
    shades: np.ndarray  # (R, C)


@dataclass(frozen=True)
class Memory:
    """The memory of one block, or of blocks of a kind in the encoder and the decoder, whose panels stand side by side.

    `about` tells what is seen, of all of a kind the same, and `note` what is left out.
    """

    blocks: list[str]
    about: str
    note: str = ""
    panels: Sequence[Sequence[Panel]] = ()
    tables: Sequence[Table] = ()


class Ran(NamedTuple):
    """What one block recorded over all positions of a side: values by name, (1, t, ...) each, and what stands at the
    positions; a target's are named after the token that is written there."""

    record: Record
    side: str
    columns: list[str]
    values: Mapping[str, list[Tensor]]

    @property
    def part(self) -> str:
        """Which part of the model it belongs to."""
        return {TARGET: "decoder", "source": "encoder"}.get(self.side, f"encoder {self.side}")

    def whole(self, name: str) -> np.ndarray:
        """What was recorded under a name at all positions, (T, ...); what is no number is 0."""
        found: np.ndarray = np.nan_to_num(torch.cat([each[0] for each in self.values[name]]).float().cpu().numpy())
        return found


def memories(recipe: Recipe, records: Mapping[Record, Sequence[Tensor]], tokens: Tokens) -> list[Memory]:
    """The memories of one sentence, in the order in which they were first used."""
    groups: dict[tuple[object, ...], list[Ran]] = {}
    counts: dict[tuple[object, ...], int] = {}
    for each in ran(records, tokens):
        name = next(name for name in DRAWN if name in each.values)
        shape = () if name == STRENGTHS else each.values[name][0].shape[2:]
        kind = (name, each.record.path[-1], shape)
        turn = counts[(kind, each.side)] = counts.get((kind, each.side), 0) + 1
        groups.setdefault((*kind, turn), []).append(each)
    return [DRAWN[str(kind[0])](recipe, group, tokens) for kind, group in groups.items()]


def ran(records: Mapping[Record, Sequence[Tensor]], tokens: Tokens) -> Iterator[Ran]:
    """Every memory that was recorded; a stack with a name may run several times."""
    of_blocks: dict[Record, dict[str, Sequence[Tensor]]] = {}
    for record, values in records.items():
        of_blocks.setdefault(record._replace(name=""), {})[record.name] = values
    for record, by_name in of_blocks.items():
        if by_name.keys() & DRAWN.keys():
            sides = sides_of(record.path, tokens)
            parts = {name: runs_of(name, values, tokens, sides) for name, values in by_name.items()}
            for turn in range(min(map(len, parts.values()))):
                yield of_side(record, sides, {name: part[turn] for name, part in parts.items()}, tokens)


def runs_of(name: str, values: Sequence[Tensor], tokens: Tokens, sides: Sequence[str]) -> list[list[Tensor]]:
    """The values of each time that a block ran; those of a machine have steps and no positions."""
    if name in (REGISTERS, HALTING):
        return [[value] for value in values]
    return list(passes(values, [len(tokens[side]) for side in sides]))


def of_side(record: Record, sides: Sequence[str], values: Mapping[str, list[Tensor]], tokens: Tokens) -> Ran:
    """One run of a block, with the side over whose positions it ran."""
    length = sum(value.shape[1] for value in next(iter(values.values())))
    side = next((each for each in sides if len(tokens[each]) == length), sides[0])
    told = [*tokens[side][1:], SPECIAL_TOKENS[EOS]] if side == TARGET else tokens[side]
    return Ran(record, side, named(told, length, len(tokens[TARGET])), values)


def block_of(recipe: Recipe, record: Record) -> str:
    """A block as the recipe writes it, and the iteration of each `repeat` around it."""
    times = "".join(f", iteration {each + 1}" for each in record.iterations)
    return source_path(recipe, record.path).removeprefix("model.") + times


def blocks_of(recipe: Recipe, group: Sequence[Ran]) -> list[str]:
    """Of each who it is."""
    return [block_of(recipe, each.record) for each in group]


# ------------------------------------------------------------------------------------------- slots with heads

SLOTS = (
    "Slots stand below each other, and time runs from left to right, first over what the encoder reads, then over what "
    "the decoder writes. The more a cell stands out, the more a head attends to that slot at that moment."
)


def slots(recipe: Recipe, group: Sequence[Ran], tokens: Tokens) -> Memory:
    """Where the heads of a memory of slots write and read."""
    weights = [(each, {name: each.whole(name) for name in (WRITES, READS)}) for each in group]  # (T, H, N)
    highest = np.max([values.max((0, 1)) for _, by_name in weights for values in by_name.values()], 0)  # (N,)
    drawn = arc(highest > LEAST)
    rows = [f"slot {at}" for at in drawn]
    panels = [
        [
            Panel(f"{each.part}: {kind} head {head + 1}", rows, each.columns, by_name[name][:, head, drawn].T)
            for each, by_name in weights
        ]
        for name, kind in ((WRITES, "write"), (READS, "read"))
        for head in range(weights[0][1][name].shape[1])
    ]
    return Memory(blocks_of(recipe, group), SLOTS, drawn_of(drawn, len(highest), "slots"), panels)


def arc(used: np.ndarray) -> list[int]:
    """The shortest stretch of a circle in which all that is used lies; the whole circle where nothing is. (N,)"""
    places = np.flatnonzero(used)
    if len(places) == 0:
        return list(range(len(used)))
    gaps = np.diff(np.append(places, places[0] + len(used)))
    last = len(gaps) - 1 - int(gaps[::-1].argmax())
    first = int(places[(last + 1) % len(places)])
    return [(first + at) % len(used) for at in range(len(used) - int(gaps[last]) + 1)]


def drawn_of(drawn: Sequence[int], count: int, what: str) -> str:
    """Which of all slots or cells are drawn, past the last one the first again; "" where all are."""
    if len(drawn) == count:
        return ""
    parts = [(drawn[0], drawn[-1])] if drawn[0] <= drawn[-1] else [(drawn[0], count - 1), (0, drawn[-1])]
    told = " and ".join(f"{first} to {last}" if first < last else str(first) for first, last in parts)
    return f"Drawn: {what} {told}, of {count} counted from 0; nowhere else is a weight above {LEAST}."


# ------------------------------------------------------------------------------------------- cells that are pushed

CELLS = (
    "A row is a cell, named after the moment at which it was pushed, the latest ones lowest (of a deque, what was "
    "pushed at the bottom stands above what was there), and time runs from left to right. The more a cell stands out, "
    "the more of it is left in the memory, or read."
)
KINDS = {STRENGTHS: "strength", READS: "read", BOTTOM: "read at the bottom"}


def cells(recipe: Recipe, group: Sequence[Ran], tokens: Tokens) -> Memory:
    """How strong the cells of a stack, a queue or a deque are, and how much of each is read."""
    lines: dict[str, list[Panel]] = {name: [] for name in KINDS if name in group[0].values}
    before: list[str] = []
    notes = []
    for each in group:
        whole = {name: grown(each.values[name], BOTTOM in each.values) for name in lines}  # (T, n)
        before = names_of_cells(each, whole[STRENGTHS].shape[1], before)
        seen = np.flatnonzero(np.max([values.max(0) for values in whole.values()], 0) > LEAST)
        drawn = range(seen[0], seen[-1] + 1) if len(seen) else range(len(before))
        notes.append(drawn_of(drawn, len(before), f"the {each.part}'s cells"))
        for name, values in whole.items():
            rows = [before[at] for at in drawn]
            lines[name].append(Panel(f"{each.part}: {KINDS[name]}", rows, each.columns, values.T[drawn]))
    return Memory(blocks_of(recipe, group), CELLS, " ".join(filter(None, notes)), list(lines.values()))


def grown(values: Sequence[Tensor], at_both_ends: bool) -> np.ndarray:
    """What is said of the cells at each moment, 0 of those that come later. (1, t, n) each -> (T, N)"""
    most = max(value.shape[2] for value in values)
    missing = [most - value.shape[2] for value in values]
    room = [(few // 2, few - few // 2) if at_both_ends else (0, few) for few in missing]
    whole = torch.cat([F.pad(value[0], around) for value, around in zip(values, room, strict=True)])
    found: np.ndarray = np.nan_to_num(whole.float().cpu().numpy())
    return found


def names_of_cells(each: Ran, count: int, before: Sequence[str]) -> list[str]:
    """The moment at which each cell was pushed; numbers where that is not known. `before`: of what is continued."""
    below = each.columns[::-1] if BOTTOM in each.values else []
    for earlier in ([], before):
        if count == len(below) + len(earlier) + len(each.columns):
            return [*below, *earlier, *each.columns]
    return [str(number) for number in range(1, count + 1)]


# ------------------------------------------------------------------------------------------- discrete stacks

CONTENTS = (
    "The first row is the top of the stack, and time runs from left to right. A place with nothing in it is -1, and "
    "does not stand out; the more one does, the nearer its number is to 1."
)


def stacks(recipe: Recipe, group: Sequence[Ran], tokens: Tokens) -> Memory:
    """What lies on the first few stacks."""
    whole = [each.whole(STACKS) for each in group]  # (T, stacks, depth)
    count = whole[0].shape[1]
    full = np.flatnonzero(np.max([values.max((0, 1)) for values in whole], 0) > EMPTY + LEAST)
    rows = ["top", *(f"{at} below" for at in range(1, full[-1] + 1 if len(full) else 1))]
    panels = [
        [
            Panel(f"{each.part}: stack {which + 1}", rows, each.columns, values[:, which, : len(rows)].T, low=EMPTY)
            for each, values in zip(group, whole, strict=True)
        ]
        for which in range(min(FEW, count))
    ]
    note = f"Drawn: the first {FEW} of {count} stacks." if count > FEW else ""
    return Memory(blocks_of(recipe, group), CONTENTS, note, panels)


# ------------------------------------------------------------------------------------------- hops

LOOKED = (
    "A column is a hop, one look at the memory after another, and a number is the share of what the hop reads that "
    "comes from there (in a linear start, without the softmax, its score); what is below 0.005 is left out."
)
ASKING = "A map is a hop, one look at the memory after another; each position asks for itself."


def hops(recipe: Recipe, group: Sequence[Ran], tokens: Tokens) -> Memory:
    """What each hop reads: a table where all positions get the same answer, else a map for each hop."""
    whole = [each.whole(HOPS) for each in group]  # (T, K, N)
    names = [
        named(what_is_read(recipe, each.record.path, tokens), values.shape[2], 0)
        for each, values in zip(group, whole, strict=True)
    ]
    blocks = blocks_of(recipe, group)
    if all(bool((values == values[:1]).all()) for values in whole):
        tables = [table_of(recipe, *told, tokens) for told in zip(group, names, whole, strict=True)]
        return Memory(blocks, LOOKED, tables=tables)
    panels = [
        [Panel(f"{each.part}: hop {hop + 1}", rows, each.columns, values[:, hop].T) for hop in range(values.shape[1])]
        for each, rows, values in zip(group, names, whole, strict=True)
    ]
    return Memory(blocks, ASKING, panels=panels)


def table_of(recipe: Recipe, each: Ran, rows: list[str], values: np.ndarray, tokens: Tokens) -> Table:
    """What every hop reads of each sentence, with what was asked and answered. values: (T, K, N)"""
    shares = values[0].T  # (N, K)
    keys = {memory: key for key, memory, _, _ in encoder_stacks(recipe.model)}
    query = str(recipe.settings_at(each.record.path).get("query") or "").partition(".")[0]
    asked = tokens.get(keys.get(query, ""), [])[:-1]
    answer = " ".join(tokens[TARGET][1:])
    title = f"{' '.join(asked)} → {answer}" if asked else answer
    texts = [[f"{share:.2f}" if abs(share) >= 0.005 else "" for share in row] for row in shares.tolist()]
    return Table(title, "what is read", rows, [f"hop {hop + 1}" for hop in range(shares.shape[1])], texts, shares)


# ------------------------------------------------------------------------------------------- registers

MACHINE = (
    "A column is a step of the machine. A register's cell has its most probable integer after the step and stands out "
    "the more, the more probable that is; below stands how probable it is that the machine stops after the step."
)


def registers(recipe: Recipe, group: Sequence[Ran], tokens: Tokens) -> Memory:
    """The registers of a machine, step by step, and when it stops."""
    tables = [run_of_machine(each.whole(REGISTERS)[:STEPS], each.whole(HALTING)[:STEPS]) for each in group]
    steps = len(group[0].whole(HALTING))
    note = f"Drawn: the first {STEPS} of {steps} steps." if steps > STEPS else ""
    return Memory(blocks_of(recipe, group), MACHINE, note, tables=tables)


def run_of_machine(registers: np.ndarray, halting: np.ndarray) -> Table:
    """registers: (steps, R, M); halting: (steps,)"""
    count = registers.shape[1]
    most = [[str(value) for value in row] for row in registers.argmax(2).T.tolist()]
    stops = [f"{share:.2f}" if share >= 0.005 else "" for share in halting.tolist()]
    return Table(
        title="registers",
        corner="step",
        rows=[*(f"r{at + 1}" for at in range(count)), "stops"],
        columns=[str(at + 1) for at in range(len(halting))],
        texts=[*most, stops],
        shades=np.concatenate((registers.max(2).T, halting[None])),
    )


DRAWN: dict[str, Callable[[Recipe, Sequence[Ran], Tokens], Memory]] = {
    WRITES: slots,
    STRENGTHS: cells,
    STACKS: stacks,
    HOPS: hops,
    REGISTERS: registers,
}
"""The record by which a kind of memory is known, and how it is told."""
