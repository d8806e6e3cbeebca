"""A pack as one file: a tar of regular files inside gzip, read by rules of our own.

Python's tarfile follows extended headers, sparse maps and links, of which a pack needs none. Here a member is a plain
header and its bytes, pack.json comes first, and nothing is written that it has not described.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from composer.hub.checksums import PIECE, copy_verified, opened
from composer.hub.manifest import Manifest, manifest
from composer.hub.pack_contents import FOLDER, MANIFEST, REGULAR, Entry, check_entry, check_size, refuse

ENDING = ".tar.gz"
BLOCK = 512
MOST_USTAR = 8**11 - 1
"""Bytes that a plain header can say, 8 GiB less one."""
MOST_PADDING = 1 << 16
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


def write_archive(file: BinaryIO, found: Manifest, folder: Path) -> None:
    """Writes the files of a pack; the same ones give the same bytes. Raises RunError where one is too large."""
    large = [name for name, each in found.files.items() if each.size > MOST_USTAR]
    if large:
        refuse(large[0], "an archive holds files up to 8 GiB", "pack into a folder: `--output DIR`")
    # weights hardly become smaller, however long one tries
    with gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as squeezed:
        for name in (MANIFEST, *found.files):
            with (folder / name).open("rb") as source:
                _write(cast(BinaryIO, squeezed), f"{found.name}/{name}", source, (folder / name).stat().st_size)
        squeezed.write(bytes(2 * BLOCK))


def _write(file: BinaryIO, name: str, source: BinaryIO, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size  # all else is the same on every machine: no owner, no time
    file.write(info.tobuf(tarfile.USTAR_FORMAT))
    while piece := source.read(PIECE):
        file.write(piece)
    file.write(bytes(-size % BLOCK))


class Unzipped:
    """What gzip makes of a file. Raises RunError where it is damaged."""

    def __init__(self, file: BinaryIO, origin: str) -> None:
        self.plain = gzip.GzipFile(fileobj=file, mode="rb")
        self.origin = origin

    def read(self, size: int) -> bytes:
        """As many bytes; fewer at the end."""
        try:
            return self.plain.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            told = str(error).rstrip(".")
            refuse(
                self.origin,
                f"the archive is damaged: {told[:1].lower()}{told[1:]}; nothing was taken",
                "fetch it again; a pack is a folder, or ends in .tar.gz",
            )

    def exactly(self, size: int) -> bytes:
        """As many bytes. Raises RunError where there are fewer."""
        data = self.read(size)
        if len(data) != size:
            refuse(self.origin, "the archive is cut off; nothing was taken", "fetch it again")
        return data


class Archive:
    """An archive that is being read: its pack.json has been, its files come once, each in the same folder."""

    def __init__(self, file: Unzipped, origin: str) -> None:
        self.file, self.origin = file, origin
        self.top: str | None = None
        entry = self._member()
        if entry == Entry("", FOLDER, 0):
            entry = self._member()
        if entry is None or entry.name != MANIFEST:
            refuse(origin, f"an archived pack begins with {MANIFEST}")
        check_size(MANIFEST, entry.size, origin)
        self.manifest = manifest(file.exactly(entry.size), origin)
        file.exactly(-entry.size % BLOCK)

    def unpack(self, folder: Path) -> None:
        """Writes every file into `folder`, and verifies it. Raises RunError."""
        left = dict(self.manifest.files)
        while (entry := self._member()) is not None:
            check_entry(entry, self.origin)
            wanted = left.pop(entry.name, None)
            if wanted is None:
                refuse(self.origin, f"`{entry.name}` is there twice; nothing was taken")
            if entry.size != wanted.size:
                refuse(self.origin, f"`{entry.name}` has {entry.size:,} bytes, and {MANIFEST} says {wanted.size:,}")
            copy_verified(self.file, folder / entry.name, wanted, self.origin)
            self.file.exactly(-entry.size % BLOCK)
        if left:
            refuse(self.origin, f"`{next(iter(left))}` is not there; nothing was taken")
        self._must_end()

    def _member(self) -> Entry | None:
        """The next member; None at the end. Its name is the one inside the folder in which pack.json is, if in any."""
        block = self.file.exactly(BLOCK)
        if not any(block):
            return None
        entry = header(block, self.origin)
        top, slash, name = entry.name.partition("/")
        if self.top is None:
            self.top = top if slash and top not in ("", ".", "..") else ""
        return entry._replace(name=name) if slash and top and top == self.top else entry

    def _must_end(self) -> None:
        rest = self.file.read(MOST_PADDING)
        if any(rest) or self.file.read(1):  # to the very end, where gzip has its checksum
            refuse(self.origin, "something follows the end of the archive; nothing was taken")


def header(block: bytes, origin: str) -> Entry:
    """A member's name as it is written, its kind and size. Raises RunError where this is no plain header."""
    magic = block[257:263]
    if magic not in (b"ustar\0", b"ustar ") or _octal(block[148:156]) != _checksum(block):
        refuse(origin, "the archive is damaged, or is no tar; nothing was taken", "fetch it again")
    kind = KINDS.get(block[156:157], "member of an unknown kind")
    size = _octal(block[124:136])
    prefix = _text(block[345:500]) if magic == b"ustar\0" else ""
    name = "/".join(filter(None, (prefix, _text(block[:100]))))
    if size is None:
        refuse(origin, f"{name!a} does not say its size in a plain way; nothing was taken")
    if kind not in (REGULAR, FOLDER):
        refuse(origin, f"{name!a} is a {kind}; nothing was taken")
    return Entry(name, kind, size)


def _checksum(block: bytes) -> int:
    return sum(block) - sum(block[148:156]) + 8 * ord(" ")


def _octal(field: bytes) -> int | None:
    digits = field.strip(b"\0 ")
    return int(digits, 8) if digits and all(each in b"01234567" for each in digits) else None


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "backslashreplace")


@contextmanager
def opened_archive(path: Path, origin: str) -> Iterator[Archive]:
    """An archive to read, of which pack.json has been read. Raises RunError."""
    with opened(path, origin) as file:
        yield Archive(Unzipped(file, origin), origin)
