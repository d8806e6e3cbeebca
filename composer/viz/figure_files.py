"""Figures as files: SVG as it is, PNG and PDF by vl-convert, which needs no system library."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

from composer.errors import RunError
from composer.viz.page import write_document

FIGURES = {".svg": "an SVG picture", ".png": "a PNG picture", ".pdf": "a PDF"}
"""What a figure can be, by the suffix of its file."""
EXTRA = "pip install vl-convert-python"
ZOOM = 2.0
"""Pixels of a PNG file for each unit of the SVG."""
MARK = b"seqcomposer"
"""Stands in every PNG and PDF of this module, so that nothing else is overwritten."""
PNG_HEAD, PDF_HEAD = b"\x89PNG\r\n\x1a\n", b"%PDF-"


def save_figure(file: Path, svg: str, what: str, is_svg: Callable[[Path], bool]) -> Path:
    """Write a figure in the format of the file's suffix, and return the file.

    what: The noun for it in errors. is_svg: Whether an SVG file is one of its kind, and may be
    overwritten.

    Raises RunError for another suffix, without vl-convert, where the file cannot be written, or is
    no such figure.
    """
    convert = converter(file)
    return write_document(file, what, convert(svg), lambda path: is_figure(path, is_svg))


def converter(file: Path) -> Callable[[str], bytes]:
    """Return the conversion of an SVG to a file's format. Raises RunError."""
    suffix = file.suffix.lower()
    if suffix not in FIGURES:
        formats = ", ".join(f"`{suffix}` for {what}" for suffix, what in FIGURES.items())
        raise RunError.of(
            "the name of the file does not say what to draw", f"end it with {formats}", str(file)
        )
    if suffix == ".svg":
        return str.encode
    vl_convert = load_vl_convert(file)
    if suffix == ".png":
        return lambda svg: mark_png(vl_convert.svg_to_png(svg, scale=ZOOM))
    return lambda svg: bytes(vl_convert.svg_to_pdf(svg)) + b"\n%" + MARK + b"\n"


def chart_svg(spec: Mapping[str, object], file: Path) -> str:
    """Return the SVG of a chart of Vega-Lite. Raises RunError without vl-convert."""
    return str(load_vl_convert(file).vegalite_to_svg(dict(spec)))


def load_vl_convert(file: Path) -> ModuleType:
    """Import vl-convert. Raises RunError, which names the file, where it is not installed."""
    try:
        import vl_convert  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        message = f"`{file.name}` needs the package `vl-convert-python`, the extra `figures`"
        raise RunError.of(message, f"`{EXTRA}`", str(file)) from None
    return vl_convert


def mark_png(png: bytes) -> bytes:
    """Return a PNG file that names its software, behind the head of 33 bytes that all have."""
    content = b"tEXt" + b"Software\0" + MARK
    chunk = (len(content) - 4).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
    return png[:33] + chunk + png[33:]


def is_figure(file: Path, is_svg: Callable[[Path], bool]) -> bool:
    """True if a file is a figure of this module, or an SVG of the kind."""
    content = file.read_bytes()
    if file.suffix.lower() == ".svg":
        return is_svg(file)
    if content.startswith(PNG_HEAD):
        return MARK in content[33:80]
    return content.startswith(PDF_HEAD) and content.endswith(b"%" + MARK + b"\n")
