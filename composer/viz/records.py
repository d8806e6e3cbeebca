"""Attention maps and film strips from the records of a model's blocks, with their tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from blocks.core.contract import Path, Record
from composer.data.pairs import TARGET
from composer.data.tokenizer import Tokenizers
from composer.inference.decode import SourceIds, is_story
from composer.model.builder import encoder_stacks
from composer.model.special_tokens import EOS, SPECIAL_TOKENS
from composer.recipe.canonical_form import block_paths
from composer.recipe.recipe import Recipe, source_path
from composer.viz.media import Cells

BLANK = "·"
"""Label of a token of white space, and of a position that has room for an answer and no token."""
SELF_ATTENTION = ("self_attention", "latent_attention", "differential_attention")
"""Blocks whose weights are those of a side's own positions."""
MAX_FRAMES, MAX_CELLS = 24, 8000
"""Limits of a film strip, which keep pages small."""


def source_labels(tokenizers: Tokenizers, side: str, row: SourceIds) -> list[str]:
    """Return the labels of a source's positions: tokens and eos, sentences, or numbers from 1."""
    if isinstance(row, Tensor) and row.is_floating_point():
        return [str(position) for position in range(1, len(row) + 1)]
    ids = torch.as_tensor(row).tolist()
    if is_story(row):
        return tokenizers.decode_pieces(side, ids)
    return [*token_labels(tokenizers, side, ids), SPECIAL_TOKENS[EOS]]


def token_labels(tokenizers: Tokenizers, side: str, ids: Sequence[int]) -> list[str]:
    """Return the text of each token, a dot for white space."""
    tokens = [[token] for token in ids]
    texts = tokenizers.decode_pieces(side, tokens)
    return [text if text.strip() else BLANK for text in texts]


@dataclass(frozen=True)
class SentenceRecords:
    """What the blocks recorded for one sentence.

    `tokens` are those at the positions of every side: of a source its tokens and eos; of the target
    bos and its tokens. `cells`: Where in an image or a sound the positions of a memory are, by the
    memory's name.
    """

    recipe: Recipe
    values: Mapping[Record, Sequence[Tensor]]
    tokens: Mapping[str, Sequence[str]]
    cells: Mapping[str, Cells] = field(default_factory=dict)

    @property
    def answer(self) -> list[str]:
        """The tokens of the answer and eos, the labels of what each position predicts."""
        return [*self.tokens[TARGET][1:], SPECIAL_TOKENS[EOS]]

    def sides(self, path: Path) -> list[str]:
        """Return the sides whose tokens may be at a block's positions, any for a named stack."""
        if path[1] == "stacks":
            return [TARGET, *(side for side in self.tokens if side != TARGET)]
        return [
            str(path[2])
            if path[1] == "encoders"
            else {"encoder": "source", "decoder": TARGET}[str(path[1])]
        ]

    def side_of_length(self, path: Path, length: int) -> str:
        """Return the side of a block that has so many positions."""
        sides = self.sides(path)
        return next((side for side in sides if len(self.tokens[side]) == length), sides[0])

    def passes(self, path: Path, values: Sequence[Tensor]) -> list[list[Tensor]]:
        """Return a block's records in parts, each of one run over all positions."""
        return list(split_passes(values, [len(self.tokens[side]) for side in self.sides(path)]))

    def labels(self, side: str, length: int) -> list[str]:
        """Return the labels of the positions of a side."""
        tokens = self.answer if side == TARGET else self.tokens[side]
        return axis_labels(tokens, length, len(self.tokens[TARGET]))

    def tokens_read(self, path: Path) -> list[str]:
        """Return the tokens of the memories that a block reads, or its branches or experts."""
        settings = self.recipe.settings_at(path)
        branches = settings.get("branches")
        if isinstance(branches, Mapping):
            return list(branches)
        if "experts" in settings:
            return [str(number) for number in range(1, settings["experts"] + 1)]
        return [*chain.from_iterable(map(self.memory_tokens, self.memories_read(path)))]

    def memory_tokens(self, name: str) -> Sequence[str]:
        """Return the tokens of a memory: `encoder`, or `encoder.x` for its output named x."""
        keys = {memory: key for key, memory, _, _ in encoder_stacks(self.recipe.model)}
        return self.tokens.get(keys.get(name.partition(".")[0], ""), ())

    def memories_read(self, path: Path) -> list[str]:
        """Return the names of the memories that a block reads, `encoder` or `encoder.x`."""
        settings = self.recipe.settings_at(path)
        first = next((memory for _, memory, _, _ in encoder_stacks(self.recipe.model)), "")
        names = settings.get("from") or settings.get("keys") or first
        return list(map(str, names if isinstance(names, list) else [names]))

    def block_name(self, record: Record, with_iterations: bool = True) -> str:
        """Return the path of a block in the recipe, with the iteration of every `repeat`."""
        iterations = (
            "".join(f", iteration {number + 1}" for number in record.iterations)
            if with_iterations
            else ""
        )
        return source_path(self.recipe, record.path).removeprefix("model.") + iterations

    def block_title(self, record: Record) -> str:
        """Return a block in words, `decoder layer 1, cross-attention`, with its path if needed."""
        layers = ".".join(str(number + 1) for number in record.iterations)
        part, block = part_and_word(record.path)
        title = f"{part}{f' layer {layers}' if layers else ''}, {block}"
        is_unique = (
            len({path for path, _, _ in self.values if part_and_word(path) == (part, block)}) == 1
        )
        return (
            title
            if is_unique
            else f"{title}, {source_path(self.recipe, record.path).removeprefix('model.')}"
        )


def part_and_word(path: Path) -> tuple[str, str]:
    """Return the part and the block of a path in words: `encoder left`, `self-attention`."""
    names = {"encoders": f"encoder {path[2]}", "stacks": f"stack {path[2]}"}
    return names.get(str(path[1]), str(path[1])), str(path[-1]).replace("_", "-")


def axis_labels(tokens: Sequence[str], length: int, answer: int = 0) -> list[str]:
    """Return labels for so many positions.

    These are the tokens, followed by blanks where there is room for an answer of `answer`
    positions, or numbers where a block has made more or fewer positions than there are tokens.
    """
    if len(tokens) < length == answer:
        return [*tokens, *[BLANK] * (length - len(tokens))]
    return (
        list(tokens) if len(tokens) == length else [str(number) for number in range(1, length + 1)]
    )


def split_passes(values: Sequence[Tensor], lengths: Sequence[int]) -> Iterator[list[Tensor]]:
    """Yield recorded values in parts of a side's length, since a named stack may run twice."""
    part: list[Tensor] = []
    for value in values:
        if part and sum(piece.shape[1] for piece in part) in lengths:
            yield part
            part = []
        part.append(value)
    yield part


@dataclass(frozen=True)
class Attention:
    """Attention weights of one block and run; `word` is the block's type, `side` its place.

    In the decoder, a row is labelled with the token that is predicted there. `cells`: Where in an
    image or a sound the columns are, None if that is not known.
    """

    block: str
    word: str
    side: str
    rows: list[str]  # T
    columns: list[str]  # S
    weights: np.ndarray  # (H, T, S)
    cells: Cells | None = None


def attentions(sentence: SentenceRecords) -> Iterator[Attention]:
    """Yield the weights of every attention, in the order in which they ran."""
    answer = len(sentence.tokens[TARGET])
    for record, values in sentence.values.items():
        # of a `parallel` or a mixture: one head, no memory
        if record.name in ("branches", "experts"):
            recorded = [value[:, :, None] for value in values if value.dim() == 3]
        else:
            recorded = [value for value in values if value.dim() == 4]
            recorded = recorded if record.name == "weights" else []
        parts = sentence.passes(record.path, recorded) if recorded else []
        for number, part in enumerate(parts, start=1):
            title = sentence.block_title(record) + (f", run {number}" if len(parts) > 1 else "")
            word, side = (
                str(record.path[-1]),
                sentence.side_of_length(record.path, sum(v.shape[1] for v in part)),
            )
            is_self = word in SELF_ATTENTION
            joined = (
                join_self_attention(part) if is_self else join_cross_attention(part)
            )  # (T, H, S)
            weights = joined.transpose(0, 1).float().cpu().numpy()  # (H, T, S)
            read = sentence.tokens[side] if is_self else sentence.tokens_read(record.path)
            rows, columns = (
                sentence.labels(side, weights.shape[1]),
                axis_labels(read, weights.shape[2], answer),
            )
            memories = (
                [] if is_self or record.name == "branches" else sentence.memories_read(record.path)
            )
            cells = sentence.cells.get(memories[0]) if len(memories) == 1 else None
            yield Attention(title, word, side, rows, columns, weights, cells)


def join_cross_attention(values: Sequence[Tensor]) -> Tensor:
    """Return weights of consecutive positions over one memory. (1, t, H, S) each -> (T, H, S)"""
    widest = max(value.shape[3] for value in values)
    return torch.cat([F.pad(value[0], (0, widest - value.shape[3])) for value in values])


def join_self_attention(values: Sequence[Tensor]) -> Tensor:
    """Return weights of consecutive positions over one another. (1, t, H, N) each -> (T, H, T)

    The last of the N slots is the value's own last position; slots before the first position are a
    window's padding.
    """
    rows, after = [], 0
    length = sum(value.shape[1] for value in values)
    for value in values:
        after += value.shape[1]
        padding = value.shape[3] - after
        seen = value[0, :, :, max(padding, 0) :]  # (t, H, after)
        rows.append(F.pad(seen, (max(-padding, 0), length - after)))
    return torch.cat(rows)


@dataclass(frozen=True)
class Film:
    """Film strip of a grid: an encoder's after each step, or a decoder's memory at each token.

    `block` is what made the last frame; `frames` has a label for each frame shown, of `total`;
    `read` and, where an answer is read off the positions, `output` are the tokens above and below.
    """

    block: str
    side: str
    frames: list[str]  # F
    total: int
    read: list[str]  # N
    output: list[str]  # N, or none
    images: np.ndarray  # (F, N, W, D)


class Frame(NamedTuple):
    """Grid that a block of an encoder left: an image (N, W, D), the run's number and the part."""

    record: Record
    image: Tensor
    turn: int
    part: Path

    @property
    def step(self) -> tuple[Any, ...]:
        """Key of all blocks of one iteration; the last image with it is the iteration's result."""
        depth = len(part_of(self.record))
        return self.turn, self.record.iterations, self.record.path[: depth + 2]

    @property
    def label(self) -> str:
        """The number of the iteration in each `repeat`, from 1; else the type of the block."""
        number = ".".join(str(iteration + 1) for iteration in self.record.iterations)
        return f"step {number}" if number else str(self.record.path[-1])


def films(sentence: SentenceRecords) -> Iterator[Film]:
    """Yield the film strips of a sentence: one for each grid and each memory of a decoder."""
    steps = [
        last
        for _, (*_, last) in groupby(encoder_frames(sentence.values), key=lambda frame: frame.step)
    ]
    for (part, _), frames in groupby(steps, key=lambda frame: (frame.part, frame.image.shape)):
        strip = list(frames)
        # as the block makes it, and nothing changes it
        if len(strip) == 1 and strip[0].record.path[-1] == "grid":
            continue
        side = next((side for side in sentence.sides(part) if side != TARGET), TARGET)
        images, labels = (
            torch.stack([frame.image for frame in strip]),
            [frame.label for frame in strip],
        )
        strip_film = film(sentence, strip[-1].record, side, images, labels, sentence.tokens[side])
        length = len(strip_film.read)
        words = (path[-1] for path in block_paths(sentence.recipe.canonical["model"]["decoder"]))
        # token t is read at position t
        in_place = "source_state" in words and len(sentence.answer) <= length
        yield replace(
            strip_film, output=axis_labels(sentence.answer, length, length) if in_place else []
        )
    for record, values in sentence.values.items():
        if record.name == "image" and values[0].dim() == 5:
            before = sentence.values[record._replace(name="before")][0]
            images = torch.cat([value[0] for value in (before, *values)])  # (1 + T, N, W, D)
            labels = ["at first", *axis_labels(sentence.answer, len(images) - 1)]
            yield film(sentence, record, TARGET, images, labels, sentence.tokens_read(record.path))


def film(
    sentence: SentenceRecords,
    record: Record,
    side: str,
    images: Tensor,
    labels: Sequence[str],
    read: Sequence[str],
) -> Film:
    """Return a film strip with evenly spaced frames of all images. images: (frames, N, W, D)"""
    total, length, columns, _ = images.shape
    shown = frame_numbers(total, length * columns)
    block, frames = sentence.block_name(record, with_iterations=False), [labels[at] for at in shown]
    read = axis_labels(read, length, len(sentence.tokens[TARGET]))
    return Film(block, side, frames, total, read, [], images[shown].float().cpu().numpy())


def encoder_frames(records: Mapping[Record, Sequence[Tensor]]) -> Iterator[Frame]:
    """Yield the grids of the encoders in the order in which they were made.

    A named stack may run several times, and belongs to the encoder that ran before it.
    """
    part: Path = ()
    for turn in range(max(map(len, records.values()), default=0)):
        for record, values in records.items():
            part = part_of(record) if record.path[1] != "stacks" else part or part_of(record)
            if (
                turn < len(values)
                and record.name == "image"
                and values[turn].dim() == 4
                and part[1] != "decoder"
            ):
                yield Frame(record, values[turn][0], turn, part)


def part_of(record: Record) -> Path:
    """Return the path of the encoder, or of the decoder, of a block."""
    return record.path[:3] if record.path[1] == "encoders" else record.path[:2]


def frame_numbers(count: int, cells: int) -> list[int]:
    """Return the numbers of the frames to show: evenly spaced, with the first and the last."""
    limit = min(count, max(2, min(MAX_FRAMES, MAX_CELLS // cells)))
    return [round(at * (count - 1) / max(1, limit - 1)) for at in range(limit)]
