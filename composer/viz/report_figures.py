"""The figures of a report as files for papers: architecture, learning curves, alignments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from composer.atomic_io import os_errors_as_run_errors
from composer.errors import RunError
from composer.viz.alignments import Alignment
from composer.viz.architecture import Drawing
from composer.viz.figure_files import FIGURES, chart_svg, converter
from composer.viz.page import CurveChart

WIDTH, HEIGHT = 420, 260
"""SVG units of a chart."""
SIZES = {"labelFontSize": 11, "titleFontSize": 12}


def check_folder(folder: Path) -> None:
    """Raise RunError if the folder is taken, or vl-convert is missing."""
    with os_errors_as_run_errors(folder):
        is_taken = folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))
    if is_taken:
        raise RunError.of(
            "the folder for figures exists and is not empty", "name another one", str(folder)
        )
    converter(folder / "architecture.pdf")


def write_figures(
    folder: Path, drawing: Drawing, charts: Sequence[CurveChart], shown: Sequence[Alignment]
) -> list[Path]:
    """Write each figure as SVG, PNG and PDF to a folder, and return the files. Raises RunError."""
    check_folder(folder)
    files = []
    with os_errors_as_run_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, svg in figures(folder, drawing, charts, shown):
            for suffix in FIGURES:
                file = folder / f"{name}{suffix}"
                file.write_bytes(converter(file)(svg))
                files.append(file)
    return files


def figures(
    folder: Path, drawing: Drawing, charts: Sequence[CurveChart], shown: Sequence[Alignment]
) -> Iterator[tuple[str, str]]:
    """Yield the name of each figure, and its SVG."""
    yield "architecture", drawing.svg()
    for chart in charts:
        yield f"curves-{file_name(chart.spec.title)}", chart_svg(vega_lite(chart), folder)
    for number, alignment in enumerate(shown, start=1):
        if alignment.has_pictures:
            yield f"alignment-{number}", alignment.svg()


def file_name(title: str) -> str:
    """Return a title as a name of a file: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def vega_lite(chart: CurveChart) -> dict[str, object]:
    """Return a chart of curves over steps for Vega-Lite."""
    spec, curves = chart
    values = []
    for curve in curves:
        values += [{"step": x, "value": y, "curve": curve.name} for x, y in curve.points]
    scale: dict[str, object] = {"type": "log"} if spec.logarithmic else {"zero": False}
    if spec.y_range:
        scale["domain"] = [*spec.y_range]
    encoding: dict[str, Any] = {
        "x": {"field": "step", "type": "quantitative", "title": "step", "scale": {"nice": False}},
        "y": {"field": "value", "type": "quantitative", "title": spec.unit, "scale": scale},
        "color": {
            "field": "curve",
            "type": "nominal",
            "title": None,
            "sort": [curve.name for curve in curves],
        },
    }
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": spec.title,
        "width": WIDTH,
        "height": HEIGHT,
        "background": "white",
        "data": {"values": values},
        "mark": {"type": "line", "point": all(len(curve.points) <= 60 for curve in curves)},
        "encoding": encoding,
        "config": {"axis": SIZES, "legend": {"labelFontSize": 11, "orient": "bottom"}},
    }
