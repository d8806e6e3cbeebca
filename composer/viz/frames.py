"""How a model's grids change on the way, frame by frame: what a film strip shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from blocks.core.contract import Path, Record
from composer.data.sources import TARGET
from composer.model.vocabulary import EOS, SPECIAL_TOKENS
from composer.recipe.recipe import Recipe, source_path
from composer.viz.axis_labels import Tokens, named, sides_of, what_is_read

IMAGE, BEFORE = "image", "before"
"""What a block calls a grid that it records, and a decoder the memory that its first token finds."""
AT_FIRST = "at first"
"""The frame of that memory."""
MAKES = "grid"
"""The block that makes a grid; where nothing changes it, there is nothing to be seen."""
FRAMES, CELLS = 24, 8000
"""Frames of a strip at most, and cells: a page stays small."""
IN_PLACE = "source_state"
"""The block with which an answer's token t is read off position t."""


@dataclass(frozen=True)
class Film:
    """The grid of an encoder as it begins and after each step, or the memory of a decoder so with each token.

    `block` is who left the last frame, `frames` what each is called, of `total` there were. At the positions stands
    what is `read` and, where an answer is read off them, what is `written`.
    """

    block: str
    side: str
    frames: list[str]  # F
    total: int
    read: list[str]  # N
    written: list[str]  # N, or none
    images: np.ndarray  # (F, N, W, D)


class Frame(NamedTuple):
    """One image of a grid, (N, W, D), who left it, for the how manieth time, and in which part of the model."""

    record: Record
    image: Tensor
    turn: int
    part: Path

    @property
    def step(self) -> tuple[Any, ...]:
        """Equal of all blocks of one iteration, or inside one block: the last image is what that leaves."""
        within = len(part_of(self.record))
        return self.turn, self.record.iterations, self.record.path[: within + 2]


def films(recipe: Recipe, records: Mapping[Record, Sequence[Tensor]], tokens: Tokens) -> list[Film]:
    """Every strip of one sentence: a strip for each encoder's grid, and one for each memory that a decoder changes."""
    steps = [last for _, (*_, last) in groupby(in_turn(records), key=lambda frame: frame.step)]
    strips = [list(same) for _, same in groupby(steps, key=lambda frame: (frame.part, frame.image.shape))]
    changing = [strip for strip in strips if len(strip) > 1 or strip[0].record.path[-1] != MAKES]
    memories = [record for record, values in records.items() if record.name == IMAGE and values[0].dim() == 5]
    return [
        *(encoder_film(recipe, strip, tokens) for strip in changing),
        *(decoder_film(recipe, record, memory(records, record), tokens) for record in memories),
    ]


def in_turn(records: Mapping[Record, Sequence[Tensor]]) -> Iterator[Frame]:
    """The grids of the encoders for the only row, in the order in which they were left: a stack with a name may run
    several times, and is part of the encoder that ran before."""
    part: Path = ()
    for turn in range(max(map(len, records.values()), default=0)):
        for record, values in records.items():
            part = part_of(record) if record.path[1] != "stacks" else part or part_of(record)
            if turn < len(values) and record.name == IMAGE and values[turn].dim() == 4 and part[1] != "decoder":
                yield Frame(record, values[turn][0], turn, part)


def memory(records: Mapping[Record, Sequence[Tensor]], record: Record) -> Tensor:
    """A memory as the first token finds it, and as it is when each is written. -> (1 + T, N, W, D)"""
    first = records[record._replace(name=BEFORE)][0]
    return torch.cat([value[0] for value in (first, *records[record])])


def part_of(record: Record) -> Path:
    """Equal of all blocks of one encoder."""
    return record.path[:3] if record.path[1] == "encoders" else record.path[:2]


def encoder_film(recipe: Recipe, strip: Sequence[Frame], tokens: Tokens) -> Film:
    """The grid of an encoder as it begins and after each step."""
    record = strip[-1].record
    side = next((each for each in sides_of(strip[-1].part, tokens) if each != TARGET), TARGET)
    length, columns, _ = strip[0].image.shape
    taken = chosen(len(strip), length * columns)
    images = torch.stack([strip[at].image for at in taken])
    written = [*tokens[TARGET][1:], SPECIAL_TOKENS[EOS]] if is_in_place(recipe.model["decoder"]) else []
    return Film(
        block=source_path(recipe, record.path).removeprefix("model."),
        side=side,
        frames=[called(strip[at].record) for at in taken],
        total=len(strip),
        read=named(tokens[side], length, len(tokens[TARGET])),
        written=named(written, length, length) if 0 < len(written) <= length else [],
        images=images.float().cpu().numpy(),
    )


def decoder_film(recipe: Recipe, record: Record, images: Tensor, tokens: Tokens) -> Film:
    """A memory before the first token, and as it is when each is written. images: (1 + T, N, W, D)"""
    rows = [AT_FIRST, *named([*tokens[TARGET][1:], SPECIAL_TOKENS[EOS]], len(images) - 1, 0)]
    length, columns = images.shape[1:3]
    taken = chosen(len(images), length * columns)
    return Film(
        block=source_path(recipe, record.path).removeprefix("model."),
        side=TARGET,
        frames=[rows[at] for at in taken],
        total=len(images),
        read=named(what_is_read(recipe, record.path, tokens), length, len(tokens[TARGET])),
        written=[],
        images=images[taken].float().cpu().numpy(),
    )


def called(record: Record) -> str:
    """A step's number, as people count, in each `repeat`; outside of one the block's word."""
    number = ".".join(str(each + 1) for each in record.iterations)
    return f"step {number}" if number else str(record.path[-1])


def chosen(count: int, size: int) -> list[int]:
    """The frames that are drawn, where each has so many cells: evenly spaced, the first and the last among them."""
    return spaced(range(count), max(2, min(FRAMES, CELLS // size)))


def spaced(items: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(at * (len(items) - 1) / (most - 1))] for at in range(most)]


def is_in_place(stack: Any) -> bool:
    """Whether a stack, or one inside it, reads the answer off the positions of an encoder."""
    if isinstance(stack, Mapping):
        return IN_PLACE in stack or any(map(is_in_place, stack.values()))
    return isinstance(stack, list) and any(map(is_in_place, stack))
