"""Corpora: the text files of a recipe, the documents of a split, and their faults."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blocks.core.fixes import remove
from composer.data import tables, text_files
from composer.data.documents import (
    PARQUET,
    CorpusFile,
    Documents,
    DocumentSubset,
    inspect,
    is_plain,
)
from composer.data.split import held_out_faults, held_out_sizes, split_last, split_rows
from composer.data.text_files import Problem, missing_file, suffix_of
from composer.errors import DataError, Fault, KeyPath
from composer.recipe.data_sections import Corpus, Files
from composer.recipe.schema_reader import SPLITS

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe


def corpus_of(recipe: Recipe) -> Corpus:
    """Return the section `data.text` of a recipe that has one."""
    assert recipe.data.text is not None
    return recipe.data.text


def open_corpus(recipe: Recipe, split: str, folders: Sequence[Path]) -> Documents:
    """Return the documents of a split of the recipe's text, without those that are held out of it.

    Raises DataError if a file is not there.
    """
    held_out = held_out_sizes(recipe.data.text)
    documents = open_files(recipe, "train" if split in held_out else split, folders)
    if not held_out or split not in ("train", *held_out):
        return documents
    return DocumentSubset(documents, wanted_documents(recipe, len(documents), split))


def wanted_documents(recipe: Recipe, count: int, split: str) -> np.ndarray:
    """True for the documents of the training files that are in a split. -> (documents,) bool"""
    text, is_wanted = corpus_of(recipe), np.zeros(count, dtype=bool)
    rows_of = split_rows if text.hold_out == "spread" else split_last
    is_wanted[rows_of(count, held_out_sizes(text))[split]] = True
    return is_wanted


def held_out_files(recipe: Recipe, folders: Sequence[Path]) -> list[Path]:
    """Return the training files of which all documents are held out."""
    if not held_out_sizes(recipe.data.text):
        return []
    documents, before, trained = open_files(recipe, "train", folders), 0, set[Path]()
    is_trained = wanted_documents(recipe, len(documents), "train")
    for file, facts in zip(documents.files, documents.facts, strict=True):
        if is_trained[before : before + facts.documents].any():
            trained.add(file.path)
        before += facts.documents
    paths = dict.fromkeys(file.path for file in documents.files)
    return [path for path in paths if path not in trained]


def open_files(recipe: Recipe, split: str, folders: Sequence[Path]) -> Documents:
    """Open all documents of the files of a split. Raises as `open_corpus`."""
    files, faults = find_files(recipe, split, folders)
    if faults:
        raise DataError(faults)
    text = corpus_of(recipe)
    return Documents(files, text.unit, text.column)


def open_documents(paths: Sequence[Path], unit: str, column: str) -> Documents:
    """Open files that a user names as one text. Raises DataError with the faults of all."""
    faults: list[Fault] = []
    for path in paths:
        problem = _kind_problem(path) if path.exists() else missing_file(str(path), [Path()])
        if problem:
            faults.append(problem.in_file(path))
    if faults:
        raise DataError(faults)
    return Documents([CorpusFile(path, ()) for path in paths], unit, column)


def check_corpora(recipe: Recipe, folders: Sequence[Path]) -> list[Fault]:
    """Return all faults of the files of the recipe's text."""
    text, files, faults = corpus_of(recipe), list[CorpusFile](), list[Fault]()
    held_out, documents = held_out_sizes(text), 0
    for split in SPLITS:
        if getattr(text, split) is not None and split not in held_out:
            split_files, missing = find_files(recipe, split, folders)
            files += split_files
            faults += missing
    lacking = _lacking_column(files, text.column)
    of_column = [(file.key, str(path), problem) for path, (file, problem) in lacking.items()]
    with_columns = {file.path for file in files if not is_plain(file.path)}
    faults += text_files.name_faults(
        recipe, ("data", "text", "column"), of_column, len(with_columns)
    )
    for file in files:
        if file.path in lacking:
            continue
        try:
            facts = inspect(file.path, text.unit, text.column)
        except DataError as error:
            faults += [
                recipe.fault(fault.code, file.key, fault.message, fault.hint)
                for fault in error.faults
            ]
            continue
        if not facts.words:
            message = f"`{file.path}` has no words"
            faults.append(recipe.fault("empty", file.key, message, "give it a document with text"))
        documents += facts.documents if file.key[2] == "train" else 0
    return faults or held_out_faults(recipe, "text", documents, "documents")


def _lacking_column(
    files: Iterable[CorpusFile], column: str
) -> dict[Path, tuple[CorpusFile, Problem]]:
    """Return the files with columns that have none of this name, by path, each with its problem."""
    lacking: dict[Path, tuple[CorpusFile, Problem]] = {}
    for file in files:
        if file.path not in lacking and not is_plain(file.path):
            for problem in tables.check_first_names(file.path, {"column": column}):
                lacking[file.path] = file, problem
    return lacking


def find_files(
    recipe: Recipe, split: str, folders: Sequence[Path]
) -> tuple[list[CorpusFile], list[Fault]]:
    """Return the files of a split, a pattern's in order of their names, and faults of the names."""
    key: KeyPath = ("data", "text", split)
    taken = text_files.named_files(recipe.canonical["data"], folders)
    files: list[CorpusFile] = []
    faults: list[Fault] = []
    for place, name, weight in _named_files(getattr(corpus_of(recipe), split), key):
        if weight != 1 and (split != "train" or recipe.carries_state):
            if split != "train":
                reason = "a text that is measured is read once"
            else:
                reason = "a text in streams is read once"
            message, own = f"{reason}, whatever it weighs", (*place[:-1], "weight")
            faults.append(recipe.fault("unused", own, message, remove(own)))
        paths = text_files.matching_files(name, folders)
        problem = None if paths else missing_file(name, folders, taken=taken)
        problem = problem or next(filter(None, map(_kind_problem, paths)), None)
        if problem:
            is_count = not paths and split != "train" and name.strip("%").isdecimal()
            if is_count:
                hint = "write as a number how many documents are held out, such as `500`"
            else:
                hint = problem.hint
            faults.append(recipe.fault(problem.code, place, problem.message, hint))
        else:
            files += [CorpusFile(path, place, weight) for path in paths]
    if not files and not faults:
        faults.append(recipe.fault("empty", key, "there is no file", f"write `{split}: FILE`"))
    return files, faults


def _named_files(files: Files, key: KeyPath) -> Iterator[tuple[KeyPath, str, float]]:
    """Yield the path in the recipe, the name and the weight of everything that names files."""
    if isinstance(files, str):
        yield key, files, 1.0
        return
    for at, part in files.items() if isinstance(files, Mapping) else enumerate(files):
        if isinstance(part, str):
            yield (*key, at), part, 1.0
        else:
            yield (*part.at, "file"), part.file, part.weight


def _kind_problem(path: Path) -> Problem | None:
    """Return the problem of a file that cannot be read at all, or None."""
    if problem := text_files.check_readable(path):
        return problem
    suffix, packed = suffix_of(path)
    if suffix == PARQUET:
        return Problem("file", f"`{path}` is Parquet, packed", "unpack it") if packed else None
    with suppress(*text_files.UNPACKING_ERRORS):  # which is found where all of it is read
        return text_files.check_breaks(path)
    return None
