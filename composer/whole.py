"""Files and folders that are there whole or not at all: written beside, flushed, renamed."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from composer.errors import RunError, cure, reason_of

OUTPUT = "--output"
ONLY_FILES = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""No link is followed, and no FIFO is waited for."""
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


def regular(path: Path) -> BinaryIO | None:
    """A regular file, to read; None of what is none. Raises OSError of links, which are not followed."""
    handle = os.open(path, os.O_RDONLY | ONLY_FILES)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    return open(handle, "rb")  # whoever asked closes it


# ------------------------------------------------------------------------------------------- what is never overwritten


def must_be_new(target: Path, option: str = OUTPUT) -> None:
    """Raises RunError where something is there already; `option` is what names another."""
    if os.path.lexists(target):
        fix = f"name another with `{option}`, or remove it"
        raise RunError.of("this is there already, and is not overwritten", fix, str(target))


@contextmanager
def new_folder(target: Path, option: str = OUTPUT) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end; nothing is left of one that failed. Raises RunError."""
    with drafted(target, lambda draft: draft.mkdir(), option) as draft:
        yield draft
        flush_folder(draft)


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """A file to write, which gets its name at the end; nothing is left of one that failed. Raises RunError."""
    with drafted(target, lambda draft: draft.touch(exist_ok=False), OUTPUT) as draft, draft.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def drafted(target: Path, begin: Callable[[Path], None], option: str) -> Iterator[Path]:
    """A draft beside `target`, renamed to it at the end. Raises RunError where this cannot be written."""
    must_be_new(target, option)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        begin(draft)
        yield draft
        rename(draft, target, option)
    except OSError as error:
        remove(draft)
        message = f"this cannot be written: {reason_of(error)}"
        raise RunError.of(message, f"{cure(error)}, or name another with `{option}`", str(target)) from None
    except BaseException:
        remove(draft)
        raise
    flush_folder(target.parent)


def rename(draft: Path, target: Path, option: str) -> None:
    """Gives a draft its name. Raises RunError where somebody else was quicker."""
    must_be_new(target, option)
    try:
        draft.rename(target)
    except OSError:
        must_be_new(target, option)
        raise


@contextmanager
def in_words(origin: str | Path) -> Iterator[None]:
    """Turns what the system refuses into a RunError."""
    try:
        yield
    except OSError as error:
        raise RunError.of(f"the system says: {reason_of(error)}", cure(error), str(error.filename or origin)) from None


def remove(draft: Path) -> None:
    """Removes what was half written."""
    with suppress(OSError):
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)
