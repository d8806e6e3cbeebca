"""Entries of the user's cache: one process makes one while others wait, and what nobody uses is removed.

An entry is a folder named by all that it depends on: a file for each of its arrays, and `entry.json`, which has their
types and what else is known.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NamedTuple

import numpy as np

from composer.atomic_io import atomic_directory, cache_dir, parse_json, read_text
from composer.errors import RunError, os_error_reason

FEATURES, CORPORA = "features", "corpora"
"""Kinds of entries without which nothing is trained: what is in files of images, sounds and vectors, and texts."""
DAYS = 30
"""Days after which an entry is removed that nobody has used."""
ENTRY = "entry.json"

Append = Callable[..., None]
"""Appends rows to arrays by their names: `append(ids=ids, ends=ends)`."""
Make = Callable[[Append], Any]
"""Appends all rows of the arrays of an entry, and returns what else is known, as JSON can hold it."""


class Entry(NamedTuple):
    """What is known, and arrays by their names, mapped into memory where the cache has them."""

    facts: Any
    arrays: dict[str, np.ndarray]


def code_hashes(*modules: ModuleType) -> list[str]:
    """Return the SHA-256 of the source of each module."""
    return [hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest() for module in modules]


def versions_of(*packages: str) -> list[str]:
    """Return the versions of packages, "" of one that is not installed."""
    return [version(package) if importlib.util.find_spec(package) else "" for package in packages]


def cached_facts(kind: str, parts: Sequence[Any], make: Callable[[], Any]) -> Any:
    """Return what depends on these parts alone, as JSON has it; without a cache it is made anew."""
    with suppress(OSError, RunError):
        return cached_entry(kind, parts, lambda append: make()).facts
    return make()


def cached_array(kind: str, parts: Sequence[Any], make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return an array that depends on these parts alone, mapped into memory; without a cache it is made anew."""
    with suppress(OSError, RunError):
        return np.asarray(cached_entry(kind, parts, lambda append: append(array=make())).arrays["array"])
    return make()


def cached_entry(kind: str, parts: Sequence[Any], make: Make) -> Entry:
    """Return the entry that depends on these parts alone; one process makes it first where it is not or is damaged.

    Raises RunError if the cache cannot be written or read.
    """
    path = cache_dir() / kind / hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    if (entry := read_entry(path)) is None:
        with locked_entry(path):
            if (entry := read_entry(path)) is None:  # nor has the process that was waited for made it
                shutil.rmtree(path, ignore_errors=True)
                try:
                    with atomic_directory(path) as temporary:
                        write_entry(temporary, make)
                except RunError:
                    if not path.exists():  # without locks another process can be quicker
                        raise
                entry = read_entry(path)
    if entry is None:
        message, fix = "this entry of the cache cannot be read", "set SEQCOMPOSER_STORE to another folder"
        raise RunError.of(message, fix, str(path))
    with suppress(OSError):  # of a cache that others made
        os.utime(path)
    return entry


def entry_in_memory(make: Make) -> Entry:
    """Return an entry that the cache does not have."""
    arrays = defaultdict[str, list[np.ndarray]](list)

    def append(**rows: np.ndarray) -> None:
        for name, own in rows.items():
            arrays[name].append(own)

    return Entry(make(append), {name: np.concatenate(parts) for name, parts in arrays.items()})


def write_entry(folder: Path, make: Make) -> None:
    """Write the files of an entry, array by array as its rows come."""
    files, types = dict[str, IO[bytes]](), dict[str, tuple[str, tuple[int, ...]]]()
    with ExitStack() as stack:

        def append(**arrays: np.ndarray) -> None:
            for name, rows in arrays.items():
                if name not in files:
                    files[name] = stack.enter_context((folder / f"{name}.bin").open("wb"))
                    types[name] = rows.dtype.str, rows.shape[1:]
                rows.tofile(files[name])

        facts = make(append)
        sizes = {name: file.tell() for name, file in files.items()}
        head = stack.enter_context((folder / ENTRY).open("wb"))
        head.write(json.dumps({"facts": facts, "types": types, "sizes": sizes}).encode())
        for file in (*files.values(), head):
            file.flush()
            os.fsync(file.fileno())


def read_entry(folder: Path) -> Entry | None:
    """Return an entry; None where it is not there, or not as it was written."""
    try:
        entry, arrays = parse_json(read_text(folder / ENTRY)), dict[str, np.ndarray]()
        for name, (dtype, shape) in entry["types"].items():
            path, size = folder / f"{name}.bin", entry["sizes"][name]
            if path.stat().st_size != size:
                return None
            values = np.memmap(path, dtype, mode="r") if size else np.zeros(0, dtype)
            arrays[name] = values.reshape(-1, *shape)
        return Entry(entry["facts"], arrays)
    except (OSError, ValueError, KeyError, TypeError):
        return None


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


@cache  # once in a process: a folder can have many entries
def remove_unused(folder: Path) -> None:
    """Remove entries that nobody has used for DAYS, and what was left behind by processes that were killed."""
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > DAYS * 86_400:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
