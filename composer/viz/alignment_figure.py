"""Pictures of one sentence as an SVG file: a row for each block, a heat map for each head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from composer.viz.heat_maps import FilmStrip, HeatMap
from composer.viz.media import Medium, Strip
from composer.viz.page import render

WIDTH = 1000.0
"""SVG units of a row, after which its next picture stands below; a wider picture has a row of its
own.
"""
MARGIN, GAP, TITLE, CAPTION = 12.0, 18.0, 22.0, 16.0
"""SVG units around all pictures, between them, and of a row's title and a picture's caption."""


class Picture(NamedTuple):
    """A picture with its caption and viewBox; the template has a macro for each `kind`."""

    kind: str
    caption: str
    box: tuple[float, float, float, float]
    content: Any


class Row(NamedTuple):
    """The pictures of a block."""

    title: str
    pictures: list[Picture]


class Placed(NamedTuple):
    """A picture, and where the corner of its caption is."""

    x: float
    y: float
    picture: Picture


class Figure(NamedTuple):
    """All pictures with their places, and the titles of rows with theirs."""

    width: float
    height: float
    titles: list[tuple[str, float]]
    placed: list[Placed]


def alignment_svg(title: str, pictures: Mapping[str, object]) -> str:
    """Return an SVG file of the pictures of `composer.viz.alignments.pictures`."""
    figure = lay_out(rows_of(pictures))
    return render("alignment.svg", title=title, figure=figure, media=pictures["media"])


def rows_of(pictures: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of a sentence's pictures, in the order of its page."""
    for title, id, strips in pictures["strips"]:
        for strip in strips:
            yield Row(
                f"{title}, {strip.title}",
                [overlay(strip, id, at) for at in range(len(strip.overlays))],
            )
    for _, _, blocks in pictures["groups"]:
        for name, maps in blocks:
            yield Row(name, [heat_map(one, pictures["media"]) for one in maps])
    for film in pictures["films"]:
        yield Row(film.caption, [film_strip(film)])
    for memory, lines in pictures["memories"]:
        for maps in lines:
            yield Row(", ".join(memory.blocks), [heat_map(one, pictures["media"]) for one in maps])


def heat_map(one: HeatMap, media: Mapping[str, Medium]) -> Picture:
    """Return a heat map, with the spectrogram above it where it is of a sound."""
    return Picture("map", one.title, one.box, (one, media.get(one.sound)))


def film_strip(film: FilmStrip) -> Picture:
    """Return a film strip."""
    left, top, width, height = film.box
    return Picture("film", "", (left, top, width, height), film)


def overlay(strip: Strip, id: str, at: int) -> Picture:
    """Return an image with the attention of one word laid over it. id: That of the image."""
    word, cells, _ = strip.overlays[at]
    return Picture("overlay", word, (0.0, 0.0, *strip.medium.shown_size), (id, strip, cells))


def lay_out(rows: Iterator[Row]) -> Figure:
    """Place pictures from left to right and row by row."""
    titles: list[tuple[str, float]] = []
    placed: list[Placed] = []
    right, y = 0.0, MARGIN
    for row in rows:
        titles.append((row.title, y + TITLE / 2))
        x, y, lowest = MARGIN, y + TITLE, y + TITLE
        for picture in row.pictures:
            if x > MARGIN and x + picture.box[2] > WIDTH:
                x, y = MARGIN, lowest + GAP
            placed.append(Placed(x, y, picture))
            x, lowest = x + picture.box[2] + GAP, max(lowest, y + CAPTION + picture.box[3])
            right = max(right, x - GAP)
        y = lowest + GAP
    return Figure(right + MARGIN, y - GAP + MARGIN, titles, placed)
