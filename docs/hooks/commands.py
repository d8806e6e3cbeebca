"""Generate the page of all commands from their `--help`: usage, arguments, options, examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from inspect import cleandoc

import click
from typer.main import get_command

from composer.cli import main
from docs.hooks import markdown

INTRODUCTION = """\
All commands with their options, as in `--help`. `key=value` overrides a setting of the recipe for
this call; items of lists are numbered: `training.max_minutes=60 model.encoder.1.repeat.times=6`.

Exit status: 0 success, 1 failure, 2 invalid input, 130 and 143 stopped by a signal.
Machine-readable output goes to stdout; `--json` prints JSON and nothing else."""


def page() -> str:
    """Return the page."""
    command_list = commands()
    rows = [(f"[`{name}`](#{name})", short_help(command)) for name, command in command_list.items()]
    sections = [command_section(name, command) for name, command in command_list.items()]
    return markdown.join_parts(
        "# Commands", INTRODUCTION, markdown.table(("command", "description"), rows), *sections
    )


def commands() -> dict[str, click.Command]:
    """Return every command by its name, in the order of `--help`."""
    return dict(get_command(main.app).commands)  # type: ignore[attr-defined]


def short_help(command: click.Command) -> str:
    """Return the help of a command in a sentence."""
    return command.get_short_help_str(limit=200)


def command_section(name: str, command: click.Command) -> str:
    """Return the section of a command."""
    context = click.Context(command, info_name=f"seqcomposer {name}", max_content_width=10_000)
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    rows = [help_row(*record) for record in help_records(command.params, context)]
    parameters = markdown.table(("argument", ""), rows)
    example_code = markdown.code("\n".join(examples(command)), "sh") if examples(command) else ""
    text = cleandoc(command.help or "")
    return markdown.join_parts(
        f"## {name}", text, markdown.code(usage), parameters, example_code
    ).rstrip()


def help_records(
    params: Iterable[click.Parameter], context: click.Context
) -> Iterator[tuple[str, str]]:
    """Yield the name and help of each argument and option."""
    for param in params:
        record = param.get_help_record(context)
        if record is not None:
            yield record


def help_row(name: str, text: str) -> tuple[str, str]:
    """Return a row of the table, without click's type names."""
    plain = re.sub(r" <[A-Za-z \[\]|]+>$", "", name)
    return f"`{plain}`", " ".join(text.replace("<", "&lt;").split())


def examples(command: click.Command) -> list[str]:
    """Return the example commands at the end of a command's help."""
    _, _, lines = (command.epilog or "").partition("Examples:\n")
    return [line.strip() for line in lines.splitlines() if line.strip()]
