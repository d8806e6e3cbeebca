"""Self-contained HTML pages from Jinja2 templates: everything inline, nothing loaded from elsewhere, text escaped."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Callable, Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from composer.atomic_io import atomic_write
from composer.errors import RunError, os_error_reason
from composer.formatting import strip_control_characters
from composer.viz.charts import plotly_script

if TYPE_CHECKING:
    from jinja2 import Environment

DOCTYPE = b"<!DOCTYPE html>"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def render(template: str, **context: object) -> str:
    """Return a template of `composer/viz/templates` filled in.

    Values are escaped unless they are `Markup`, and control characters, which no page may hold, are replaced. A page
    extends `base.html`, takes a `title`, and fills the blocks `body` and, for CSS of its own, `style`.

    Raises:
        jinja2.UndefinedError: If the template uses a name that `context` lacks.
    """
    return load_templates().get_template(template).render(**context)


def is_html(file: Path) -> bool:
    """Return whether a file is an HTML page."""
    return file.read_bytes().startswith(DOCTYPE)


def write_document(file: Path, what: str, text: str, is_document: Callable[[Path], bool] = is_html) -> Path:
    """Write a page or a picture atomically, and return its file.

    Args:
        file: The file; one that is there is overwritten if it `is_document`, so that nothing else is lost.
        what: The noun for it in errors.
        text: What is written.
        is_document: Returns whether a file may be overwritten.

    Raises:
        RunError: If the file cannot be written, or is there and may not be overwritten.
    """
    check_can_overwrite(file, what, is_document)
    try:
        atomic_write(file, text.encode())
    except OSError as error:
        raise cannot_write(file, what, os_error_reason(error)) from None
    return file


def check_can_overwrite(file: Path, what: str, is_document: Callable[[Path], bool] = is_html) -> None:
    """Raise the errors of `write_document` that can be foreseen, before what is written has been computed."""
    if not file.parent.is_dir():
        raise cannot_write(file, what, "its folder does not exist")
    try:
        may_overwrite = not file.exists() or (file.is_file() and is_document(file))
    except OSError as error:
        raise cannot_write(file, what, os_error_reason(error)) from None
    if not may_overwrite:
        raise cannot_write(file, what, f"the file exists and is not a {what}; it would be lost")


def cannot_write(file: Path, what: str, reason: str) -> RunError:
    """Return the error of a file that cannot be written."""
    return RunError.of(f"the {what} cannot be written: {reason}", "name another file with `--output FILE`", str(file))


def png_uri(pixels: np.ndarray) -> str:
    """Return grey levels (H, W) or colours (H, W, 3) as a data URI of a PNG file.

    W3C, Portable Network Graphics, sections 5 and 11.
    """
    height, width = pixels.shape[:2]
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0))).tobytes()  # each row begins with its filter, 0: none
    color_type = 0 if pixels.ndim == 2 else 2
    header = struct.pack(">IIBBBBB", width, height, 8, color_type, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows, 9), b"IEND": b""}
    png = PNG_SIGNATURE + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks.items()
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


@cache
def load_templates() -> Environment:
    """Return the templates of `composer/viz/templates`, with the functions that they may call."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # training, which may not need it, imports this room

    def strip_text(value: object) -> object:
        return strip_control_characters(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("composer.viz", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=strip_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["coordinate"] = lambda value: f"{value:.2f}".rstrip("0").rstrip(".")
    folder = files("composer.viz") / "templates"
    environment.globals.update(
        asset=lambda name: Markup((folder / name).read_text(encoding="utf-8")),  # as it is, not escaped
        plotly_script=plotly_script,
        security_policy=security_policy,
    )
    return environment


def security_policy(scripts: Iterable[str]) -> str:
    """Return the policy of a page that loads nothing from elsewhere and runs these scripts only."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    # Plotly draws the pictures that it saves as a blob of the page
    return f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src {allowed}"
