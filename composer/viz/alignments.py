"""Alignments of a run: attention heat maps, film strips and memory use for single sentences, as SVG on a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.cells import cell_len
from torch import Tensor

from blocks.core.contract import Record
from composer.data.pairs import TARGET
from composer.inference.decode import SourceIds, decode_all, evaluation_mode, source_tensor
from composer.inference.lines import encode_lines, encode_targets
from composer.inference.run import Run, oom_as_run_failed
from composer.model.encoder_decoder import BOS, SPECIAL_TOKENS, StepInputs
from composer.viz.memory import Memory, Panel, memories
from composer.viz.page import png_uri, render
from composer.viz.records import Attention, Film, SentenceRecords, attentions, films, source_labels, token_labels

MAX_TOKENS = 100
"""Tokens of a source, or of an output, beyond which a picture cannot be read."""


@dataclass(frozen=True)
class Alignment:
    """One sentence: source texts, the output, and what the model did; `note` says why pictures are missing or cut.

    A notebook shows its pictures.
    """

    texts: Mapping[str, str]
    output: str
    attentions: Sequence[Attention]
    note: str = ""
    films: Sequence[Film] = ()
    memories: Sequence[Memory] = ()

    def _repr_html_(self) -> str:
        # a frame keeps the page's style away from the notebook
        height = min(640, 120 + sum(90 + 18 * len(attention.rows) for attention in self.attentions))
        return render("frame.html", page=alignment_page(self), height=height, title=self.output)


def alignments(
    run: Run,
    lines: Sequence[str],
    origin: str = "",
    targets: Sequence[str] | None = None,
    max_tokens: int = MAX_TOKENS,
) -> list[Alignment]:
    """Return the attention weights with which a run decodes each line, or the target that is given for it.

    A model without encoders reads the line instead. A line for several encoders has their texts separated by tabs.
    Raises DataError if it has another number of texts, where `origin` is the file that the error names, and RunFailed
    if a device runs out of memory.
    """
    texts, ids = encode_lines(run.recipe, run.tokenizers, dict(enumerate(lines, start=1)), origin)
    with oom_as_run_failed(ids):
        outputs: Sequence[Any]
        if ids and targets is None:
            to_texts = partial(run.tokenizers.decode, TARGET)
            decoded = decode_all([run.model], ids, run.recipe.decoding, to_texts=to_texts)
            outputs = [best.ids for best, *_ in decoded]
        else:
            target = encode_targets(run.recipe, run.tokenizers, lines, targets).target
            outputs = [target[row] for row in range(len(target))]
        return [alignment(run, _row(texts, at), _row(ids, at), output, max_tokens) for at, output in enumerate(outputs)]


def _row(columns: Mapping[str, Sequence[Any]], at: int) -> dict[str, Any]:
    return {side: rows[at] for side, rows in columns.items()}


def alignment(
    run: Run,
    texts: Mapping[str, str],
    ids: Mapping[str, SourceIds],
    output: Sequence[int],
    max_tokens: int = MAX_TOKENS,
) -> Alignment:
    """Return the attention weights of one sentence with a given output, with teacher forcing."""
    text = run.tokenizers.decode(TARGET, [output])[0]
    # a grid's size depends on the output's length, so a part of the output would have other pictures
    longest = max((len(row) for row in [*ids.values(), *([output] if run.model.max_target_ratio else [])]), default=0)
    if longest > max_tokens:
        return Alignment(texts, text, [], f"its {longest} tokens are more than the {max_tokens} of a picture")
    note = f"the first {max_tokens} of {len(output)} tokens" if len(output) > max_tokens else ""
    output = output[:max_tokens]
    tokens = {side: source_labels(run.tokenizers, side, row) for side, row in ids.items()}
    tokens[TARGET] = [SPECIAL_TOKENS[BOS], *token_labels(run.tokenizers, TARGET, output)]
    records: dict[Record, list[Tensor]] = {}
    source = {side: source_tensor([row], run.model.device) for side, row in ids.items()}
    with evaluation_mode([run.model]):
        # not the model itself: a compiled one would be compiled again
        run.model.forward(source, torch.tensor([[BOS, *output]], device=run.model.device), StepInputs(records=records))
    sentence = SentenceRecords(run.recipe, records, tokens)
    return Alignment(texts, text, list(attentions(sentence)), note, list(films(sentence)), memories(sentence))


SIDE_TITLES = {"target": "the decoder", "source": "the encoder"}
SHOWN_FIRST = "cross_attention"
"""The block whose maps come first and are open; the others are folded."""
CELL, FONT_HEIGHT = 14, 11
"""SVG units of a cell's width, and of a line of text."""
MAX_LABEL = 14
"""Characters of an axis label, after which it is cut."""
WIDTH = 6.7
"""SVG units of a cell of a label's font, in which all letters have one width; Chinese ones have two cells."""
SLANT, SIN, COS = 60, 0.87, 0.5
"""Degrees by which the labels of columns are turned; their sine and cosine."""
MAX_HEIGHT, MIN_ROW = 420, 3.0
"""SVG units of a memory's map, and of a row in it, which wins."""
MAX_DESCRIBED = 20
"""Positions that the description of a memory's map covers."""


class Axes(NamedTuple):
    """Labels of the rows and columns of a heat map, drawn once for all maps that have them."""

    id: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_height: float = CELL

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
        return CELL * len(self.columns), self.row_height * len(self.rows)


AxesByLabels = dict[tuple[tuple[str, ...], tuple[str, ...]], Axes]


class HeatMap(NamedTuple):
    """Heat map as an SVG: a PNG image with one pixel a cell, and references to its axes."""

    title: str
    description: str
    axes: Axes
    image: str
    top: float
    white: float = 0.0

    @property
    def box(self) -> tuple[float, float, float, float]:
        """The viewBox: left, top, width and height."""
        width, height = self.axes.size
        left = max(map(label_width, self.axes.rows)) + 6
        right = max(0.0, COS * label_width(self.axes.columns[-1]) - CELL / 2) + 4
        return -left, -self.top, left + width + right, self.top + height + 2


class Pictures(NamedTuple):
    """All pictures of one sentence; templates draw them.

    A group has the maps of all blocks of one type in the encoder or in the decoder: its title, whether it is open, and
    the maps by block. A memory has a line of maps for each line of panels.
    """

    axes: list[Axes]
    groups: list[tuple[str, bool, list[tuple[str, list[HeatMap]]]]]
    films: list[FilmStrip]
    memory_axes: list[Axes]
    memories: list[tuple[Memory, list[list[HeatMap]]]]


def alignment_page(alignment: Alignment) -> str:
    """Return a self-contained HTML page with the pictures of one sentence."""
    return render("alignment.html", title="alignment", alignment=alignment, pictures=pictures(alignment, 1))


def pictures(alignment: Alignment, number: int) -> Pictures:
    """Return the pictures of a sentence. number: its number on the page, which makes ids unique."""
    axes: AxesByLabels = {}
    blocks: dict[tuple[str, str], list[tuple[str, list[HeatMap]]]] = {}
    for attention in alignment.attentions:
        maps = attention_maps(attention, shared_axes(axes, f"axes-{number}", attention))
        blocks.setdefault((attention.word, attention.side), []).append((attention.block, maps))
    groups: list[tuple[str, bool, list[tuple[str, list[HeatMap]]]]] = []
    for (word, side), members in sorted(blocks.items(), key=lambda group: group[0][0] != SHOWN_FIRST):
        count = sum(len(maps) for _, maps in members)
        title = f"{word} of {SIDE_TITLES.get(side, f'the encoder {side}')}: {count} map{'' if count == 1 else 's'}"
        groups.append((title, not groups or word == SHOWN_FIRST, members))
    memory_axes: AxesByLabels = {}
    panels = [[panel_maps(line, memory_axes, f"cells-{number}") for line in one.panels] for one in alignment.memories]
    memories = list(zip(alignment.memories, panels, strict=True))
    return Pictures([*axes.values()], groups, [*map(film_strip, alignment.films)], [*memory_axes.values()], memories)


def shared_axes(axes: AxesByLabels, prefix: str, labelled: Attention | Panel, row_height: float = CELL) -> Axes:
    """Return the axes of a map, new ones if no map before had its labels."""
    labels = tuple(labelled.rows), tuple(labelled.columns)
    return axes.setdefault(labels, Axes(f"{prefix}-{len(axes)}", *labels, row_height))


def attention_maps(attention: Attention, axes: Axes) -> list[HeatMap]:
    """Return a map for each head of an attention."""
    top = label_height(attention.columns)
    maps = []
    for head, weights in enumerate(attention.weights, start=1):
        best = zip(attention.rows, weights.argmax(1).tolist(), strict=True)
        most_read = "; ".join(f"{row}: {attention.columns[column]}" for row, column in best)
        description = f"{attention.block}, head {head}. Most read: {most_read}"
        maps.append(HeatMap(f"head {head}", description, axes, png_uri(grey_levels(weights)), top))
    return maps


def panel_maps(panels: Sequence[Panel], axes: AxesByLabels, prefix: str) -> list[HeatMap]:
    """Return a line of maps of a memory; its rows are so high that it fits on a screen."""
    top = max(label_height(panel.columns) for panel in panels)  # the first rows of a line are level
    maps = []
    for panel in panels:
        row_height = float(min(CELL, max(MIN_ROW, MAX_HEIGHT // len(panel.rows))))
        own = shared_axes(axes, prefix, panel, row_height)
        image = png_uri(grey_levels((panel.values - panel.low) / (1.0 - panel.low)))
        maps.append(HeatMap(panel.title, describe_panel(panel), own, image, top, panel.low))
    return maps


def describe_panel(panel: Panel) -> str:
    """Return a memory's map in words, for those who cannot see it."""
    best = zip(panel.columns, panel.values.argmax(0).tolist(), strict=True)
    largest = [f"{token}: {panel.rows[row]}" for token, row in best]
    more = f"; and {len(largest) - MAX_DESCRIBED} more" if len(largest) > MAX_DESCRIBED else ""
    return f"{panel.title}. Largest at each moment: {'; '.join(largest[:MAX_DESCRIBED])}{more}"


def grey_levels(weights: np.ndarray) -> np.ndarray:
    """Return weights from 0 to 1 as grey levels, 0 and NaN as white."""
    levels: np.ndarray = np.nan_to_num(weights * 255.0).round().clip(0, 255).astype(np.uint8)
    return 255 - levels


def turned_labels(labels: Sequence[str], x: int = CELL - 3, y: int = -4, angle: int = -SLANT) -> list[tuple[str, str]]:
    """Return the labels of columns, by default those above, each with its SVG transform."""
    return [(shorten(label), f"translate({CELL * at + x} {y})rotate({angle})") for at, label in enumerate(labels)]


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
"""SVG units of a cell's height in a frame, and between frames; its width is CELL, so that tokens fit above it."""
AXIS_COLORS = np.array([[0.25, 0.25, 0.25], [0.24, -0.24, 0.0], [0.11, 0.11, -0.27]])
"""What each principal component adds to red, green and blue: lightness, red-green, yellow-blue."""
COLOR_RANGE, MIN_RANGE = 2.0, 0.25
"""Standard deviations to each side of a colour's range; the least range of a component, as a share of the first's."""


class FilmStrip(NamedTuple):
    """Film strip as an SVG: its viewBox, the size of a frame, and each frame's label, y and PNG image."""

    caption: str
    description: str
    box: tuple[float, float, float, float]
    size: tuple[int, int]
    frames: list[tuple[str, int, str]]
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
    images = map(png_uri, vector_colors(film.images))
    return FilmStrip(
        caption=f"{film.block}: {count_frames(film)}",
        description=describe_film(film),
        box=(-left, -top, left + width + right, top + bottom + below),
        size=(width, height),
        frames=list(zip(map(shorten, film.frames), tops, images, strict=True)),
        above=turned_labels(film.read),
        below=turned_labels(film.output, 4, bottom + 10, SLANT),
    )


def count_frames(film: Film) -> str:
    """Return how many frames are shown."""
    if len(film.frames) < film.total:
        return f"{len(film.frames)} of {film.total:,} frames, evenly spaced"
    return f"{film.total:,} frame{'' if film.total == 1 else 's'}"


def describe_film(film: Film) -> str:
    """Return a film in words, for those who cannot see it."""
    _, positions, columns, _ = film.images.shape
    parts = [f"{film.block}: {count_frames(film)}; {positions} positions by {columns} columns."]
    parts += [f"Read: {' '.join(film.read)}."] if film.read else []
    parts += [f"Written: {' '.join(film.output)}."] if film.output else []
    if len(film.frames) > 1:
        changes = np.abs(np.diff(finite(film.images), axis=0)).mean((1, 2, 3))
        largest = int(changes.argmax())
        parts.append(f"It changes most between {film.frames[largest]} and {film.frames[largest + 1]}.")
    return " ".join(parts)


def finite(images: np.ndarray) -> np.ndarray:
    """Return numbers with 0 for NaN and infinity."""
    return np.nan_to_num(images.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)


def vector_colors(images: np.ndarray) -> np.ndarray:
    """Return a colour for every vector: equal ones for equal vectors. (F, N, W, D) -> (F, W, N, 3), RGB levels

    Its first three principal components, each by its own spread.
    """
    cells = finite(images).reshape(-1, images.shape[-1])  # (C, D)
    least = float(np.abs(cells).max()) * 1e-4  # smaller differences are rounding, and have no colour
    cells = cells - cells.mean(0)
    axes = np.linalg.eigh(cells.T @ cells)[1][:, :-4:-1]  # (D, 3), or fewer where D is
    strongest = axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])]
    scores = cells @ (axes * np.sign(strongest))  # an eigenvector's sign is arbitrary
    spread = COLOR_RANGE * scores.std(0)
    spread = np.maximum(spread, max(MIN_RANGE * spread[0], least))
    scaled = np.divide(scores, spread, out=np.zeros_like(scores), where=spread > 0).clip(-1, 1)
    components = np.pad(scaled, ((0, 0), (0, 3 - scaled.shape[1])))  # (C, 3)
    pixels: np.ndarray = (255 * (0.5 + components @ AXIS_COLORS)).round().clip(0, 255).astype(np.uint8)
    return pixels.reshape(*images.shape[:3], 3).swapaxes(1, 2)
