"""Data folders of Kaldi as tables: `wav.scp`, `text`, and optional `segments` and `utt2spk`.

A folder stands where a table does, without a key of its own in the recipe: it has the same columns
for everybody, so all that a recipe could say of it is its name. A line of `segments`, or without
that file of `wav.scp`, is a row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from composer.atomic_io import sha256_of_file
from composer.data.columns import Column, RowSubset, open_column
from composer.data.text_files import check_readable, check_text
from composer.errors import Fault

SOUNDS, SEGMENTS = "wav.scp", "segments"
COLUMNS = {"id": SOUNDS, "sound": SOUNDS, "text": "text", "speaker": "utt2spk"}
"""The columns of such a table, each with the file that has it."""


def is_kaldi_folder(path: Path) -> bool:
    """True if a folder is one of Kaldi's."""
    return (path / SOUNDS).is_file()


def open_folder(folder: Path, names: Mapping[str, str]) -> dict[str, Column]:
    """Open the columns `names`, by side, of a checked folder."""
    return {side: _open_column(folder, name) for side, name in names.items()}


def _open_column(folder: Path, name: str) -> Column:
    rows = folder / (SEGMENTS if (folder / SEGMENTS).exists() else SOUNDS)
    if name == "id":
        return open_column(rows, 0, "id", _key)
    if name == "sound" and rows.name == SOUNDS:
        return open_column(rows, 0, "sound", _rest)
    if name == "sound":
        recordings = {_key(line): _rest(line) for line in open_column(folder / SOUNDS)}
        return open_column(
            rows, 0, sha256_of_file(folder / SOUNDS), lambda line: _part(line, recordings)
        )
    row_of = {_key(line): row for row, line in enumerate(open_column(folder / COLUMNS[name]))}
    order = np.array([row_of[_key(line)] for line in open_column(rows)], dtype=np.int64)
    return RowSubset(open_column(folder / COLUMNS[name], 0, name, _rest), order)


def _key(line: str) -> str:
    return (line.split(maxsplit=1) or [""])[0]


def _rest(line: str) -> str:
    return line.strip().partition(_key(line))[2].strip()


def _part(line: str, recordings: Mapping[str, str]) -> str:
    """Return the part of a recording that a line of `segments` means; an end of -1 is its end."""
    _, recording, first, last = line.split()
    start, end = (f"{float(seconds):.6f}".rstrip("0").rstrip(".") for seconds in (first, last))
    return f"{recordings[recording]}#t={start}{'' if float(last) < 0 else f',{end}'}"


def check_folder(folder: Path, columns: Collection[str]) -> Iterator[Fault]:
    """Yield the faults of a folder and these columns: the first of each kind, with their number."""
    segments = [SEGMENTS] if (folder / SEGMENTS).exists() else []
    wanted = [file for name, file in COLUMNS.items() if name in columns]
    names = [SOUNDS, *segments, *(file for file in wanted if file != SOUNDS)]
    faults = [*filter(None, [_check_file(folder / name) for name in names])]
    if faults:
        yield from faults
        return
    lines = {name: [*open_column(folder / name)] for name in names}
    keys = {name: [*map(_key, lines[name])] for name in names}
    for name in names:
        is_blank = [key == "" for key in keys[name]]
        yield from _first(folder / name, is_blank, "this line is blank", "remove it")
        counts = Counter(keys[name])
        is_repeated = [counts[key] > 1 for key in keys[name]]
        yield from _first(folder / name, is_repeated, "its id is there twice", "keep one")
    commands = [line.rstrip().endswith("|") for line in lines[SOUNDS]]
    fix = "run it yourself, and name the file that it writes"
    yield from _first(folder / SOUNDS, commands, "this is a command, and a table runs none", fix)
    yield from _first(
        folder / SOUNDS, [not _rest(line) for line in lines[SOUNDS]], "it names no file", "name one"
    )
    if segments:
        wrong = [not _is_segment(line) for line in lines[SEGMENTS]]
        fix = "write `ID RECORDING START END`, in seconds, the end after the start"
        yield from _first(folder / SEGMENTS, wrong, "this is not a segment", fix)
        known = set(keys[SOUNDS])
        unknown = [
            not bad and line.split()[1] not in known
            for bad, line in zip(wrong, lines[SEGMENTS], strict=True)
        ]
        fix = f"add it to `{SOUNDS}`, or remove the segment; Kaldi's `utils/fix_data_dir.sh` does"
        yield from _first(folder / SEGMENTS, unknown, f"its recording is not in `{SOUNDS}`", fix)
    rows = (segments or names)[0]
    fix = "add it there, or remove it here; Kaldi's `utils/fix_data_dir.sh` does"
    for name in names:
        if name in (SOUNDS, SEGMENTS):
            continue
        for file, counterpart in ((rows, name), (name, rows)):
            known = set(keys[counterpart])
            unknown = [key not in known for key in keys[file]]
            yield from _first(folder / file, unknown, f"its id is not in `{counterpart}`", fix)


def _check_file(path: Path) -> Fault | None:
    if not path.exists():
        column = next(name for name, file in COLUMNS.items() if file == path.name)
        message = f"this folder has no `{path.name}`, and the recipe reads its column `{column}`"
        return Fault(
            str(path.parent), 0, 0, "file", "", message, "add the file, or read another column"
        )
    problem = check_readable(path) or check_text(path)
    return problem.in_file(path) if problem else None


def _first(path: Path, is_wrong: Sequence[bool], message: str, fix: str) -> Iterator[Fault]:
    """Yield the fault of the first of some lines, which says how many there are."""
    if count := sum(is_wrong):
        many = f" (and {count - 1:,} more like it)" if count > 1 else ""
        yield Fault(str(path), is_wrong.index(True) + 1, 1, "kaldi", "", message + many, fix)


def _is_segment(line: str) -> bool:
    try:
        _, _, first, last = line.split()
        return 0 <= float(first) < math.inf and (
            float(last) == -1 or float(first) < float(last) < math.inf
        )
    except ValueError:
        return False
