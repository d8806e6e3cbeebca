"""The store: recipes of others that were pulled, each under the SHA-256 of its bytes. Nothing here uses a network.

It lies in `$SEQCOMPOSER_STORE`, else `$XDG_CACHE_HOME/seqcomposer/store`, else `~/.cache/seqcomposer/store`; where it
lies decides nothing, for what is read from it is what its hash says, or refused. It may be removed at any time: what a
recipe then misses is told with the command that pulls it again.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TypeGuard

from composer.atomic_io import atomic_write, open_regular
from composer.errors import RunError, os_error_reason
from composer.recipe.yaml_reader import MAX_BYTES

READ_ONLY = 0o444
SHORT = 12
"""Digits of a hash that are told to people."""

_HASH = re.compile(r"[0-9a-f]{64}")


def home() -> Path:
    """The folder of the store, there or not. Raises RunError where this user has no home."""
    chosen = os.environ.get("SEQCOMPOSER_STORE")
    if chosen:
        return Path(os.path.abspath(chosen))
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):  # as the standard has it, a relative one is none
        return Path(cache) / "seqcomposer" / "store"
    try:
        return Path.home() / ".cache" / "seqcomposer" / "store"
    except RuntimeError:
        raise RunError.of("there is no home folder, and so no store", "set SEQCOMPOSER_STORE to a folder") from None


def is_hash(text: object) -> TypeGuard[str]:
    """Whether something is a SHA-256 as the store writes it: 64 digits, 0-9 and a-f."""
    return isinstance(text, str) and _HASH.fullmatch(text) is not None


def require_hash(text: str) -> None:
    """Raises RunError where something that a user has given is no SHA-256."""
    if not is_hash(text):
        raise RunError.of(f"`{text}` is no SHA-256", "write its 64 digits, 0-9 and a-f")


def put(text: str) -> str:
    """Puts a recipe's text into the store, whole or not at all, and returns its SHA-256. Raises RunError.

    What is there already stays as it is; what was changed there is made good. Any number of processes may keep at once.
    """
    data = text.encode()
    if len(data) > MAX_BYTES:
        raise RunError.of("a recipe larger than 1 MiB is not kept", "a recipe is a few kilobytes of text")
    sha256 = hashlib.sha256(data).hexdigest()
    path = _place(sha256)
    if not _is_good(path, sha256):
        try:
            _write(path, data)
        except OSError as error:
            fix = "set SEQCOMPOSER_STORE to a folder that you may write to"
            raise RunError.of(f"the store cannot be written: {os_error_reason(error)}", fix, str(path.parent)) from None
    return sha256


def get(sha256: str) -> Path | None:
    """The file of a kept recipe, whose content was just verified; None where there is none. Raises RunError."""
    found = content(sha256)
    return None if found is None else found[0]


def content(sha256: str) -> tuple[Path, bytes] | None:
    """The file of a kept recipe and the very bytes that were verified; None where there is none.

    Raises RunError where it cannot be read, is no regular file, or is not what was kept.
    """
    require_hash(sha256)
    path = _place(sha256)
    try:
        data = _bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        reason = "it is a link" if error.errno == errno.ELOOP else os_error_reason(error)
        raise RunError.of(f"this cannot be read: {reason}", "remove it, and pull it again", str(path)) from None
    if data is None or hashlib.sha256(data).hexdigest() != sha256:
        raise RunError.of("this is not what was kept: it was changed", "pull it again", str(path))
    return path, data


def _place(sha256: str) -> Path:
    return home() / "recipes" / f"{sha256}.yaml"


def _bytes(path: Path) -> bytes | None:
    """What a regular file holds, up to what a recipe may have; None of anything else."""
    file = open_regular(path)
    if file is None:
        return None
    with file:
        return file.read(MAX_BYTES + 1)


def _is_good(path: Path, sha256: str) -> bool:
    with suppress(OSError):
        data = _bytes(path)
        return data is not None and hashlib.sha256(data).hexdigest() == sha256
    return False


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, data)
    path.chmod(READ_ONLY)  # an editor then says that this is no file to change
