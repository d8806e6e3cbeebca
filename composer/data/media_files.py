"""Files of images, sounds and vectors: alone, in archives, and parts. Imports no torch."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import io
import json
import os
import re
import tarfile
import weakref
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import IO

from composer.atomic_io import file_stamp, open_regular
from composer.errors import DataError, Fault, os_error_reason

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
SUFFIXES = {
    "image": (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".pgm", ".ppm"),
    "audio": (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif", ".au"),
    "vectors": (".npy",),
}
"""Suffixes of files, by their kind."""
OPENING = Lock()
ARCHIVE_ERRORS = (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, RuntimeError)
"""Errors of an archive that is damaged, or packed in an unknown way, such as with a password."""
NAMES_FIX = "check the name; those in a table begin at its folder, others where the command runs"
PART = re.compile(r"(.*)#t=(\d+(?:\.\d+)?)(?:,(\d+(?:\.\d+)?))?", re.DOTALL)
"""A part of a recording, as in Media Fragments, https://www.w3.org/TR/media-frags/, 4.2.1."""
NO_SUCH_PART = "part"
"""The code of the fault of a part that its recording does not have."""
BAD_ARCHIVE = "archive"
"""The code of the fault of an archive that cannot be opened."""


PACKAGES = {"PIL": "pillow"}
"""Packages by the name they are imported by, where that is another."""


class MediaError(Exception):
    """A file of an image, a sound or vectors cannot be used.

    code: The fault's code. fix: What to do.
    """

    def __init__(self, code: str, message: str, fix: str) -> None:
        super().__init__(message)
        self.code, self.message, self.fix = code, message, fix


def require_packages(*names: str) -> None:
    """Raise MediaError for a package that is not installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            message = (
                f"files of this kind are read through the package `{name}`, which is not installed"
            )
            raise MediaError("package", message, f"run `pip install {PACKAGES.get(name, name)}`")


Part = tuple[float, float | None]
"""The seconds of a sound where a part of it begins and ends; None is its end."""


def split_part(name: str) -> tuple[str, Part | None]:
    """Return a file's name and its part in seconds, as in `a.wav#t=1.5,3` or `#t=1.5`.

    None is all.
    """
    if match := PART.fullmatch(name):
        return match[1], (float(match[2]), float(match[3]) if match[3] else None)
    return name, None


def kind_of(names: Sequence[str]) -> str:
    """Return the kind of most of some files, by their suffixes; "" if there is none."""
    (most, _), *_ = Counter(Path(split_part(name)[0]).suffix.lower() for name in names).most_common(
        1
    )
    return next((kind for kind, suffixes in SUFFIXES.items() if most in suffixes), "")


def is_there(name: str) -> bool:
    """True if a file, or a member of an archive, exists."""
    archive, member = split_archive(Path(split_part(name)[0]))
    if not member:
        return archive.is_file()
    with suppress(OSError, *ARCHIVE_ERRORS):
        return member in archive_members(archive)
    return True  # that the archive is damaged is found where it is read


def open_file(path: Path) -> IO[bytes]:
    """Open a file, or a member of an archive with that very name. Raises OSError and MediaError."""
    archive, member = split_archive(path)
    if not member:
        return open_regular(path)
    hint = "get the archive again, or pack it again, without a password"
    try:
        members = archive_members(archive)
    except ARCHIVE_ERRORS as error:
        raise MediaError(
            BAD_ARCHIVE, f"this archive cannot be opened: {error}".partition("\n")[0], hint
        ) from error
    try:
        return io.BytesIO(members[member])
    except KeyError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    except ARCHIVE_ERRORS as error:
        message = f"it cannot be taken out of the archive `{archive}`: {error}".partition("\n")[0]
        raise MediaError("member", message, hint) from error


def file_size(name: str) -> int:
    """Return the bytes of a file or member of an archive; 0 if missing, which others report."""
    archive, member = split_archive(Path(split_part(name)[0]))
    with suppress(OSError, KeyError, *ARCHIVE_ERRORS):
        if not member:
            return archive.stat().st_size
        match archive_members(archive):
            case ZipMembers() as members:
                return members.getinfo(member).file_size
            case TarMembers() as members:
                return members.entries[member].size
            case members:
                return len(members[member])
    return 0


def split_archive(path: Path) -> tuple[Path, str]:
    """Split a path through an archive into archive and member; else return the path, and ""."""
    for parent in path.parents:
        if parent.name.endswith(ARCHIVES) and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return path, ""


def archive_members(archive: Path) -> ZipMembers | TarMembers | dict[str, bytes]:
    """Return the members of an archive by name."""
    stamp = archive.stat().st_mtime_ns
    with OPENING:  # threads that miss the cache together would read the archive once each
        if archive.suffix in (".zip", ".tar"):
            return open_members(archive, stamp)
        return unpack_members(archive, stamp)


class ZipMembers(zipfile.ZipFile):
    """Archive that stays open, and knows which names it has."""

    def __contains__(self, name: object) -> bool:
        return name in self.NameToInfo

    def __getitem__(self, name: str) -> bytes:
        return self.read(name)


class TarMembers:
    """Archive that is not compressed: it stays open, and knows where its files are."""

    def __init__(self, archive: Path) -> None:
        self.opened, self.reading = tarfile.open(archive, "r:"), Lock()  # noqa: SIM115
        weakref.finalize(self, self.opened.close)
        self.entries = {
            entry.name.removeprefix("./"): entry for entry in self.opened if entry.isfile()
        }

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __getitem__(self, name: str) -> bytes:
        with self.reading:
            file = self.opened.extractfile(self.entries[name])
            return file.read() if file else b""


@lru_cache(maxsize=8)
def open_members(archive: Path, stamp: int) -> ZipMembers | TarMembers:
    """Open an archive whose index is read once."""
    return ZipMembers(archive) if archive.suffix == ".zip" else TarMembers(archive)


@lru_cache(maxsize=1)
def unpack_members(archive: Path, stamp: int) -> dict[str, bytes]:
    """Return all files of an archive that can only be read from its beginning."""
    with tarfile.open(archive) as opened:
        files = (
            (entry.name.removeprefix("./"), opened.extractfile(entry))
            for entry in opened
            if entry.isfile()
        )
        return {name: file.read() for name, file in files if file is not None}


def hash_states(names: Sequence[str]) -> str:
    """Return a hash of the names and stamps of files, which changes with their content."""
    files = hashlib.sha256()
    for name in names:
        with suppress(OSError):  # that a file is not there is found where it is read
            stamp = file_stamp(split_archive(Path(split_part(name)[0]))[0])
            files.update(json.dumps([name, *stamp]).encode())
    return files.hexdigest()


def hash_contents(names: Sequence[str]) -> list[bytes]:
    """Return a hash of the bytes of each file, in archives too, and of its part.

    Raises DataError.
    """
    parts = [split_part(name) for name in names]
    paths = [*dict.fromkeys(path for path, _ in parts)]
    with ThreadPoolExecutor() as pool:
        hashes = dict(zip(paths, pool.map(hash_content, paths), strict=True))
    return [
        hashlib.sha256(hashes[path] + json.dumps(part).encode()).digest() for path, part in parts
    ]


def hash_content(name: str) -> bytes:
    """Return the SHA-256 of a file's bytes. Raises DataError."""
    try:
        with open_file(Path(name)) as file:
            return hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
    except (OSError, MediaError) as error:
        reason = os_error_reason(error) if isinstance(error, OSError) else error.message
        message = f"this file cannot be read: {reason}"
        raise DataError(
            [
                Fault(
                    name,
                    0,
                    0,
                    "file",
                    "",
                    message,
                    "restore it, and do not change it while it is in use",
                )
            ]
        ) from error
