"""A page that needs nothing but itself: no font, picture or script from elsewhere, and no way to ask for one."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from composer.atomic_io import atomic_write
from composer.errors import RunError, os_error_reason
from composer.formatting import strip_control_characters
from composer.viz.attention_maps import Alignment
from composer.viz.charts import plotly_script
from composer.viz.frames_html import strips
from composer.viz.heatmaps import sentence
from composer.viz.html import join, short_number, tag
from composer.viz.memory_html import weightings

BEGINNING = b"<!DOCTYPE html>"
CHART = "data-figure='"
"""How a chart is marked in a page; see `figure_html`."""
FRAME, MAP, LINE, TALLEST = 120, 90, 18, 640
"""Pixels of a frame: around everything, around each map, of a row, and at most; what is higher can be scrolled."""


def render(template: str, **context: object) -> str:
    """Return a template of `composer/viz/templates` filled in.

    Values are escaped unless they are `Markup`, and control characters, which no page may hold, are replaced. A page
    extends `base.html`, takes a `title`, and fills the blocks `body` and, for CSS of its own, `style`.

    Raises:
        jinja2.UndefinedError: If the template uses a name that `context` lacks.
    """
    return TEMPLATES.get_template(template).render(**context)


def asset(name: str) -> Markup:
    """Return the text of a file of `composer/viz/templates`, such as a style sheet, as it is."""
    assert TEMPLATES.loader is not None
    return Markup(TEMPLATES.loader.get_source(TEMPLATES, name)[0])


def page_scripts(body: str) -> list[Markup]:
    """Return the scripts that a page needs: Plotly's where it has charts, then our own."""
    # no text can forge the marker: in what is escaped there are no apostrophes
    return [*([plotly_script()] if CHART in body else []), asset("script.js")]


def content_security_policy(scripts: Iterable[str]) -> str:
    """Return the policy of a page that loads nothing from elsewhere and runs these scripts only."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"


def clean(value: object) -> object:
    """Return what a template prints: text without control characters, everything else as it is."""
    return strip_control_characters(value) if isinstance(value, str) and not isinstance(value, Markup) else value


TEMPLATES = Environment(
    loader=PackageLoader("composer.viz", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=clean,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters["coordinate"] = short_number
TEMPLATES.globals.update(asset=asset, page_scripts=page_scripts, content_security_policy=content_security_policy)


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
    """Return a page of this title and body. style: CSS beside that of all pages."""
    return render("markup.html", title=title, markup=join(body), css=Markup(style))


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
