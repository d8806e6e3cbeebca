"""Arguments and options shared by commands, shell completion, and tables for the terminal."""

from __future__ import annotations

import gc
import glob
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from composer import api
from composer.formatting import make_console, strip_control_characters, to_json
from composer.recipe.choices import Engine
from composer.recipe.schema_reader import dereference
from composer.run_dir import find_run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
Command = TypeVar("Command", bound=Callable[..., Any])
DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


def argument(
    metavar: str, text: str, complete: Callable[[str], object] | None = None, **settings: Any
) -> Any:
    """Return an argument of a command, with its help text and shell completion."""
    return typer.Argument(metavar=metavar, help=text, autocompletion=complete, **settings)


def option(declaration: str, text: str, **settings: Any) -> object:
    """Return an option of a command: `--run DIR` takes a value, `--json` is a flag."""
    name, _, metavar = declaration.partition(" ")
    return typer.Option(name, metavar=metavar or None, help=text, **settings)


Completions = list[tuple[str, str]]
"""(completion, help text) pairs."""


def complete_block(incomplete: str) -> Completions:
    """Return the blocks whose names begin with the typed text."""
    blocks = api.blocks()
    names = [name for name in blocks if name.startswith(incomplete)]
    return [(name, blocks[name]["description"]) for name in names]


def complete_key(incomplete: str) -> Completions:
    """Return the settings at a typed path: `training.max_steps=` for `training.max_st`."""
    rules = api.schema()
    *path, last = incomplete.split(".")
    schema = rules
    for word in path:
        schema = _settings(rules, schema).get(word, {})
    prefix = "".join(f"{word}." for word in path)
    completions = []
    for key, setting in _settings(rules, schema).items():
        if key.startswith(last):
            end = "." if _settings(rules, setting) else "="
            completions.append((f"{prefix}{key}{end}", setting.get("description", "")))
    return completions


def _settings(rules: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a section, or the words of a choice."""
    known = dereference(rules["$defs"], schema)
    if table := known.get("x-choice"):
        words = (key for key in rules["$defs"] if key.startswith(f"{table}."))
        return {key.removeprefix(f"{table}."): rules["$defs"][key] for key in words}
    return known.get("properties", {})


def complete_recipe(incomplete: str) -> Completions:
    """Return the YAML files and folders whose paths begin with the text, or else settings."""
    begin = glob.escape(incomplete)
    paths = sorted([*glob.glob(f"{begin}*.yaml"), *glob.glob(f"{begin}*/")])
    return [(path, "") for path in paths] or complete_key(incomplete)


def complete_run(incomplete: str) -> Completions:
    """Return the run folders whose paths begin with the text, or else folders or settings."""
    begin = glob.escape(incomplete)
    records = [*glob.glob(f"{begin}*/run.json"), *glob.glob(f"{begin}*/*/run.json")]
    runs = [(str(Path(record).parent), "") for record in sorted(records)]
    return runs or complete_recipe(incomplete)


def complete_any(incomplete: str) -> Completions:
    """Return the recipes and run folders whose paths begin with the text, or else settings."""
    return list(dict.fromkeys([*complete_run(incomplete), *complete_recipe(incomplete)]))


Run = Annotated[
    Path, argument("RUN", "A run folder, or SWEEP#RANK.", complete_run, parser=find_run)
]
RecipeOrRun = Annotated[
    Path, argument("RECIPE|RUN", "A recipe, a run, or SWEEP#RANK.", complete_any, parser=find_run)
]
Overrides = Annotated[
    list[str] | None,
    argument("key=value", "Override a setting; list items by index.", complete_key),
]
DataDir = Annotated[
    Path | None, option("--data DIR", "Look up data files here first, then beside the recipe.")
]
Checkpoint = Annotated[
    str | None,
    option("--checkpoint last|best|STEP", "Use a checkpoint instead of the final weights."),
]
DRAFT = "Speculative decoding: a smaller run with the same tokenizer proposes tokens."
Draft = Annotated[str | None, option("--draft RUN", DRAFT, autocompletion=complete_run)]
ENGINE = "Run the model with torch or onnxruntime, which needs the extra `onnx`."
EngineOption = Annotated[Engine | None, option("--engine torch|onnxruntime", ENGINE)]
AsJson = Annotated[bool, option("--json", "Print JSON to stdout and nothing else.")]


def split_overrides(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split words into files and `key=value` settings; points of sweeps are files."""
    files: list[str] = []
    overrides: list[str] = []
    for word in words:
        # Path.exists raises if a word is too long for the name of a file
        is_override = re.match(r"[^#/]*=", word) and not os.path.exists(word)
        (overrides if is_override else files).append(word)
    return files, overrides


def examples(*lines: str) -> str:
    """Format examples for the end of a help text."""
    # click keeps the lines of a paragraph that starts with a backspace
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def with_examples(
    commands: typer.Typer, *lines: str, name: str | None = None
) -> Callable[[Command], Command]:
    """Return the decorator of a command that ends its help with examples.

    name: Of the command; by default that of the function.
    """
    return commands.command(name, epilog=examples(*lines))


@contextmanager
def show_loading() -> Iterator[None]:
    """Show on a terminal that a command is loading; importing torch takes seconds.

    Garbage collection is off meanwhile: it would search everything imported, again and again.
    """
    is_terminal = sys.stderr.isatty()
    if is_terminal:
        typer.echo("loading ...", err=True, nl=False)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        if is_terminal:
            typer.echo("\r\x1b[K", err=True, nl=False)


def print_json(data: object) -> None:
    """Print data as JSON."""
    typer.echo(to_json(data))


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a text to stdout or stderr, without control characters."""
    typer.echo(strip_control_characters(text), err=err, nl=nl)


def make_table(columns: Sequence[str], right: int = 0, footer: bool = False) -> Table:
    """Make a table whose last `right` columns hold numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_footer=footer, pad_edge=False)
    for index, column in enumerate(columns):
        numbers = index >= len(columns) - right
        table.add_column(
            column, justify="right" if numbers else "left", no_wrap=numbers or index == 0
        )
    return table


def terminal_width() -> int | None:
    """Return the width of the terminal, or None for a pipe or a file."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return shutil.get_terminal_size().columns if is_known else None


def table_console() -> Console:
    """Return the console for tables on stdout."""
    width = terminal_width() or 160
    return make_console(width=width, highlight=False, soft_wrap=False, markup=False)
