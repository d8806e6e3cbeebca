"""A page that needs nothing but itself: no font, picture or script from elsewhere, and no way to ask for one."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from composer.atomic_io import atomic_write
from composer.errors import RunError, os_error_reason
from composer.viz.attention_maps import Alignment
from composer.viz.frames_html import strips
from composer.viz.heatmaps import sentence
from composer.viz.html import Markup, join, tag
from composer.viz.memory_html import weightings
from composer.viz.style import SCRIPT, STYLE

BEGINNING = b"<!DOCTYPE html>"
FRAME, MAP, LINE, TALLEST = 120, 90, 18, 640
"""Pixels of a frame: around everything, around each map, of a row, and at most; what is higher can be scrolled."""


def write_html(file: Path, what: str, content: str) -> Path:
    """Writes a page where only a page may be lost; the file. `what` it is called. Raises RunError."""
    must_be_free(file, what)
    try:
        atomic_write(file, content.encode())
    except OSError as error:
        raise cannot_write(file, what, os_error_reason(error)) from None
    return file


def must_be_free(file: Path, what: str) -> None:
    """Raises RunError where a page cannot be written; what is there may only be a page."""
    if not file.parent.is_dir():
        raise cannot_write(file, what, "its folder is not there")
    try:
        is_page = not file.exists() or (file.is_file() and file.read_bytes().startswith(BEGINNING))
    except OSError as error:
        raise cannot_write(file, what, os_error_reason(error)) from None
    if not is_page:
        raise cannot_write(file, what, f"what is there is no {what}, and would be lost")


def cannot_write(file: Path, what: str, why: str) -> RunError:
    """That a page cannot be written, in words."""
    return RunError.of(f"the {what} cannot be written: {why}", "name another file with `--output FILE`", str(file))


def html_document(title: str, *body: str, style: str = "") -> str:
    """A whole page. style: what it needs beside the look of all pages."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = tag(
        "head",
        {},
        tag("meta", {"charset": "utf-8"}),
        tag("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        tag("meta", {"name": "color-scheme", "content": "light dark"}),
        tag("title", {}, title),
        tag("style", {}, Markup(STYLE + style)),
    )
    inner = tag("body", {}, *body, tag("script", {}, Markup(SCRIPT)))
    return f"<!DOCTYPE html>\n{tag('html', {'lang': 'en'}, head, inner)}\n"


def attention_page(alignment: Alignment) -> str:
    """A page of one sentence's maps and film strips, and of what the memories held."""
    drawn = [sentence(alignment, 1), strips(alignment.films), weightings(alignment.memories, 1)]
    return html_document("alignment", tag("main", {}, tag("h3", {}, heading(alignment)), *drawn))


def framed(alignment: Alignment) -> str:
    """The same page as a part of another one, such as a notebook, whose look it does not change."""
    high = min(TALLEST, FRAME + sum(MAP + LINE * len(each.rows) for each in alignment.attentions))
    look = f"width: 100%; height: {high}px; border: 0"
    return tag("iframe", {"srcdoc": attention_page(alignment), "style": look, "title": alignment.written})


def heading(alignment: Alignment) -> Markup:
    """What was read and what was written; of a model without encoders, what was read."""
    texts = [tag("bdi", {}, text) for text in (*alignment.texts.values(), alignment.written)]
    return join(part for at, text in enumerate(texts) for part in ((" → ", text) if at else (text,)))
