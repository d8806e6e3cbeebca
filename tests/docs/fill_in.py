"""Update command outputs in documentation pages: `python tests/docs/fill_in.py docs/language.md`.

Run it after an intended change of an output, and review the changes before committing.
"""

# ruff: noqa: T201
from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from pathlib import Path

from tests.docs.fenced import CodeBlock, PageError, code_blocks, run_blocks


def update_outputs(page: Path) -> str:
    """Return the page with the current outputs of its commands."""
    text = page.read_text(encoding="utf-8")
    for _ in code_blocks(page.name, text):
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                run_blocks(list(code_blocks(page.name, text)), Path(folder))
        except PageError as error:
            updated = replace_output(text, error)
            if updated == text:
                print(error, file=sys.stderr)
                return text
            text = updated
        else:
            return text
    return text


def replace_output(text: str, error: PageError) -> str:
    """Return the page with one output updated; unchanged if `error` is about something else."""
    place, _, printed = str(error).partition("differs from the page:\n")
    if not printed:
        return text
    line = int(place.split(":")[1])
    wrong = next(block for block in code_blocks("", text) if block.line == line)
    return text.replace(_as_markdown(wrong), _as_markdown(wrong._replace(text=f"{printed}\n")), 1)


def _as_markdown(block: CodeBlock) -> str:
    return f'```text title="{block.title}"\n{block.text}```'


if __name__ == "__main__":
    os.environ["COLUMNS"] = "100"
    for page in [Path(name).resolve() for name in sys.argv[1:]]:
        page.write_text(
            re.sub(r"[ \t]+$", "", update_outputs(page), flags=re.MULTILINE), encoding="utf-8"
        )
