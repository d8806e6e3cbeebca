"""A picture as SVG that needs nothing but itself, in light and in dark, on a page and as a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from composer.viz.architecture.edge_routing import TURN, Route, routes
from composer.viz.architecture.graph import Read, Scene
from composer.viz.architecture.layout import LINE, MARGIN, Figure, Placed, Run, figure_of, written
from composer.viz.architecture.main_path import Join, Line, joins, streams
from composer.viz.html import Markup, join, tag

SHEETS = (6.0, 3.0)
"""How far behind a repeat its other times stand."""
LEGEND = {
    "name": "reads an output by its name",
    "before": "reads it as it was one position before",
    "memory": "reads what an encoder has made",
}
REPEATED = "Parameters in a repeat, or in a stack that is used, are those of all its times."
KEY = 34.0
"""The room of a sample in the legend."""
STYLE = """
.architecture { --paper: #ffffff; --ink: #1b1e23; --soft: #59616d; --edge: #aab2bd; --fill: #f3f5f8; --grid: #e6f2ea;
  --hull: #ffffff; --stream: #59616d; --name: #b45309; --memory: #1c5fcf; background: var(--paper); }
@media (prefers-color-scheme: dark) {
  .architecture { --paper: #13151a; --ink: #e7e9ed; --soft: #a0a8b4; --edge: #4b5462; --fill: #20242c; --grid: #1d2e26;
    --hull: #181b21; --stream: #a0a8b4; --name: #f5a65b; --memory: #74a9ff; }
}
.architecture text { fill: var(--ink); font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  white-space: pre; }
.architecture .title { font-weight: 700; }
.architecture .heading { font-size: 18px; font-weight: 700; }
.architecture .soft { fill: var(--soft); }
.architecture .given { fill: var(--name); font-weight: 400; }
.architecture .plain { font-weight: 400; }
.architecture rect { fill: var(--fill); stroke: var(--edge); stroke-width: 1; }
.architecture .paper { fill: var(--paper); stroke: none; }
.architecture .hull { fill: var(--hull); }
.architecture .grid { fill: var(--grid); }
.architecture .part { fill: none; stroke: none; }
.architecture .branch { fill: none; stroke-dasharray: 2 3; }
.architecture .loop { fill: none; stroke: var(--name); stroke-dasharray: 5 4; }
.architecture .memory { stroke: var(--memory); stroke-width: 1.5; }
.architecture .stream, .architecture .read { fill: none; stroke: var(--stream); stroke-width: 1.25; }
.architecture .read { stroke-width: 1.5; stroke: var(--name); stroke-linejoin: round; }
.architecture .read.before { stroke-dasharray: 5 3; }
.architecture .read.memory { stroke: var(--memory); }
.architecture .tip { fill: var(--stream); stroke: none; }
.architecture .tip.name, .architecture .tip.before { fill: var(--name); }
.architecture .tip.memory { fill: var(--memory); }
.architecture .join { fill: var(--paper); stroke: var(--stream); }
.architecture .middle { text-anchor: middle; }
"""


class Text(NamedTuple):
    """A line of text: where it begins (or, if `middle`, has its middle), its baseline, and what it says."""

    x: float
    y: float
    runs: tuple[Run, ...]
    middle: bool = False
    scale: float = 1.0

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of it."""
        wide = written(self.runs) * self.scale
        left = self.x - wide / 2 if self.middle else self.x
        return left, self.y - 11 * self.scale, left + wide, self.y + 4 * self.scale


class Picture(NamedTuple):
    """All that is drawn, with its places."""

    figure: Figure
    arrows: list[Route]
    lines: list[Line]
    joins: list[Join]
    texts: list[Text]


def picture_of(scene: Scene) -> Picture:
    """Everything in its place."""
    figure = figure_of(scene)
    arrows = routes(figure)
    heading = [
        Text(MARGIN, MARGIN + 14, (Run("heading", scene.name),), scale=1.5),
        Text(MARGIN, MARGIN + 34, (Run("soft", scene.about),)),
    ]
    together = list(joins(figure))
    words = [Text(each.x, each.y + 4, (Run("", each.word),), middle=True) for each in together]
    texts = [*heading, *(text for placed in figure.all() for text in texts_of(placed)), *words, *legend(figure)]
    return Picture(figure, arrows, list(streams(figure)), together, texts)


def texts_of(placed: Placed) -> Iterator[Text]:
    """What is written in a box."""
    lines = placed.texts
    high = placed.head if placed.inner else placed.h
    y = placed.y + (high - LINE * len(lines)) / 2 + 12
    for number, line in enumerate(lines):
        yield Text(placed.x + placed.indent, y + LINE * number, line)


def told(scene: Scene) -> list[str]:
    """The kinds of arrow that a picture has."""
    return [how for how in LEGEND if any(read.how == how for read in scene.reads)]


def legend(figure: Figure) -> Iterator[Text]:
    """What the kinds of arrow mean, a line each, and which numbers stand in a repeat."""
    kinds = told(figure.scene)
    for number, how in enumerate(kinds):
        yield Text(MARGIN + KEY, figure.height + LINE * number, (Run("soft", LEGEND[how]),))
    if any(box.row is not None and box.row.block in ("repeat", "use") for box in figure.scene.boxes()):
        yield Text(MARGIN, figure.height + LINE * len(kinds), (Run("soft", REPEATED),))


# ------------------------------------------------------------------------------------------- markup


def svg(scene: Scene) -> Markup:
    """The picture as one SVG element."""
    picture = picture_of(scene)
    figure = picture.figure
    width = max(figure.width, *(text.box[2] + MARGIN for text in picture.texts))
    height = max(figure.height, *(text.box[3] + MARGIN / 2 for text in picture.texts))
    size = {"width": width, "height": height, "viewBox": f"0 0 {width:g} {height:g}"}
    return tag(
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", "class": "architecture", "role": "img", **size},
        tag("title", {}, f"Architecture of {scene.name}"),
        tag("desc", {}, description(scene)),
        tag("style", {}, Markup(STYLE)),
        tag("rect", {"class": "paper", "x": 0, "y": 0, "width": width, "height": height}),
        *(part for placed in figure.all() for part in frames(placed)),
        *(part for line in picture.lines for part in arrow("stream", line.points, line.ends)),
        *(reading(each) for each in picture.arrows),
        *samples(figure, told(scene)),
        *(
            frame("join", each.x - each.w / 2, each.y - each.h / 2, each.w, each.h, each.h / 2)
            for each in picture.joins
        ),
        *map(label, picture.texts),
    )


def description(scene: Scene) -> str:
    """The picture in words, for who cannot see it."""
    parts = (
        f"{part.title}: {', '.join(box.title for box in part.all() if box.row is not None)}" for part in scene.parts
    )
    return f"{scene.about}. {'. '.join(parts)}."


def frames(placed: Placed) -> Iterator[Markup]:
    """The frame of a box; of a repeat, also those of its other times, behind it."""
    box = placed.box
    look = {"block": "hull" if placed.inner else ""}.get(box.kind, box.kind)
    look = f"{look} grid".strip() if box.grid and not placed.inner else look
    corner = placed.h / 2 if box.kind == "memory" else 6.0
    for far in SHEETS if box.row is not None and box.row.block == "repeat" else ():
        yield frame(look, placed.x + far, placed.y + far, placed.w, placed.h, corner)
    yield frame(look, placed.x, placed.y, placed.w, placed.h, corner)


def frame(look: str, x: float, y: float, w: float, h: float, corner: float) -> Markup:
    """A rectangle."""
    return tag("rect", {"class": look or None, "x": x, "y": y, "width": w, "height": h, "rx": corner})


def label(text: Text) -> Markup:
    """A line of text."""
    first, *more = text.runs
    looks = " ".join(look for look in (first.look, "middle" if text.middle else "") if look)
    inner = (first.text, *(tag("tspan", {"class": run.look or "plain"}, run.text) for run in more))
    return tag("text", {"class": looks or None, "x": text.x, "y": text.y}, *inner)


def reading(route: Route) -> Markup:
    """An arrow from who makes to who reads."""
    drawn = arrow(f"read {route.read.how}", route.own, True)
    return tag("g", {"class": "arrow"}, tag("title", {}, sentence(route.read)), *drawn)


def sentence(read: Read) -> str:
    """What an arrow says."""
    return f"{read.reader.rpartition('/')[2]} reads {read.name}"


def arrow(look: str, points: Sequence[tuple[float, float]], ends: bool) -> Iterator[Markup]:
    """A line with round corners, and its head."""
    yield tag("path", {"class": look, "d": rounded(points)})
    if ends:
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        back = (x - 7 * dx, y - 7 * dy)
        head = ((x, y), (back[0] - 3.5 * dy, back[1] - 3.5 * dx), (back[0] + 3.5 * dy, back[1] + 3.5 * dx))
        place = " ".join(f"{a:g},{b:g}" for a, b in head)
        yield tag("path", {"class": f"tip {look.rpartition(' ')[2]}", "d": f"M{place} Z"})


def rounded(points: Sequence[tuple[float, float]]) -> str:
    """A line through points, its corners round."""
    path = [f"M{points[0][0]:g},{points[0][1]:g}"]
    for (ax, ay), (bx, by), (cx, cy) in zip(points, points[1:], points[2:], strict=False):
        before, after = abs(bx - ax) + abs(by - ay), abs(cx - bx) + abs(cy - by)
        r = min(TURN, before / 2, after / 2)
        if not r:
            continue
        start = (bx - r * (bx - ax) / before, by - r * (by - ay) / before)
        end = (bx + r * (cx - bx) / after, by + r * (cy - by) / after)
        path.append(f"L{start[0]:g},{start[1]:g} Q{bx:g},{by:g} {end[0]:g},{end[1]:g}")
    return " ".join([*path, f"L{points[-1][0]:g},{points[-1][1]:g}"])


def samples(figure: Figure, kinds: Iterable[str]) -> Iterator[Markup]:
    """An arrow of each kind, before what it means."""
    for number, how in enumerate(kinds):
        y = figure.height + LINE * number - 4
        yield join(arrow(f"read {how}", ((MARGIN, y), (MARGIN + KEY - 10, y)), True))
