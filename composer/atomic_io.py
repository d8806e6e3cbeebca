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

from composer.errors import RunError, os_error_hint, os_error_reason

OUTPUT = "--output"
REGULAR_FILE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""No link is followed, and no FIFO is waited for."""
TEMPORARY_NAME = re.compile(r"\..+\.\d+(\.part)?")
"""How a file is called while it is written: hidden, and with the number of the process that writes it."""


@contextmanager
def atomic_open(path: Path) -> Iterator[BinaryIO]:
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
    fsync_directory(path.parent)


def sha256_of_file(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_temporary(path: Path) -> bool:
    """Whether a file is one that somebody writes, or wrote when he was killed."""
    return TEMPORARY_NAME.fullmatch(path.name) is not None


def remove_temporaries(folder: Path) -> None:
    """Removes what killed processes left half written; only for whoever knows that nobody writes here now."""
    if folder.is_dir():
        for path in filter(is_temporary, folder.iterdir()):
            path.unlink(missing_ok=True)


def fsync_directory(folder: Path) -> None:
    """Makes a renaming in `folder` last, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def atomic_write(path: Path, content: bytes) -> None:
    """Writes a small file so that it is never seen half written."""
    with atomic_open(path) as file:
        file.write(content)


def open_regular(path: Path) -> BinaryIO | None:
    """A regular file, to read; None of what is none. Raises OSError of links, which are not followed."""
    handle = os.open(path, os.O_RDONLY | REGULAR_FILE_FLAGS)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        return None
    return open(handle, "rb")  # whoever asked closes it


# ------------------------------------------------------------------------------------------- what is never overwritten


def require_absent(target: Path, option: str = OUTPUT) -> None:
    """Raises RunError where something is there already; `option` is what names another."""
    if os.path.lexists(target):
        fix = f"name another with `{option}`, or remove it"
        raise RunError.of("this is there already, and is not overwritten", fix, str(target))


@contextmanager
def atomic_directory(target: Path, option: str = OUTPUT) -> Iterator[Path]:
    """A folder to fill, which gets its name at the end; nothing is left of one that failed. Raises RunError."""
    with _temporary_sibling(target, lambda draft: draft.mkdir(), option) as draft:
        yield draft
        fsync_directory(draft)


@contextmanager
def atomic_new_file(target: Path) -> Iterator[BinaryIO]:
    """A file to write, which gets its name at the end; nothing is left of one that failed. Raises RunError."""
    with (
        _temporary_sibling(target, lambda draft: draft.touch(exist_ok=False), OUTPUT) as draft,
        draft.open("wb") as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _temporary_sibling(target: Path, begin: Callable[[Path], None], option: str) -> Iterator[Path]:
    """A draft beside `target`, renamed to it at the end. Raises RunError where this cannot be written."""
    require_absent(target, option)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        begin(draft)
        yield draft
        _rename(draft, target, option)
    except OSError as error:
        _remove(draft)
        message = f"this cannot be written: {os_error_reason(error)}"
        raise RunError.of(message, f"{os_error_hint(error)}, or name another with `{option}`", str(target)) from None
    except BaseException:
        _remove(draft)
        raise
    fsync_directory(target.parent)


def _rename(draft: Path, target: Path, option: str) -> None:
    """Gives a draft its name. Raises RunError where somebody else was quicker."""
    require_absent(target, option)
    try:
        draft.rename(target)
    except OSError:
        require_absent(target, option)
        raise


@contextmanager
def os_errors_as_run_errors(origin: str | Path) -> Iterator[None]:
    """Turns what the system refuses into a RunError."""
    try:
        yield
    except OSError as error:
        raise RunError.of(
            f"the system says: {os_error_reason(error)}", os_error_hint(error), str(error.filename or origin)
        ) from None


def _remove(draft: Path) -> None:
    """Removes what was half written."""
    with suppress(OSError):
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)
