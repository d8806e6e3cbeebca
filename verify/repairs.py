"""Make the edits of a recipe's faults, one at a time, until it is accepted or no fault has one.

A fault that is still there after its edit shows that the edit is none; a text that comes again,
that two undo each other.
"""

from __future__ import annotations

import re
from pathlib import Path

import composer
from composer.errors import Edit, Fault

ROUNDS = 12
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")


class FixFailed(Exception):
    """A fault has an edit, and is still there when it is made, or another edit undoes it."""


def repair(file: Path) -> list[Fault]:
    """Repair a recipe in its file; return the faults that are left. Raises FixFailed."""
    texts = {file.read_bytes()}
    for _ in range(ROUNDS):
        faults = composer.check(file)
        # one at a time: what another edit has changed may be what this one speaks of
        fixed = next(
            (fault for fault in faults if fault.edit and Path(fault.edit.file) == file), None
        )
        if fixed is None or fixed.edit is None:
            return faults
        text = apply(file.read_bytes().decode("utf-8-sig"), fixed.edit).encode()
        if text in texts:
            raise FixFailed(
                f"{fixed.render()}\nis undone by another edit, or does nothing: {fixed.edit}"
            )
        texts.add(text)
        file.write_bytes(text)
        left = composer.check(file)
        if fixed in left and len(left) >= len(faults):
            raise FixFailed(f"{fixed.render()}\nis still there after {fixed.edit}")
    return composer.check(file)


def apply(text: str, edit: Edit) -> str:
    """Return a text after an edit."""
    starts = [match.start() for match in LINE.finditer(text)]

    def offset(place: tuple[int, int]) -> int:
        line, column = place
        return starts[line - 1] + column - 1 if line <= len(starts) else len(text)

    return text[: offset(edit.start)] + edit.replacement + text[offset(edit.end) :]
