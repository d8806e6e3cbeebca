"""What several commands take, said once: arguments, options, the form of their examples and of JSON."""

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
    typer.Argument(metavar="key=value", help="Sets what the recipe can say; lists by index.", show_default=False),
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", help="Where data files are looked up first, before beside the recipe."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Prints JSON to stdout, and nothing else.")]


def examples(*lines: str) -> str:
    """The end of a help text; click keeps the lines of a paragraph that starts with a backspace."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@contextmanager
def show_interruptible() -> Iterator[None]:
    """Says on a terminal that something is being loaded, as long as it is; torch takes seconds."""
    watched = sys.stderr.isatty()
    if watched:
        sys.stderr.write("loading ...")
        sys.stderr.flush()
    try:
        yield
    finally:
        if watched:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def require_recipe_file(file: Path) -> None:
    """Raises RecipeError where a file is a sweep; a run's folder is no file, and passes."""
    from composer.sweeps.spec import is_sweep

    if file.is_file() and is_sweep(file):
        fix = f"list its points with `seqcomposer sweep {file} --dry-run`, and train them without `--dry-run`"
        raise RecipeError([Fault(str(file), 1, 1, "sweep", "", "this is a sweep, many recipes in one file", fix)])


def require_directory(run: Path) -> Path:
    """A run's path. Raises RunError where it is a file, as a recipe is."""
    if run.is_file():
        raise RunError.of(
            "this is a file, and a run is a folder",
            "name the folder that `seqcomposer train` has written: `runs/NAME`",
            str(run),
        )
    return run


def print_json(data: Any) -> None:
    """Data as JSON on stdout."""
    typer.echo(json.dumps(data, ensure_ascii=False, indent=1))
