"""Heat maps: a small picture of grey levels with a token at every row and column."""

from __future__ import annotations

import base64
import math
import struct
import unicodedata
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from composer.viz.attention_maps import Alignment, Attention
from composer.viz.html import Markup, join, short_number, tag

CELL, LINE = 14, 11
"""Units of a cell, in both directions, and of a line of text."""
LETTER, THIN, BROAD, WIDE = 6.8, 3.8, 10.0, 12.0
"""Units of a letter's width, about: of most, of those in SLIM, of those in STOUT, and of Chinese characters."""
SLIM, STOUT = frozenset(" .,:;'!|()[]fijltrI"), frozenset("mwMWÄÖÜ@%")
SHOWN = 14
"""Letters of a token that are shown beside a map."""
SLANT = 60
"""Degrees by which what stands above a map is turned; its sine and cosine are below."""
SINE, COSINE = 0.87, 0.5
PNG = b"\x89PNG\r\n\x1a\n"
GREY, RGB = 0, 2
"""Kinds of picture, as a PNG file calls them."""
OPEN = "cross_attention"
"""The block whose maps stand first and are shown at once; those of others wait behind a disclosure."""
Axes = dict[tuple[tuple[str, ...], tuple[str, ...]], str]
"""The names of the axes that are drawn once and used by all maps of the same tokens."""


def sentence(alignment: Alignment, number: int) -> Markup:
    """All maps of a sentence. `number` tells it from others on the page."""
    axes: Axes = {}
    for each in alignment.attentions:
        axes.setdefault((tuple(each.rows), tuple(each.columns)), f"axes-{number}-{len(axes)}")
    groups: dict[tuple[str, str], list[Attention]] = {}
    for each in alignment.attentions:
        groups.setdefault((each.word, each.side), []).append(each)
    drawn = tag("svg", {"class": "none", "aria-hidden": "true"}, tag("defs", {}, *map(axis, axes, axes.values())))
    ordered = sorted(groups, key=lambda group: group[0] != OPEN)
    return join([drawn, *(group(*told, groups[told], axes, told in ordered[:1]) for told in ordered)])


def group(word: str, side: str, attentions: Sequence[Attention], axes: Axes, first: bool) -> Markup:
    """The maps of all blocks of a kind in the encoder or the decoder."""
    heads = sum(len(each.weights) for each in attentions)
    title = f"{word} of {PARTS.get(side, f'the encoder {side}')}: {heads} map{'' if heads == 1 else 's'}"
    opened = {"class": "group", "open": "open" if first or word == OPEN else None}
    return tag("details", opened, tag("summary", {}, title), *(block(each, axes) for each in attentions))


PARTS = {"target": "the decoder", "source": "the encoder"}


def block(attention: Attention, axes: Axes) -> Markup:
    """The maps of one block, head by head."""
    name = axes[tuple(attention.rows), tuple(attention.columns)]
    maps = [heat_map(attention, head, name) for head in range(len(attention.weights))]
    told = tag("output", {"class": "told"})
    return tag("div", {"class": "block"}, tag("h4", {}, attention.block), told, tag("div", {"class": "heads"}, *maps))


def heat_map(attention: Attention, head: int, axes: str) -> Markup:
    """One map: the darker a cell, the more the token of its row reads that of its column."""
    rows, columns, weights = attention.rows, attention.columns, attention.weights[head]
    label = f"{attention.block}, head {head + 1}. Most read: {most_read(rows, columns, weights)}"
    shown = drawing(rows, columns, weights, axes, label, top_of(columns))
    return tag("figure", {"class": "map"}, tag("figcaption", {}, f"head {head + 1}"), shown)


def top_of(columns: Sequence[str]) -> float:
    """How much room tokens take above a map."""
    return SINE * max(map(room, columns)) + 8


def drawing(
    rows: Sequence[str],
    columns: Sequence[str],
    weights: np.ndarray,
    axes: str,
    label: str,
    top: float,
    step: float = CELL,
) -> Markup:
    """The picture of weights (R, C) from 0 to 1, with the axes of that name, `top` below its upper edge; `step` is the
    height of a row."""
    wide, high = CELL * len(columns), step * len(rows)
    left = max(map(room, rows)) + 6
    right = max(0.0, COSINE * room(columns[-1]) - CELL / 2) + 4
    box = " ".join(map(short_number, (-left, -top, left + wide + right, top + high + 2)))
    stretched = {"preserveAspectRatio": "none" if step != CELL else None}
    return tag(
        "svg",
        {"viewBox": box, "width": left + wide + right, "role": "img", "aria-label": label},
        tag("use", {"href": f"#{axes}"}),
        tag("image", {"width": wide, "height": high, **stretched, "href": data_uri(weights)}),
    )


def most_read(rows: Sequence[str], columns: Sequence[str], weights: np.ndarray) -> str:
    """A map in words: what each row reads most."""
    return "; ".join(f"{row}: {columns[best]}" for row, best in zip(rows, weights.argmax(1).tolist(), strict=True))


def axis(tokens: tuple[tuple[str, ...], tuple[str, ...]], name: str, step: float = CELL) -> Markup:
    """The tokens beside and above a map, and its border; beside rows that are low, only every so manieth."""
    rows, columns = tokens
    wide, high = CELL * len(columns), step * len(rows)
    every = math.ceil(LINE / step)
    kinds = ("row unseen" if at % every else "row" for at in range(len(rows)))
    beside = (
        tag("text", {"class": kind, "y": step * at + step / 2 + 3, "x": -5}, shortened(row))
        for at, (row, kind) in enumerate(zip(rows, kinds, strict=True))
    )
    border = tag("rect", {"class": "border", "width": wide, "height": high})
    return tag("g", {"id": name}, *beside, *above(columns), border)


def above(tokens: Sequence[str]) -> Iterator[Markup]:
    """The tokens above the columns of a picture."""
    for at, token in enumerate(tokens):
        turned = f"translate({CELL * at + CELL - 3} -4)rotate(-{SLANT})"
        yield tag("text", {"class": "column", "transform": turned}, shortened(token))


def shortened(token: str) -> str:
    """The beginning of a long token."""
    return token if len(token) <= SHOWN else f"{token[: SHOWN - 1]}…"


def room(token: str) -> float:
    """About how wide a token is."""
    return sum(map(width, shortened(token)))


def width(letter: str) -> float:
    """About how wide a letter is."""
    if unicodedata.east_asian_width(letter) in "WF":
        return WIDE
    return 0.0 if unicodedata.combining(letter) else THIN if letter in SLIM else BROAD if letter in STOUT else LETTER


# ------------------------------------------------------------------------------------------- the picture


def data_uri(weights: np.ndarray) -> str:
    """Weights from 0 to 1 as a picture of one pixel each, white where nothing is read. (T, S)"""
    return png_uri(255 - levels(weights))


def png_uri(pixels: np.ndarray) -> str:
    """Grey levels (T, S) or colours (T, S, 3) as an address that holds them."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def levels(weights: np.ndarray) -> np.ndarray:
    """Weights in 256 levels; what is no number is none."""
    found: np.ndarray = np.nan_to_num(weights * 255.0).round().clip(0, 255).astype(np.uint8)
    return found


def png(pixels: np.ndarray) -> bytes:
    """A picture as a PNG file (W3C, Portable Network Graphics, sections 5 and 11). Grey (T, S), or colours (T, S, 3)"""
    high, wide = pixels.shape[:2]
    rows = np.pad(pixels.reshape(high, -1), ((0, 0), (1, 0))).tobytes()  # each row begins with its filter, 0: none
    header = struct.pack(">IIBBBBB", wide, high, 8, GREY if pixels.ndim == 2 else RGB, 0, 0, 0)
    return PNG + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def chunk(kind: bytes, content: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
