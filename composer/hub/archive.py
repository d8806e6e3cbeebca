"""Packs as .tar.gz archives: a deterministic writer, and a strict reader of plain ustar members.

Python's tarfile follows extended headers, sparse maps and links, of which a pack needs none. Here a member is a plain
header and its bytes, pack.json comes first, and nothing is written to disk that it does not list.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from composer.hub.manifest import (
    FOLDER,
    MANIFEST,
    REGULAR,
    Entry,
    Manifest,
    check_entry,
    check_size,
    copy_verified,
    open_file,
    parse_manifest,
    refuse,
)

SUFFIX = ".tar.gz"
BLOCK = 512
MAX_MEMBER_BYTES = 8**11 - 1
"""Largest size that a ustar header can say: 8 GiB less one."""
MAX_PADDING = 1 << 16
KINDS = {
    b"0": REGULAR,
    b"\0": REGULAR,
    b"5": FOLDER,
    b"1": "hard link",
    b"2": "symbolic link",
    b"3": "device",
    b"4": "device",
    b"6": "FIFO",
    b"x": "pax header",
    b"g": "pax header",
    b"L": "GNU header",
    b"K": "GNU header",
    b"S": "sparse file",
}


def write_archive(file: BinaryIO, manifest: Manifest, folder: Path) -> None:
    """Write the files of a pack; equal files give equal bytes. Raises RunError where one is too large."""
    for name, digest in manifest.files.items():
        if digest.size > MAX_MEMBER_BYTES:
            refuse(name, "an archive holds files up to 8 GiB", "pack into a folder: `--output DIR`")
    # level 1: weights hardly become smaller, however long one tries
    with gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as zipped:
        for name in (MANIFEST, *manifest.files):
            info = tarfile.TarInfo(f"{manifest.name}/{name}")  # no owner and no time: the same on every machine
            info.size = (folder / name).stat().st_size
            zipped.write(info.tobuf(tarfile.USTAR_FORMAT))
            with (folder / name).open("rb") as source:
                shutil.copyfileobj(source, zipped)
            zipped.write(bytes(-info.size % BLOCK))
        zipped.write(bytes(2 * BLOCK))


class Unzipped:
    """Decompressed bytes of a file. Reading raises RunError where it is damaged."""

    def __init__(self, file: BinaryIO, origin: str) -> None:
        self.unzipped = gzip.GzipFile(fileobj=file, mode="rb")
        self.origin = origin

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; fewer at the end."""
        try:
            return self.unzipped.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = str(error).rstrip(".")
            message = f"the archive is damaged: {reason[:1].lower()}{reason[1:]}; nothing was taken"
            refuse(self.origin, message, "fetch it again; a pack is a folder, or ends in .tar.gz")

    def read_exactly(self, size: int) -> bytes:
        """Return `size` bytes. Raises RunError where there are fewer."""
        data = self.read(size)
        if len(data) != size:
            refuse(self.origin, "the archive is cut off; nothing was taken", "fetch it again")
        return data


class ArchiveReader:
    """Reader of one archive: pack.json at once, then in `unpack` its files, which lie in the same folder."""

    def __init__(self, file: Unzipped, origin: str) -> None:
        self.file, self.origin = file, origin
        self.top: str | None = None
        entry = self._next_member()
        if entry == Entry("", FOLDER, 0):
            entry = self._next_member()
        if entry is None or entry.name != MANIFEST:
            refuse(origin, f"an archived pack begins with {MANIFEST}")
        check_size(MANIFEST, entry.size, origin)
        self.manifest = parse_manifest(file.read_exactly(entry.size), origin)
        file.read_exactly(-entry.size % BLOCK)

    def unpack(self, folder: Path) -> None:
        """Write every file into `folder`, verified. Raises RunError."""
        remaining = dict(self.manifest.files)
        while (entry := self._next_member()) is not None:
            check_entry(entry, self.origin)
            expected = remaining.pop(entry.name, None)
            if expected is None:
                refuse(self.origin, f"`{entry.name}` is there twice; nothing was taken")
            if entry.size != expected.size:
                message = f"`{entry.name}` has {entry.size:,} bytes, and {MANIFEST} says {expected.size:,}"
                refuse(self.origin, message)
            copy_verified(self.file, folder / entry.name, expected, self.origin)
            self.file.read_exactly(-entry.size % BLOCK)
        if remaining:
            refuse(self.origin, f"`{next(iter(remaining))}` is not there; nothing was taken")
        if any(self.file.read(MAX_PADDING)) or self.file.read(1):  # to the very end, where gzip has its checksum
            refuse(self.origin, "something follows the end of the archive; nothing was taken")

    def _next_member(self) -> Entry | None:
        """Return the next member, None at the end. Its name is relative to the folder that holds pack.json, if any."""
        block = self.file.read_exactly(BLOCK)
        if not any(block):
            return None
        entry = parse_header(block, self.origin)
        top, slash, name = entry.name.partition("/")
        if self.top is None:
            self.top = top if slash and top not in ("", ".", "..") else ""
        return entry._replace(name=name) if slash and top and top == self.top else entry


def parse_header(block: bytes, origin: str) -> Entry:
    """Return a member's name, kind and size. Raises RunError where this is no plain header."""
    magic = block[257:263]
    checksum = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if magic not in (b"ustar\0", b"ustar ") or _parse_octal(block[148:156]) != checksum:
        refuse(origin, "the archive is damaged, or is no tar; nothing was taken", "fetch it again")
    kind = KINDS.get(block[156:157], "member of an unknown kind")
    size = _parse_octal(block[124:136])
    prefix = _parse_text(block[345:500]) if magic == b"ustar\0" else ""
    name = "/".join(filter(None, (prefix, _parse_text(block[:100]))))
    if size is None:
        refuse(origin, f"{name!a} does not say its size in a plain way; nothing was taken")
    if kind not in (REGULAR, FOLDER):
        refuse(origin, f"{name!a} is a {kind}; nothing was taken")
    return Entry(name, kind, size)


def _parse_octal(field: bytes) -> int | None:
    digits = field.strip(b"\0 ")
    return int(digits, 8) if digits and all(digit in b"01234567" for digit in digits) else None


def _parse_text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "backslashreplace")


@contextmanager
def open_archive(path: Path, origin: str) -> Iterator[ArchiveReader]:
    """Open an archive and read its pack.json. Raises RunError."""
    with open_file(path, origin) as file:
        yield ArchiveReader(Unzipped(file, origin), origin)
