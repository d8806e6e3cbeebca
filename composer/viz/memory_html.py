"""Pictures of memories: where heads wrote and read, what cells held, and what each look at a memory found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from composer.viz.heatmaps import CELL, Axes, axis, drawing, top_of
from composer.viz.html import Markup, join, tag
from composer.viz.memory import Memory, Panel, Table

SHADES = 10
"""How dark a cell of a table can be: s1 to s10, on which text can be read in light and in dark."""
HIGH = 420
"""Units of a map's height at most, where its rows are no lower than THIN."""
THIN = 3.0
TOLD = 20
"""Positions of which a map's words tell, at most."""


def weightings(memories: Sequence[Memory], number: int) -> Markup:
    """All memories of a sentence. `number` tells it from others on the page."""
    if not memories:
        return Markup("")
    axes: Axes = {}
    for panel in panels_of(memories):
        axes.setdefault((tuple(panel.rows), tuple(panel.columns)), f"cells-{number}-{len(axes)}")
    drawn = (axis(tokens, name, height(len(tokens[0]))) for tokens, name in axes.items())
    hidden = tag("svg", {"class": "none", "aria-hidden": "true"}, tag("defs", {}, *drawn))
    return join([hidden, *(memory(each, axes) for each in memories)])


def panels_of(memories: Sequence[Memory]) -> Iterator[Panel]:
    """Every map of a sentence."""
    return (panel for each in memories for panels in each.panels for panel in panels)


def seen(memories: Sequence[Memory]) -> list[str]:
    """What is seen, once for each kind."""
    return list(dict.fromkeys(each.about for each in memories))


def memory(one: Memory, axes: Axes) -> Markup:
    """The maps and tables of one memory, a line for each thing that is seen."""
    note = [tag("p", {"class": "soft"}, one.note)] if one.note else []
    told = [tag("output", {"class": "told"})] if one.panels else []
    heading = tag("h4", {}, ", ".join(one.blocks))
    lines = (line(panels, axes) for panels in one.panels)
    return tag("div", {"class": "block"}, heading, *note, *told, *lines, *map(table, one.tables))


def line(panels: Sequence[Panel], axes: Axes) -> Markup:
    """Maps beside each other, whose first rows are level."""
    top = max(top_of(panel.columns) for panel in panels)
    return tag("div", {"class": "heads level"}, *(heat_map(panel, axes, top) for panel in panels))


def height(rows: int) -> float:
    """Of one row, so that all of them can be taken in at a glance."""
    return float(min(CELL, max(THIN, HIGH // rows)))


def heat_map(panel: Panel, axes: Axes, top: float) -> Markup:
    """One map, with time across, `top` below the upper edge of its picture."""
    name = axes[tuple(panel.rows), tuple(panel.columns)]
    shades = (panel.values - panel.low) / (1.0 - panel.low)
    shown = drawing(panel.rows, panel.columns, shades, name, label(panel), top, height(len(panel.rows)))
    attributes = {"class": "map", "data-between": " at ", "data-white": panel.low or None}
    return tag("figure", attributes, tag("figcaption", {}, panel.title), shown)


def label(panel: Panel) -> str:
    """A map in words, for who does not see it."""
    best = panel.values.argmax(0).tolist()
    told = [f"{token}: {panel.rows[at]}" for token, at in zip(panel.columns, best, strict=True)]
    more = f"; and {len(told) - TOLD} more" if len(told) > TOLD else ""
    return f"{panel.title}. Largest at each moment: {'; '.join(told[:TOLD])}{more}"


def table(one: Table) -> Markup:
    """A table whose cells are shaded by their numbers."""
    head = tag("tr", {}, tag("th", {}, one.corner), *(tag("th", {"class": "number"}, each) for each in one.columns))
    body = (
        tag("tr", {}, tag("td", {}, row), *map(cell, texts, shades))
        for row, texts, shades in zip(one.rows, one.texts, one.shades, strict=True)
    )
    inner = tag("table", {"class": "shaded"}, tag("thead", {}, head), tag("tbody", {}, *body))
    return join([tag("p", {}, tag("bdi", {}, one.title)), tag("div", {"class": "scroll"}, inner)])


def cell(text: str, share: float) -> Markup:
    """One cell: the larger the share, the darker."""
    level = round(SHADES * float(np.clip(share, 0.0, 1.0)))
    return tag("td", {"class": f"number s{level}" if level else "number"}, text)
