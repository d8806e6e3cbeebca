"""HTML and SVG as text. What is not markup already is escaped wherever it is put, so that no text can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping

from markupsafe import Markup as Markup

from composer.formatting import strip_control_characters
from composer.viz.page import render

CLOSED = frozenset({"circle", "image", "line", "meta", "path", "rect", "use"})
"""Elements that have nothing inside. All others are written with an end tag, which HTML asks of them."""


def escaped(text: str) -> Markup:
    """A text as markup; markup as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(strip_control_characters(text), quote=True))


def tag(name: str, attributes: Mapping[str, object], *inner: str) -> Markup:
    """An element. An attribute that is None is left out; numbers are written short."""
    told = "".join(
        f' {key}="{escaped(short_number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in CLOSED and not inner:
        return Markup(f"<{name}{told}/>")
    return Markup(f"<{name}{told}>{join(inner)}</{name}>")


def join(parts: Iterable[str]) -> Markup:
    """Several parts, one after another."""
    return Markup("".join(map(escaped, parts)))


def short_number(value: float) -> str:
    """A number for a place in a picture: 12.5, 3."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def html_document(title: str, *body: str, style: str = "") -> str:
    """Return a page of this title and body. style: CSS beside that of all pages."""
    return render("markup.html", title=title, markup=join(body), css=Markup(style))
