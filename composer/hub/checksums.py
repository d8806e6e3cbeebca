"""Files that are read with suspicion: regular ones alone, not without end, and as the pack says."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO, Protocol

from composer.atomic_io import open_regular
from composer.errors import os_error_reason
from composer.hub.manifest import Described
from composer.hub.pack_contents import check_size, refuse

PIECE = 1 << 20
"""Bytes that are read at once."""


class Readable(Protocol):
    """What bytes can be read from."""

    def read(self, size: int, /) -> bytes:
        """As many bytes; fewer at the end."""


def opened(path: Path, origin: str | Path) -> BinaryIO:
    """A regular file, to read. Raises RunError of all else: links, devices, what is not there."""
    try:
        file = open_regular(path)
    except OSError as error:
        reason = "is a link" if path.is_symlink() else f"cannot be read: {os_error_reason(error)}"
        refuse(origin, f"`{path.name}` {reason}", "put the file itself there")
    if file is None:
        refuse(origin, f"`{path.name}` is no regular file", "put the file itself there")
    return file


def small(path: Path, origin: str | Path) -> bytes:
    """All of a file that is read at once. Raises RunError where it is larger than one of its name may be."""
    with opened(path, origin) as file:
        size = os.fstat(file.fileno()).st_size
        check_size(path.name, size, origin)
        return file.read(size)


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
