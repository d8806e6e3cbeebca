"""Files that are there whole or not at all: written beside, flushed, renamed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

DRAFT = re.compile(r"\..+\.\d+(\.part)?")
"""How a file is called while it is written: hidden, and with the number of the process that writes it."""


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when all of it is on the disk; nothing is left of one that failed."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # of the draft, which nobody knows, or of nothing
        raise
    flush_folder(path.parent)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_draft(path: Path) -> bool:
    """Whether a file is one that somebody writes, or wrote when he was killed."""
    return DRAFT.fullmatch(path.name) is not None


def remove_drafts(folder: Path) -> None:
    """Removes what killed processes left half written; only for whoever knows that nobody writes here now."""
    if folder.is_dir():
        for path in filter(is_draft, folder.iterdir()):
            path.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Makes a renaming in `folder` last, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a small file so that it is never seen half written."""
    with written_whole(path) as file:
        file.write(content)
