"""Entries of the user's cache of texts: one process makes one while others wait, and what nobody uses is removed."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from composer.errors import RunError, os_error_reason

DAYS = 30
"""Days after which an entry is removed that nobody has used."""


@contextmanager
def locked_entry(path: Path) -> Iterator[None]:
    """Hold the lock of an entry, once another process that holds it has let go; remove what nobody has used.

    Raises RunError if the cache cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(f"{path.name}.lock").open("w")
    except OSError as error:
        message = f"the cache of texts cannot be written: {os_error_reason(error)}"
        fix = "set SEQCOMPOSER_STORE to a folder that you may write to"
        raise RunError.of(message, fix, str(path.parent)) from None
    with file:
        with suppress(ImportError, OSError):  # of Windows, and of a file system without locks
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        remove_unused(path.parent)
        yield


def remove_unused(folder: Path) -> None:
    """Remove entries that nobody has used for DAYS, and what was left behind by processes that were killed."""
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > DAYS * 86_400:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
