"""What to do against a fault: in words, and where a program can do it, as a change of settings.

`write("heads", 4)` says "write `heads: 4`", and is this change. Importing this imports no torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

Path = tuple[str | int, ...]


class Set(NamedTuple):
    """A setting gets a value, in place of another or of its default. A block's paths begin at the
    block.
    """

    path: Path
    value: Any


class Remove(NamedTuple):
    """A setting is removed with its value."""

    path: Path


class Rename(NamedTuple):
    """A name that is a setting's value, or is in it, becomes another."""

    path: Path
    old: str
    new: str


Change = Set | Remove | Rename


class Fix(NamedTuple):
    """What to do, in words, and as a change; None where only a person can say what was meant."""

    text: str
    change: Change | None = None

    def below(self, path: Path) -> Fix:
        """Return the same for whoever has the block, which stands at a path."""
        if self.change is None:
            return self
        return self._replace(change=self.change._replace(path=(*path, *self.change.path)))


def write(setting: str | Path, value: Any, rest: str = "") -> Fix:
    """Return the fix that a setting, or what is at a path, gets a value. rest: Words after "write
    `KEY: VALUE`".
    """
    path = (setting,) if isinstance(setting, str) else setting
    return Fix(f"write `{path[-1]}: {flow_text(value)}`{rest}", Set(path, value))


def remove(setting: str | Path = "", rest: str = "") -> Fix:
    """Return the fix that a setting, or what is at a path, is removed; without one the block
    itself, "remove it".

    rest: Words after "remove `KEY`".
    """
    path = setting if isinstance(setting, tuple) else (setting,) if setting else ()
    return Fix(f"remove `{path[-1]}`{rest}" if path else f"remove it{rest}", Remove(path))


def as_fix(fix: str | Fix) -> Fix:
    """Return a fix that may be in words alone."""
    return Fix(fix) if isinstance(fix, str) else fix


def flow_text(value: Any) -> str:
    """Return a value of words and numbers on one line, as a recipe has it: `[1, 2]`, `{beam: {size:
    5}}`.
    """
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {flow_text(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flow_text, value))}]"
    return scalar_text(value)


def scalar_text(value: Any) -> str:
    """Return a scalar as a recipe writes it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
