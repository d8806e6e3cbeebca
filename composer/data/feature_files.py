"""Columns that name files of images, sounds or vectors: what is in the files, through a cache.

An entry of the cache has `values`, `ends` and, of images, `columns`, and what was noticed. It
depends on the settings, and on name and stamp of each file.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from composer.data import audio, images
from composer.data.cache_entries import (
    FEATURES,
    Append,
    Entry,
    cached_entry,
    entry_in_memory,
)
from composer.data.columns import FileNames, RowSubset, locate
from composer.data.features import Features, Ragged, Reading, Remark
from composer.data.media_files import (
    BAD_ARCHIVE,
    NAMES_FIX,
    NO_SUCH_PART,
    MediaError,
    Part,
    hash_states,
    is_there,
    open_file,
    split_archive,
    split_part,
)
from composer.errors import DataError, Fault, os_error_reason
from composer.formatting import count_noun
from composer.model.features import feature_shape
from composer.recipe.data_sections import TableColumn

PARSING = Lock()
"""Lock for NumPy's parser of headers: in Python 3.11 `ast` fails now and then with threads."""
CHUNK_FILES = 256
"""Files that are read at once."""
MAX_FILE_FAULTS = 5
"""Files of a column at fault that are told of."""
MEND = "mend it, or remove the line"
READ_BY = {
    "image": ("size", "channels", "positions"),
    "audio": ("rate", "seconds", "features", "normalize"),
    "vectors": ("width",),
}
"""The settings of a column that decide what its files become, by its kind."""


def read_by(settings: TableColumn) -> list[object]:
    """Return the kind of a column, and the settings on which the features of its files depend."""
    values = settings.as_data()
    return [settings.kind, [values[key] for key in READ_BY[settings.kind]]]


def encode_features(lines: Sequence[str], settings: TableColumn, origin: str) -> Features:
    """Return the features of the files that lines name; of a table's column, from the cache.

    settings: Those of the column. origin: What the lines are called in faults. Raises DataError
    with the files that cannot be used, RunError where the cache cannot be written.
    """
    if isinstance(lines, RowSubset):
        return encode_features(lines.column, settings, origin).keep(lines.rows)
    names, shape = [*lines], feature_shape(settings)

    def make(append: Append) -> list[tuple[Any, ...]]:
        return append_features(append, read_files(names, lines, settings, origin), shape)

    def are_features(entry: Entry) -> bool:
        return are_features_of(len(names), shape, entry)

    if isinstance(lines, FileNames):
        parts = [*read_by(settings), hash_states(names)]
        noticed, arrays = cached_entry(FEATURES, parts, make, are_features)
    else:  # a sample of a table's, and what is translated, are read anew
        noticed, arrays = entry_in_memory(make)
    remarks = []
    for remark in (Remark(*fields) for fields in noticed):
        file, line = locate(lines, remark.line)
        remarks.append(replace(remark, file=str(file or origin), line=line))
    starts = np.concatenate([[0], arrays["ends"]])[:-1]
    columns = arrays["columns"] if len(shape) == 2 else None
    return Features(arrays["values"], starts, arrays["ends"], columns, (*remarks,))


def are_features_of(files: int, shape: tuple[int, ...], entry: Entry) -> bool:
    """True if an entry can hold the features of so many files of this shape."""
    values, ends, columns = (entry.arrays[name] for name in ("values", "ends", "columns"))
    is_image = len(shape) == 2
    if values.dtype != (np.uint8 if is_image else np.float32):
        return False
    if not (is_image or np.isfinite(values).all()):
        return False
    if not ends.dtype == columns.dtype == np.int64:
        return False
    rows = Ragged(values, np.concatenate([[0], ends])[:-1], ends)
    if ends.shape != (files,) or values.shape[1:] != shape or not rows.lies_within(len(values)):
        return False
    if len(columns) != files * is_image or not ((columns > 0) & (columns <= shape[0])).all():
        return False
    return all(is_remark(Remark(*fields), files) for fields in entry.facts)


def is_remark(remark: Remark, files: int) -> bool:
    """True if a remark can be one about so many files."""
    are_integers = type(remark.line) is type(remark.count) is int
    return (
        are_integers and 0 <= remark.line < files and isinstance(remark.kind + remark.detail, str)
    )


def fault_of_row(
    lines: Sequence[str], row: int, origin: str, name: str, error: MediaError
) -> Fault:
    """Return the fault of a file that a row names."""
    file, line = locate(lines, row)
    return Fault(
        str(file or origin), line, 1, error.code, "", f"`{name}`: {error.message}", error.fix
    )


def missing_files(lines: Sequence[str], origin: str) -> list[Fault]:
    """Return the faults of the first files that are not there, without reading any."""
    names = [*lines]
    errors = ((row, _missing(name)) for row, name in enumerate(names) if not is_there(name))
    return file_faults(names, lines, origin, errors)


def _missing(name: str) -> MediaError:
    file, mark, part = name.rpartition("#t=")
    if mark and is_there(file):
        return MediaError(
            "file",
            f"`{part}` is not a part of a sound",
            "write `#t=1.5,4`, in seconds, or `#t=1.5` to its end",
        )
    message = "it is no regular file" if os.path.exists(name) else "there is no such file"
    if os.path.isdir(name or "."):
        message = "this is a folder; the cell is blank, perhaps"
    return MediaError("file", message, NAMES_FIX)


def file_faults(
    names: Sequence[str],
    lines: Sequence[str],
    origin: str,
    errors: Iterable[tuple[int, MediaError]],
    stopped: bool = False,
) -> list[Fault]:
    """Return the faults of the first files that cannot be used, the last with the number of all.

    Each is told once, at the first row that names it or a part of it, with the number of its rows.
    A part that its recording does not have is wrong in its own row alone, and an archive that
    cannot be opened is one fault, whatever rows name of it.

    Args:
        names: All files, row by row.
        lines: The column that has the names, which knows its places.
        origin: What the lines are called in faults.
        errors: Rows, each with what is wrong.
        stopped: Whether later rows were not looked at.
    """
    first = dict[tuple[str, str], tuple[int, MediaError]]()
    rows_of = dict[str, Counter[str]]()
    faults = list[Fault]()
    for row, error in errors:
        first.setdefault((file_at_fault(names[row], error), error.message), (row, error))
    for (name, _), (row, error) in islice(first.items(), MAX_FILE_FAULTS):
        if error.code not in rows_of:
            rows_of[error.code] = Counter(file_at_fault(own, error) for own in names)
        if (count := rows_of[error.code][name]) > 1:
            message = f"{error.message}; {count:,} lines name it"
            fix = error.fix.replace("the line", "these lines")
            error = MediaError(error.code, message, fix)
        faults.append(fault_of_row(lines, row, origin, name, error))
    if len(first) > len(faults):
        total = (
            f"{'at least ' if stopped else ''}{len(first):,} files of this column that cannot be"
            " used"
        )
        message = f"{faults[-1].message} (these are the first {len(faults)} of {total})"
        faults[-1] = replace(faults[-1], message=message)
    return faults


def file_at_fault(name: str, error: MediaError) -> str:
    """Return the problem with the file a row refers to, or None."""
    file = split_part(name)[0]
    archive = str(split_archive(Path(file))[0])
    return {NO_SUCH_PART: name, BAD_ARCHIVE: archive}.get(error.code, file)


def read_files(
    names: Sequence[str], lines: Sequence[str], settings: TableColumn, origin: str
) -> Iterator[Reading]:
    """Yield the features of files, read by threads.

    Raises DataError at the end, with all that fail.

    lines: The column that has the names, which knows its places.
    """
    errors, stopped = dict[int, MediaError](), False
    with ThreadPoolExecutor() as pool:
        for first in range(0, len(names), CHUNK_FILES):
            chunk = names[first : first + CHUNK_FILES]
            results = [*pool.map(partial(read_file, settings=settings), chunk)]
            errors |= {
                row: result
                for row, result in enumerate(results, first)
                if isinstance(result, MediaError)
            }
            if len({split_part(names[row])[0] for row in errors}) > MAX_FILE_FAULTS:
                stopped = first + CHUNK_FILES < len(names)
                break
            if not errors:
                yield from (result for result in results if isinstance(result, Reading))
    if errors:
        raise DataError(file_faults(names, lines, origin, errors.items(), stopped))


def read_file(name: str, settings: TableColumn) -> Reading | MediaError:
    """Return the features of a file, or the error why it cannot be used."""
    file_name, part = split_part(name)
    if part and settings.kind != "audio":
        return MediaError("file", "only a sound has parts", "name the file without `#t=`")
    try:
        with open_file(Path(file_name)) as file:
            reading = READERS[settings.kind](file, settings, part)
        # what is trained on: a number that the file has room for can be too large for float32
        if reading.array.dtype.kind == "f" and not np.isfinite(reading.array).all():
            message = (
                "it has numbers that are NaN or infinite as float32, whose largest is"
                f" {np.finfo(np.float32).max:.2g}"
            )
            return MediaError(settings.kind, message, MEND)
        return reading
    except MediaError as error:
        return error
    except OSError as error:
        unreadable = MediaError(
            "file", f"this file cannot be read: {os_error_reason(error)}", NAMES_FIX
        )
        return unreadable if is_there(name) else _missing(name)


def count_notices(rows: Iterable[Iterable[tuple[str, str]]]) -> tuple[Remark, ...]:
    """Return the notices of files, each with the first row that has it in place of a line."""
    first, counts = dict[tuple[str, str], int](), Counter[tuple[str, str]]()
    for row, notices in enumerate(rows):
        for notice in notices:
            first.setdefault(notice, row)
            counts[notice] += 1
    return tuple(Remark(*notice, counts[notice], "", row) for notice, row in first.items())


def read_vectors(file: IO[bytes], settings: TableColumn, part: Part | None = None) -> Reading:
    """Return frames of numbers from a file of NumPy. -> (T, F) float32. Raises MediaError."""
    array = load_frames(file)
    if array.shape[1] != settings.width:
        message = f"a frame of it has {array.shape[1]} numbers, and `width` is {settings.width}"
        raise MediaError(
            "width", message, f"{MEND}; if all files have it, write `width: {array.shape[1]}`"
        )
    with np.errstate(over="ignore"):
        return Reading(array.astype(np.float32))


def load_frames(file: IO[bytes]) -> np.ndarray:
    """Return the array of a NumPy file, one frame or more of numbers. -> (T, F)

    Raises MediaError.
    """
    save, data = "write it with `numpy.save`, frames by numbers", io.BytesIO(file.read())
    try:
        with PARSING:
            array = np.load(data, allow_pickle=False)
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise MediaError("vectors", f"this is not a NumPy array: {error}", save) from error
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "fiu":
        raise MediaError("vectors", "this is not an array of frames by numbers", save)
    if more := len(data.getbuffer()) - data.tell():
        message = f"it has {count_noun(more, 'byte')} behind its array"
        raise MediaError("vectors", message, "write it again with `numpy.save`, one array a file")
    if not len(array):
        raise MediaError("vectors", "it has no frames", MEND)
    return array


READERS: Mapping[str, Callable[[IO[bytes], TableColumn, Part | None], Reading]] = {
    "image": images.read_image,
    "audio": audio.read_sound,
    "vectors": read_vectors,
}
"""Readers of files, by the kind of their column."""


def append_features(
    append: Append, readings: Iterable[Reading], shape: tuple[int, ...]
) -> list[tuple[object, ...]]:
    """Append the features of files, of images their real columns too; return the notices."""
    is_image, end, notices = len(shape) == 2, 0, list[tuple[tuple[str, str], ...]]()
    none = np.zeros(0, np.int64)
    append(
        values=np.zeros((0, *shape), np.uint8 if is_image else np.float32), ends=none, columns=none
    )
    for array, own in readings:
        end += len(array)
        columns = np.array([array.shape[1]] if is_image else [], np.int64)
        if is_image:
            values = np.pad(array, ((0, 0), (0, shape[0] - array.shape[1]), (0, 0)))
        else:
            values = array
        append(values=values, ends=np.array([end], np.int64), columns=columns)
        notices.append(own)
    return [astuple(remark) for remark in count_notices(notices)]
