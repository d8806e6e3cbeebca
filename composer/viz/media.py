"""Images and sounds as a model reads them, with attention laid over them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from blocks.conv2d import Conv2d
from blocks.core.contract import Block, Stream
from blocks.flatten import Flatten
from blocks.patches import Patches
from blocks.pool2d import Pool2d
from blocks.reverse import Reverse
from composer.data.audio import read_samples, wav_file
from composer.data.feature_files import read_file
from composer.data.features import WHITE, Reading
from composer.data.media_files import MediaError, open_file, split_part
from composer.formatting import strip_control_characters
from composer.model.encoder_decoder import Encoder
from composer.recipe.data_sections import TableColumn
from composer.viz.page import png_uri

MAX_SIDE = 512
"""Pixels of a picture's height and width, beyond which only every n-th is shown."""
MAX_SOUND = 480_000
"""Bytes of a sound that a page may hold: 15 seconds at 16 kHz."""
QUIETEST, LOUDEST = 5.0, 99.5
"""Percentiles of a spectrogram that are white and black."""
AREA, NARROWEST, WIDEST = 130.0**2, 64.0, 700.0
"""CSS pixels of a picture on the page: its area, and limits of its width."""
SECOND, SHORTEST, LONGEST, BANDS_HEIGHT = 200.0, 280.0, 960.0, 80.0
"""CSS pixels of a second of a spectrogram, limits of its width, and its height."""
MAX_TICKS = 10
HEAT, OPACITY = (255, 75, 0), 0.75
"""The colour that is laid over a picture, and how much it hides where the weight is largest."""


class Medium(NamedTuple):
    """An image or a sound as an encoder reads it.

    pixels: The image, or the spectrogram, in which time goes from left to right and the lowest band
    is at the bottom. size: Its positions, and the columns of each; 0 of a sound. is_turned: Whether
    the positions are an image's columns. rate, hop: Samples in a second of a sound, and the seconds
    from frame to frame; 0 of an image.
    """

    file: str
    pixels: np.ndarray  # (H, W) or (H, W, 3), bytes
    size: tuple[int, int]
    is_turned: bool = False
    rate: int = 0
    hop: float = 0.0

    @property
    def label(self) -> str:
        """The end of the file's path."""
        return strip_control_characters("/".join(Path(self.file).parts[-2:]))

    @property
    def shown_size(self) -> tuple[float, float]:
        """Width and height on a page, in CSS pixels."""
        height, width = self.pixels.shape[:2]
        if self.hop:
            return min(max(SECOND * self.hop * width, SHORTEST), LONGEST), BANDS_HEIGHT
        shown = min(max((AREA * width / height) ** 0.5, NARROWEST), WIDEST)
        return shown, shown * height / width

    @property
    def image(self) -> str:
        """The pixels as a data URI."""
        step = 1 if self.hop else -(-max(self.pixels.shape[:2]) // MAX_SIDE)
        return png_uri(self.pixels[::step, ::step])

    @property
    def ticks(self) -> list[tuple[str, float]]:
        """Labels of seconds, and where a spectrogram has them: a frame is centred at its time."""
        frames, frame = self.size[0], self.shown_size[0] / self.size[0]
        steps = (digit * 10.0**power for power in range(-2, 4) for digit in (1, 2, 5))
        step = next(step for step in steps if frames * self.hop <= MAX_TICKS * step)
        times = (step * number for number in range(int((frames - 1) * self.hop / step) + 1))
        return [(f"{time:.4g} s", (time / self.hop + 0.5) * frame) for time in times]

    @property
    def html(self) -> Markup:
        """It as an element of a page: the image, or what plays the sound."""
        if not self.hop:
            return Markup('<img class="medium" alt="" src="{}"/>').format(self.image)
        sound, reason = embed_sound(self.file, self.rate)
        if not sound:
            return Markup('<span class="soft">It cannot be played here: {}.</span>').format(reason)
        return Markup('<audio controls="controls" preload="metadata" src="{}"></audio>').format(
            sound
        )


def medium(file: str, settings: TableColumn, features: np.ndarray) -> Medium:
    """Return the image or sound of a file. features: bytes (T, W, C), or frames (T, F)"""
    if settings.kind == "audio":
        low, high = np.percentile(features, [QUIETEST, LOUDEST])
        levels = ((features - low) / max(high - low, 1e-6)).clip(0.0, 1.0)
        pixels = (WHITE - WHITE * levels).round().astype(np.uint8).T[::-1]  # (F, T)
        rate = settings.rate
        hop = round(settings.features.log_mel.hop * rate) / rate  # of whole samples
        return Medium(file, pixels, (len(features), 0), False, rate, hop)
    is_turned = settings.positions == "columns"
    pixels = features.swapaxes(0, 1) if is_turned else features  # (H, W, C)
    return Medium(
        file, pixels[..., 0] if pixels.shape[2] == 1 else pixels, features.shape[:2], is_turned
    )


def medium_of_source(file: str, settings: TableColumn | None, row: Any) -> Medium | None:
    """Return the encoder's input: (T, W, C) from 0 to 1, NaN is padding, or (T, F); else None."""
    if settings is None or settings.kind == "vectors":
        return None
    if settings.kind == "image":
        row = (row[:, ~row[0, :, 0].isnan()] * WHITE).round().byte()
    return medium(file, settings, row.numpy())


def embed_sound(file: str, rate: int) -> tuple[str, str]:
    """Return the sound of a file as a data URI; or "", and why it is left out."""
    name, part = split_part(file)
    try:
        with open_file(Path(name)) as opened:
            samples, *_ = read_samples(opened, rate, part)
    except (MediaError, OSError):
        return "", "its file can no longer be read"
    if 2 * len(samples) > MAX_SOUND:
        longest = MAX_SOUND / 2 / rate
        return (
            "",
            (
                f"it lasts {len(samples) / rate:.1f} s, and a page holds sounds of up to"
                f" {longest:.0f} s"
            ),
        )
    return f"data:audio/wav;base64,{base64.b64encode(wav_file(samples, rate)).decode()}", ""


def example(file: str, settings: TableColumn | None) -> str | Markup:
    """Return a source for a page: a text as it is, an image or a sound with its file's name."""
    if settings is None or settings.kind == "vectors":
        return file
    read = read_file(file, settings)
    if not isinstance(read, Reading):
        return file
    one = medium(file, settings, read.array)
    return Markup("{} {}").format(one.html, one.label)


class Cells(NamedTuple):
    """Cells of an image or a sound that the positions of a memory are, row by row.

    A row has `columns` cells. Each is `height` positions high and `width` columns wide, of what the
    encoder reads.
    """

    side: str
    rows: int
    columns: int
    height: Fraction
    width: int

    def grid(self, weights: np.ndarray) -> np.ndarray:
        """Return the weights of the cells. (..., S) -> (..., rows, columns)"""
        there = np.nan_to_num(weights[..., : self.rows * self.columns])
        return there.reshape(*weights.shape[:-1], self.rows, self.columns)


def cells_by_memory(side: str, encoder: Encoder, size: tuple[int, int]) -> dict[str, Cells]:
    """Return the places of the positions of an encoder's memories, by name, if known.

    size: Positions of the image or the sound, and columns of the image.
    """
    names = {encoder.memory: None} | {
        f"{encoder.memory}.{name}": name for name in encoder.stack.labels if name
    }
    cells = {memory: memory_cells(side, encoder, size, name) for memory, name in names.items()}
    return {memory: one for memory, one in cells.items() if one is not None}


def memory_cells(
    side: str, encoder: Encoder, size: tuple[int, int], name: str | None = None
) -> Cells | None:
    """Return the places of the output of an encoder, or of its block `name`; None if unknown.

    Blocks that keep the number of positions are taken to leave each where it is. size: as in
    `cells_by_memory`.
    """
    positions, columns = size
    stream = Stream(encoder.embedding.embedding_dim, encoder.columns > 0, columns=encoder.columns)
    flat: tuple[Cells, Stream] | None = None
    # columns of the image that one column of the stream stands for; 0 if that is not known
    step = 1
    for block, label in zip(encoder.stack.inner(), encoder.stack.labels, strict=True):
        before, stream = stream, block.out
        if any(isinstance(inner, Reverse) for inner in block.modules()):
            return None
        if before.grid and stream.grid:
            step *= column_step(block, before)
        elif before.grid and not isinstance(block, Flatten) and not stream.same_length(before):
            return None
        elif isinstance(block, Flatten):
            in_row = -(-columns // step) if columns and step else before.columns
            flat = (
                Cells(side, before.length(positions), in_row, 1 / before.length_ratio, step),
                stream,
            )
        if label is not None and label == name:
            break
    if stream.grid or not stream.length_ratio or (columns and not step):
        return None
    if flat is None:
        return Cells(side, stream.length(positions), 1, 1 / stream.length_ratio, columns)
    return flat[0] if stream.same_length(flat[1]) else None


def column_step(block: Block, before: Stream) -> int:
    """Return the columns of the grid before that one of a block stands for; 0 if unknown."""
    if isinstance(block, Patches | Conv2d | Pool2d):
        return (block.size if isinstance(block, Patches) else block.stride)[1]
    return int(block.out.columns == before.columns)


def times(cells: Cells, hop: float) -> list[str]:
    """Return the time of each row of cells of a sound, in the middle of its frames."""
    return [f"{float((row + 0.5) * cells.height - 0.5) * hop:.2f} s" for row in range(cells.rows)]


class Strip(NamedTuple):
    """The same picture for each word that is written, with one head's attention laid over it.

    `size`: width and height of what is laid over, in CSS pixels, from the picture's corner at the
    top left. `opaque`: the weight that would hide the picture. An overlay is a word, an image with
    a pixel for each cell, and it in words.
    """

    title: str
    medium: Medium
    size: tuple[float, float]
    opaque: float
    overlays: list[tuple[str, str, str]]


def picture_strips(
    words: Sequence[str], weights: np.ndarray, one: Medium, cells: Cells
) -> list[Strip]:
    """Return a strip for each head, and before several one for their mean. weights: (H, T, S)"""
    grids = cells.grid(weights)  # (H, T, rows, columns)
    # in pixels of the image
    height, width = float(cells.rows * cells.height), float(cells.columns * cells.width)
    if one.is_turned:
        grids, height, width = grids.swapaxes(2, 3), width, height
    scale = one.shown_size[0] / one.pixels.shape[1]
    heads = [(f"head {number}", head) for number, head in enumerate(grids, start=1)]
    if len(heads) > 1:
        heads.insert(0, (f"mean of {len(heads)} heads", grids.mean(0)))
    return [
        picture_strip(title, words, head, one, (scale * width, scale * height))
        for title, head in heads
    ]


def picture_strip(
    title: str, words: Sequence[str], grids: np.ndarray, one: Medium, size: tuple[float, float]
) -> Strip:
    """Return the strip of one head; its largest weight hides OPACITY. grids: (T, rows, columns)"""
    opaque = max(float(grids.max()), 1e-9) / OPACITY
    alphas = (WHITE * grids / opaque).round().astype(np.uint8)[..., None]  # (T, rows, columns, 1)
    colours = np.broadcast_to(np.array(HEAT, np.uint8), (*grids.shape, 3))
    images = map(png_uri, np.concatenate([colours, alphas], -1))
    return Strip(
        title,
        one,
        size,
        opaque,
        [*zip(words, images, map(describe_cells, words, grids), strict=True)],
    )


def describe_cells(word: str, grid: np.ndarray) -> str:
    """Return in words where a word's attention is largest. grid: (rows, columns)"""
    row, column = np.unravel_index(int(grid.argmax()), grid.shape)
    place = f"row {row + 1} of {grid.shape[0]}, column {column + 1} of {grid.shape[1]}"
    return f"{word}: most read in {place}, {grid[row, column]:.2f}"
