"""Entries of the user's cache: one process makes one while others wait, and what nobody uses is removed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from composer.atomic_io import atomic_directory
from composer.errors import RunError, os_error_reason
from composer.recipe.cache import cache_dir

Entry = TypeVar("Entry")
FEATURES, CORPORA = "features", "corpora"
"""Kinds of entries without which nothing is trained: what is in files of images, sounds and vectors, and texts."""
DAYS = 30
"""Days after which an entry is removed that nobody has used."""


def entry_path(kind: str, parts: Sequence[Any]) -> Path:
    """Return where the cache has what depends on these parts alone."""
    return cache_dir() / kind / hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def cached_arrays(kind: str, parts: Sequence[Any], make: Callable[[], Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Return up to 100 arrays that depend on these parts alone, mapped into memory; see `cached_entry`."""

    def write(folder: Path) -> None:
        for number, array in enumerate(make()):
            with (folder / f"{number:02}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())

    def read(folder: Path) -> list[np.ndarray] | None:
        with suppress(OSError, ValueError, EOFError):
            arrays = [np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(folder.glob("*.npy"))]
            return [*map(np.asarray, arrays)] or None
        return None

    return cached_entry(entry_path(kind, parts), read, write)


def cached_entry(path: Path, read: Callable[[Path], Entry | None], write: Callable[[Path], None]) -> Entry:
    """Return what is read of an entry, a folder; it is written first, by one process, where it is not or is damaged.

    Raises RunError if the cache cannot be written or read.
    """
    if (entry := read(path)) is None:
        with locked_entry(path):
            if (entry := read(path)) is None:  # nor has the process that was waited for made it
                shutil.rmtree(path, ignore_errors=True)
                try:
                    with atomic_directory(path) as temporary:
                        write(temporary)
                except RunError:
                    if not path.exists():  # without locks another process can be quicker
                        raise
                entry = read(path)
    if entry is None:
        message, fix = "this entry of the cache cannot be read", "set SEQCOMPOSER_STORE to another folder"
        raise RunError.of(message, fix, str(path))
    with suppress(OSError):  # of a cache that others made
        os.utime(path)
    return entry


@contextmanager
def locked_entry(path: Path) -> Iterator[None]:
    """Hold the lock of an entry, once another process that holds it has let go; remove what nobody has used.

    Raises RunError if the cache cannot be written.
    """
    make_folder(path.parent.name)
    try:
        file = path.with_name(f"{path.name}.lock").open("w")
    except OSError as error:
        raise unwritable(path.parent, error) from None
    with file:
        with suppress(ImportError, OSError):  # of Windows, and of a file system without locks
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        remove_unused(path.parent)
        yield


def make_folder(kind: str) -> None:
    """Make the folder of the entries of a kind. Raises RunError if that cannot be."""
    folder = cache_dir() / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None


def unwritable(folder: Path, error: OSError) -> RunError:
    """Return the error of a folder of entries that cannot be written."""
    what = "images, sounds and vectors" if folder.name == FEATURES else "texts"
    message = f"the cache of {what} cannot be written: {os_error_reason(error)}"
    return RunError.of(message, "set SEQCOMPOSER_STORE to a folder that you may write to", str(folder))


def remove_unused(folder: Path) -> None:
    """Remove entries that nobody has used for DAYS, and what was left behind by processes that were killed."""
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > DAYS * 86_400:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
