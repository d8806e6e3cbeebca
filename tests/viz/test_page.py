"""Pages are one file that loads nothing from elsewhere, and no text in them becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markupsafe import Markup

from composer.viz.page import figure_html, load_templates, plotly_script, png_uri, render
from tests.viz.pages import check_self_contained, figures, read


def page(body: str, title: str = "a page") -> str:
    """Return a page with this body; markup stays markup, text is escaped."""
    template = load_templates().from_string(
        "{% extends 'base.html' %}{% block body %}{{ body }}{% endblock %}"
    )
    return template.render(title=title, body=body)


@settings(deadline=None)
@given(st.text(st.characters(codec=None) | st.sampled_from("<>&\"'\0\x1b\ufffe\u202e\u200f")))
def test_any_text_stays_text(text: str) -> None:
    root = read(page(f"[{text}]", title=text))
    body = root.find("body")
    assert body is not None
    assert (body.text or "").strip().startswith("[")
    assert [element.tag for element in body] == ["script"]


def test_markup_is_not_escaped_again() -> None:
    assert "<b>&amp;</b>" in page(Markup("<b>&amp;</b>"))
    assert "&lt;b&gt;" in page("<b>")


def test_a_name_that_a_template_lacks_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("base.html")


def test_templates_and_their_files_are_packaged() -> None:
    folder = files("composer.viz") / "templates"
    assert {"base.html", "style.css", "script.js"} <= {file.name for file in folder.iterdir()}


def test_a_page_with_charts_holds_the_plotly_script_once() -> None:
    chart = figure_html(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])), "two points")
    text = page(chart + chart)
    root = read(text)
    check_self_contained(root)
    assert [figure["data"][0]["y"] for figure in figures(root)] == [[3, 4], [3, 4]]
    assert text.count(plotly_script()) == 1
    assert plotly_script() not in page("no chart: data-figure='{}'")


def test_only_the_scripts_of_a_page_may_run() -> None:
    text = page(figure_html(go.Figure()))
    policy = read(text).findall("head/meta")[1].get("content", "")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith("script-src " + " ".join(f"'sha256-{digest}'" for digest in digests))


def test_lengths_in_pictures_are_short() -> None:
    coordinate = load_templates().filters["coordinate"]
    assert [coordinate(value) for value in (10.0, 1.0, 0.126, -0.5)] == ["10", "1", "0.13", "-0.5"]


def test_a_picture_is_the_same_however_its_numbers_lie_in_memory() -> None:
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert png_uri(np.asfortranarray(pixels)) == png_uri(pixels)
