"""A page, read as strictly as XML is."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

BEGINNING = "<!DOCTYPE html>\n"


def read(page: str | Path) -> ElementTree.Element:
    """The root of a page. Fails where an element is not closed, or anything is not escaped."""
    text = page.read_text(encoding="utf-8") if isinstance(page, Path) else page
    assert text.startswith(BEGINNING)
    return ElementTree.fromstring(text.removeprefix(BEGINNING))


def having(root: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    """The elements of a class."""
    return [each for each in root.iter() if kind in each.get("class", "").split()]


def texts(root: ElementTree.Element, kind: str) -> list[str]:
    """What stands in the elements of a class."""
    return ["".join(each.itertext()) for each in having(root, kind)]


def headings(root: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in root.iter("h2")]


def pixels(image: ElementTree.Element) -> np.ndarray:
    """The grey levels of a picture in a page, by a reader that is not ours. (T, S)"""
    kind, _, content = image.get("href", "").partition(",")
    assert kind == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))


def needs_nothing(root: ElementTree.Element) -> None:
    """Fails where a page refers to anything but itself."""
    for element in root.iter():
        assert element.tag not in ("link", "iframe", "object", "embed", "base", "form"), element.tag
        for name, value in element.attrib.items():
            if name.rpartition("}")[2] in ("href", "src", "srcset", "action", "data", "poster"):
                assert value.startswith(("#", "data:image/png;base64,")), value
            assert not name.startswith("on"), name
            assert name != "style"
    written = "".join("".join(each.itertext()) for tag in ("style", "script") for each in root.iter(tag))
    assert not any(
        word in written for word in ("url(", "@import", "@font-face", "http:", "https:", "fetch(", "import(")
    )
