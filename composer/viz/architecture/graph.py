"""What stands in a picture: boxes in boxes in the order of the stream, and who reads what of whom. No places yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from composer.model.planner import Plan, PlanRow
from composer.recipe.recipe import Recipe
from composer.viz.architecture.labels import about, embedding_lines, foot, lines_of, output_lines, title_of

Place = tuple[str | int, ...]
PREV = "prev."
JOINS = {"residual": "+", "highway": "gate"}
"""Blocks around which the stream also passes, and what stands where it comes together again."""
SCOPES = {"input": "recurrent", "tape": "active_memory"}
"""Names that stand for what enters the innermost block of a kind."""


@dataclass(frozen=True)
class Box:
    """One thing in the picture. `key` is its own; `row` its row of the plan, if it has one.

    `inner` stands in it, below each other or, where it is a `fork`, side by side. `join` is what stands where branches,
    or what was made and a `bypass`, come together. `hears` is whether it reads the stream.
    """

    key: str
    kind: Literal["block", "part", "branch", "loop", "memory"]
    title: str
    name: str = ""
    lines: tuple[str, ...] = ()
    foot: str = ""
    inner: tuple[Box, ...] = ()
    fork: bool = False
    join: str = ""
    bypass: bool = False
    grid: bool = False
    hears: bool = True
    row: PlanRow | None = None

    def all(self) -> Iterator[Box]:
        """This box and all inside it, as one reads them."""
        yield self
        for each in self.inner:
            yield from each.all()


@dataclass(frozen=True)
class Read:
    """An arrow: `reader` reads what `maker` makes, or what enters it (`entering`); `name` is how the recipe says it.

    `how` is `memory` from one part to another, `before` of what was made one step before, else `name`.
    """

    maker: str
    reader: str
    name: str
    how: Literal["name", "before", "memory"]
    entering: bool = False


@dataclass(frozen=True)
class Scene:
    """A whole picture: encoders in order, then the decoder; `about` tells its sizes in a line."""

    name: str
    about: str
    parts: tuple[Box, ...]
    reads: tuple[Read, ...]

    def boxes(self) -> Iterator[Box]:
        """All boxes, as one reads them."""
        for part in self.parts:
            yield from part.all()


@dataclass
class Names:
    """Who makes what has a name in one part; `whole` is who makes its memory, `first` its embedding."""

    first: str
    whole: str = ""
    named: dict[str, str] = field(default_factory=dict)


@dataclass
class Sketch:
    """A picture that is being put together; `wanted` has each reader, its part, and what stands around it."""

    recipe: Recipe
    plan: Plan
    memories: dict[str, Names] = field(default_factory=dict)
    wanted: list[tuple[Box, Names, tuple[Box, ...]]] = field(default_factory=list)


def scene(recipe: Recipe, plan: Plan) -> Scene:
    """What stands in the picture of a recipe that has been planned."""
    sketch = Sketch(recipe, plan)
    parts = tuple(part_of(sketch, rows) for rows in parts_of(plan.rows))
    arrows = tuple(read for reader, names, around in sketch.wanted for read in reads_of(sketch, reader, names, around))
    told = {read.maker for read in arrows}
    return Scene(recipe.name, about(recipe, plan), tuple(without_unread(part, told) for part in parts), arrows)


def parts_of(rows: Iterable[PlanRow]) -> Iterator[list[PlanRow]]:
    """The rows of each encoder, and those of the decoder with the output."""
    part: list[PlanRow] = []
    for row in rows:
        if row.block == "embedding" and part:
            yield part
            part = []
        part.append(row)
    yield part


def part_of(sketch: Sketch, rows: Sequence[PlanRow]) -> Box:
    """One encoder, or the decoder: its embedding, its blocks, and what it ends in."""
    place = rows[0].place
    memory, is_decoder = str(place[-1]), place == ("model", "decoder")
    title = memory if len(place) == 2 else f"encoder {memory}"
    lines = embedding_lines(sketch.recipe, rows[0], sketch.plan)
    tokens = Box(
        f"{memory}/embedding",
        "block",
        "embedding",
        lines=lines,
        foot=foot(rows[0]),
        row=rows[0],
        grid=rows[0].columns > 0,
    )
    names = Names(tokens.key)
    blocks = stack_of(sketch, memory, {row.place: row for row in rows[1:]}, place, set())
    if is_decoder:
        last = Box(
            "output",
            "block",
            "output",
            lines=output_lines(sketch.recipe, sketch.plan),
            foot=foot(rows[-1]),
            row=rows[-1],
        )
    else:
        last = Box(f"{memory}/memory", "memory", memory)
        names.whole = last.key
        sketch.memories[memory] = names
    part = Box(f"{memory}/part", "part", title, inner=(tokens, *blocks, last))
    note(sketch, part, names, ())
    return part


def stack_of(sketch: Sketch, part: str, rows: Mapping[Place, PlanRow], place: Place, used: set[str]) -> tuple[Box, ...]:
    """The blocks of one list of the recipe, in order."""
    depth = len(place) + 2
    here = [row for row in rows.values() if len(row.place) == depth and row.place[: len(place)] == place]
    return tuple(box_of(sketch, part, rows, row, used) for row in here)


def box_of(sketch: Sketch, part: str, rows: Mapping[Place, PlanRow], row: PlanRow, used: set[str]) -> Box:
    """One block with all that stands in it."""
    settings = sketch.recipe.settings_at(row.place)
    again = row.block == "use" and settings["stack"] in used
    groups = {} if again else groups_of(rows, row, settings)
    used |= {settings["stack"]} if row.block == "use" else set()
    key = f"{part}/" + "/".join(map(str, row.place[1:]))
    fork = any(len(group) > len(row.place) + 1 for group in groups) and row.block != "use"
    if fork:
        labels = [group[-1] if isinstance(group[-1], str) else "" for group in groups]
        inner = tuple(
            Box(f"{key}/{group[-1]}", "branch", label, label, inner=stack_of(sketch, part, rows, group, used))
            for group, label in zip(groups, labels, strict=True)
        )
    else:
        inner = looped(tuple(box for group in groups for box in stack_of(sketch, part, rows, group, used)), key)
    return Box(
        key,
        "block",
        title_of(row, settings),
        row.name,
        lines_of(sketch.recipe, row, settings, again),
        foot(row),
        inner,
        fork,
        str(settings.get("merge", "")) if fork else JOINS.get(row.block, ""),
        row.block in JOINS,
        row.columns > 0,
        row.reads_stream,
        row,
    )


def groups_of(rows: Mapping[Place, PlanRow], row: PlanRow, settings: Mapping[str, Any]) -> dict[Place, None]:
    """The places of the lists that stand in a block: `stack`, or each of `branches`; of `use`, the stack it names."""
    if row.block == "use":
        return {("model", "stacks", settings["stack"]): None}
    depth = len(row.place)
    inner = (place for place in rows if place[:depth] == row.place and len(place) > depth)
    # (setting, number, word) in a list of blocks; in a list of branches another number, or a name, stands before
    return dict.fromkeys(place[: depth + 1 + isinstance(place[depth + 2], int)] for place in inner)


def looped(boxes: tuple[Box, ...], key: str) -> tuple[Box, ...]:
    """Blocks of a `recurrent`; those that run position by position stand in a frame of their own."""
    inside = [index for index, box in enumerate(boxes) if box.row is not None and box.row.loops]
    if not inside:
        return boxes
    first, stop = inside[0], inside[-1] + 1
    loop = Box(f"{key}/loop", "loop", "position by position", inner=boxes[first:stop])
    return (*boxes[:first], loop, *boxes[stop:])


# ------------------------------------------------------------------------------------------- who reads what


def note(sketch: Sketch, box: Box, names: Names, around: tuple[Box, ...]) -> None:
    """Notes the names and the reads of a box and of all in it."""
    if box.name:
        names.named[box.name] = box.key
    if box.row is not None and box.row.reads:
        sketch.wanted.append((box, names, around))
    for each in box.inner:
        note(sketch, each, names, (*around, box))


def reads_of(sketch: Sketch, reader: Box, names: Names, around: tuple[Box, ...]) -> Iterator[Read]:
    """The arrows to one reader."""
    for name in reader.row.reads if reader.row is not None else ():
        memory, _, inner = name.partition(".")
        if memory in sketch.memories and sketch.memories[memory] is not names:
            there = sketch.memories[memory]
            maker = there.named.get(inner, there.first) if inner else there.whole
            yield Read(maker, reader.key, name, "memory")
        elif name.startswith(PREV):
            yield Read(names.named[inner], reader.key, name, "before")
        elif name in names.named:
            yield Read(names.named[name], reader.key, name, "name")
        else:
            yield entering(reader, name, names, around)


def entering(reader: Box, name: str, names: Names, around: tuple[Box, ...]) -> Read:
    """The arrow to who reads what enters the block around it, or the part."""
    scopes = (box.key for box in reversed(around) if box.row is not None and box.row.block == SCOPES.get(name))
    scope = next(scopes, None)
    if scope is None:
        return Read(names.first, reader.key, name, "name")
    return Read(scope, reader.key, name, "name", entering=True)


def without_unread(part: Box, told: set[str]) -> Box:
    """A part without the end that stands for its memory, if nobody reads it whole."""
    return replace(part, inner=tuple(box for box in part.inner if box.kind != "memory" or box.key in told))
