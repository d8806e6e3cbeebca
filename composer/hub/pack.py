"""Packs: write a finished run as a folder or .tar.gz archive with checksums; read them strictly.

In an archive pack.json comes first, and files that it does not list are never written to disk.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from composer.atomic_io import (
    atomic_directory,
    atomic_new_file,
    os_errors_as_run_errors,
    require_absent,
)
from composer.errors import RunError, one_line_error
from composer.hub import pack_format
from composer.hub.model_card import model_card
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import strings_in
from composer.run_dir import RESUME, RunDir, find_run
from composer.runs.record import RunRecord
from composer.viz.architecture import Drawing

CARD = "README.md"
SUFFIX = ".tar.gz"
MAX_PADDING = 1 << 16


def pack(run: str | PathLike[str], output: str | Path | None = None, license: str = "") -> Path:
    """Pack a finished run into a new folder, or an archive if `output` ends in .tar.gz.

    Returns the path. Equal runs give equal bytes.

    Args:
        run: A run folder, or an opened run. Its README.md, if any, is the model card.
        output: The new folder or file; `NAME.tar.gz` by default, with the recipe's name.
        license: License for a generated model card, by its identifier on the hub, such as `mit`.

    Raises:
        RunError: With nothing written.
    """
    folder = RunDir(find_run(run))
    if output is not None:
        require_absent(Path(output))
    fix = f"finish it with the command that started it and {RESUME}, or with `--finish` to end it"
    fix += " with its best weights"
    pack_format.check_finished(folder.read(), folder.path, fix)
    # imported late: needs torch, which pulling a pack does not
    from composer.inference.run import open_run

    recipe = open_run(folder.path).recipe  # raises RunError if its files do not fit
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
        return pack_format.parse_manifest((pack / pack_format.MANIFEST).read_bytes(), pack).sha256
    with open_archive(pack, str(pack)) as archive:
        return archive.manifest.sha256


@contextmanager
def packed_temporarily(
    folder: RunDir, recipe: Recipe, license: str, drawing: Drawing | None = None
) -> Iterator[tuple[pack_format.Manifest, Path]]:
    """Pack a run into a temporary folder, and yield the manifest and that folder."""
    with tempfile.TemporaryDirectory(prefix="seqcomposer-") as draft:
        yield write_pack(Path(draft), folder, recipe, license, drawing), Path(draft)


def write_pack(
    target: Path, folder: RunDir, recipe: Recipe, license: str, drawing: Drawing | None = None
) -> pack_format.Manifest:
    """Write the files of a pack and its pack.json into an empty folder. Raises RunError."""
    for name in ("recipe.yaml", "tokenizer.json", "model.safetensors"):
        with (
            pack_format.open_file(folder.path / name, folder.path) as source,
            (target / name).open("xb") as copy,
        ):
            shutil.copyfileobj(source, copy)
    metrics = b""
    if folder.metrics.exists():
        metrics = pack_format.read_small(folder.metrics, folder.path)
    (target / folder.metrics.name).write_bytes(metrics)
    record = folder.read()
    pack_format.check_record(record, folder.record)
    (target / folder.record.name).write_bytes(redact_record(record))
    card = folder.path / CARD
    if card.exists() and license:
        message = "this run has a README.md, which is packed as its model card"
        raise RunError.of(message, "write `license:` at its head instead", str(card))
    if card.exists():
        text = pack_format.read_small(card, folder.path)
    else:
        text = model_card(recipe, record, license, drawing).encode()
    pack_format.check_card(text, card)
    (target / CARD).write_bytes(text)
    files = {name: pack_format.digest_file(target / name, target) for name in pack_format.FILES}
    pack_format.check_digests(record, files, folder.path)
    content = {"format": pack_format.FORMAT, "version": pack_format.VERSION, "name": recipe.name}
    content["files"] = {name: digest._asdict() for name, digest in files.items()}
    data = json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"
    (target / pack_format.MANIFEST).write_bytes(data)
    return pack_format.parse_manifest(data, folder.path)


def redact_record(record: RunRecord) -> bytes:
    """Return run.json without this machine's folders and users. Idempotent."""
    local = filter(pack_format.is_local_path, strings_in(record.as_data()))
    paths = {text.rstrip("\\/") for text in local}
    # these folders do not exist where the pack is pulled
    public = replace(record, data=replace(record.data, folders=()))
    redacted = _redact(public.as_data(), sorted(filter(None, paths), key=len, reverse=True))
    return (json.dumps(redacted, indent=2, ensure_ascii=False) + "\n").encode()


def _redact(value: object, paths: Sequence[str]) -> object:
    """Replace local paths by their last names; `paths` are also replaced inside texts."""
    if isinstance(value, dict):
        return {key: _redact(item, paths) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact(item, paths) for item in value]
    if not isinstance(value, str):
        return value
    if pack_format.is_local_path(value):
        return pack_format.basename(value)
    for path in paths:
        value = re.sub(
            rf"(?<![\w/\\]){re.escape(path)}(?!\w)",
            lambda match: pack_format.basename(match[0]),
            value,
        )
    home = str(Path.home())
    return value.replace(home, "~") if len(home) > 1 else value


def write_archive(file: BinaryIO, manifest: pack_format.Manifest, folder: Path) -> None:
    """Write the files of a pack; equal files give equal bytes."""
    # level 1: weights hardly compress
    with (
        gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as zipped,
        tarfile.TarFile(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name in (pack_format.MANIFEST, *manifest.files):
            # no owner and no time: the same on every machine
            info = tarfile.TarInfo(f"{manifest.name}/{name}")
            info.size = (folder / name).stat().st_size
            with (folder / name).open("rb") as source:
                archive.addfile(info, source)


class Unzipped(gzip.GzipFile):
    """Bytes of an archive, read in small pieces: no tar header can claim gigabytes of memory."""

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes. Raises tarfile.TarError for more than a chunk."""
        if size is None or not 0 <= size <= pack_format.CHUNK:
            raise tarfile.ReadError("a header is too large")
        return super().read(size)


class ArchiveReader:
    """Reads an archive: pack.json at once, its files in `unpack`. Raises RunError if damaged."""

    def __init__(self, file: BinaryIO, origin: str) -> None:
        self.unzipped, self.origin = Unzipped(fileobj=file, mode="rb"), origin
        with damage_refused(origin):
            self.archive = tarfile.TarFile(fileobj=self.unzipped)
            first = self.archive.next()
            member = self.archive.next() if first is not None and first.isdir() else first
            name = PurePosixPath(member.name).name if member and member.isreg() else ""
            if member is None or name != pack_format.MANIFEST:
                pack_format.refuse(origin, f"an archived pack begins with {pack_format.MANIFEST}")
            self.top = member.name.removesuffix(pack_format.MANIFEST)
            pack_format.check_size(pack_format.MANIFEST, member.size, origin)
            self.manifest = pack_format.parse_manifest(self._open(member).read(), origin)

    def unpack(self, folder: Path) -> None:
        """Write every file into `folder`, verified. Raises RunError."""
        remaining = dict(self.manifest.files)
        with damage_refused(self.origin):
            while (member := self.archive.next()) is not None:
                name = member.name.removeprefix(self.top)
                is_plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
                entry = pack_format.Member(name, member.size, is_plain)
                pack_format.check_members([entry], self.origin)
                expected = remaining.pop(name, None)
                if expected is None:
                    pack_format.refuse(self.origin, f"`{name}` is listed twice")
                if member.size != expected.size:
                    sizes = f"{member.size:,} bytes, and {pack_format.MANIFEST} says"
                    pack_format.refuse(self.origin, f"`{name}` has {sizes} {expected.size:,}")
                read = self._open(member).read
                pack_format.copy_verified(read, folder / name, expected, self.origin)
            if remaining:
                pack_format.refuse(self.origin, f"`{next(iter(remaining))}` is missing")
            padding = self.unzipped.read(MAX_PADDING)
            if not padding:
                pack_format.refuse(self.origin, "the archive is cut off", "fetch it again")
            # to the very end, where gzip has its checksum
            if any(padding) or self.unzipped.read(1):
                pack_format.refuse(self.origin, "the archive has data after its end")

    def _open(self, member: tarfile.TarInfo) -> IO[bytes]:
        file = self.archive.extractfile(member)
        assert file is not None  # it is a regular file
        return file


@contextmanager
def damage_refused(origin: str) -> Iterator[None]:
    """Raise RunError if gzip or tar cannot be read."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        message = f"the archive is damaged: {one_line_error(error).rstrip('.')}"
        fix = "fetch it again; a pack is a folder, or ends in .tar.gz"
        pack_format.refuse(origin, message, fix)


@contextmanager
def open_archive(path: Path, origin: str) -> Iterator[ArchiveReader]:
    """Open an archive and read its pack.json. Raises RunError."""
    with pack_format.open_file(path, origin) as file:
        yield ArchiveReader(file, origin)
