"""Packs: a finished run as one folder or one .tar.gz archive, with checksums and a model card; and a strict reader.

Python's tarfile follows extended headers, sparse maps and links, of which a pack needs none. Here a member is a plain
header and its bytes, pack.json comes first, and nothing is written to disk that it does not list.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from composer.atomic_io import atomic_directory, atomic_new_file, os_errors_as_run_errors, require_absent
from composer.errors import RunError
from composer.hub.manifest import (
    FILES,
    FOLDER,
    MANIFEST,
    REGULAR,
    Entry,
    Manifest,
    check_entries,
    check_size,
    copy_verified,
    digest_file,
    make_manifest,
    open_file,
    parse_manifest,
    read_small,
    redact_record,
    refuse,
)
from composer.hub.model_card import model_card
from composer.hub.verify_pack import check_digests, check_record
from composer.recipe.recipe import Recipe
from composer.run_dir import RunDir

CARD = "README.md"
SUFFIX = ".tar.gz"
BLOCK = 512
MAX_MEMBER_BYTES = 8**11 - 1
"""Largest size that a ustar header can say: 8 GiB less one."""
MAX_PADDING = 1 << 16
KINDS = {
    **dict.fromkeys((b"0", b"\0"), REGULAR),
    b"5": FOLDER,
    b"1": "hard link",
    b"2": "symbolic link",
    **dict.fromkeys((b"3", b"4"), "device"),
    b"6": "FIFO",
    **dict.fromkeys((b"x", b"g"), "pax header"),
    **dict.fromkeys((b"L", b"K"), "GNU header"),
    b"S": "sparse file",
}


def pack(run: str | PathLike[str], output: str | Path | None = None, license: str = "") -> Path:
    """Pack a finished run into a new folder, or into an archive if `output` ends in .tar.gz, and return its path.

    Equal runs give equal bytes.

    Args:
        run: A run folder, or an opened run. A README.md in it is used as the model card; else one is written.
        output: The new folder or file; `NAME.tar.gz` by default, with the recipe's name.
        license: License of the model card that is written, by its identifier on the hub, such as `mit`.

    Raises:
        RunError: With nothing written.
    """
    folder = RunDir(Path(run))
    if output is not None:
        require_absent(Path(output))
    from composer.inference.run import open_run  # imported late: needs torch, which pulling a pack does not

    recipe = open_run(folder.path).recipe  # raises RunError where its parts do not belong together
    target = Path(output) if output is not None else Path(f"{recipe.name}{SUFFIX}")
    if not target.name.endswith(SUFFIX):
        with atomic_directory(target) as draft:
            write_pack(draft, folder, recipe, license)
        return target
    with (
        os_errors_as_run_errors(target),
        packed_temporarily(folder, recipe, license) as (manifest, inside),
        atomic_new_file(target) as file,
    ):
        write_archive(file, manifest, inside)
    return target


def fingerprint(pack: Path) -> str:
    """Return the SHA-256 of the pack.json of a folder or an archive."""
    if pack.is_dir():
        return parse_manifest((pack / MANIFEST).read_bytes(), pack).sha256
    with open_archive(pack, str(pack)) as archive:
        return archive.manifest.sha256


@contextmanager
def packed_temporarily(folder: RunDir, recipe: Recipe, license: str) -> Iterator[tuple[Manifest, Path]]:
    """Pack a run into a temporary folder, and yield the manifest and that folder."""
    with tempfile.TemporaryDirectory(prefix="seqcomposer-") as draft:
        yield write_pack(Path(draft), folder, recipe, license), Path(draft)


def write_pack(target: Path, folder: RunDir, recipe: Recipe, license: str) -> Manifest:
    """Write the files of a pack and its pack.json into an empty folder. Raises RunError."""
    for name in ("recipe.yaml", "tokenizer.json", "model.safetensors"):
        with open_file(folder.path / name, folder.path) as source, (target / name).open("xb") as copy:
            shutil.copyfileobj(source, copy)
    metrics = read_small(folder.metrics, folder.path) if folder.metrics.exists() else b""
    (target / folder.metrics.name).write_bytes(metrics)
    record = folder.read()
    check_record(record, folder.record)
    (target / folder.record.name).write_bytes(redact_record(record))
    card = folder.path / CARD
    if card.exists() and license:
        message = "this run has a README.md, which is packed as its model card"
        raise RunError.of(message, "write `license:` at its head instead", str(card))
    text = read_small(card, folder.path) if card.exists() else model_card(recipe, record, license).encode()
    (target / CARD).write_bytes(text)
    files = {name: digest_file(target / name, target) for name in FILES}
    check_digests(record, files, folder.path)
    manifest = make_manifest(recipe.name, files, folder.path)
    (target / MANIFEST).write_bytes(manifest.data)
    return manifest


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


class ArchiveReader:
    """Reader of one archive: pack.json at once, then in `unpack` its files. Raises RunError where it is damaged."""

    def __init__(self, file: BinaryIO, origin: str) -> None:
        self.unzipped, self.origin = gzip.GzipFile(fileobj=file, mode="rb"), origin
        self.top: str | None = None
        entry = self._next_member()
        if entry == Entry("", FOLDER, 0):
            entry = self._next_member()
        if entry is None or entry.name != MANIFEST:
            refuse(origin, f"an archived pack begins with {MANIFEST}")
        check_size(MANIFEST, entry.size, origin)
        self.manifest = parse_manifest(self.read_exactly(entry.size), origin)
        self.read_exactly(-entry.size % BLOCK)

    def unpack(self, folder: Path) -> None:
        """Write every file into `folder`, verified. Raises RunError."""
        remaining = dict(self.manifest.files)
        while (entry := self._next_member()) is not None:
            check_entries([entry], self.origin)
            expected = remaining.pop(entry.name, None)
            if expected is None:
                refuse(self.origin, f"`{entry.name}` is there twice")
            if entry.size != expected.size:
                sizes = f"{entry.size:,} bytes, and {MANIFEST} says {expected.size:,}"
                refuse(self.origin, f"`{entry.name}` has {sizes}")
            copy_verified(self.read, folder / entry.name, expected, self.origin)
            self.read_exactly(-entry.size % BLOCK)
        if remaining:
            refuse(self.origin, f"`{next(iter(remaining))}` is not there")
        if any(self.read(MAX_PADDING)) or self.read(1):  # to the very end, where gzip has its checksum
            refuse(self.origin, "something follows the end of the archive")

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; fewer at the end."""
        try:
            return self.unzipped.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = str(error).rstrip(".")
            message = f"the archive is damaged: {reason[:1].lower()}{reason[1:]}"
            refuse(self.origin, message, "fetch it again; a pack is a folder, or ends in .tar.gz")

    def read_exactly(self, size: int) -> bytes:
        """Return `size` bytes. Raises RunError where there are fewer."""
        data = self.read(size)
        if len(data) != size:
            refuse(self.origin, "the archive is cut off", "fetch it again")
        return data

    def _next_member(self) -> Entry | None:
        """Return the next member, None at the end. Its name is relative to the folder that holds pack.json, if any."""
        block = self.read_exactly(BLOCK)
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
        refuse(origin, "the archive is damaged, or is no tar", "fetch it again")
    kind = KINDS.get(block[156:157], "member of an unknown kind")
    size = _parse_octal(block[124:136])
    prefix = _parse_text(block[345:500]) if magic == b"ustar\0" else ""
    name = "/".join(filter(None, (prefix, _parse_text(block[:100]))))
    if size is None:
        refuse(origin, f"{name!a} has a size that is not in octal digits")
    if kind not in (REGULAR, FOLDER):
        refuse(origin, f"{name!a} is a {kind}")
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
        yield ArchiveReader(file, origin)
