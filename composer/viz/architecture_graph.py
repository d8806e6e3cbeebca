"""Architecture graph of a recipe: nested boxes with labels, and named reads as edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, Literal

from composer.checks.planner import Plan, PlanRow
from composer.formatting import format_bound, si
from composer.model.features import describe_features, feature_settings
from composer.recipe.choices import EmbeddingKind, OutputKind
from composer.recipe.recipe import Recipe
from composer.recipe.schema_reader import is_stack, scalar_text

RecipePath = tuple[str | int, ...]
JOINS = {"residual": "+", "highway": "gate"}
"""Blocks with a bypass, and the label of the node that joins it to the output."""
SCOPES = {"input": ("recurrent", "rows"), "tape": ("active_memory",)}
"""Names that stand for the input of the innermost of some blocks."""
TIMES = "\N{MULTIPLICATION SIGN}"
MAX_LINE, MAX_SETTING = 34, 60
"""Characters of a line, after which settings wrap, and of one setting, after which it is cut."""


@dataclass(frozen=True)
class Box:
    """Node of the graph: a block, part, branch or memory, or the loop of a `recurrent`.

    `children` follow one another or, in a `fork`, are parallel. `join` is the label where branches,
    or the output and a `bypass`, are joined; a `sum` is the frame of such a join before a norm.
    `row` is the block's row of the plan, `family` the block's.
    """

    key: str
    kind: Literal["block", "part", "branch", "loop", "memory", "sum"]
    title: str
    name: str = ""
    lines: tuple[str, ...] = ()
    footer: str = ""
    children: tuple[Box, ...] = ()
    fork: bool = False
    join: str = ""
    bypass: bool = False
    grid: bool = False
    reads_stream: bool = True
    row: PlanRow | None = None
    family: str = ""

    @property
    def block(self) -> str:
        """The word of its block, "" if it stands for none."""
        return self.row.block if self.row else ""

    def walk(self) -> Iterator[Box]:
        """Yield this box and all inside it, in reading order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Edge:
    """Read of a named output: `reader` reads the output of `producer`, or its input (`of_input`).

    `kind` is `memory` between parts of the model, `before` for the output of one position before,
    else `name`.
    """

    producer: str
    reader: str
    name: str
    kind: Literal["name", "before", "memory"]
    of_input: bool = False


@dataclass(frozen=True)
class Graph:
    """Architecture of a model: encoders, then the decoder; `summary` has its sizes in a line."""

    name: str
    summary: str
    parts: tuple[Box, ...]
    edges: tuple[Edge, ...]

    def boxes(self) -> Iterator[Box]:
        """Yield all boxes, in reading order."""
        for part in self.parts:
            yield from part.walk()

    @property
    def repeats(self) -> list[Box]:
        return [box for box in self.boxes() if box.block == "repeat"]


@dataclass
class Part:
    """Encoder or decoder under construction, with its rows of the plan by place in the recipe.

    `used` are the named stacks that have been built in full. What can be read are the outputs of
    boxes with names (`named`), an encoder's `memory`, and the embedding, by their keys; `readers`
    are the boxes that read by name, each with the boxes around it.
    """

    recipe: Recipe
    name: str
    rows: dict[RecipePath, PlanRow]
    memory: str = ""
    used: set[str] = field(default_factory=set)
    named: dict[str, str] = field(default_factory=dict)
    readers: list[tuple[Box, tuple[Box, ...]]] = field(default_factory=list)

    @property
    def embedding(self) -> str:
        return f"{self.name}/embedding"

    def stack(self, place: RecipePath) -> tuple[Box, ...]:
        """Return the boxes of one list of blocks of the recipe, in order."""
        depth = len(place)
        members = [
            row
            for row in self.rows.values()
            if len(row.place) == depth + 2 and row.place[:depth] == place
        ]
        return tuple(map(self.box, members))

    def box(self, row: PlanRow) -> Box:
        """Return the box of one block; a named stack is built in full only once."""
        settings = self.recipe.settings_at(row.place)
        title, is_repeated_use = row.block, False
        if row.block == "repeat":
            times = settings["times"]
            title += (
                f" {TIMES} {times}"
                if isinstance(times, int)
                else ", as often as there are positions"
            )
        if row.block == "use":
            title += f" {settings['stack']}"
            is_repeated_use = settings["stack"] in self.used
            self.used.add(settings["stack"])
        places = [] if is_repeated_use else self.inner_stacks(row, settings)
        fork = row.block != "use" and any(len(place) > len(row.place) + 1 for place in places)
        inside = [self.stack(place) for place in places]
        key = f"{self.name}/" + "/".join(map(str, row.place[1:]))
        if fork:
            names = [place[-1] if isinstance(place[-1], str) else "" for place in places]
            children = tuple(
                Box(f"{key}/{place[-1]}", "branch", name, name, children=boxes)
                for place, name, boxes in zip(places, names, inside, strict=True)
            )
        else:
            children = frame_loop(tuple(chain(*inside)), key)
        box = Box(
            key=key,
            kind="block",
            title=title,
            name=row.name,
            lines=setting_lines(self.recipe, row, settings, is_repeated_use),
            footer=format_size(row),
            children=children,
            fork=fork,
            join=str(settings.get("merge", "")) if fork else JOINS.get(row.block, ""),
            bypass=row.block in JOINS,
            grid=row.columns > 0,
            reads_stream=row.reads_stream,
            row=row,
            family=self.recipe.rules["$defs"][f"block.{row.block}"]["x-family"],
        )
        return add_norm(box, settings["norm"]) if row.block == "residual" else box

    def inner_stacks(self, row: PlanRow, settings: Mapping[str, Any]) -> list[RecipePath]:
        """Return the paths of the stacks in a block: its own, its branches', or that of `use`."""
        if row.block == "use":
            return [("model", "stacks", settings["stack"])]
        depth = len(row.place)
        inner = [place for place in self.rows if place[:depth] == row.place and len(place) > depth]
        # (setting, number, word) in a list of blocks; in a list of branches another number, or a
        # name, stands before
        return list(
            dict.fromkeys(place[: depth + 1 + isinstance(place[depth + 2], int)] for place in inner)
        )

    def collect_names(self, box: Box, around: tuple[Box, ...] = ()) -> None:
        """Collect the named outputs and the named reads of a box and all inside it."""
        if box.name:
            self.named[box.name] = box.key
        if box.row is not None and box.row.reads:
            self.readers.append((box, around))
        for child in box.children:
            self.collect_names(child, (*around, box))

    def edges(self, memories: Mapping[str, Part]) -> Iterator[Edge]:
        """Yield an edge for each name that a box reads. memories: the encoders by their names."""
        for reader, around in self.readers:
            for name in reader.row.reads if reader.row is not None else ():
                memory, _, inner = name.partition(".")
                encoder = memories.get(memory, self)
                if encoder is not self:
                    producer = (
                        encoder.named.get(inner, encoder.embedding) if inner else encoder.memory
                    )
                    yield Edge(producer, reader.key, name, "memory")
                elif name.startswith("prev."):
                    yield Edge(self.named[inner], reader.key, name, "before")
                elif name in self.named:
                    yield Edge(self.named[name], reader.key, name, "name")
                else:
                    scopes = [
                        box.key
                        for box in around
                        if box.row and box.row.block in SCOPES.get(name, ())
                    ]
                    scope = scopes[-1] if scopes else None
                    yield Edge(
                        scope or self.embedding,
                        reader.key,
                        name,
                        "name",
                        of_input=scope is not None,
                    )


def build_graph(recipe: Recipe, plan: Plan) -> Graph:
    """Return the graph of a recipe and its plan."""
    # each part has the rows from its embedding to the next one; CTC is a part of its own
    starts = [number for number, row in enumerate(plan.rows) if row.block in ("embedding", "ctc")]
    built = [
        build_part(recipe, plan, plan.rows[start:stop])
        for start, stop in pairwise([*starts, len(plan.rows)])
    ]
    memories = {part.name: part for part, _ in built if part.memory}
    edges = [*chain.from_iterable(part.edges(memories) for part, _ in built)]
    # the end of an encoder that stands for its memory is drawn only where something reads it as one
    hidden = {part.memory for part in memories.values()} - {edge.producer for edge in edges}
    parts = []
    for _, box in built:
        children = tuple(child for child in box.children if child.key not in hidden)
        parts.append(replace(box, children=children))
    flops = f"{si(plan.flops)} FLOPs for {plan.example}"
    sizes = format_bound(f"{si(plan.parameters)} parameters; {flops}", plan.at_most)
    summary = f"width {recipe.model.width:,}; {sizes}"
    return Graph(recipe.name, summary, tuple(parts), tuple(edges))


def build_part(recipe: Recipe, plan: Plan, rows: Sequence[PlanRow]) -> tuple[Part, Box]:
    """Return an encoder, the decoder or CTC, and its box."""
    place, name = rows[0].place, str(rows[0].place[-1])
    part = Part(recipe, name, {row.place: row for row in rows[1:]})
    if rows[0].block == "ctc":
        ctc = recipe.model.output.ctc
        weight = ctc.weight if ctc else 0.0
        texts, footer = (
            (target_line(plan), "alone" if weight == 1 else f"weight {weight:g}"),
            format_size(rows[0]),
        )
        only = Box(
            "ctc", "block", "ctc", lines=texts, footer=footer, reads_stream=False, row=rows[0]
        )
        box = Box("ctc/part", "part", "ctc", children=(only,))
        part.collect_names(box)
        return part, box
    lines, footer = embedding_lines(recipe, rows[0], plan), format_size(rows[0])
    is_grid = rows[0].columns > 0
    first = Box(
        part.embedding, "block", "embedding", lines=lines, footer=footer, grid=is_grid, row=rows[0]
    )
    if place == ("model", "decoder"):
        lines, footer = output_lines(recipe, plan), format_size(rows[-1])
        last = Box("output", "block", "output", lines=lines, footer=footer, row=rows[-1])
    else:
        last = Box(f"{name}/memory", "memory", name)
        part.memory = last.key
    title = name if len(place) == 2 else f"encoder {name}"
    box = Box(f"{name}/part", "part", title, children=(first, *part.stack(place), last))
    part.collect_names(box)
    return part, box


def add_norm(residual: Box, place: str) -> Box:
    """Return a residual with a box for its norm, before its blocks or after their sum."""
    norm = Box(f"{residual.key}/norm", "block", "norm", family="normalization")
    if place == "pre":
        return replace(residual, children=(norm, *residual.children))
    if place == "none":
        return residual
    frame = Box(
        f"{residual.key}/sum",
        "sum",
        "",
        children=residual.children,
        join=residual.join,
        bypass=True,
    )
    return replace(residual, children=(frame, norm), join="", bypass=False)


def fold(graph: Graph, repeats: Sequence[Box]) -> Graph:
    """Return the graph with each of these repeats as one box that names its blocks."""
    # the outermost one's comes last
    outer = {}
    for repeat in reversed(repeats):
        outer.update(dict.fromkeys((inner.key for inner in repeat.walk()), repeat.key))

    def fold_box(box: Box) -> Box:
        if outer.get(box.key) != box.key:
            return replace(box, children=tuple(map(fold_box, box.children)))
        leaves = [inner for inner in box.walk() if not inner.children]
        blocks = [leaf.title for leaf in leaves if leaf.kind == "block"]
        blocks = [*filter(None, blocks)]
        return replace(box, children=(), lines=(*box.lines, *wrap(blocks, ", ")))

    edges = [
        replace(
            edge,
            producer=outer.get(edge.producer, edge.producer),
            reader=outer.get(edge.reader, edge.reader),
        )
        for edge in graph.edges
    ]
    edges = [edge for edge in dict.fromkeys(edges) if edge.producer != edge.reader]
    return replace(graph, parts=tuple(map(fold_box, graph.parts)), edges=tuple(edges))


def frame_loop(boxes: tuple[Box, ...], key: str) -> tuple[Box, ...]:
    """Return the blocks of a `recurrent`, those that run position by position in a box."""
    inside = [index for index, box in enumerate(boxes) if box.row is not None and box.row.loops]
    if not inside:
        return boxes
    first, stop = inside[0], inside[-1] + 1
    loop = Box(f"{key}/loop", "loop", "position by position", children=boxes[first:stop])
    return (*boxes[:first], loop, *boxes[stop:])


def setting_lines(
    recipe: Recipe, row: PlanRow, settings: Mapping[str, object], is_repeated_use: bool
) -> tuple[str, ...]:
    """Return lines with the block's notable settings and the outputs that it reads."""
    rules = recipe.rules["$defs"][f"block.{row.block}"]
    shown = {} if row.block == "use" else settings
    shown = {key: value for key, value in shown.items() if is_shown(row, key, value, rules)}
    first = rules.get("x-first")
    items = [
        format_setting(key, value, key == first and value not in row.reads)
        for key, value in shown.items()
    ]
    words: set[str] = set()
    for value in shown.values():
        values = (
            value.values()
            if isinstance(value, Mapping)
            else value
            if isinstance(value, list)
            else [value]
        )
        words |= set(map(str, values))
    unnamed = [name for name in row.reads if name not in words]
    items += [f"reads {', '.join(unnamed)}"] if unnamed else []
    lines = wrap(items, "  ")
    if row.block == "use" and settings["copy"]:
        lines.append("a copy, parameters of its own")
    elif is_repeated_use:
        lines.append("as above, with the same parameters")
    elif row.block == "repeat" and (settings["share"] or not isinstance(settings["times"], int)):
        lines += ["the same parameters each time"] if settings["relaxation"] is None else []
    return tuple(lines)


def wrap(items: Iterable[str], separator: str) -> list[str]:
    """Return items in lines of at most MAX_LINE characters."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(separator) + len(item) <= MAX_LINE:
            lines[-1] += f"{separator}{item}"
        else:
            lines.append(item)
    return lines


def is_shown(row: PlanRow, key: str, value: Any, rules: Mapping[str, Any]) -> bool:
    """True if a setting tells a reader something that the rest of the box does not."""
    setting = rules["properties"].get(key, {})
    hidden = ("as", "share", "times", *(["norm"] if row.block == "residual" else []))
    if value is None or key in hidden or is_stack(setting) or is_stack(setting.get("items", {})):
        return False
    if (key == "width" and value == row.width) or (key == "columns" and value == row.columns):
        return False
    if key == "dropout":
        return value != 0.0
    return key == rules.get("x-first") or value != setting.get("default")


def format_setting(key: str, value: object, is_first: bool) -> str:
    """Return a setting as text: `heads=8`, `gru`, `bidirectional`."""
    is_word = (is_first and isinstance(value, str)) or key == "of"
    text = (
        format_value(value) if is_word else key if value is True else f"{key}={format_value(value)}"
    )
    return text if len(text) <= MAX_SETTING else f"{text[: MAX_SETTING - 1]}…"


def format_value(value: object) -> str:
    """Return a value as text without YAML's punctuation: true, 3×3, copy encoder.top."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    if isinstance(value, list):
        numbers = all(isinstance(item, int) for item in value)
        return (TIMES if numbers else ", ").join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else scalar_text(value)


def format_size(row: PlanRow) -> str:
    """Return the output width of a block and the number of its parameters."""
    columns = f" {TIMES} {row.columns} columns" if row.columns else ""
    size = format_bound(f"{si(row.parameters)} parameters", row.at_most)
    parameters = f", {size}" if row.parameters else ""
    return f"{row.width:,} wide{columns}{parameters}"


def embedding_lines(recipe: Recipe, row: PlanRow, plan: Plan) -> tuple[str, ...]:
    """Return the input, kind and tied matrix of an embedding; for features, their shape."""
    key = {"encoder": "source", "decoder": "target"}.get(str(row.place[-1]), str(row.place[-1]))
    if features := feature_settings(recipe.data, key):
        return (f"{key}, {describe_features(features)}",)
    kind = format_kind(recipe.model.embedding, {"learned": "", "one_hot": "one-hot"})
    tokens = f"{plan.vocabularies[key]:,} tokens"
    unread = "nothing reads these tokens" if not row.parameters and kind != "one-hot" else ""
    tied = "shares its matrix with the output" if key in recipe.model.output.tie else ""
    return tuple(filter(None, (f"{key}, {format_bound(tokens, plan.at_most)}", kind, unread, tied)))


def format_kind(choice: EmbeddingKind | OutputKind, texts: Mapping[str, str]) -> str:
    """Return a kind of embedding or output head: its text, or else its name and settings."""
    settings = (format_setting(key, value, False) for key, value in choice.as_data().items())
    return texts.get(choice.word, ", ".join([choice.word, *settings]))


def output_lines(recipe: Recipe, plan: Plan) -> tuple[str, ...]:
    """Return the target, kind and tied matrix of the output."""
    settings = recipe.model.output
    kinds = {
        "linear": "",
        "sigmoid": "a sigmoid for each bit",
        "identity": "the logits as they arrive",
    }
    kind = format_kind(settings.kind, kinds)
    tied = f"shares its matrix with {', '.join(settings.tie)}" if settings.tie else ""
    length = f"outputs of length {settings.length}" if settings.length else ""
    return tuple(filter(None, (target_line(plan), kind, tied, length)))


def target_line(plan: Plan) -> str:
    """Return the number of tokens that an output chooses from."""
    tokens = format_bound(f"{plan.vocabularies['target']:,} tokens", plan.at_most)
    return f"target, {tokens}"
