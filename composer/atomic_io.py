"""Atomic file writes: write to a temporary sibling, fsync, rename.

A file is replaced as a whole or not at all.

And reads of files that anybody may have written: they wait for no FIFO, and have a limit. And locks
of files, and where this user's cache is.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeGuard

from composer.errors import RunError, os_error_hint, os_error_reason

NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags of `os.open`: wait for no FIFO, and translate no line ends."""
LARGE = 1 << 26
"""Bytes of a file whose SHA-256 is remembered: hashing 1 GB takes a second or two."""
BLOCK = 1 << 20
"""Bytes that are read at once."""
PROBE_SECONDS = 0.5
"""How long a lock may be in the hands of a process that only looks whether it is free."""


@contextmanager
def atomic_open(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` only when all of it is on the disk.

    Leaves nothing behind where writing fails. Raises OSError, with `path` as its filename.
    """
    temporary = temporary_sibling(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # not the temporary one, which nobody knows
        raise
    fsync_directory(path.parent)


def atomic_write(path: Path, content: bytes) -> None:
    """Write a small file so that it is never seen half written."""
    with atomic_open(path) as file:
        file.write(content)


def refuse_overwriting(path: Path, option: str) -> None:
    """Raise RunError if a file is there; a pipe or a device is none.

    option: The option that names another file.
    """
    if path.is_file() or (path.is_symlink() and not path.exists()):
        raise RunError.of(
            "this file exists already", f"name another one with `{option}`, or remove it", str(path)
        )


def check_output(path: Path, option: str) -> None:
    """Raise RunError if a file could not be written later.

    option: The option that names another file.
    """
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        reason = (
            "this is a folder"
            if path.is_dir()
            else f"there is no folder `{path.parent}` that can be written into"
        )
        raise RunError.of(reason, f"name another file with `{option}`", str(path))


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size < LARGE:
            return hashlib.file_digest(file, "sha256").hexdigest()
    # a large file that is opened twice is hashed once: no write leaves the time of the last change
    # as it was
    return _sha256_of_version(
        path, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )


@lru_cache(maxsize=64)
def _sha256_of_version(path: Path, *version: int) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_stamp(path: Path) -> tuple[int, int, int, int]:
    """Return inode, size and times of a file; while they are the same it is unchanged."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_hash(text: object) -> TypeGuard[str]:
    """Return True for a SHA-256 in hexadecimal: 64 digits, 0-9 and a-f."""
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


def temporary_sibling(path: Path) -> Path:
    """Return a new name beside `path`, for what is not there as a whole yet."""
    # the numbers of processes are not enough: those of two containers may be one
    return path.with_name(f".{path.name}.{os.getpid()}{secrets.randbelow(10**9):09}.part")


def is_temporary(path: Path) -> bool:
    """True for temporary files, also of killed processes: hidden, with a number at the end."""
    return re.fullmatch(r"\..+\.\d+(\.part)?", path.name) is not None


def remove_temporaries(folder: Path) -> None:
    """Remove temporary files of killed processes; no other process may be writing into `folder`."""
    if folder.is_dir():
        for path in filter(is_temporary, folder.iterdir()):
            # another folder that is hidden is the user's
            if path.suffix == ".part" or not path.is_dir():
                _remove(path)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def fsync_directory(folder: Path) -> None:
    """Make a rename in `folder` durable, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_regular(path: Path, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading. Raises OSError for all else; for links without `follow`."""
    handle = os.open(path, os.O_RDONLY | NO_WAIT | (0 if follow else getattr(os, "O_NOFOLLOW", 0)))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return open(handle, "rb")  # the caller closes it


def read_text(path: Path, limit: int = 1 << 28) -> str:
    """Return the UTF-8 text of a regular file. Raises OSError; ValueError above `limit` bytes."""
    with open_regular(path) as file:
        data = read_at_most(file, limit + 1)
    if len(data) > limit:
        raise ValueError(f"it has more than {limit:,} bytes")
    return data.decode()


def read_at_most(file: IO[bytes], count: int) -> bytes:
    """Return at most `count` bytes of a file, in no more memory than they take.

    `read(count)` asks for memory for all of them.
    """
    parts: list[bytes] = []
    while count > 0 and (part := file.read(min(count, BLOCK))):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def parse_json(text: str | bytes) -> Any:
    """Return the data in a JSON text. Raises ValueError, also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


# ------------------------------------------------------------------------------------------- what
# is never overwritten


def require_absent(target: Path) -> None:
    """Raise RunError where something exists at `target`."""
    if os.path.lexists(target):
        fix = "choose another path, or remove it"
        raise RunError.of("this exists already, and is not overwritten", fix, str(target))


@contextmanager
def atomic_directory(target: Path) -> Iterator[Path]:
    """Yield a directory to fill, which is renamed to `target` at the end. Raises RunError."""
    with _renamed_at_the_end(target, Path.mkdir) as temporary:
        yield temporary
        fsync_directory(temporary)


@contextmanager
def atomic_new_file(target: Path) -> Iterator[BinaryIO]:
    """Yield a file to write; it is renamed to `target` at the end, or removed. Raises RunError."""
    with (
        _renamed_at_the_end(target, lambda path: path.touch(exist_ok=False)) as path,
        path.open("wb") as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def _renamed_at_the_end(target: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    require_absent(target)
    temporary = temporary_sibling(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target)
        create(temporary)
        with lock_of(temporary):
            yield temporary
            require_absent(target)
            try:
                temporary.rename(target)
            except OSError:
                # another process was quicker: say so, rather than what the system says
                require_absent(target)
                raise
    except BaseException as error:
        with suppress(OSError):
            _remove(temporary)
        if not isinstance(error, OSError):
            raise
        reason, fix = os_error_reason(error), "choose another path"
        if file := next((path for path in target.parents if path.is_file()), None):
            reason = f"`{file}` is no folder"
        elif error.errno != errno.ENOENT:  # a folder that takes no new ones, such as /proc
            fix = f"{os_error_hint(error)}, or {fix}"
        raise RunError.of(f"this cannot be written: {reason}", fix, str(target)) from None
    fsync_directory(target.parent)


@contextmanager
def lock_of(path: Path) -> Iterator[bool | None]:
    """Lock a file or folder; yield False if somebody else has the lock, None without locks here.

    The lock ends with this process at the latest.
    """
    handle = os.open(path, os.O_RDONLY | NO_WAIT)
    is_free: bool | None = False
    try:
        with suppress(BlockingIOError):
            is_free = try_lock(handle, exclusive=True) or None
        yield is_free
    finally:
        os.close(handle)


def remove_abandoned(target: Path) -> None:
    """Remove temporary siblings of `target` that killed processes have left.

    A process that lives has a lock on its own.
    """
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with suppress(OSError), lock_of(path) as is_free:
            if is_free:
                _remove(path)


@contextmanager
def os_errors_as_run_errors(
    origin: str | Path, message: str = "the system says", fix: str = ""
) -> Iterator[None]:
    """Turn an OSError into a RunError about its file, or about `origin`.

    fix: By default that of `os_error_hint`.
    """
    try:
        yield
    except OSError as error:
        message = f"{message}: {os_error_reason(error)}"
        raise RunError.of(
            message, fix or os_error_hint(error), str(error.filename or origin)
        ) from None


def lock(file: IO[str]) -> None:
    """Lock a file until this process closes it. Raises BlockingIOError if it is locked."""
    give_up = time.monotonic() + PROBE_SECONDS
    while True:
        try:
            try_lock(file, exclusive=True)
            break
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise
            time.sleep(PROBE_SECONDS / 20)
    # a lock lasts until the last process that inherited the file has closed it, data loader workers
    # among them
    reference = weakref.ref(file)

    def close_in_child() -> None:
        if (inherited := reference()) is not None:
            inherited.close()

    os.register_at_fork(after_in_child=close_in_child)


def try_lock(file: IO[str] | int, exclusive: bool) -> bool:
    """Lock a file; False if this system cannot. Raises BlockingIOError if it is locked."""
    try:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError):  # of Windows, and of a file system without locks
        return False
    return True


def cache_dir() -> Path:
    """Return this user's cache folder, which may be missing. Raises RunError without a home."""
    if chosen := os.environ.get("SEQCOMPOSER_STORE"):
        return Path(os.path.abspath(chosen))
    xdg_cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(xdg_cache):  # the standard says to ignore a relative one
        return Path(xdg_cache) / "seqcomposer" / "store"
    try:
        return Path.home() / ".cache" / "seqcomposer" / "store"
    except RuntimeError:
        message = "there is no home folder for the cache"
        raise RunError.of(message, "set SEQCOMPOSER_STORE to a folder") from None
