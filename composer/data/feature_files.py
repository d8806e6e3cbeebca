"""Columns that name files of images, sounds or vectors: opening the files, and what is in them, through a cache.

An entry of the cache is a folder named by all that its values depend on, and by name, size and time of each file:
`values.bin`, `ends.npy`, of images `columns.npy`; `entry.json` says what they have.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from composer.atomic_io import atomic_write, parse_json, read_text
from composer.data import audio, features, images
from composer.data.cache_entries import cached_entry, entry_path
from composer.data.columns import FileColumn, FileNames, RowSubset
from composer.data.features import Features, MediaError, columns_of, fill_columns
from composer.data.token_cache import code_hashes, versions_of
from composer.errors import DataError, Fault, RunError, os_error_reason
from composer.model.features import feature_shape

ENTRY = "entry.json"
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
CHUNK_FILES = 256
"""Files that are read at once."""
MAX_FAULTS = 5
"""Files of a column at fault that are told of."""
NAMES_FIX = "check the name; those in a table begin at its folder, others where the command runs"
READ_BY = {
    "image": ("size", "channels", "positions"),
    "audio": ("rate", "features", "normalize"),
    "vectors": ("width",),
}
"""The settings of a column that decide what its files become, by its kind."""


def encode_features(
    lines: Sequence[str], settings: Mapping[str, Any], origin: str, numbers: Sequence[int] | None = None
) -> Features:
    """Return what is in the files that lines name; of a table's column, through the cache.

    settings: Those of the column. origin, numbers: What the lines are called in faults, and their numbers there. Raises
    DataError with the files that cannot be used, RunError where the cache cannot be written.
    """
    if isinstance(lines, RowSubset):
        return encode_features(lines.column, settings, origin).keep(lines.rows)
    names, shape = [*lines], feature_shape(settings)
    table, before = place_of_names(lines, origin)
    place = table, numbers or range(before + 1, before + 1 + len(names))
    if not isinstance(lines, FileNames):  # but a sample of a table's, or what is translated
        return Features.of([*read_files(names, settings, place)], shape)
    return cached_entry(
        entry_path("features", entry_parts(names, settings)),
        lambda folder: open_entry(folder, shape),
        lambda folder: write_entry(folder, read_files(names, settings, place), shape),
    )


def place_of_names(lines: Sequence[str], origin: str) -> tuple[str, int]:
    """Return the table that has these lines, or `origin`, and how many of its lines come before them."""
    table = lines.lines if isinstance(lines, FileNames) else lines
    return (str(table.path), table.skip) if isinstance(table, FileColumn) else (origin, 0)


def missing_files(lines: Sequence[str], origin: str) -> list[Fault]:
    """Return the faults of the first lines whose files are not there, without reading any."""
    table, before = place_of_names(lines, origin)
    missing = ((row, name) for row, name in enumerate(lines) if not is_there(Path(name)))
    return [
        Fault(table, before + row + 1, 1, "file", "", f"`{name}`: there is no such file", NAMES_FIX)
        for row, name in islice(missing, MAX_FAULTS)
    ]


def is_there(path: Path) -> bool:
    """Return whether there is a file, or such a member of an archive."""
    archive, member = split_archive(path)
    if not member:
        return path.is_file()
    with suppress(OSError, zipfile.BadZipFile, tarfile.TarError):
        return member in archive_members(archive)
    return True  # that the archive is damaged is found where it is read


def entry_parts(names: Sequence[str], settings: Mapping[str, Any]) -> list[Any]:
    """Return all that what is in some files depends on."""
    kind, files = settings["kind"], hashlib.sha256()
    for name in names:
        with suppress(OSError):  # that a file is not there is found where it is read
            state = os.stat(split_archive(Path(name))[0])
            files.update(json.dumps([name, state.st_size, state.st_mtime_ns]).encode())
    versions = versions_of("pillow", "soundfile", "soxr", "torch")
    return [
        kind,
        [settings[key] for key in READ_BY[kind]],
        code_hashes(features, images, audio),
        versions,
        files.hexdigest(),
    ]


def read_files(
    names: Sequence[str], settings: Mapping[str, Any], place: tuple[str, Sequence[int]]
) -> Iterator[np.ndarray]:
    """Yield what is in files, by threads. Raises DataError with those that cannot be used, once all are tried.

    place: What has the names, and the numbers of their lines there.
    """
    faults: list[Fault] = []
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(names), CHUNK_FILES):
            chunk = names[first : first + CHUNK_FILES]
            results = [*pool.map(partial(read_file, settings=settings), chunk)]
            for at, result in enumerate(results):
                if isinstance(result, MediaError):
                    message, line = f"`{chunk[at]}`: {result.message}", place[1][first + at]
                    faults.append(Fault(place[0], line, 1, result.code, "", message, result.fix))
            if len(faults) > MAX_FAULTS:
                break
            if not faults:
                yield from (result for result in results if isinstance(result, np.ndarray))
    if faults:
        raise DataError(faults[:MAX_FAULTS])


def read_file(name: str, settings: Mapping[str, Any]) -> np.ndarray | MediaError:
    """Return what is in a file, or why it cannot be used."""
    try:
        with open_file(Path(name)) as file:
            return READERS[settings["kind"]](file, settings)
    except MediaError as error:
        return error
    except OSError as error:
        return MediaError("file", f"this file cannot be read: {os_error_reason(error)}", NAMES_FIX)


def open_file(path: Path) -> IO[bytes]:
    """Open a file, or a member of an archive. Raises OSError."""
    archive, member = split_archive(path)
    if not member:
        return path.open("rb")
    try:
        return io.BytesIO(read_member(archive, member))
    except (KeyError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise FileNotFoundError(2, str(error).strip("'\""), str(path)) from error


def split_archive(path: Path) -> tuple[Path, str]:
    """Return an archive and the name of what is in it, for a path that goes through one; else the path, and ""."""
    for parent in path.parents:
        if parent.name.endswith(ARCHIVES) and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return path, ""


def read_member(archive: Path, member: str) -> bytes:
    """Return a file of an archive. Raises KeyError."""
    return archive_members(archive)[member]


def archive_members(archive: Path) -> ZipMembers | dict[str, bytes]:
    """Return what an archive has, by name."""
    stamp = archive.stat().st_mtime_ns
    return zip_members(archive, stamp) if archive.suffix == ".zip" else tar_members(archive, stamp)


class ZipMembers(zipfile.ZipFile):
    """Archive that stays open, and knows which names it has."""

    def __contains__(self, name: object) -> bool:
        return name in self.NameToInfo

    def __getitem__(self, name: str) -> bytes:
        return self.read(name)


@lru_cache(maxsize=8)
def zip_members(archive: Path, stamp: int) -> ZipMembers:
    """Open an archive, whose index is read once."""
    return ZipMembers(archive)


@lru_cache(maxsize=1)
def tar_members(archive: Path, stamp: int) -> dict[str, bytes]:
    """Return all files of an archive that has no index."""
    with tarfile.open(archive) as opened:
        files = ((entry.name.removeprefix("./"), opened.extractfile(entry)) for entry in opened if entry.isfile())
        return {name: file.read() for name, file in files if file is not None}


def read_vectors(file: IO[bytes], settings: Mapping[str, Any]) -> np.ndarray:
    """Return frames of numbers from a file of NumPy. -> (T, F) float32. Raises MediaError."""
    save = "write it with `numpy.save`, frames by numbers"
    try:
        array = np.load(io.BytesIO(file.read()), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise MediaError("vectors", f"this is no array of NumPy: {error}", save) from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "fiu":
        raise MediaError("vectors", "this is no array of frames by numbers", save)
    if array.shape[1] != settings["width"]:
        message = f"a frame of it has {array.shape[1]} numbers, and `width` is {settings['width']}"
        raise MediaError("vectors", message, f"write `width: {array.shape[1]}`")
    if not len(array) or not np.isfinite(array).all():
        message = "it has no frames" if not len(array) else "it has numbers that are NaN or infinite"
        raise MediaError("vectors", message, "mend it, or remove the line")
    return array.astype(np.float32)


READERS: Mapping[str, Callable[[IO[bytes], Mapping[str, Any]], np.ndarray]] = {
    "image": images.read_image,
    "audio": audio.read_sound,
    "vectors": read_vectors,
}
"""What reads a file, by the kind of its column."""


# ------------------------------------------------------------------------------------------- entries of the cache


def write_entry(folder: Path, arrays: Iterable[np.ndarray], shape: tuple[int, ...]) -> None:
    """Write the files of an entry."""
    lengths: list[int] = []
    columns: list[np.ndarray] = []
    with (folder / "values.bin").open("wb") as file:
        for chunk in chunked(arrays):
            lengths += map(len, chunk)
            own = columns_of(chunk, shape)
            columns += [] if own is None else [own]
            for array in chunk:
                fill_columns(array, shape).tofile(file)
        file.flush()
        os.fsync(file.fileno())
    np.save(folder / "ends.npy", np.cumsum(lengths, dtype=np.int64))
    if columns:
        np.save(folder / "columns.npy", np.concatenate(columns))
    entry = {"rows": len(lengths), "positions": sum(lengths), "shape": shape, "dtype": arrays_type(shape).__name__}
    atomic_write(folder / ENTRY, json.dumps(entry).encode())


def chunked(arrays: Iterable[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Yield arrays in lists of CHUNK_FILES."""
    rest = iter(arrays)
    while chunk := list(islice(rest, CHUNK_FILES)):
        yield chunk


def arrays_type(shape: tuple[int, ...]) -> type[np.generic]:
    """Return the type of what files become: bytes of images, else numbers."""
    return np.uint8 if len(shape) == 2 else np.float32


def open_entry(folder: Path, shape: tuple[int, ...]) -> Features | None:
    """Return what an entry has; None where it is not there, or not as it was written."""
    try:
        entry = parse_json(read_text(folder / ENTRY))
        values = np.memmap(folder / "values.bin", dtype=arrays_type(shape), mode="r").reshape(-1, *shape)
        ends = np.load(folder / "ends.npy", mmap_mode="r")
        columns = np.load(folder / "columns.npy", mmap_mode="r") if len(shape) == 2 else None
        if (len(ends), len(values)) != (entry["rows"], entry["positions"]):
            return None
    except (OSError, RunError, ValueError, KeyError, TypeError):
        return None
    return Features(values, np.concatenate([[0], ends[:-1]]), ends, columns)
