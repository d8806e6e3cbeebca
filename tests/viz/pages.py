"""A page, read as strictly as XML is."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from composer.viz.page import plotly_script

KINDS = ("image/png", "image/svg+xml", "audio/wav")
"""What a page may hold as data URIs."""
BEGINNING = "<!DOCTYPE html>\n"


def read(page: str | Path) -> ElementTree.Element:
    """The root of a page. Fails where an element is not closed, or anything is not escaped."""
    text = page.read_text(encoding="utf-8") if isinstance(page, Path) else page
    assert text.startswith(BEGINNING)
    # Plotly's script holds characters that are markup to XML but not to HTML; see `figures`
    text = text.replace(f"<script>{plotly_script()}</script>", '<script class="plotly"/>')
    return ElementTree.fromstring(text.removeprefix(BEGINNING))


def by_class(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    """The elements of a class."""
    return [item for item in root.iter() if kind in item.get("class", "").split()]


def texts(root: ElementTree.Element, kind: str) -> list[str]:
    """Return the text in each element of a class."""
    return ["".join(item.itertext()).strip() for item in by_class(root, kind)]


def headings(root: ElementTree.Element) -> list[str]:
    return ["".join(item.itertext()) for item in root.iter("h2")]


def pixels(image: ElementTree.Element) -> np.ndarray:
    """The grey levels of a picture in a page, by a reader that is not ours. (T, S)"""
    kind, _, content = image.get("href", "").partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def check_self_contained(root: ElementTree.Element) -> None:
    """Fails where a page refers to anything but itself."""
    for element in root.iter():
        assert element.tag not in ("link", "iframe", "object", "embed", "base", "form"), element.tag
        for name, value in element.attrib.items():
            if name.rpartition("}")[2] in ("href", "src", "srcset", "action", "data", "poster"):
                assert value.startswith(("#", *(f"data:{kind};base64," for kind in KINDS))), value
            assert not name.startswith("on"), name
            assert name != "style"
    written = "".join(
        "".join(item.itertext()) for tag in ("style", "script") for item in root.iter(tag)
    )
    assert not any(
        word in written
        for word in ("url(", "@import", "@font-face", "http:", "https:", "fetch(", "import(")
    )


def size_without_plotly(file: Path) -> int:
    """Return the bytes of a page less those of Plotly's script, which is in it once."""
    content = file.read_bytes()
    script = plotly_script().encode()
    assert content.count(script) == 1
    return len(content) - len(script)


def figures(root: ElementTree.Element) -> list[dict[str, Any]]:
    """The Plotly figures of a page. Fails unless Plotly's script is in it once, or not at all
    without figures.
    """
    result = [json.loads(item.get("data-figure", "")) for item in by_class(root, "plot")]
    assert len(by_class(root, "plotly")) == bool(result)
    return result
