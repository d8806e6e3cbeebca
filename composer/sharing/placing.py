"""Files and folders that appear under their name only when all of them is on the disk; nothing is ever overwritten."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from composer.errors import RunError
from composer.sharing.contents import refuse
from composer.sharing.manifest import Described
from composer.training.run_folder import cure
from composer.training.whole import flush_folder

PIECE = 1 << 20
"""Bytes that are read at once."""
ONLY_FILES = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""No link is followed, and no FIFO is waited for."""


class Readable(Protocol):
    """What bytes can be read from."""

    def read(self, size: int, /) -> bytes:
        """As many bytes; fewer at the end."""


def must_be_new(target: Path) -> None:
    """Raises RunError where something is there already."""
    if os.path.lexists(target):
        raise RunError.of("this is there already, and is not overwritten", "name another with `--output`, or remove it",
                          str(target))  # fmt: skip


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end; nothing is left of one that failed. Raises RunError."""
    with written(target, lambda draft: draft.mkdir()) as draft:
        yield draft
        flush_folder(draft)


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """A file to write, which gets its name at the end; nothing is left of one that failed. Raises RunError."""
    with written(target, lambda draft: draft.touch(exist_ok=False)) as draft, draft.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def written(target: Path, begin: Callable[[Path], None]) -> Iterator[Path]:
    """A draft beside `target`, renamed to it at the end. Raises RunError where this cannot be written."""
    must_be_new(target)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        begin(draft)
        yield draft
        rename(draft, target)
    except OSError as error:
        remove(draft)
        message = f"this cannot be written: {(error.strerror or str(error)).lower()}"
        raise RunError.of(message, f"{cure(error)}, or name another with `--output`", str(target)) from None
    except BaseException:
        remove(draft)
        raise
    flush_folder(target.parent)


def rename(draft: Path, target: Path) -> None:
    """Gives a draft its name. Raises RunError where somebody else was quicker."""
    must_be_new(target)
    try:
        draft.rename(target)
    except OSError:
        must_be_new(target)
        raise


@contextmanager
def in_words(origin: str | Path) -> Iterator[None]:
    """Turns what the system refuses into a RunError."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunError.of(f"the system says: {reason}", cure(error), str(error.filename or origin)) from None


def remove(draft: Path) -> None:
    """Removes what was half written."""
    with suppress(OSError):
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)


def opened(path: Path, origin: str | Path) -> BinaryIO:
    """A regular file, to read. Raises RunError of all else: links, devices, what is not there."""
    try:
        handle = os.open(path, os.O_RDONLY | ONLY_FILES)
    except OSError as error:
        reason = "is a link" if path.is_symlink() else f"cannot be read: {(error.strerror or str(error)).lower()}"
        refuse(origin, f"`{path.name}` {reason}", "put the file itself there")
    file = open(handle, "rb")  # noqa: SIM115 whoever asked closes it
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        file.close()
        refuse(origin, f"`{path.name}` is no regular file", "put the file itself there")
    return file


def small(path: Path, most: int, origin: str | Path) -> bytes:
    """All of a small file. Raises RunError where it is larger than `most` bytes."""
    with opened(path, origin) as file:
        data = file.read(most + 1)
    if len(data) > most:
        refuse(origin, f"`{path.name}` is larger than {most >> 10:,} KiB")
    return data


def described(path: Path, origin: str | Path) -> Described:
    """The hash and the size of a file. Raises RunError."""
    with opened(path, origin) as file:
        sha256 = hashlib.sha256()
        size = 0
        while piece := file.read(PIECE):
            sha256.update(piece)
            size += len(piece)
    return Described(sha256.hexdigest(), size)


def copy_verified(source: Readable, target: Path, wanted: Described, origin: str | Path) -> None:
    """Copies as many bytes as a file must have; what is hashed is what is written. Raises RunError.

    Where more follow in `source`, that is for whoever opened it to see.
    """
    sha256, left = hashlib.sha256(), wanted.size
    with target.open("xb") as file:
        while left and (piece := source.read(min(PIECE, left))):
            sha256.update(piece)
            file.write(piece)
            left -= len(piece)
        file.flush()
        os.fsync(file.fileno())
    if left or sha256.hexdigest() != wanted.sha256:
        reason = "is cut off" if left else "is not what pack.json says: its SHA-256 differs"
        refuse(
            origin, f"`{target.name}` {reason}; nothing was taken", "it was changed or damaged: ask for the pack again"
        )
