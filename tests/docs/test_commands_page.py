"""The page of the commands lists every option, and the examples are valid."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import groupby

import pytest

from docs.hooks import commands as command_page
from tests.docs.fenced import check_options

COMMANDS = command_page.commands()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_all_its_options(name: str) -> None:
    section = command_page.page().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert section
    for param in COMMANDS[name].params:
        options = [option for option in param.opts if option.startswith("--")]
        assert all(f"{option}`" in section or f"{option} " in section for option in options), (
            param.name
        )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_command_are_valid(name: str) -> None:
    commands = [
        command
        for line in command_page.examples(COMMANDS[name])
        for command in seqcomposer_commands(line)
    ]
    assert name in {command[1] for command in commands}
    for command in commands:
        check_options(command)


def seqcomposer_commands(line: str) -> Iterator[list[str]]:
    """Yield the seqcomposer commands of a shell line, without redirections."""
    words = shlex.split(re.sub(r"\s+#\s.*", "", line))
    for sign, part in groupby(words, lambda word: word in ("|", "<", ">")):
        command = list(part)
        if not sign and command[0] == "seqcomposer":
            yield command
