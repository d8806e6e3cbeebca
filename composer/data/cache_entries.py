"""Entries of the user's cache: one process makes an entry, and unused ones are removed.

An entry is a folder named by all that it depends on: a file for each of its arrays, and
`entry.json`, which has their types and hashes, what else is known, and before it the hash of all
that. An entry is verified before it is used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import os
import platform
import shutil
import sys
import time
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from composer.atomic_io import (
    atomic_directory,
    atomic_write,
    cache_dir,
    file_stamp,
    open_regular,
    parse_json,
    read_text,
)
from composer.errors import RunError, os_error_reason
from composer.formatting import strip_control_characters

FEATURES, CORPORA = "features", "corpora"
"""Kinds of entries that training needs: features of files, and ids of texts."""
CONTENTS = {FEATURES: "images, sounds and vectors", "programs": "exported models"}
"""What entries are of, by kind; others are of texts."""
DAYS = 30
"""Days after which an entry is removed that nobody has used."""
ENTRY = "entry.json"

FORMAT = 2
"""Format of entries, part of their names, so that no other format is read."""
LARGE = 1 << 24
"""Bytes from which on an entry is not verified by each process, but once on each machine."""
PACKAGES = (
    "datasets",
    "numpy",
    "pillow",
    "pyarrow",
    "sentencepiece",
    "soundfile",
    "soxr",
    "tokenizers",
    "torch",
)
"""Libraries that read, cut or decode what is cached."""
VERIFIED = set[str]()
"""Entries that this process has verified: a hash, with the stamps of its files."""

Append = Callable[..., None]
"""Appends rows to arrays by their names: `append(ids=ids, ends=ends)`."""
Make = Callable[[Append], Any]
"""Appends all rows of the arrays of an entry, and returns its other facts, as JSON."""


class Entry(NamedTuple):
    """Facts, and arrays by name, which are mapped into memory if they are cached."""

    facts: Any
    arrays: dict[str, np.ndarray]


class Damaged(Exception):
    """An entry is not as it was written, or cannot be what it is called."""


@cache
def code_identity() -> list[str]:
    """Return the hash of the code that reads and encodes data, and the versions it depends on."""
    here = Path(__file__).parent
    others = (here.parent / "text_lines.py", here.parent / "model" / "features.py")
    digest = hashlib.sha256()
    for file in (*sorted(here.rglob("*.py")), *others):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return [digest.hexdigest(), *map(version_of, PACKAGES), unicodedata.unidata_version]


def version_of(package: str) -> str:
    """Return the version of a package; "" if it is not installed."""
    return version(package) if importlib.util.find_spec(package) else ""


def cached_facts(
    kind: str,
    parts: Sequence[object],
    make: Callable[[], object],
    is_valid: Callable[[object], bool],
) -> Any:
    """Return JSON that depends on `parts` alone, from the cache; without a cache, make it."""
    with suppress(OSError, RunError):
        return cached_entry(
            kind, parts, lambda append: make(), lambda entry: is_valid(entry.facts)
        ).facts
    return make()


def cached_array(
    kind: str,
    parts: Sequence[object],
    make: Callable[[], np.ndarray],
    is_valid: Callable[[np.ndarray], bool],
) -> np.ndarray:
    """Return an array that depends on `parts` alone, from the cache; without one, make it."""

    def are_valid(entry: Entry) -> bool:
        return is_valid(entry.arrays["array"])

    with suppress(OSError, RunError):
        return np.asarray(
            cached_entry(kind, parts, lambda append: append(array=make()), are_valid).arrays[
                "array"
            ]
        )
    return make()


def cached_entry(
    kind: str, parts: Sequence[object], make: Make, is_valid: Callable[[Entry], bool]
) -> Entry:
    """Return the entry that depends on `parts` alone; one process makes it if missing or damaged.

    is_valid: Whether an entry can be what `make` makes: its types, and its numbers against their
    bounds. Raises RunError if the cache cannot be written or read.
    """
    name = hashlib.sha256(json.dumps([FORMAT, *code_identity(), parts]).encode()).hexdigest()
    path = cache_dir() / kind / name
    entry = entry_or_none(path, is_valid)
    if entry is None:
        with locked_entry(path):
            remove_damaged(path, is_valid)
            is_own = False
            if not path.exists():  # nor has the process that was waited for made it
                try:
                    with atomic_directory(path) as temporary:
                        write_entry(temporary, make)
                    is_own = True
                except RunError:
                    if not path.exists():  # without locks another process can be quicker
                        raise
            entry = entry_or_none(path, is_valid, is_own)
    if entry is None:
        message = "this entry of the cache cannot be read"
        fix = "set SEQCOMPOSER_STORE to another folder"
        raise RunError.of(message, fix, str(path))
    with suppress(OSError):  # of a cache that others made
        os.utime(path)
    return entry


def entry_or_none(
    path: Path, is_valid: Callable[[Entry], bool], is_own: bool = False
) -> Entry | None:
    """Return an entry, or None where it is not there, or damaged. is_own: see `read_entry`."""
    with suppress(Damaged, OSError):
        return read_entry(path, is_valid, is_own)
    return None


def remove_damaged(path: Path, is_valid: Callable[[Entry], bool]) -> None:
    """Remove an entry that is damaged, and say so."""
    if not path.exists():
        return
    try:
        read_entry(path, is_valid)
    except (Damaged, OSError) as error:
        text = f"an entry of the cache is damaged and made anew ({error}): {path}"
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{strip_control_characters(text)}\n")
        shutil.rmtree(path, ignore_errors=True)


def entry_in_memory(make: Make) -> Entry:
    """Return an entry that the cache does not have."""
    arrays = defaultdict[str, list[np.ndarray]](list)

    def append(**rows: np.ndarray) -> None:
        for name, own in rows.items():
            arrays[name].append(own)

    return Entry(make(append), {name: np.concatenate(parts) for name, parts in arrays.items()})


def write_entry(folder: Path, make: Make) -> None:
    """Write the files of an entry, array by array as its rows come."""
    files = dict[str, IO[bytes]]()
    types = dict[str, tuple[str, tuple[int, ...]]]()
    hashes = dict[str, Any]()
    with ExitStack() as stack:

        def append(**arrays: np.ndarray) -> None:
            for name, rows in arrays.items():
                if name not in files:
                    files[name] = stack.enter_context((folder / f"{name}.bin").open("wb"))
                    types[name], hashes[name] = (rows.dtype.str, rows.shape[1:]), hashlib.sha256()
                data = np.ascontiguousarray(rows)
                files[name].write(data.data)
                hashes[name].update(data.data)

        facts = make(append)
        arrays = {
            name: {
                "type": dtype,
                "shape": shape,
                "size": files[name].tell(),
                "sha256": hashes[name].hexdigest(),
            }
            for name, (dtype, shape) in types.items()
        }
        head = stack.enter_context((folder / ENTRY).open("wb"))
        text = json.dumps({"facts": facts, "arrays": arrays})
        head.write(f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}".encode())
        for file in (*files.values(), head):
            file.flush()
            os.fsync(file.fileno())


def read_entry(folder: Path, is_valid: Callable[[Entry], bool], is_own: bool = False) -> Entry:
    """Read and verify an entry.

    Raises Damaged if it has changed or is not valid, OSError if missing.

    is_own: Whether this process has just written it, and so hashed its arrays already.
    """
    try:
        digest, _, text = read_text(folder / ENTRY).partition("\n")
        if hashlib.sha256(text.encode()).hexdigest() != digest:
            raise Damaged(f"{ENTRY} has changed")
        head = parse_json(text)
        arrays = {
            name: map_array(folder / f"{name}.bin", **array)
            for name, array in head["arrays"].items()
        }
        entry = Entry(head["facts"], arrays)
        if is_verified(folder, digest, arrays):
            return entry
        for name, array in () if is_own else head["arrays"].items():
            with open_regular(folder / f"{name}.bin") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != array["sha256"]:
                    raise Damaged(f"{name}.bin has changed")
        if not is_valid(entry):
            raise Damaged("it is not what its name says")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise Damaged(f"it is not what its name says: {type(error).__name__}") from None
    remember_verified(folder, digest, arrays)
    return entry


def map_array(path: Path, type: str, shape: Sequence[int], size: int, sha256: str) -> np.ndarray:
    """Map the array of a file into memory. Raises Damaged if its type or size is wrong."""
    dtype = np.dtype(type)
    row = dtype.itemsize * math.prod(shape)
    if dtype.kind not in "biuf" or row <= 0 or size % row or path.stat().st_size != size:
        raise Damaged(f"{path.name} has another size or type")
    values = np.memmap(path, dtype, mode="r") if size else np.zeros(0, dtype)
    return values.reshape(-1, *shape)


def stamps_of(folder: Path, digest: str, names: Sequence[str]) -> str:
    """Return a hash that is another one once a file of an entry is written to."""
    stamps = [file_stamp(folder / f"{name}.bin") for name in names]
    return hashlib.sha256(json.dumps([digest, *stamps]).encode()).hexdigest()


def is_verified(folder: Path, digest: str, arrays: dict[str, np.ndarray]) -> bool:
    """True if this process or machine has verified an entry whose files have not changed since."""
    stamps = stamps_of(folder, digest, [*arrays])
    with suppress(OSError, RunError):
        return stamps in VERIFIED or read_text(verified_file(folder)) == stamps
    return False


def remember_verified(folder: Path, digest: str, arrays: dict[str, np.ndarray]) -> None:
    """Remember that an entry is verified: in this process, and a large one on this machine."""
    stamps = stamps_of(folder, digest, [*arrays])
    VERIFIED.add(stamps)
    if sum(array.nbytes for array in arrays.values()) >= LARGE:
        with suppress(OSError):  # of a cache that others made
            atomic_write(verified_file(folder), stamps.encode())


def verified_file(folder: Path) -> Path:
    """Return the file of an entry in which this machine remembers that it has verified it."""
    return folder / f"verified-{hashlib.sha256(platform.node().encode()).hexdigest()[:16]}"


@contextmanager
def locked_entry(path: Path) -> Iterator[None]:
    """Hold the lock of an entry, after any process that holds it; remove unused entries.

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
    what = CONTENTS.get(folder.name, "texts")
    message = f"the cache of {what} cannot be written: {os_error_reason(error)}"
    return RunError.of(
        message, "set SEQCOMPOSER_STORE to a folder that you may write to", str(folder)
    )


@cache  # once in a process: a folder can have many entries
def remove_unused(folder: Path) -> None:
    """Remove entries that nobody has used for DAYS, and the leftovers of killed processes."""
    for path in folder.iterdir():
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > DAYS * 86_400:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
