"""Architecture diagrams of a recipe or run: SVG for light and dark, Mermaid, Markdown, HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, combinations, count, pairwise
from pathlib import Path
from typing import NamedTuple

from composer.checks.planner import Plan, plan
from composer.errors import RunError
from composer.fingerprint import read_verified
from composer.formatting import strip_control_characters
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir
from composer.viz.architecture_graph import TIMES, Box, Graph, build_graph, fold
from composer.viz.architecture_layout import MARGIN, Layout, PlacedBox, Span, StreamLine, Text
from composer.viz.edge_routing import Route, arrowhead, rounded_path, route_edges
from composer.viz.figure_files import FIGURES, converter, is_figure, save_figure
from composer.viz.page import DOCTYPE, check_can_overwrite, render, write_document
from composer.viz.svg_styles import attributes, dark_rules

MERMAID_HEAD = (
    '%%{init: {"flowchart": {"subGraphTitleMargin": {"top": 4, "bottom": 24}}}}%%',
    "flowchart TB",
)
"""First lines of a flowchart. The titles of groups have two lines; Mermaid leaves space for one."""
SVG_HEAD = b'<svg xmlns="http://www.w3.org/2000/svg" class="architecture"'
"""How an SVG of an architecture begins."""
FORMATS = {
    **{suffix: (what, SVG_HEAD) for suffix, what in FIGURES.items()},
    ".mmd": ("Mermaid", MERMAID_HEAD[0].encode()),
    ".md": ("Markdown with Mermaid", b"# "),
    ".html": ("a page", DOCTYPE),
}
"""Output formats by file name suffix, and the first bytes of a file that may be overwritten."""


@dataclass(frozen=True)
class Drawing:
    """Diagram of an architecture; a notebook shows it as SVG."""

    graph: Graph

    def mermaid(self) -> str:
        """Return the diagram as a Mermaid flowchart."""
        return Flowchart(self.graph).text()

    def svg(self) -> str:
        """Return the diagram as an SVG file with a light and a dark style."""
        styles = {"paint": attributes, "dark_rules": dark_rules}
        return render(
            "architecture.svg",
            picture=place(self.graph),
            rounded=rounded_path,
            arrowhead=arrowhead,
            **styles,
        )

    def markdown(self) -> str:
        """Return a Markdown file with the flowchart, which GitHub renders."""
        return f"# {self.graph.name}\n\n{self.graph.summary}\n\n```mermaid\n{self.mermaid()}```\n"

    def html(self) -> str:
        """Return a self-contained HTML page with the SVG, in which a click on a repeat folds it."""
        return render(
            "architecture.html", title=f"{self.graph.name}: architecture", drawings=self.folded()
        )

    def folded(self) -> dict[str, str]:
        """Return the SVG for every choice of folded repeats, by the keys of their boxes."""
        repeats = self.graph.repeats
        groups = [[repeat] for repeat in repeats] if len(repeats) <= MAX_FOLDED_ALONE else [repeats]
        drawings = {}
        for size in range(len(groups) + 1):
            for chosen in combinations(groups, size):
                boxes = list(chain(*chosen))
                keys = " ".join(box.key for box in boxes)
                drawings[keys] = Drawing(fold(self.graph, boxes)).svg()
        return drawings

    def save(self, path: str | Path) -> Path:
        """Write the diagram as .svg, .png, .pdf, .mmd, .md or .html.

        Raises RunError if the suffix is another one, or the file cannot be written, or is there and
        is no diagram, and for .png and .pdf without the package vl-convert-python.
        """
        file = Path(path)
        check_output(file)
        if file.suffix.lower() in FIGURES:
            return save_figure(file, self.svg(), "drawing", is_diagram)
        formats = {".mmd": self.mermaid, ".md": self.markdown, ".html": self.html}
        return write_document(file, "drawing", formats[file.suffix.lower()](), is_diagram)

    def _repr_html_(self) -> str:
        return self.svg()


def draw(recipe: Recipe | str | Path, vocabularies: Mapping[str, int] | None = None) -> Drawing:
    """Return the diagram of a recipe, a recipe file, or a run folder with its vocabularies.

    vocabularies: the size of every side's; by default the upper bounds that the recipe states.
    Raises RecipeError with every fault of the recipe, and RunError if a folder is no run folder.
    """
    if not isinstance(recipe, Recipe):
        path = Path(recipe)
        if path.is_dir():
            folder = RunDir(path)
            record = read_verified(folder)
            path = folder.recipe
            vocabularies = vocabularies or record.vocabularies or None
        recipe = load(path)
    return draw_plan(recipe, plan(recipe, vocabularies))


def draw_plan(recipe: Recipe, planned: Plan) -> Drawing:
    """Return the diagram of a recipe whose model has been planned."""
    return Drawing(build_graph(recipe, planned))


def check_output(file: Path) -> None:
    """Raise RunError if a diagram cannot be written to a file, or would overwrite another file."""
    if file.suffix.lower() not in FORMATS:
        formats = ", ".join(f"`{suffix}` for {what}" for suffix, (what, _) in FORMATS.items())
        raise RunError.of(
            "the name of the file does not say what to draw", f"end it with {formats}", str(file)
        )
    if file.suffix.lower() in FIGURES:
        converter(file)
    check_can_overwrite(file, "drawing", is_diagram)


def is_diagram(file: Path) -> bool:
    """True if a file is a diagram, or a Markdown file with nothing but a diagram."""
    if file.suffix.lower() in (".png", ".pdf"):
        return is_figure(file, is_diagram)
    content = file.read_bytes()
    has_flowchart = b"\n```mermaid\n" + FORMATS[".mmd"][1] in content
    is_flowchart_alone = has_flowchart and content.count(b"```") == 2 and content.endswith(b"```\n")
    return content.startswith(FORMATS[file.suffix.lower()][1]) and (
        is_flowchart_alone or file.suffix.lower() != ".md"
    )


MAX_FOLDED_ALONE = 3
"""Repeats, beyond which they fold all at once: each choice is a drawing in the page."""


class Picture(NamedTuple):
    """Everything in an SVG but the legend, with its position."""

    layout: Layout
    routes: list[Route]
    lines: list[StreamLine]
    texts: list[Text]


def place(graph: Graph) -> Picture:
    """Return everything in an SVG but the legend, with its position."""
    layout = Layout(graph, list(map(PlacedBox, graph.parts)))
    routes = route_edges(layout)
    joins = [placed.join for placed in layout.walk() if placed.box.join]
    texts = [
        Text(MARGIN, MARGIN + 14, (Span("heading", graph.name),), scale=1.5),
        Text(MARGIN, MARGIN + 34, (Span("soft", graph.summary),)),
        *chain.from_iterable(placed.texts() for placed in layout.walk()),
        *(Text(join.x, join.y + 4, (Span("", join.label),), centered=True) for join in joins),
    ]
    lines = [*chain.from_iterable(placed.stream_lines() for placed in layout.walk())]
    return Picture(layout, routes, lines, texts)


ARROWS = {"name": "-->", "before": "-.->", "memory": "==>"}
"""Mermaid's arrow for each kind of edge."""
INDENT = "    "
SQUARE, ROUND, CIRCLE, GROUP = '{}["{}"]', '{}(["{}"])', '{}(("{}"))', 'subgraph {}["{}"]'
UNESCAPED = f" .,=+_-/:()[]{TIMES}"
"""Characters that stand for themselves in a label, beside letters and digits."""


class Nodes(NamedTuple):
    """Mermaid's names of a box and of the nodes where the stream enters and leaves it.

    `entry` is "" if the box does not read the stream.
    """

    entry: str
    exit: str
    box: str


class Flowchart:
    """Mermaid flowchart of a graph; `nodes` by the key of the box."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        # a box that is also read at its input begins with a node for it
        self.read_at_input = {edge.producer for edge in graph.edges if edge.of_input}
        self.lines: list[str] = []
        self.links: list[str] = []
        self.nodes: dict[str, Nodes] = {}
        self.numbers = count(1)
        for part in graph.parts:
            self.add_box(part)

    def text(self) -> str:
        """Return the lines of the flowchart."""
        graph, nodes = self.graph, self.nodes
        titles = [f"accTitle: {escape_line(graph.name)}", f"accDescr: {escape_line(graph.summary)}"]
        # Mermaid turns around the arrows that lead back to the node that it reads first, so loops
        # are named at the top
        loops = [nodes[box.key].entry for box in graph.boxes() if box.kind == "loop"]
        reads = []
        for edge in graph.edges:
            producer, reader = nodes[edge.producer], nodes[edge.reader]
            start = producer.entry if edge.of_input else producer.exit
            reads.append(f'{start} {ARROWS[edge.kind]}|"{escape_label(edge.name)}"| {reader.box}')
        leaves = [box for box in graph.boxes() if not box.children]
        grids = ",".join(nodes[box.key].box for box in leaves if box.grid)
        styles = []
        if grids:
            styles = ["classDef grid stroke:#15803d,stroke-width:2px", f"class {grids} grid"]
        lines = [*titles, *filter(None, loops), *self.lines, *self.links, *reads, *styles]
        return "\n".join([*MERMAID_HEAD, *(INDENT + line for line in lines)]) + "\n"

    def link(self, start: str, end: str) -> None:
        """Add an arrow of the stream between two nodes, unless one of them is missing."""
        if start and end:
            self.links.append(f"{start} --> {end}")

    def add_node(self, text: str, depth: int, shape: str) -> str:
        """Add a node, or the head of a group, and return its name."""
        name = f"n{next(self.numbers)}"
        self.lines.append(INDENT * depth + shape.format(name, text))
        return name

    def add_box(self, box: Box, depth: int = 0) -> Nodes:
        """Add a box and all inside it, and return its nodes.

        The stream goes through the children of a box from one to the next or, in a fork, into all
        and out of all.
        """
        if not box.children:
            name = self.add_node(box_label(box), depth, ROUND if box.kind == "memory" else SQUARE)
            self.nodes[box.key] = Nodes(name if box.reads_stream else "", name, name)
            return self.nodes[box.key]
        is_frame = box.kind == "sum"
        name = "" if is_frame else self.add_node(box_label(box), depth, GROUP)
        depth -= is_frame
        has_start = box.fork or box.bypass or box.key in self.read_at_input
        start = self.add_node("in", depth + 1, CIRCLE) if has_start else ""
        children = [self.add_box(child, depth + 1) for child in box.children]
        end = self.add_node(escape_label(box.join), depth + 1, CIRCLE) if box.join else ""
        self.lines += [] if is_frame else [f"{INDENT * depth}end"]
        firsts, lasts = (children, children) if box.fork else (children[:1], children[-1:])
        if not box.fork:
            for before, after in pairwise(children):
                self.link(before.exit, after.entry)
        for child in firsts:
            self.link(start, child.entry)
        for child in lasts:
            self.link(child.exit, end)
        if box.bypass:
            self.link(start, end)
        self.nodes[box.key] = Nodes(start or children[0].entry, end or children[-1].exit, name)
        return self.nodes[box.key]


def box_label(box: Box) -> str:
    """Return the label of a box; that of a group has two lines."""
    title = f"<b>{escape_label(box.title)}</b>" if box.title else " "
    title += f" as {escape_label(box.name)}" if box.name and box.kind != "branch" else ""
    lines = [title, *map(escape_label, (*box.lines, *filter(None, [box.footer])))]
    return "<br/>".join(
        ["  ".join(lines[:-1]), lines[-1]] if box.children and box.footer else lines
    )


def escape_label(text: str) -> str:
    """Return a text with entities for all that Mermaid could read as syntax."""
    characters = strip_control_characters(text)
    return "".join(c if c.isalnum() or c in UNESCAPED else f"#{ord(c)};" for c in characters)


def escape_line(text: str) -> str:
    """Return a text for a line of its own, where Mermaid knows no entities."""
    return " ".join(re.sub(r"[;#%{}]", ",", strip_control_characters(text)).split())
