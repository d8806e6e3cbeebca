"""Arguments and options that several commands share, and checks of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from composer.errors import Fault, RecipeError, RunError

DONE, FAILED, REFUSED, INTERRUPTED, TERMINATED = 0, 1, 2, 130, 143

Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe: a YAML file.", show_default=False)]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="key=value", help="Override a setting; list items by index.", show_default=False),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Look up data files here first, then next to the recipe."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON to stdout and nothing else.")]


def examples(*lines: str) -> str:
    """Return examples for the end of a help text."""
    # click keeps the lines of a paragraph that starts with a backspace
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@contextmanager
def show_loading() -> Iterator[None]:
    """Show on a terminal that something is being loaded; importing torch takes seconds."""
    is_terminal = sys.stderr.isatty()
    if is_terminal:
        sys.stderr.write("loading ...")
        sys.stderr.flush()
    try:
        yield
    finally:
        if is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def require_recipe_file(file: Path) -> None:
    """Raise RecipeError if a file is a sweep. A run's folder passes."""
    from composer.sweeps.spec import is_sweep

    if file.is_file() and is_sweep(file):
        fix = f"list its points with `seqcomposer sweep {file} --dry-run`, and train them without `--dry-run`"
        raise RecipeError([Fault(str(file), 1, 1, "sweep", "", "this is a sweep, many recipes in one file", fix)])


def require_directory(run: Path) -> Path:
    """Return the path of a run. Raises RunError if it is a file, such as a recipe."""
    if run.is_file():
        raise RunError.of(
            "this is a file, and a run is a folder",
            "name the folder that `seqcomposer train` wrote: `runs/NAME`",
            str(run),
        )
    return run


def print_json(data: Any) -> None:
    """Print data as JSON."""
    typer.echo(json.dumps(data, ensure_ascii=False, indent=1))
