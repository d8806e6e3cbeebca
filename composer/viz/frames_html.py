"""Film strips: how a grid changes, frame below frame, in colours that tell equal vectors from others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from composer.viz.frames import Film
from composer.viz.heatmaps import CELL, COSINE, SINE, SLANT, above, png_uri, room, shortened
from composer.viz.html import Markup, join, tag

HIGH, GAP = 8, 5
"""Units of a cell's height, and between two frames. Its width is that of a map's, so that tokens fit above."""
AXES = np.array([[0.25, 0.25, 0.25], [0.24, -0.24, 0.0], [0.11, 0.11, -0.27]])
"""What each of three directions adds to red, green and blue: light, red against green, yellow against blue."""
USUAL, FAINT = 2.0, 0.25
"""Standard deviations to each side that a colour's range is wide; a direction's are not taken for less than this share
of the first one's."""
EQUAL = 1e-4
"""What counts as equal, as a share of the largest number."""
LEGEND = (
    "Each frame is a grid, the first as it begins and each other one after a step: a cell for each position, from left "
    "to right, and column, from top to bottom. A cell's colour is its vector, along the three directions in which the "
    "vectors of the strip differ most, as light, red against green, and yellow against blue: equal vectors have equal "
    "colours, and like ones like colours. Above the first frame stands what is read, a dot at a blank; below the last "
    "one what is written, where each token is read off its own position. In a decoder the first frame is the memory as "
    "the encoder left it, and each other one that off which the token beside it is read."
)


def strips(films: Sequence[Film]) -> Markup:
    """The strips of a sentence."""
    return join(map(strip, films))


def strip(film: Film) -> Markup:
    """One strip, with the tokens above and below it."""
    wide, high = CELL * film.images.shape[1], HIGH * film.images.shape[2]
    bottom = len(film.frames) * (high + GAP) - GAP
    left, top = max(map(room, film.frames)) + 8, SINE * max(map(room, film.read)) + 8
    right = max(COSINE * max(map(room, [film.read[-1], *film.written[-1:]])) - CELL / 2, 0.0) + 4
    end = SINE * max(map(room, film.written), default=0.0) + 10
    drawing = tag(
        "svg",
        {
            "viewBox": f"{-left:.0f} {-top:.0f} {left + wide + right:.0f} {top + bottom + end:.0f}",
            "width": round(left + wide + right),
            "role": "img",
            "aria-label": told(film),
        },
        *above(film.read),
        *frames(film, wide, high),
        *below(film.written, bottom),
    )
    caption = tag("figcaption", {}, f"{film.block}: {counted(film)}")
    return tag("figure", {"class": "film"}, caption, tag("div", {"class": "scroll"}, drawing))


def frames(film: Film, wide: int, high: int) -> Iterator[Markup]:
    """The frames, each with its name."""
    for at, (name, pixels) in enumerate(zip(film.frames, colours(film.images), strict=True)):
        place = {"y": at * (high + GAP), "width": wide, "height": high}
        yield tag("text", {"class": "row", "x": -5, "y": place["y"] + high / 2 + 4}, shortened(name))
        yield tag("image", {**place, "preserveAspectRatio": "none", "href": png_uri(pixels)})
        yield tag("rect", {**place, "class": "border"})


def below(tokens: Sequence[str], bottom: int) -> Iterator[Markup]:
    """The tokens below the last frame."""
    for at, token in enumerate(tokens):
        turned = f"translate({CELL * at + 4} {bottom + 10})rotate({SLANT})"
        yield tag("text", {"class": "column", "transform": turned}, shortened(token))


def counted(film: Film) -> str:
    """How many frames are drawn, and of how many."""
    if len(film.frames) < film.total:
        return f"{len(film.frames)} of {film.total:,} frames, evenly chosen"
    return f"{film.total:,} frame{'' if film.total == 1 else 's'}"


def told(film: Film) -> str:
    """A strip in words, for who does not see it."""
    _, positions, columns, _ = film.images.shape
    parts = [f"{film.block}: {counted(film)}; {positions} positions by {columns} columns."]
    sides = {"Read": film.read, "Written": film.written}
    parts += [f"{what}: {' '.join(tokens)}." for what, tokens in sides.items() if tokens]
    if len(film.frames) > 1:
        changes = np.abs(np.diff(finite(film.images), axis=0)).mean((1, 2, 3))
        after = int(changes.argmax())
        parts.append(f"It changes most between {film.frames[after]} and {film.frames[after + 1]}.")
    return " ".join(parts)


# ------------------------------------------------------------------------------------------- colours


def colours(images: np.ndarray) -> np.ndarray:
    """Every vector as a colour. (F, N, W, D) -> (F, W, N, 3), levels of red, green and blue"""
    cells = finite(images).reshape(-1, images.shape[-1])  # (C, D)
    places = along(cells - cells.mean(0), least=float(np.abs(cells).max()) * EQUAL)  # (C, 3)
    pixels: np.ndarray = (255 * (0.5 + places @ AXES)).round().clip(0, 255).astype(np.uint8)
    return pixels.reshape(*images.shape[:3], 3).swapaxes(1, 2)


def finite(images: np.ndarray) -> np.ndarray:
    """The numbers, 0 where there is none."""
    found: np.ndarray = np.nan_to_num(images.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    return found


def along(cells: np.ndarray, least: float) -> np.ndarray:
    """Where vectors lie along their first three principal components, from -1 to 1. (C, D) -> (C, 3)

    cells: their mean is 0; what differs by less than `least` is hardly told apart.
    """
    axes = np.linalg.eigh(cells.T @ cells)[1][:, :-4:-1]  # (D, 3), or fewer where D is
    strongest = axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])]
    places = cells @ (axes * np.sign(strongest))  # an axis has no sign of its own
    reach = USUAL * places.std(0)
    reach = np.maximum(reach, max(FAINT * reach[0], least))
    scaled = np.divide(places, reach, out=np.zeros_like(places), where=reach > 0).clip(-1, 1)
    return np.pad(scaled, ((0, 0), (0, 3 - scaled.shape[1])))
