"""Pages are one file that loads nothing from elsewhere, and no text in them becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files
from xml.etree import ElementTree

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError
from markupsafe import Markup

from composer.viz.charts import chart_text, figure_html, plotly_script
from composer.viz.page import render
from tests.viz.pages import figures, needs_nothing, read

EVIL = "</script><script>alert(1)</script>'\"&<b>"


def page(body: str) -> str:
    return render("markup.html", title="a page", markup=body, css="")


@given(st.text(st.characters(codec=None) | st.sampled_from("<>&\"'\0\x1b\ufffe\u202e\u200f")))
def test_any_text_stays_text(text: str) -> None:
    root = read(render("markup.html", title=text, markup=f"[{text}]", css=""))
    body = root.find("body")
    assert body is not None
    assert (body.text or "").strip().startswith("[")
    assert [element.tag for element in body] == ["script"]


def test_markup_is_not_escaped_again() -> None:
    assert "<b>&amp;</b>" in page(Markup("<b>&amp;</b>"))
    assert "&lt;b&gt;" in page("<b>")


def test_a_name_that_a_template_lacks_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        render("markup.html", title="a page")


def test_templates_and_their_files_are_packaged() -> None:
    folder = files("composer.viz") / "templates"
    assert {"base.html", "style.css", "script.js"} <= {file.name for file in folder.iterdir()}


def test_a_page_with_charts_holds_the_plotly_script_once() -> None:
    chart = figure_html(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])), "two points")
    text = page(chart + chart)
    root = read(text)
    needs_nothing(root)
    assert [figure["data"][0]["y"] for figure in figures(root)] == [[3, 4], [3, 4]]
    assert text.count(plotly_script()) == 1
    assert plotly_script() not in page("no chart: data-figure='{}'")


def test_only_the_scripts_of_a_page_may_run() -> None:
    text = page(figure_html(go.Figure()))
    policy = read(text).findall("head/meta")[1].get("content", "")
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith("script-src " + " ".join(f"'sha256-{digest}'" for digest in digests))


def test_no_text_escapes_from_a_figure() -> None:
    figure = go.Figure(go.Scatter(x=[EVIL], y=[1.0], name=EVIL), layout={"title": EVIL})
    markup = figure_html(figure, EVIL + "\0")
    element = ElementTree.fromstring(markup)
    assert len(element) == 0
    assert element.get("aria-label") == EVIL + "\N{REPLACEMENT CHARACTER}"
    assert json.loads(element.get("data-figure", ""))["data"][0]["name"] == EVIL


def test_plotly_reads_no_tags_in_the_text_of_a_user() -> None:
    assert chart_text("<a href='x'>run</a> & \0") == "&lt;a href='x'&gt;run&lt;/a&gt; &amp; �"


def test_a_number_that_is_none_leaves_a_gap() -> None:
    figure = go.Figure(go.Scatter(x=[1, 2, 3], y=[1.0, float("nan"), float("inf")]))
    assert json.loads(ElementTree.fromstring(figure_html(figure)).get("data-figure", ""))["data"][0]["y"] == [
        1.0,
        None,
        None,
    ]
