"""Memory use of a run: read and write weights, contents of stacks, hops, registers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import Record
from composer.data.pairs import TARGET
from composer.viz.records import SentenceRecords, axis_labels

READS, BOTTOM, WRITES = "read_weights", "read_weights_bottom", "write_weights"
STRENGTHS, STACKS, HOPS, REGISTERS, HALTING = "strengths", "stacks", "hops", "registers", "halting"
"""Names under which memories record their values."""
NEGLIGIBLE = 0.02
"""Largest weight that is not worth a cell; rows at the edge that never exceed it are left out."""
MAX_STACKS, MAX_STEPS = 4, 40
"""Stacks, and steps of a machine, that are shown."""
EMPTY = -1.0
"""Value of an empty cell of a discrete stack."""
SHADES = 10
"""Levels of a shaded table cell; `style.css` has a class for each."""


@dataclass(frozen=True)
class Panel:
    """Heat map over time: a value for each row and position, white at `low`, full at 1."""

    title: str
    rows: list[str]  # R
    columns: list[str]  # T
    values: np.ndarray  # (R, T)
    low: float = 0.0


@dataclass(frozen=True)
class Table:
    """Table of texts, shaded by numbers from 0 to 1; `corner` is the head of its first column."""

    title: str
    corner: str
    rows: list[str]  # R
    columns: list[str]  # C
    texts: list[list[str]]  # R of C
    shades: np.ndarray  # (R, C)

    @property
    def shaded_rows(self) -> list[tuple[str, list[tuple[str, int]]]]:
        """Label of each row, and its texts with the levels of their shades, 0 to SHADES."""
        levels = (SHADES * self.shades.clip(0.0, 1.0)).round().astype(int).tolist()
        rows = zip(self.rows, self.texts, levels, strict=True)
        return [(label, list(zip(texts, shades, strict=True))) for label, texts, shades in rows]


@dataclass(frozen=True)
class Memory:
    """Panels and tables of one block, or of equal blocks of the encoder and the decoder.

    `kind` is the key of their explanation in `report.html`; `note` says what is left out.
    """

    blocks: list[str]
    kind: str
    note: str = ""
    panels: Sequence[Sequence[Panel]] = ()
    tables: Sequence[Table] = ()


class Recording(NamedTuple):
    """Values that one block recorded over all positions of a side, by name, (1, t, ...) each.

    `columns` are the labels of the positions; in a decoder, the token that is predicted there.
    """

    sentence: SentenceRecords
    record: Record
    side: str
    columns: list[str]
    values: Mapping[str, list[Tensor]]

    @property
    def block(self) -> str:
        return self.sentence.block_name(self.record)

    @property
    def part(self) -> str:
        """The part of the model."""
        return {TARGET: "decoder", "source": "encoder"}.get(self.side, f"encoder {self.side}")

    def joined(self, name: str) -> np.ndarray:
        """Return the values of a name at all positions, (T, ...), with 0 for NaN."""
        return as_array(torch.cat([value[0] for value in self.values[name]]))

    def panel(self, title: str, rows: list[str], values: np.ndarray, low: float = 0.0) -> Panel:
        """Return a panel with a value for each row and position. values: (R, T)"""
        return Panel(f"{self.part}: {title}", rows, self.columns, values, low)


def memories(sentence: SentenceRecords) -> list[Memory]:
    """Return the memories of one sentence, in the order in which they were first used."""
    groups: dict[tuple[object, ...], list[Recording]] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for recording in recordings(sentence):
        name = next(name for name in BY_RECORD if name in recording.values)
        # cells grow in number; all else has one shape on both sides, or has maps of its own
        shapes = (
            ()
            if name == STRENGTHS
            else tuple(values[0].shape[2:] for values in recording.values.values())
        )
        kind = (name, recording.record.path[-1], shapes)
        # the n-th memory of a kind in the encoder is shown beside the n-th of this kind in the
        # decoder
        counts[kind, recording.side] += 1
        groups.setdefault((*kind, counts[kind, recording.side]), []).append(recording)
    return [BY_RECORD[str(kind[0])](group) for kind, group in groups.items()]


def recordings(sentence: SentenceRecords) -> Iterator[Recording]:
    """Yield what every memory recorded, once for each time that a named stack ran."""
    blocks: dict[Record, dict[str, Sequence[Tensor]]] = {}
    for record, values in sentence.values.items():
        blocks.setdefault(record._replace(name=""), {})[record.name] = values
    for record, by_name in blocks.items():
        if not by_name.keys() & BY_RECORD.keys():
            continue
        # a machine has steps instead of positions
        runs = {
            name: (
                sentence.passes(record.path, values)
                if name not in (REGISTERS, HALTING)
                else [[v] for v in values]
            )
            for name, values in by_name.items()
        }
        for turn in range(min(map(len, runs.values()))):
            recorded = {name: run[turn] for name, run in runs.items()}
            length = sum(value.shape[1] for value in next(iter(recorded.values())))
            side = sentence.side_of_length(record.path, length)
            yield Recording(sentence, record, side, sentence.labels(side, length), recorded)


def as_array(values: Tensor) -> np.ndarray:
    """Return values with 0 for NaN."""
    return np.nan_to_num(values.float().cpu().numpy())


def slots(group: Sequence[Recording]) -> Memory:
    """Return the write and read weights of a memory with slots (NTM)."""
    weights = {
        name: [recording.joined(name) for recording in group] for name in (WRITES, READS)
    }  # (T, H, N) each
    highest = np.max([values.max((0, 1)) for values in chain(*weights.values())], 0)  # (N,)
    shown = shortest_arc(highest > NEGLIGIBLE)
    rows = [f"slot {number}" for number in shown]
    panels = []
    for name, kind in ((WRITES, "write"), (READS, "read")):
        for head in range(weights[name][0].shape[1]):
            title, of_group = f"{kind} head {head + 1}", zip(group, weights[name], strict=True)
            panels.append(
                [
                    recording.panel(title, rows, values[:, head, shown].T)
                    for recording, values in of_group
                ]
            )
    note = note_on_range(shown, len(highest), "slots")
    return Memory([recording.block for recording in group], "slots", note, panels)


def shortest_arc(used: np.ndarray) -> list[int]:
    """Return the shortest range of a circle with all that is used, or the whole. used: (N,)"""
    numbers = np.flatnonzero(used)
    if len(numbers) == 0:
        return list(range(len(used)))
    gaps = np.diff(np.append(numbers, numbers[0] + len(used)))
    last = len(gaps) - 1 - int(gaps[::-1].argmax())
    first = int(numbers[(last + 1) % len(numbers)])
    return [(first + offset) % len(used) for offset in range(len(used) - int(gaps[last]) + 1)]


def note_on_range(shown: Sequence[int], count: int, what: str) -> str:
    """Return a note on which slots or cells of a circle are shown; "" if all are."""
    if len(shown) == count:
        return ""
    parts = (
        [(shown[0], shown[-1])]
        if shown[0] <= shown[-1]
        else [(shown[0], count - 1), (0, shown[-1])]
    )
    ranges = " and ".join(
        f"{first} to {last}" if first < last else str(first) for first, last in parts
    )
    return (
        f"Shown: {what} {ranges}, of {count} counted from 0; all weights elsewhere are below"
        f" {NEGLIGIBLE}."
    )


STRENGTH_KINDS = {STRENGTHS: "strength", READS: "read", BOTTOM: "read at the bottom"}


def cells(group: Sequence[Recording]) -> Memory:
    """Return the strengths and the read weights of the cells of a neural stack, queue or deque."""
    lines: dict[str, list[Panel]] = {name: [] for name in STRENGTH_KINDS if name in group[0].values}
    labels: list[str] = []
    notes = []
    for recording in group:
        values = {
            name: pad_cells(recording.values[name], BOTTOM in recording.values) for name in lines
        }  # (T, n)
        labels = cell_labels(recording, values[STRENGTHS].shape[1], labels)
        used = np.flatnonzero(np.max([value.max(0) for value in values.values()], 0) > NEGLIGIBLE)
        shown = range(used[0], used[-1] + 1) if len(used) else range(len(labels))
        notes.append(note_on_range(shown, len(labels), f"the {recording.part}'s cells"))
        rows = labels[shown.start : shown.stop]
        for name, value in values.items():
            lines[name].append(recording.panel(STRENGTH_KINDS[name], rows, value.T[shown]))
    note, panels = " ".join(filter(None, notes)), list(lines.values())
    return Memory([recording.block for recording in group], "cells", note, panels)


def pad_cells(values: Sequence[Tensor], at_both_ends: bool) -> np.ndarray:
    """Return cell values at each moment, 0 before the cell is pushed. (1, t, n) each -> (T, N)"""
    most = max(value.shape[2] for value in values)
    missing = [most - value.shape[2] for value in values]
    padding = [
        (count // 2, count - count // 2) if at_both_ends else (0, count) for count in missing
    ]
    return as_array(
        torch.cat([F.pad(value[0], ends) for value, ends in zip(values, padding, strict=True)])
    )


def cell_labels(recording: Recording, count: int, continued: Sequence[str]) -> list[str]:
    """Return the moment of each cell's push. continued: labels of the memory it starts from."""
    below = recording.columns[::-1] if BOTTOM in recording.values else []
    for earlier in ([], continued):
        if count == len(below) + len(earlier) + len(recording.columns):
            return [*below, *earlier, *recording.columns]
    return [str(number) for number in range(1, count + 1)]


def stacks(group: Sequence[Recording]) -> Memory:
    """Return the contents of the first few discrete stacks."""
    contents = [recording.joined(STACKS) for recording in group]  # (T, stacks, depth)
    count = contents[0].shape[1]
    full = np.flatnonzero(
        np.max([values.max((0, 1)) for values in contents], 0) > EMPTY + NEGLIGIBLE
    )
    rows = ["top", *(f"{depth} below" for depth in range(1, full[-1] + 1 if len(full) else 1))]
    panels = []
    for which in range(min(MAX_STACKS, count)):
        tops = [values[:, which, : len(rows)].T for values in contents]
        panels.append(
            [
                rec.panel(f"stack {which + 1}", rows, top, EMPTY)
                for rec, top in zip(group, tops, strict=True)
            ]
        )
    note = f"Shown: the first {MAX_STACKS} of {count} stacks." if count > MAX_STACKS else ""
    return Memory([recording.block for recording in group], "stacks", note, panels)


def hops(group: Sequence[Recording]) -> Memory:
    """Return the weights of each hop: a table if all positions have one query, else maps."""
    blocks = [recording.block for recording in group]
    weights = [(recording, recording.joined(HOPS)) for recording in group]  # (T, K, N)
    if all(bool((values == values[:1]).all()) for _, values in weights):
        return Memory(
            blocks,
            "hop_table",
            tables=[hop_table(recording, values[0].T) for recording, values in weights],
        )
    panels = []
    for recording, values in weights:
        rows = axis_labels(recording.sentence.tokens_read(recording.record.path), values.shape[2])
        panels.append(
            [recording.panel(f"hop {k + 1}", rows, values[:, k].T) for k in range(values.shape[1])]
        )
    return Memory(blocks, "hop_maps", panels=panels)


def hop_table(recording: Recording, weights: np.ndarray) -> Table:
    """Return the weights of each hop on each row, with question and answer. weights: (N, K)"""
    sentence, path = recording.sentence, recording.record.path
    question = sentence.memory_tokens(str(sentence.recipe.settings_at(path).get("query") or ""))[
        :-1
    ]
    title = " → ".join(
        " ".join(words) for words in (question, sentence.tokens[TARGET][1:]) if words
    )
    rows = axis_labels(sentence.tokens_read(path), len(weights))
    columns = [f"hop {hop + 1}" for hop in range(weights.shape[1])]
    texts = [[*map(share, row)] for row in weights.tolist()]
    return Table(title, "memory", rows, columns, texts, weights)


def share(value: float) -> str:
    """Return a weight with two decimals; "" for one that rounds to 0."""
    return f"{value:.2f}" if abs(value) >= 0.005 else ""


def registers(group: Sequence[Recording]) -> Memory:
    """Return the registers of a neural random-access machine at each step, and when it stops."""
    first_steps = [
        [recording.joined(name)[:MAX_STEPS] for name in (REGISTERS, HALTING)] for recording in group
    ]
    tables = [register_table(*values) for values in first_steps]
    steps = len(group[0].joined(HALTING))
    note = f"Shown: the first {MAX_STEPS} of {steps} steps." if steps > MAX_STEPS else ""
    return Memory([recording.block for recording in group], "machine", note, tables=tables)


def register_table(registers: np.ndarray, halting: np.ndarray) -> Table:
    """Return a table of one run. registers: probabilities (steps, R, M); halting: (steps,)"""
    rows = [*(f"r{number + 1}" for number in range(registers.shape[1])), "stops"]
    columns = [str(step + 1) for step in range(len(halting))]
    texts = [
        *(list(map(str, row)) for row in registers.argmax(2).T.tolist()),
        list(map(share, halting.tolist())),
    ]
    return Table(
        "registers",
        "step",
        rows,
        columns,
        texts,
        np.concatenate((registers.max(2).T, halting[None])),
    )


BY_RECORD = {WRITES: slots, STRENGTHS: cells, STACKS: stacks, HOPS: hops, REGISTERS: registers}
"""The kinds of memory, by the name of a value that only they record."""
