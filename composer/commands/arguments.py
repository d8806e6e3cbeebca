"""What several commands take, said once: arguments, options, the form of their examples and of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

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


def print_json(data: Any) -> None:
    """Data as JSON on stdout."""
    typer.echo(json.dumps(data, ensure_ascii=False, indent=1))
