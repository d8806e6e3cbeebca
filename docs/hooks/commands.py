"""The page of all commands, from what `--help` says: usage, arguments, options, examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc

import click
from typer.main import get_command

from composer.cli import main
from docs.hooks import pages

FIRST = """\
What every command takes, as its `--help` says it. `key=value` sets what a recipe can say, for this call; lists by
index: `training.max_minutes=60 model.encoder.1.repeat.times=6`.

Exit status: 0 done, 1 failed, 2 refused (a fault in what you gave), 130 and 143 stopped by a signal. What a command
prints for programs goes to stdout; `--json` prints JSON and nothing else."""


def page() -> str:
    """The page."""
    found = commands()
    index = pages.table(("command", "does"), ((f"[`{name}`](#{name})", short(each)) for name, each in found.items()))
    return pages.page("# Commands", FIRST, index, *(told(name, each) for name, each in found.items()))


def commands() -> dict[str, click.Command]:
    """Every command by its name, in the order of `--help`."""
    return dict(get_command(main.app).commands)  # type: ignore[attr-defined]


def short(command: click.Command) -> str:
    """A command in a sentence."""
    return command.get_short_help_str(limit=200)


def told(name: str, command: click.Command) -> str:
    """A command's part of the page."""
    context = click.Context(command, info_name=f"seqcomposer {name}", max_content_width=10_000)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    rows = [row(*record) for record in records(command.params, context)]
    taken = pages.table(("takes", ""), rows)
    shown = pages.code("\n".join(examples(command)), "sh") if examples(command) else ""
    return pages.page(f"## {name}", cleandoc(command.help or ""), pages.code(usage), taken, shown).rstrip()


def records(params: Iterable[click.Parameter], context: click.Context) -> Iterator[tuple[str, str]]:
    """What `--help` says of each argument and option."""
    for param in params:
        record = param.get_help_record(context)
        if record is not None:
            yield record


def row(name: str, what: str) -> tuple[str, str]:
    """A line of the table; what click says of types is there for Python's sake."""
    plain = re.sub(r" <[A-Za-z \[\]|]+>$", "", name)
    return f"`{plain}`", " ".join(what.replace("<", "&lt;").split())


def examples(command: click.Command) -> list[str]:
    """The commands that stand at the end of its help."""
    _, _, lines = (command.epilog or "").partition("Examples:\n")
    return [line.strip() for line in lines.splitlines() if line.strip()]
