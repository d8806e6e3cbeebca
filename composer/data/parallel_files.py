"""The files of `data.parallel` and `data.table`: line-aligned texts, or columns of tables."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from composer.data import tables, text_files
from composer.data.column_names import check_names
from composer.data.columns import Concatenation, FileNames, open_column
from composer.data.feature_files import missing_files
from composer.data.kaldi import COLUMNS, SOUNDS, check_folder, is_kaldi_folder, open_folder
from composer.data.line_hashes import row_hashes
from composer.data.pairs import TARGET, Pairs, available_splits, side_names, split_path
from composer.data.split import held_out_faults, held_out_sizes, split_rows, split_sources
from composer.data.text_files import Problem, suffix_of
from composer.errors import Fault, KeyPath
from composer.model.features import feature_settings
from composer.recipe.data_sections import MeasuredSplit, Split
from composer.recipe.schema_reader import REFERENCE, SPLITS
from composer.recipe.section import read_section

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

UNDIVIDED = "train, undivided"
"""Key of the training files with the pairs held out for val and test, among open splits."""


def open_parallel(
    recipe: Recipe, split: str, folders: Sequence[Path], opened: dict[str, Pairs]
) -> Pairs:
    """Open the pairs of a split whose files have no fault, without those that are held out of it.

    opened: takes the training files with what is held out, so that every split reads them from
    there.
    """
    sizes = held_out_sizes(recipe.data.parallel or recipe.data.table)
    if not sizes or split not in ("train", *sizes):
        return _open_split(recipe, split, folders)
    if UNDIVIDED not in opened:
        opened[UNDIVIDED] = _open_split(recipe, "train", folders)
    rows = held_out_rows(recipe, opened[UNDIVIDED], sizes)
    opened |= {
        name: opened[UNDIVIDED].keep(rows[name]) for name in ("train", *sizes) if name != split
    }
    return opened[UNDIVIDED].keep(rows[split])


def held_out_rows(recipe: Recipe, pairs: Pairs, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Return the rows of the training files that are trained on, and held out for val and test."""
    section = recipe.data.parallel or recipe.data.table
    assert section is not None
    if section.hold_out == "pairs":
        return split_rows(len(pairs), sizes)
    sources = [lines for side, lines in pairs.sides.items() if side != TARGET]
    columns = map(_texts_or_names, sources or [pairs.sides[TARGET]])
    return split_sources(row_hashes(*columns), sizes)


def _texts_or_names(lines: Sequence[str]) -> Sequence[str]:
    # reading all named files would take long
    return lines.lines if isinstance(lines, FileNames) else lines


def _open_split(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    named = split_parts(recipe, split)
    parts = [_open_files(recipe, files, folders) for files in named]
    file_weights = [getattr(files, "weight", 1.0) for files in named]
    if len(parts) == 1 and file_weights == [1.0]:
        return parts[0]
    sides = {}
    for side in parts[0].sides:
        sides[side] = Concatenation([part.sides[side] for part in parts])
    weights = None
    if any(weight != 1 for weight in file_weights):
        weights = np.repeat(np.array(file_weights, np.float32), [*map(len, parts)])
    return Pairs(sides, weights=weights)


def _open_files(recipe: Recipe, named: Split | MeasuredSplit, folders: Sequence[Path]) -> Pairs:
    names = column_names(recipe, named)
    if not named.file:
        return Pairs(
            {side: open_column(_require_file(name, folders)) for side, name in names.items()}
        )
    path = _require_file(named.file, folders)
    columns = open_table(path, names)
    files = {
        side: column for side, column in columns.items() if feature_settings(recipe.data, side)
    }
    place = path if is_kaldi_folder(path) else path.parent
    return Pairs(columns | {side: FileNames(column, place) for side, column in files.items()})


def open_table(path: Path, names: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Open the columns `names`, by side, of a checked table or data folder."""
    return dict(
        open_folder(path, names) if is_kaldi_folder(path) else tables.open_columns(path, names)
    )


def _require_file(name: str, folders: Sequence[Path]) -> Path:
    path = text_files.find_file(name, folders)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return path


def check_parallel(
    recipe: Recipe, folders: Sequence[Path], opened: dict[str, Pairs]
) -> list[Fault]:
    """Return the faults of all files, and of too many held-out pairs.

    opened: see `open_parallel`.
    """
    sizes = held_out_sizes(recipe.data.parallel or recipe.data.table)
    taken = text_files.named_files(recipe.canonical["data"], folders)
    named: list[Split | MeasuredSplit] = []
    for split in available_splits(recipe):
        if split not in sizes:
            named += split_parts(recipe, split)
    faults, wrong_names, readable = list[Fault](), list[tuple[KeyPath, str, Problem]](), 0
    for files in named:
        names = column_names(recipe, files)
        if files.file:
            problems = check_columns(files.file, names, folders, taken)
        else:
            problems = text_files.check_texts(names, folders, taken)
        shared: list[Problem] = []
        if recipe.data.table:  # its names of columns stand in one place for all files
            shared = [problem for problem in problems if problem.is_name]
        faults += _file_faults(recipe, files, [it for it in problems if it not in shared], folders)
        if not problems:
            faults += _content_faults(recipe, files, folders)
        if shared == problems:
            readable += 1
            wrong_names += [(files.at, str(files.file), problem) for problem in shared]
    faults += _column_name_faults(recipe, wrong_names, readable)
    if faults or not sizes:
        return faults
    opened[UNDIVIDED] = _open_split(recipe, "train", folders)
    section = "table" if recipe.data.table else "parallel"
    return held_out_faults(recipe, section, len(opened[UNDIVIDED]), "pairs")


def _column_name_faults(
    recipe: Recipe, wrong_names: Sequence[tuple[KeyPath, str, Problem]], readable: int
) -> Iterator[Fault]:
    """Yield the faults of the names in `data.table`, each once for all files."""
    for side in dict.fromkeys(problem.key for *_, problem in wrong_names):
        column = recipe.data.table and recipe.data.table.of_side(side)
        place: KeyPath = ("data", "table", side)
        if not isinstance(column, str):
            place = (*place, "column")
        of_side = [it for it in wrong_names if it[2].key == side]
        yield from text_files.name_faults(recipe, place, of_side, readable)


def _file_faults(
    recipe: Recipe,
    files: Split | MeasuredSplit,
    problems: Sequence[Problem],
    folders: Sequence[Path],
) -> Iterator[Fault]:
    """Yield problems of files as faults: in a line of a table, or where the recipe names it."""
    table = text_files.find_file(files.file, folders) if files.file else None
    for problem in problems:
        if table and problem.line:
            yield problem.in_file(table)
        else:
            yield problem.at(recipe, files.at)


def _content_faults(
    recipe: Recipe, named: Split | MeasuredSplit, folders: Sequence[Path]
) -> Iterator[Fault]:
    """Yield the faults of a folder of Kaldi's, else of the names of files in a table."""
    folder = _kaldi_folder(named.file, folders)
    faults = [*check_folder(folder, {*column_names(recipe, named).values()})] if folder else []
    yield from faults
    if recipe.data.table and not faults:
        for column in _open_files(recipe, named, folders).sides.values():
            yield from missing_files(column, "") if isinstance(column, FileNames) else ()


def _kaldi_folder(name: str | None, folders: Sequence[Path]) -> Path | None:
    path = text_files.find_file(name, folders) if name else None
    return path if path and is_kaldi_folder(path) else None


def check_columns(
    name: str, columns: Mapping[str, str], folders: Sequence[Path], taken: Collection[Path] = ()
) -> list[Problem]:
    """Return the problems of a table or a folder of Kaldi's, and of column names, by their keys.

    taken: as of `check_texts`.
    """
    if folder := _kaldi_folder(name, folders):
        return [*check_names([*COLUMNS], columns, f"the folder `{folder}`")]
    path = text_files.find_file(name, folders)
    suffix, packed = suffix_of(Path(name))
    kind = tables.KINDS.get(suffix)
    if path and path.is_dir():
        fix = (
            f"name a table in it, or add `{SOUNDS}` to it, with a line `ID FILE` for each recording"
        )
        return [Problem("file", f"`{path}` is a folder, and has no `{SOUNDS}`", fix)]
    if path is None and (
        kind or not suffix or text_files.closest_file(name, folders, tables.SUFFIXES, taken)
    ):
        return [text_files.missing_file(name, folders, tables.SUFFIXES, taken)]
    if path is None or kind is None:
        message = (
            f"`{name}` ends in none of {', '.join(tables.KINDS)}, and is no folder with `wav.scp`"
        )
        return [Problem("file", message, "give it the suffix of its format")]
    problem = text_files.check_readable(path)
    if not problem and packed and kind not in tables.MAY_BE_PACKED:
        problem = Problem("file", f"`{path}` is {kind}, packed", "unpack it")
    if not problem and kind != "parquet":
        problem = text_files.check_text(path)
    return [problem] if problem else [*tables.check_table(path, columns)]


def split_parts(recipe: Recipe, split: str) -> Sequence[Split | MeasuredSplit]:
    """Return the files of a split that has its own, in the form of `parallel`."""
    parallel, table = recipe.data.parallel, recipe.data.table
    if table is not None:
        names = {}
        for side in side_names(recipe):
            column = table.of_side(side)
            names[side] = column if isinstance(column, str) else column.column
        file = getattr(table, split) if split in SPLITS else (table.test_sets or {})[split]
        return [read_section(MeasuredSplit, {"file": file, **names}, split_path(recipe, split))]
    assert parallel is not None
    files = getattr(parallel, split) if split in SPLITS else (parallel.test_sets or {})[split]
    return files if isinstance(files, tuple) else [files]


def column_names(recipe: Recipe, files: Split | MeasuredSplit) -> dict[str, str]:
    """Return the file or column of every side and further references, see `Pairs.columns`."""
    target, *references = [files.target] if isinstance(files.target, str) else files.target
    names = {side: str(files.of_side(side)) for side in recipe.sources}
    names = {side: names.get(side, target) for side in side_names(recipe)}
    for number, name in enumerate(references, start=2):
        names[f"{REFERENCE}{number}"] = name
    return names
