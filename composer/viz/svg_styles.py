"""Styles of drawings: literal colours as attributes, and as CSS in the dark.

CSS with variables is for browsers alone: librsvg, CairoSVG and Inkscape draw a black box where a
colour is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

FONT = "ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace"


class Color(NamedTuple):
    """A colour on paper, and on a dark screen."""

    light: str
    dark: str


COLORS: Mapping[str, Color] = {
    "paper": Color("#ffffff", "#13151a"),
    "ink": Color("#1b1e23", "#e7e9ed"),
    "soft": Color("#59616d", "#a9b1bd"),
    "edge": Color("#aab2bd", "#4b5462"),
    "fill": Color("#f3f5f8", "#20242c"),
    "stream": Color("#59616d", "#a9b1bd"),
    "name": Color("#9a3f06", "#f5a65b"),
    "memory": Color("#1c5fcf", "#74a9ff"),
    "structure": Color("#ffffff", "#181b21"),
    "attention": Color("#dbe7fd", "#1b2f55"),
    "recurrence": Color("#fde5cf", "#45290f"),
    "convolution": Color("#d8f3de", "#153a20"),
    "memories": Color("#e9defd", "#34265a"),
    "normalization": Color("#fbf2bd", "#3b3408"),
    "position-wise": Color("#cff1f4", "#0b3b42"),
    "combination": Color("#fcdcea", "#4d1f33"),
    "shape": Color("#e7e2d8", "#36332b"),
    "none": Color("none", "none"),
}
FAMILIES = (
    "structure",
    "attention",
    "recurrence",
    "convolution",
    "normalization",
    "position-wise",
    "combination",
    "shape",
)
"""Families of blocks whose boxes have a colour of the same name; memories have theirs below."""


class Rule(NamedTuple):
    """Attributes of the elements that a CSS selector takes: a tag, or classes, all of them."""

    selector: str
    attributes: Mapping[str, str]

    @property
    def classes(self) -> Sequence[str]:
        return self.selector.split(".")[1:]

    def takes(self, tag: str, style: str) -> bool:
        """True if it is for an element with these classes, separated by spaces."""
        return {*self.classes} <= {*style.split()} and self.selector.partition(".")[0] in ("", tag)


RULES: Sequence[Rule] = (
    Rule("svg", {"fill": "ink", "font-family": FONT, "font-size": "12"}),
    Rule("rect", {"fill": "fill", "stroke": "edge", "stroke-width": "1"}),
    Rule(".title", {"font-weight": "700"}),
    Rule(".heading", {"font-size": "18", "font-weight": "700"}),
    Rule(".soft", {"fill": "soft"}),
    Rule(".given", {"fill": "name", "font-weight": "400"}),
    Rule(".plain", {"font-weight": "400"}),
    Rule(".middle", {"text-anchor": "middle"}),
    Rule(".paper", {"fill": "paper", "stroke": "none"}),
    *(Rule(f".{family}", {"fill": family}) for family in FAMILIES),
    Rule(".hull", {"fill-opacity": "0.4"}),
    Rule(".grid", {"stroke": "stream", "stroke-width": "2"}),
    Rule(".part", {"fill": "none", "stroke": "none"}),
    Rule(".sum", {"fill": "none", "stroke": "none"}),
    Rule(".branch", {"fill": "none", "stroke-dasharray": "2 3"}),
    Rule(".loop", {"fill": "none", "stroke": "name", "stroke-dasharray": "5 4"}),
    Rule(".memory", {"stroke": "memory", "stroke-width": "1.5"}),
    Rule(".stream", {"fill": "none", "stroke": "stream", "stroke-width": "1.25"}),
    Rule(
        ".read",
        {"fill": "none", "stroke": "name", "stroke-width": "1.5", "stroke-linejoin": "round"},
    ),
    Rule(".tip", {"fill": "stream", "stroke": "none"}),
    Rule(".join", {"fill": "paper", "stroke": "stream"}),
    Rule(".family.memory", {"fill": "memories", "stroke": "edge", "stroke-width": "1"}),
    Rule(".family.grid", {"stroke": "stream", "stroke-width": "2"}),
    Rule(".hull.structure", {"fill-opacity": "1"}),
    Rule(".read.before", {"stroke-dasharray": "5 3"}),
    Rule(".read.memory", {"stroke": "memory"}),
    Rule(".tip.name", {"fill": "name"}),
    Rule(".tip.before", {"fill": "name"}),
    Rule(".tip.memory", {"fill": "memory"}),
)
"""Later ones win, as they do in CSS: those of a tag come first, those of two classes last."""


@cache
def attributes(tag: str, style: str = "") -> Mapping[str, str]:
    """Return the class and the light attributes of an element with classes, split by spaces."""
    merged = {"class": style} if style else {}
    for rule in RULES:
        if rule.takes(tag, style):
            for key, value in rule.attributes.items():
                merged[key] = COLORS[value].light if value in COLORS else value
    return merged


@cache
def dark_rules(scope: str) -> Sequence[str]:
    """Return CSS rules for the elements in `scope` on a dark screen; they win over attributes."""
    rules = [f"{scope} {{ fill: {COLORS['ink'].dark}; background: {COLORS['paper'].dark}; }}"]
    for rule in RULES[1:]:
        colors = [
            f"{key}: {COLORS[value].dark};"
            for key, value in rule.attributes.items()
            if value in COLORS
        ]
        if colors:
            rules.append(f"{scope} {rule.selector} {{ {' '.join(colors)} }}")
    return rules
