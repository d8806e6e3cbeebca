"""`export --web`: a folder with a page on which a model answers, in the browser of its reader."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from composer.atomic_io import atomic_directory, require_absent
from composer.exporters.onnx_export import write_onnx
from composer.exporters.web_runtime import find_archives, unpack
from composer.formatting import format_bytes, format_number
from composer.inference.run import IN_MEMORY, Run, open_run
from composer.model.machine import PROGRAMS, require_packages
from composer.viz.architecture import draw
from composer.viz.page import render
from composer.viz.report import ScoreTable, score_table

PAGE, DRAWING, RUNTIME = "index.html", "architecture.svg", "runtime"
LOADED = (".onnx", ".bin")
"""Suffixes of the files of a model, whose loading a page shows."""
SEARCHES = ("greedy", "beam", "sample")
"""Ways of decoding that a page has."""


def export_web(
    run: str | Path | Run,
    folder: str | Path,
    runtime: str | Path | None = None,
    int8: bool = False,
) -> Path:
    """Write a run's model as a page for any web server in a new folder, and return its path.

    runtime: A folder with the files of `npm pack`; by default this user's cache. int8: Quantise
    its weights. Raises as `export_onnx`, and RunError if these files are missing or others. Nothing
    is written then.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    target = Path(folder)
    require_absent(target)
    require_packages(PROGRAMS)
    archives = find_archives(runtime)
    with atomic_directory(target) as draft:
        copy_page(archives, draft)
        write_onnx(opened, draft, int8, attention=True)
        write_page(opened, draft, draft)
    return target


def copy_page(archives: Sequence[Path], folder: Path) -> None:
    """Write what is the same on the pages of all models: modules, styles and the runtime."""
    own, reports = files("composer.exporters") / "web", files("composer.viz") / "templates"
    for file in [*own.iterdir(), reports / "style.css"]:
        (folder / file.name).write_bytes(file.read_bytes())
    unpack(archives, folder / RUNTIME)


def write_page(run: Run, folder: Path, shared: Path) -> None:
    """Write the page of a run beside its programs.

    shared: The folder of `copy_page`, which may be one above.
    """
    drawing = draw(run.recipe, run.tokenizers.sizes)
    (folder / DRAWING).write_text(drawing.svg(), encoding="utf-8")
    own = {file.name: file.stat().st_size for file in folder.iterdir() if file.suffix in LOADED}
    runtime = {f"{RUNTIME}/{file.name}": file.stat().st_size for file in shared.glob("*/*.wasm")}
    page = render(
        "web.html",
        title=run.recipe.name,
        shared="" if shared == folder else "../",
        reads=bool(run.recipe.sources),
        sizes={**own, **runtime},
        size=format_bytes(sum(own.values())),
        facts=facts(run),
        scores=scores(run),
        other_search="" if (word := run.recipe.decoding.word) in SEARCHES else word,
        drawing=drawing.graph.summary,
        version=version("seqcomposer"),
    )
    (folder / PAGE).write_text(page, encoding="utf-8")


def facts(run: Run) -> dict[str, str]:
    """Return what a reader may want to know of a run."""
    sizes = (f"{side} {size:,}" for side, size in run.tokenizers.sizes.items())
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    known = {"parameters": format_number(parameters), "vocabulary": ", ".join(sizes)}
    if run.run_dir == IN_MEMORY:
        return known
    record = run.run_dir.read()
    known["training pairs"] = format_number(record.data.train_pairs_used)
    known["steps"] = format_number(record.steps)
    return {name: value for name, value in known.items() if value}


def scores(run: Run) -> ScoreTable:
    """Return the scores that are known of a run's final weights."""
    if run.run_dir == IN_MEMORY or run.checkpoint is not None:
        return ScoreTable([], [])
    return score_table(run.run_dir.read().scores, run.recipe)
