"""Architecture graph of a recipe: nested boxes in the order of the stream, their labels, and named reads as edges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from composer.formatting import si
from composer.model.planner import Plan, PlanRow
from composer.recipe.json_schema import holds_stacks
from composer.recipe.recipe import Recipe

RecipePath = tuple[str | int, ...]
PREV = "prev."
JOINS = {"residual": "+", "highway": "gate"}
"""Blocks with a bypass, and the label of the node that joins it to the output."""
SCOPES = {"input": "recurrent", "tape": "active_memory"}
"""Names that stand for the input of the innermost block of a kind."""
TIMES = "\N{MULTIPLICATION SIGN}"
MAX_LINE, MAX_SETTING = 34, 60
"""Characters of a line, after which settings wrap, and of one setting, after which it is cut."""
SHOWN_ELSEWHERE = {"as", "share", "times"}
"""Settings that have a place of their own in a box."""


@dataclass(frozen=True)
class Box:
    """Node of the graph: a block, a part of the model, a branch, the loop of a `recurrent`, or an encoder's memory.

    `children` follow one another or, in a `fork`, are parallel. `join` is the label where branches, or the output and a
    `bypass`, are joined. `row` is the block's row of the plan.
    """

    key: str
    kind: Literal["block", "part", "branch", "loop", "memory"]
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

    def walk(self) -> Iterator[Box]:
        """Yield this box and all inside it, in reading order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True)
class Edge:
    """Read of an output by its name: box `reader` reads the output of box `producer`, or its input (`of_input`).

    `kind` is `memory` between parts of the model, `before` for the output of one position before, else `name`.
    """

    producer: str
    reader: str
    name: str
    kind: Literal["name", "before", "memory"]
    of_input: bool = False


@dataclass(frozen=True)
class Graph:
    """Architecture of a model: its encoders in order, then the decoder; `summary` has its sizes in one line."""

    name: str
    summary: str
    parts: tuple[Box, ...]
    edges: tuple[Edge, ...]

    def boxes(self) -> Iterator[Box]:
        """Yield all boxes, in reading order."""
        for part in self.parts:
            yield from part.walk()


@dataclass
class Outputs:
    """Keys of the boxes whose outputs can be read in one part: its embedding, its memory, and those with names."""

    embedding: str
    memory: str = ""
    named: dict[str, str] = field(default_factory=dict)


@dataclass
class Draft:
    """Graph under construction; `readers` has each box that reads by name, its part, and the boxes around it."""

    recipe: Recipe
    plan: Plan
    memories: dict[str, Outputs] = field(default_factory=dict)
    readers: list[tuple[Box, Outputs, tuple[Box, ...]]] = field(default_factory=list)


def build_graph(recipe: Recipe, plan: Plan) -> Graph:
    """Return the graph of a recipe and its plan."""
    draft = Draft(recipe, plan)
    parts = [build_part(draft, rows) for rows in split_parts(plan.rows)]
    edges = tuple(
        edge for reader, outputs, around in draft.readers for edge in edges_to(draft, reader, outputs, around)
    )
    producers = {edge.producer for edge in edges}
    # the end of an encoder that stands for its memory is drawn only where something reads it as one
    shown = (
        replace(part, children=tuple(box for box in part.children if box.kind != "memory" or box.key in producers))
        for part in parts
    )
    flops = f"{si(plan.flops)} FLOPs for one pair of {plan.tokens} + {plan.tokens} tokens"
    summary = f"width {recipe.model['width']:,}; {si(plan.parameters)} parameters; {flops}"
    return Graph(recipe.name, summary, tuple(shown), edges)


def split_parts(rows: Iterable[PlanRow]) -> Iterator[list[PlanRow]]:
    """Yield the rows of each encoder, then those of the decoder with the output; each part starts at its embedding."""
    part: list[PlanRow] = []
    for row in rows:
        if row.block == "embedding" and part:
            yield part
            part = []
        part.append(row)
    yield part


def build_part(draft: Draft, rows: Sequence[PlanRow]) -> Box:
    """Return the box of an encoder or of the decoder, and collect what can be read in it."""
    first, place = rows[0], rows[0].place
    memory, is_decoder = str(place[-1]), place == ("model", "decoder")
    title = memory if len(place) == 2 else f"encoder {memory}"
    lines = embedding_lines(draft.recipe, first, draft.plan)
    is_grid = first.columns > 0
    key = f"{memory}/embedding"
    embedding = Box(key, "block", "embedding", lines=lines, footer=format_size(first), row=first, grid=is_grid)
    outputs = Outputs(embedding.key)
    blocks = build_stack(draft, memory, {row.place: row for row in rows[1:]}, place, set())
    if is_decoder:
        lines, footer = output_lines(draft.recipe, draft.plan), format_size(rows[-1])
        last = Box("output", "block", "output", lines=lines, footer=footer, row=rows[-1])
    else:
        last = Box(f"{memory}/memory", "memory", memory)
        outputs.memory = last.key
        draft.memories[memory] = outputs
    part = Box(f"{memory}/part", "part", title, children=(embedding, *blocks, last))
    collect_names(draft, part, outputs, ())
    return part


def build_stack(
    draft: Draft, part: str, rows: Mapping[RecipePath, PlanRow], place: RecipePath, used: set[str]
) -> tuple[Box, ...]:
    """Return the boxes of one list of blocks of the recipe, in order."""
    depth = len(place) + 2
    members = [row for row in rows.values() if len(row.place) == depth and row.place[: len(place)] == place]
    return tuple(build_box(draft, part, rows, row, used) for row in members)


def build_box(draft: Draft, part: str, rows: Mapping[RecipePath, PlanRow], row: PlanRow, used: set[str]) -> Box:
    """Return the box of one block. used: the named stacks drawn so far, which are not drawn in full again."""
    settings = draft.recipe.settings_at(row.place)
    is_repeated_use = row.block == "use" and settings["stack"] in used
    stacks = {} if is_repeated_use else inner_stacks(rows, row, settings)
    used |= {settings["stack"]} if row.block == "use" else set()
    key = f"{part}/" + "/".join(map(str, row.place[1:]))
    fork = any(len(stack) > len(row.place) + 1 for stack in stacks) and row.block != "use"
    inside = {stack: build_stack(draft, part, rows, stack, used) for stack in stacks}
    if fork:
        labels = [str(stack[-1]) if isinstance(stack[-1], str) else "" for stack in stacks]
        children = tuple(
            Box(f"{key}/{stack[-1]}", "branch", label, label, children=boxes)
            for (stack, boxes), label in zip(inside.items(), labels, strict=True)
        )
    else:
        children = frame_loop(tuple(box for boxes in inside.values() for box in boxes), key)
    return Box(
        key=key,
        kind="block",
        title=format_title(row, settings),
        name=row.name,
        lines=setting_lines(draft.recipe, row, settings, is_repeated_use),
        footer=format_size(row),
        children=children,
        fork=fork,
        join=str(settings.get("merge", "")) if fork else JOINS.get(row.block, ""),
        bypass=row.block in JOINS,
        grid=row.columns > 0,
        reads_stream=row.reads_stream,
        row=row,
    )


def inner_stacks(
    rows: Mapping[RecipePath, PlanRow], row: PlanRow, settings: Mapping[str, Any]
) -> dict[RecipePath, None]:
    """Return the paths of the stacks in a block, in order: `stack`, each of `branches`, or the one that `use` names."""
    if row.block == "use":
        return {("model", "stacks", settings["stack"]): None}
    depth = len(row.place)
    inner = (place for place in rows if place[:depth] == row.place and len(place) > depth)
    # (setting, number, word) in a list of blocks; in a list of branches another number, or a name, stands before
    return dict.fromkeys(place[: depth + 1 + isinstance(place[depth + 2], int)] for place in inner)


def frame_loop(boxes: tuple[Box, ...], key: str) -> tuple[Box, ...]:
    """Return the blocks of a `recurrent` with those that run position by position in a box of their own."""
    inside = [index for index, box in enumerate(boxes) if box.row is not None and box.row.loops]
    if not inside:
        return boxes
    first, stop = inside[0], inside[-1] + 1
    loop = Box(f"{key}/loop", "loop", "position by position", children=boxes[first:stop])
    return (*boxes[:first], loop, *boxes[stop:])


def collect_names(draft: Draft, box: Box, outputs: Outputs, around: tuple[Box, ...]) -> None:
    """Collect the named outputs, and the boxes that read by name, of a box and all inside it."""
    if box.name:
        outputs.named[box.name] = box.key
    if box.row is not None and box.row.reads:
        draft.readers.append((box, outputs, around))
    for child in box.children:
        collect_names(draft, child, outputs, (*around, box))


def edges_to(draft: Draft, reader: Box, outputs: Outputs, around: tuple[Box, ...]) -> Iterator[Edge]:
    """Yield an edge for each name that a box reads."""
    for name in reader.row.reads if reader.row is not None else ():
        memory, _, inner = name.partition(".")
        if memory in draft.memories and draft.memories[memory] is not outputs:
            encoder = draft.memories[memory]
            producer = encoder.named.get(inner, encoder.embedding) if inner else encoder.memory
            yield Edge(producer, reader.key, name, "memory")
        elif name.startswith(PREV):
            yield Edge(outputs.named[inner], reader.key, name, "before")
        elif name in outputs.named:
            yield Edge(outputs.named[name], reader.key, name, "name")
        else:
            scopes = (box.key for box in reversed(around) if box.row is not None and box.row.block == SCOPES.get(name))
            scope = next(scopes, None)
            yield Edge(scope or outputs.embedding, reader.key, name, "name", of_input=scope is not None)


def format_title(row: PlanRow, settings: Mapping[str, Any]) -> str:
    """Return a block's word, with the number of times of a `repeat` and the name of a stack that is used."""
    if row.block == "repeat":
        times = settings["times"]
        return f"repeat {TIMES} {times}" if isinstance(times, int) else "repeat, as often as there are positions"
    return f"use {settings['stack']}" if row.block == "use" else row.block


def setting_lines(recipe: Recipe, row: PlanRow, settings: Mapping[str, Any], is_repeated_use: bool) -> tuple[str, ...]:
    """Return lines with the settings that differ from their defaults or are usually set, and with what is read."""
    rules = recipe.rules["$defs"][f"block.{row.block}"]
    shown = {key: value for key, value in settings.items() if is_shown(recipe, row, key, value, rules)}
    shown = {} if row.block == "use" else shown
    first = rules.get("x-first")
    items = [format_setting(key, value, key == first and value not in row.reads) for key, value in shown.items()]
    words = {word for value in shown.values() for word in words_in(value)}
    unnamed = [name for name in row.reads if name not in words]
    items += [f"reads {', '.join(unnamed)}"] if unnamed else []
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + 2 + len(item) <= MAX_LINE:
            lines[-1] += f"  {item}"
        else:
            lines.append(item)
    return (*lines, *sharing_lines(row, settings, is_repeated_use))


def is_shown(recipe: Recipe, row: PlanRow, key: str, value: Any, rules: Mapping[str, Any]) -> bool:
    """Return whether a setting tells a reader something that the rest of the box does not."""
    if value is None or key in SHOWN_ELSEWHERE or holds_stacks(rules["properties"].get(key, {})):
        return False
    if (key == "width" and value == row.width) or (key == "columns" and value == row.columns):
        return False
    if key == "dropout":
        return value not in (0.0, recipe.model["dropout"])
    return key == rules.get("x-first") or value != rules["properties"].get(key, {}).get("default")


def sharing_lines(row: PlanRow, settings: Mapping[str, Any], is_repeated_use: bool) -> list[str]:
    """Return a line on whether the parameters are shared, for a block that runs or is used several times."""
    if row.block == "use":
        if settings["copy"]:
            return ["a copy, parameters of its own"]
        return ["as above, with the same parameters"] if is_repeated_use else []
    shared = row.block == "repeat" and (settings["share"] or not isinstance(settings["times"], int))
    return ["the same parameters each time"] if shared and settings["relaxation"] is None else []


def words_in(value: Any) -> list[str]:
    """Return the words in a setting that may be names of outputs."""
    if isinstance(value, Mapping):
        return [str(word) for word in value.values()]
    return [str(word) for word in value] if isinstance(value, list) else [str(value)]


def format_setting(key: str, value: Any, is_first: bool) -> str:
    """Return a setting as text: `heads=8`, `gru`, `bidirectional`."""
    is_word = (is_first and isinstance(value, str)) or key == "of"
    text = format_value(value) if is_word else key if value is True else f"{key}={format_value(value)}"
    return text if len(text) <= MAX_SETTING else f"{text[: MAX_SETTING - 1]}…"


def format_value(value: Any) -> str:
    """Return a value as text without YAML's punctuation: true, 3×3, copy encoder.top."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    if isinstance(value, list):
        numbers = all(isinstance(item, int) for item in value)
        return (TIMES if numbers else ", ").join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def format_size(row: PlanRow) -> str:
    """Return the output width of a block and the number of its parameters."""
    columns = f" {TIMES} {row.columns} columns" if row.columns else ""
    parameters = f", {si(row.parameters)} parameters" if row.parameters else ""
    return f"{row.width:,} wide{columns}{parameters}"


def embedding_lines(recipe: Recipe, row: PlanRow, plan: Plan) -> tuple[str, ...]:
    """Return what an embedding embeds, of what kind it is, and whether its matrix is tied."""
    key = {"encoder": "source", "decoder": "target"}.get(str(row.place[-1]), str(row.place[-1]))
    kind = {"learned": "", "linear": "linear", "one_hot": "one-hot"}[recipe.model["embedding"]]
    unread = "nothing reads these tokens" if not row.parameters and kind != "one-hot" else ""
    tied = "shares its matrix with the output" if key in recipe.model["output"]["tie"] else ""
    return tuple(filter(None, (f"{key}, {plan.vocabularies[key]:,} tokens", kind, unread, tied)))


def output_lines(recipe: Recipe, plan: Plan) -> tuple[str, ...]:
    """Return what the output predicts, of what kind it is, and whether its matrix is tied."""
    settings = recipe.model["output"]
    kind = {"linear": "", "sigmoid": "a sigmoid for each bit", "identity": "the logits as they arrive"}
    tied = f"shares its matrix with {', '.join(settings['tie'])}" if settings["tie"] else ""
    length = f"answers of length {settings['length']}" if settings["length"] else ""
    lines = (f"target, {plan.vocabularies['target']:,} tokens", kind[settings["kind"]], tied, length)
    return tuple(filter(None, lines))
