"""Heat maps and film strips as SVG: axes, images with one pixel a cell, sounds above them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len

from composer.formatting import count_noun
from composer.viz.media import BANDS_HEIGHT, Cells, Medium, times
from composer.viz.memory import Panel
from composer.viz.page import png_uri, sharp_png_uri
from composer.viz.records import Attention, Film

CELL, FONT_HEIGHT = 14, 11
"""SVG units of a cell's width, and of a line of text."""
BANDS_GAP = 6
"""SVG units between a spectrogram and the map below it."""
MAX_LABEL = 14
"""Characters of an axis label, after which it is cut."""
WIDTH = 6.7
"""SVG units of a cell of a label's font, in which all letters have one width; Chinese ones have two
cells.
"""
SLANT, SIN, COS = 60, 0.87, 0.5
"""Degrees by which the labels of columns are turned; their sine and cosine."""
MAX_HEIGHT, MIN_ROW = 420, 3.0
"""SVG units of a memory's map, and of a row in it, which wins."""


class Axes(NamedTuple):
    """Labels of the rows and columns of a heat map, drawn once for all maps that have them.

    Where there are ticks, labels below the map, those of the columns are hidden.
    """

    id: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_height: float = CELL
    column_width: float = CELL
    ticks: tuple[tuple[str, float], ...] = ()

    @property
    def row_labels(self) -> list[tuple[str, float, bool]]:
        """Label of each row, its y, and whether it is hidden because rows are lower than text."""
        step, middle = math.ceil(FONT_HEIGHT / self.row_height), self.row_height / 2 + 3
        labels = enumerate(map(shorten, self.rows))
        return [(label, self.row_height * at + middle, bool(at % step)) for at, label in labels]

    @property
    def column_labels(self) -> list[tuple[str, str]]:
        """Label of each column, and its SVG transform."""
        return turned_labels(self.columns)

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the map."""
        return self.column_width * len(self.columns), self.row_height * len(self.rows)


AxesByLabels = dict[tuple[tuple[str, ...], tuple[str, ...]], Axes]


class HeatMap(NamedTuple):
    """Heat map as an SVG: a grey level for each cell, with references to its axes and sound.

    white, black: The weights that are drawn so.
    """

    title: str
    description: str
    axes: Axes
    levels: np.ndarray  # (rows, columns), bytes
    top: float
    white: float = 0.0
    black: float = 1.0
    sound: str = ""

    @property
    def image(self) -> str:
        """The cells as a data URI, one pixel each."""
        return png_uri(self.levels)

    @property
    def sharp_image(self) -> str:
        """The cells as a data URI, with many pixels each."""
        return sharp_png_uri(self.levels)

    @property
    def box(self) -> tuple[float, float, float, float]:
        """The viewBox: left, top, width and height."""
        width, height = self.axes.size
        left = max(map(label_width, self.axes.rows)) + 6
        last = "" if self.axes.ticks else self.axes.columns[-1]
        right, below = (
            max(0.0, COS * label_width(last) - CELL / 2) + 4,
            18 if self.axes.ticks else 2,
        )
        return -left, -self.top, left + width + right, self.top + height + below


def shared_axes(axes: AxesByLabels, prefix: str, labelled: Attention | Panel, *size: Any) -> Axes:
    """Return the axes of a map, those of an earlier map with the same labels if there is one."""
    labels = tuple(labelled.rows), tuple(labelled.columns)
    return axes.setdefault(labels, Axes(f"{prefix}-{len(axes)}", *labels, *size))


def attention_maps(attention: Attention, axes: Axes) -> list[HeatMap]:
    """Return a map for each head of an attention."""
    top = label_height(attention.columns)
    maps = []
    for head, weights in enumerate(attention.weights, start=1):
        best = zip(attention.rows, weights.argmax(1).tolist(), strict=True)
        most_read = "; ".join(f"{row}: {attention.columns[column]}" for row, column in best)
        description = f"{attention.block}, head {head}. Most read: {most_read}"
        maps.append(HeatMap(f"head {head}", description, axes, grey_levels(weights), top))
    return maps


def sound_maps(
    attention: Attention,
    cells: Cells,
    sound: Medium,
    sound_id: str,
    axes: AxesByLabels,
    prefix: str,
) -> list[HeatMap]:
    """Return a map for each head of an attention over a sound, below its spectrogram.

    The largest weight is black: spread over many frames, all are small.
    """
    weights = cells.grid(attention.weights).sum(-1)  # (H, T, times)
    black = max(float(weights.max()), 1e-9)
    timed = replace(attention, columns=times(cells, sound.hop), weights=weights / black)
    column_width = float(cells.height) * sound.shown_size[0] / sound.size[0]
    own = shared_axes(axes, prefix, timed, CELL, column_width, tuple(sound.ticks))
    top = BANDS_HEIGHT + BANDS_GAP
    return [
        one._replace(top=top, black=black, sound=sound_id) for one in attention_maps(timed, own)
    ]


def panel_maps(panels: Sequence[Panel], axes: AxesByLabels, prefix: str) -> list[HeatMap]:
    """Return a line of maps of a memory; its rows are so high that it fits on a screen."""
    top = max(label_height(panel.columns) for panel in panels)  # the first rows of a line are level
    maps = []
    for panel in panels:
        row_height = float(min(CELL, max(MIN_ROW, MAX_HEIGHT // len(panel.rows))))
        own = shared_axes(axes, prefix, panel, row_height)
        levels = grey_levels((panel.values - panel.low) / (1.0 - panel.low))
        maps.append(HeatMap(panel.title, describe_panel(panel), own, levels, top, panel.low))
    return maps


def describe_panel(panel: Panel) -> str:
    """Return a memory's map in words, for those who cannot see it."""
    best = zip(panel.columns, panel.values.argmax(0).tolist(), strict=True)
    return (
        f"{panel.title}. Largest at each moment:"
        f" {'; '.join(f'{token}: {panel.rows[row]}' for token, row in best)}"
    )


def grey_levels(weights: np.ndarray) -> np.ndarray:
    """Return weights from 0 to 1 as grey levels, 0 and NaN as white."""
    levels: np.ndarray = np.nan_to_num(weights * 255.0).round().clip(0, 255).astype(np.uint8)
    return 255 - levels


def turned_labels(
    labels: Sequence[str], x: int = CELL - 3, y: int = -4, angle: int = -SLANT
) -> list[tuple[str, str]]:
    """Return the labels of columns, by default those above, each with its SVG transform."""
    return [
        (shorten(label), f"translate({CELL * at + x} {y})rotate({angle})")
        for at, label in enumerate(labels)
    ]


def label_height(labels: Sequence[str]) -> float:
    """Return the height of column labels above a map."""
    return SIN * max(map(label_width, labels)) + 8


def label_width(label: str) -> float:
    """Return the width of a label, in SVG units."""
    return WIDTH * cell_len(shorten(label))


def shorten(label: str) -> str:
    """Return the beginning of a long label."""
    return label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"


FRAME_CELL, FRAME_GAP = 8, 5
"""SVG units of a cell's height in a frame, and between frames; its width is CELL, so that tokens
fit above it.
"""
AXIS_COLORS = np.array([[0.25, 0.25, 0.25], [0.24, -0.24, 0.0], [0.11, 0.11, -0.27]])
"""What each principal component adds to red, green and blue: lightness, red-green, yellow-blue."""
COLOR_RANGE, MIN_RANGE = 2.0, 0.25
"""Standard deviations to each side of a colour's range; the least range of a component, as a share
of the first's.
"""


class FilmStrip(NamedTuple):
    """Film strip as an SVG: its viewBox, and the label, y and colours (H, W, 3) of each frame."""

    caption: str
    description: str
    box: tuple[float, float, float, float]
    size: tuple[int, int]
    frames: list[tuple[str, int, np.ndarray]]
    above: list[tuple[str, str]]
    below: list[tuple[str, str]]


def film_strip(film: Film) -> FilmStrip:
    """Return the picture of a film, with the tokens above and below it."""
    _, positions, columns, _ = film.images.shape
    width, height = CELL * positions, FRAME_CELL * columns
    left, top = max(map(label_width, film.frames)) + 8, label_height(film.read)
    last = max(map(label_width, [film.read[-1], *film.output[-1:]]))
    right = max(COS * last - CELL / 2, 0.0) + 4
    below = SIN * max(map(label_width, film.output), default=0.0) + 10
    tops = [at * (height + FRAME_GAP) for at in range(len(film.frames))]
    bottom = tops[-1] + height
    return FilmStrip(
        caption=f"{film.block}: {count_frames(film)}",
        description=describe_film(film),
        box=(-left, -top, left + width + right, top + bottom + below),
        size=(width, height),
        frames=list(zip(map(shorten, film.frames), tops, vector_colors(film.images), strict=True)),
        above=turned_labels(film.read),
        below=turned_labels(film.output, 4, bottom + 10, SLANT),
    )


def count_frames(film: Film) -> str:
    """Return the number of frames in words."""
    if len(film.frames) < film.total:
        return f"{len(film.frames)} of {film.total:,} frames, evenly spaced"
    return count_noun(film.total, "frame")


def describe_film(film: Film) -> str:
    """Return a film in words, for those who cannot see it."""
    _, positions, columns, _ = film.images.shape
    parts = [f"{film.block}: {count_frames(film)}; {positions} positions by {columns} columns."]
    parts += [f"Read: {' '.join(film.read)}."] if film.read else []
    parts += [f"Written: {' '.join(film.output)}."] if film.output else []
    return " ".join(parts)


def vector_colors(images: np.ndarray) -> np.ndarray:
    """Return a colour for every vector, equal for equal vectors. (F, N, W, D) -> (F, W, N, 3)

    Its first three principal components, each by its own spread.
    """
    cells = np.nan_to_num(images.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    cells = cells.reshape(-1, images.shape[-1])  # (C, D)
    # smaller differences are rounding, and have no colour
    least = float(np.abs(cells).max()) * 1e-4
    cells = cells - cells.mean(0)
    axes = np.linalg.eigh(cells.T @ cells)[1][:, :-4:-1]  # (D, 3), or fewer where D is
    strongest = axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])]
    scores = cells @ (axes * np.sign(strongest))  # an eigenvector's sign is arbitrary
    spread = COLOR_RANGE * scores.std(0)
    spread = np.maximum(spread, max(MIN_RANGE * spread[0], least))
    scaled = np.divide(scores, spread, out=np.zeros_like(scores), where=spread > 0).clip(-1, 1)
    components = np.pad(scaled, ((0, 0), (0, 3 - scaled.shape[1])))  # (C, 3)
    pixels: np.ndarray = (
        (255 * (0.5 + components @ AXIS_COLORS)).round().clip(0, 255).astype(np.uint8)
    )
    return pixels.reshape(*images.shape[:3], 3).swapaxes(1, 2)
