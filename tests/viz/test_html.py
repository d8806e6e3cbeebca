"""Whatever a text holds, it stays a text."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from composer.formatting import strip_control_characters
from composer.viz.html import Markup, escaped, join, short_number, tag

TEXTS = st.text(st.characters(codec=None) | st.sampled_from("<>&\"'\0\x1b\ufffe\u202e\u200f"))


@given(TEXTS)
def test_a_text_stays_a_text(text: str) -> None:
    read = ElementTree.fromstring(tag("p", {"title": text}, "[", text, "]"))
    assert read.text == f"[{strip_control_characters(text)}]"
    assert read.get("title") == strip_control_characters(text).replace("\t", " ").replace(
        "\n", " "
    )  # XML's blanks in attributes
    assert len(read) == 0


@given(TEXTS)
def test_what_people_write_is_kept(text: str) -> None:
    assert len(strip_control_characters(text)) == len(text)
    assert (
        strip_control_characters("شَمس \u200f - e\u0301\u200d👩\u200d🚀 <b>\t\n")
        == "شَمس \u200f - e\u0301\u200d👩\u200d🚀 <b>\t\n"
    )
    assert strip_control_characters("\0\x1b[31m\r\ud800") == "��[31m��"


def test_markup_is_not_escaped_again() -> None:
    assert tag("p", {}, tag("b", {}, "&")) == "<p><b>&amp;</b></p>"
    assert join(["<", Markup("<br>")]) == "&lt;<br>"
    assert escaped(escaped("<")) == "&lt;"


def test_elements_end_as_html_wants_it() -> None:
    assert tag("td", {}) == "<td></td>"
    assert tag("rect", {"x": 1.0, "y": 0.126, "open": None}) == '<rect x="1" y="0.13"/>'
    assert short_number(10.0) == "10"
