"""The page of the commands has all of them with all that they take, and their examples are taken by their parsers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import groupby

import pytest

from docs.hooks import commands as command_page
from tests.docs.fenced import looked_up

FOUND = command_page.commands()


@pytest.mark.parametrize("name", FOUND)
def test_a_command_is_told_with_all_that_it_takes(name: str) -> None:
    part = command_page.page().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert part
    for param in FOUND[name].params:
        options = [each for each in param.opts if each.startswith("--")]
        assert all(f"{option}`" in part or f"{option} " in part for option in options), param.name


@pytest.mark.parametrize("name", FOUND)
def test_its_examples_are_taken(name: str) -> None:
    told = [own for line in command_page.examples(FOUND[name]) for own in ours(line)]
    assert name in {own[1] for own in told}
    for own in told:
        looked_up(own)


def ours(line: str) -> Iterator[list[str]]:
    """The commands of ours in a line of a shell, without where they read from and write to."""
    words = shlex.split(re.sub(r"\s+#\s.*", "", line))
    for sign, part in groupby(words, lambda word: word in ("|", "<", ">")):
        own = list(part)
        if not sign and own[0] == "seqcomposer":
            yield own
