"""A page that needs nothing but itself: no font, picture or script from elsewhere, and no way to ask for one."""

from __future__ import annotations

import base64
import hashlib

from composer.report.alignments import Alignment
from composer.report.maps import sentence
from composer.report.markup import Markup, joined, tag
from composer.report.strips import strips
from composer.report.style import SCRIPT, STYLE
from composer.report.weightings import weightings


def document(title: str, *body: str) -> str:
    """A whole page."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head", {},
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", {"name": "color-scheme", "content": "light dark"}),
        tag("title", {}, title),
        tag("style", {}, Markup(STYLE)),
    )  # fmt: skip
    inner = tag("body", {}, *body, tag("script", {}, Markup(SCRIPT)))
    return f"<!DOCTYPE html>\n{tag('html', {'lang': 'en'}, head, inner)}\n"


def picture(alignment: Alignment) -> str:
    """A page of one sentence's maps and film strips, and of what the memories held."""
    drawn = [sentence(alignment, 1), strips(alignment.films), weightings(alignment.memories, 1)]
    return document("alignment", tag("main", {}, tag("h3", {}, heading(alignment)), *drawn))


def heading(alignment: Alignment) -> Markup:
    """What was read and what was written; of a model without encoders, what was read."""
    texts = [tag("bdi", {}, text) for text in (*alignment.texts.values(), alignment.written)]
    return joined(part for at, text in enumerate(texts) for part in ((" → ", text) if at else (text,)))
