"""Archives: a pack as one plain tar. Those of earlier versions are gzipped, too."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from pathlib import Path
from typing import BinaryIO

from composer.atomic_io import open_regular
from composer.errors import one_line_error
from composer.hub.listing import check_limit
from composer.hub.pack_format import FILES, MANIFEST, Member, check_members, refuse
from composer.recipe.schema_reader import RECIPE_NAME

ARCHIVE_SUFFIX = ".tar"
MAX_READ, MAX_PADDING = 1 << 20, 1 << 16
DAMAGE = (EOFError, RecursionError, ValueError, zlib.error, gzip.BadGzipFile, tarfile.TarError)
"""What is raised by headers that are wrong, or that follow each other without end."""
GZIP = b"\x1f\x8b"


class Pieces(io.BufferedReader):
    """A file, read in small pieces: no header can claim gigabytes of memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes. Raises tarfile.ReadError for more than MAX_READ."""
        if size is None or not 0 <= size <= MAX_READ:
            raise tarfile.ReadError("a header is too large")
        return super().read(size)


def write_archive(file: BinaryIO, name: str, folder: Path) -> None:
    """Write a pack as a tar with one folder, pack.json first; the same bytes on every machine."""
    with tarfile.TarFile(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file_name in (MANIFEST, *FILES):
            info = tarfile.TarInfo(f"{name}/{file_name}")  # no owner and no time
            info.size = (folder / file_name).stat().st_size
            with (folder / file_name).open("rb") as source:
                archive.addfile(info, source)


def unpack(path: Path, folder: Path, max_bytes: int, origin: str) -> Path:
    """Unpack an archive into an empty folder; return the folder of its files. Raises RunError."""
    try:
        with open_regular(path) as file:
            is_zipped = file.peek(2)[:2] == GZIP
            plain = Pieces(gzip.GzipFile(fileobj=file) if is_zipped else file)
            with tarfile.open(fileobj=plain, mode="r:") as archive:
                files = checked_files(archive, max_bytes, origin)
                archive.extractall(folder, files, filter="data")
                return folder / files[0].name.rpartition("/")[0]
    except DAMAGE as error:
        message = f"the archive is damaged: {one_line_error(error).rstrip('.')}"
        refuse(origin, message, "fetch it again; a pack is a folder, or ends in .tar")


def checked_files(archive: tarfile.TarFile, max_bytes: int, origin: str) -> list[tarfile.TarInfo]:
    """Return the files in an archive, all in one folder. Raises RunError at the first wrong one."""
    files: list[tarfile.TarInfo] = []
    members: list[Member] = []
    for place, info in enumerate(archive):  # read one by one: there may be millions
        top, slash, name = info.name.rpartition("/")
        if info.isdir() and not (place or top):
            continue
        first = files[0].name if files else info.name
        if top != first.rpartition("/")[0] or (slash and not re.fullmatch(RECIPE_NAME, top)):
            name = info.name
        is_plain = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not info.issparse()
        files.append(info)
        members.append(Member(name, info.size, is_plain))
        check_members(members, origin)
        check_limit(members, max_bytes, origin)
    if not members or members[0].name != MANIFEST:
        refuse(origin, f"an archived pack begins with {MANIFEST}")
    assert archive.fileobj is not None  # it is open
    archive.fileobj.seek(archive.offset)
    padding = archive.fileobj.read(MAX_PADDING + 1)
    if not 0 < len(padding) <= MAX_PADDING or any(padding):
        refuse(origin, "the archive is cut off, or has data after its end", "fetch it again")
    return files
