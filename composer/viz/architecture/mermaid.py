"""A picture as Mermaid's flowchart, which GitHub and many editors draw where they find it in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from composer.viz.architecture.graph import Box, Scene
from composer.viz.architecture.labels import TIMES
from composer.viz.html import strip_control_characters

ARROWS = {"name": "-->", "before": "-.->", "memory": "==>"}
"""How the kinds of arrow look: by a name, of one position before, of what an encoder has made."""
BEGINNING = ('%%{init: {"flowchart": {"subGraphTitleMargin": {"top": 4, "bottom": 24}}}}%%', "flowchart TB")
"""The titles of groups have two lines, and room for one is what Mermaid leaves."""
STEP = "    "
SQUARE, ROUND, CIRCLE = '["{}"]', '(["{}"])', '(("{}"))'
SAFE = f" .,=+_-/:()[]{TIMES}"
"""What stands for itself in a label, beside letters and digits."""


@dataclass(frozen=True)
class Ends:
    """The names under which Mermaid knows where the stream enters a box and leaves it, and what an arrow to it ends at.

    `enters` is "" where the stream is not read.
    """

    enters: str
    leaves: str
    reads: str


@dataclass
class Chart:
    """A flowchart that is being written; `ends` has those of every box, by its key, and `names` counts them.

    `opened` are the boxes of which is read what enters them: they begin with a node of its own.
    """

    opened: frozenset[str]
    lines: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    ends: dict[str, Ends] = field(default_factory=dict)
    names: int = 0

    def name(self) -> str:
        """A name that nothing else has."""
        self.names += 1
        return f"n{self.names}"

    def node(self, text: str, depth: int, shape: str = SQUARE) -> str:
        """Writes a node; its name."""
        name = self.name()
        self.lines.append(f"{STEP * depth}{name}{shape.format(text)}")
        return name

    def stream(self, one: str, other: str) -> None:
        """Writes a stretch of the stream, unless nobody reads it."""
        if other:
            self.links.append(f"{STEP}{one} --> {other}")


def mermaid(scene: Scene) -> str:
    """The picture as a flowchart."""
    chart = Chart(frozenset(read.maker for read in scene.reads if read.entering))
    for part in scene.parts:
        write(chart, part, 1)
    for read in scene.reads:
        maker, reader = chart.ends[read.maker], chart.ends[read.reader]
        begin = maker.enters if read.entering else maker.leaves
        chart.links.append(f'{STEP}{begin} {ARROWS[read.how]}|"{escaped(read.name)}"| {reader.reads}')
    about = [f"{STEP}accTitle: {line(scene.name)}", f"{STEP}accDescr: {line(scene.about)}"]
    text = [*BEGINNING, *about, *first(scene, chart), *chart.lines, *chart.links, *grids(scene, chart)]
    return "\n".join(text) + "\n"


def first(scene: Scene, chart: Chart) -> list[str]:
    """The beginning of every loop: Mermaid turns around the arrows that lead back to what it has been told of first."""
    return [
        f"{STEP}{chart.ends[box.key].enters}"
        for box in scene.boxes()
        if box.kind == "loop" and chart.ends[box.key].enters
    ]


def grids(scene: Scene, chart: Chart) -> list[str]:
    """That what makes grids looks otherwise."""
    names = [chart.ends[box.key].reads for box in scene.boxes() if box.grid and not box.inner]
    if not names:
        return []
    return [f"{STEP}classDef grid stroke:#15803d,stroke-width:2px", f"{STEP}class {','.join(names)} grid"]


def write(chart: Chart, box: Box, depth: int) -> Ends:
    """Writes a box and all in it; where the stream enters and leaves it."""
    if box.inner:
        ends = group(chart, box, depth)
    else:
        name = chart.node(label(box), depth, ROUND if box.kind == "memory" else SQUARE)
        ends = Ends(name if box.hears else "", name, name)
    chart.ends[box.key] = ends
    return ends


def group(chart: Chart, box: Box, depth: int) -> Ends:
    """Writes a box with all in it."""
    name = chart.name()
    chart.lines.append(f'{STEP * depth}subgraph {name}["{label(box)}"]')
    begins = box.fork or box.bypass or box.key in chart.opened
    begin = chart.node("in", depth + 1, CIRCLE) if begins else ""
    inner = [write(chart, each, depth + 1) for each in box.inner]
    end = chart.node(escaped(box.join), depth + 1, CIRCLE) if box.join else ""
    chart.lines.append(f"{STEP * depth}end")
    connect(chart, box, begin, inner, end)
    return Ends(begin or inner[0].enters, end or inner[-1].leaves, name)


def connect(chart: Chart, box: Box, begin: str, inner: Sequence[Ends], end: str) -> None:
    """Writes the stream through a box: from block to block, or into all branches and out of them."""
    for one, other in () if box.fork else pairwise(inner):
        chart.stream(one.leaves, other.enters)
    for each in inner if box.fork else inner[:1]:
        if begin:
            chart.stream(begin, each.enters)
    for each in inner if box.fork else inner[-1:]:
        chart.stream(each.leaves, end)
    if box.bypass:
        chart.stream(begin, end)


def label(box: Box) -> str:
    """What is written in a box; of one that has others in it, in two lines."""
    named = f"<b>{escaped(box.title)}</b>" if box.title else " "
    given = f" as {escaped(box.name)}" if box.name and box.kind != "branch" else ""
    lines = [named + given, *map(escaped, (*box.lines, *filter(None, [box.foot])))]
    return "<br/>".join(["  ".join(lines[:-1]), lines[-1]] if box.inner and box.foot else lines)


def escaped(text: str) -> str:
    """A text that Mermaid takes for nothing else."""
    return "".join(
        each if each.isalnum() or each in SAFE else f"#{ord(each)};" for each in strip_control_characters(text)
    )


def line(text: str) -> str:
    """A text that stands alone in its line."""
    return " ".join(re.sub(r"[;#%{}]", ",", strip_control_characters(text)).split())
