"""What a pack holds: six files and `pack.json`, nothing else. A name is looked at before anything of it is read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

from composer.errors import RunError
from composer.recipe.yaml_reader import MAX_BYTES

MANIFEST = "pack.json"
FILES = ("README.md", "metrics.jsonl", "model.safetensors", "recipe.yaml", "run.json", "tokenizer.json")
MOST_BYTES_OF = {
    "README.md": 1 << 28,
    "metrics.jsonl": 1 << 28,
    "recipe.yaml": MAX_BYTES,
    "run.json": 1 << 24,
    "tokenizer.json": 1 << 28,
    MANIFEST: 1 << 16,
}
"""Bytes of what is read at once; weights have no bound of their own."""
ALL = frozenset((MANIFEST, *FILES))
MADE_ANEW = "ask for a pack as `seqcomposer pack RUN` makes it"
REGULAR, FOLDER = "file", "folder"

_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


class Entry(NamedTuple):
    """Something in a folder, an archive or a repository: its name there, `file` or what else it is, and its bytes."""

    name: str
    kind: str
    size: int


def refuse(origin: str | Path, message: str, fix: str = MADE_ANEW) -> NoReturn:
    """Raises RunError about what was to be pulled."""
    raise RunError.of(message, fix, str(origin))


def check_entry(entry: Entry, origin: str | Path) -> None:
    """Raises RunError where something is no file of a pack."""
    told = complaint(entry.name) or ("" if entry.kind == REGULAR else f"is a {entry.kind}")
    if told:
        refuse(origin, f"{entry.name!a} {told}; nothing was taken")


def check_size(name: str, size: int, origin: str | Path) -> None:
    """Raises RunError where a file of a pack is larger than one that is read at once may be."""
    most = MOST_BYTES_OF.get(name, size)
    if size > most:
        refuse(origin, f"`{name}` has {size:,} bytes, and at most {most:,} are read; nothing was taken")


def check_entries(entries: Iterable[Entry], origin: str | Path) -> None:
    """Raises RunError where one of several things is no file of a pack, or two have one name."""
    seen: set[str] = set()
    for entry in entries:
        check_entry(entry, origin)
        if entry.name in seen:
            refuse(origin, f"`{entry.name}` is there twice; nothing was taken")
        seen.add(entry.name)


def complaint(name: str) -> str:
    """What is wrong with a file's name; "" where it is one of a pack's."""
    if name in ALL:
        return ""
    if not name.isprintable() or not name.strip():
        return "has characters that cannot be seen"
    if name in (".", "..") or any(mark in name for mark in "/\\:"):
        return "leads to another folder"
    if folded(name) in {folded(each) for each in ALL}:
        return "looks like the name of another file"
    if not name.isascii():
        return "has characters that look like others"
    return unsafe(name) or "is no part of a pack, which holds no code and nothing that is not listed"


def unsafe(name: str) -> str:
    """Why some systems do not have a file under this name, or do not show it."""
    if name.startswith("."):
        return "is hidden"
    if name.endswith((".", " ")):
        return "ends with what some systems leave away"
    return "is a device on some systems" if _DEVICE.fullmatch(name) else ""


def folded(name: str) -> str:
    """A name as a system without cases and with rules of its own about Unicode has it."""
    return unicodedata.normalize("NFKC", name).casefold().rstrip(". ")
