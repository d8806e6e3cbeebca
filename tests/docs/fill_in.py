"""Writes what commands print into the pages that show it: `python tests/docs/fill_in.py docs/language.md`.

Run it where an output has changed for a good reason, and read what it has changed before you commit it.
"""

# ruff: noqa: T201
from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.docs.fenced import Fenced, WrongPage, fenced, tried


def filled(page: Path) -> str:
    """The page, with the outputs of its commands as they are now."""
    text = page.read_text(encoding="utf-8")
    for _ in fenced(page.name, text):
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                tried(list(fenced(page.name, text)), Path(folder))
        except WrongPage as error:
            after = replaced(text, error)
            if after == text:
                print(error, file=sys.stderr)
                return text
            text = after
        else:
            return text
    return text


def replaced(text: str, error: WrongPage) -> str:
    """The page with one output as it is; the page as it was where `error` is about something else."""
    place, _, printed = str(error).partition("but:\n")
    if not printed:
        return text
    line = int(place.split(":")[1])
    wrong = next(block for block in fenced("", text) if block.line == line)
    return text.replace(_shown(wrong), _shown(wrong._replace(text=f"{printed}\n")), 1)


def _shown(block: Fenced) -> str:
    return f'```text title="{block.title}"\n{block.text}```'


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    for page in [Path(name).resolve() for name in sys.argv[1:]]:
        page.write_text(re.sub(r"[ \t]+$", "", filled(page), flags=re.MULTILINE), encoding="utf-8")
