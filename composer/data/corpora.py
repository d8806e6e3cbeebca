"""Corpora: files of text, plain or packed, JSON lines or Parquet, read as documents, one after another.

Nothing is held in memory but a piece of a document. A file is inspected once: what is known of it is remembered in the
user's cache, by its path, size and times.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from composer.atomic_io import parse_json
from composer.data import tables, text_files
from composer.data.cache_entries import cached_facts
from composer.data.columns import Column, changed
from composer.data.text_files import PACKED, Problem, file_stamp, missing_file, open_text, suffix_of
from composer.errors import DataError, Fault, KeyPath, one_line_error
from composer.recipe.schema_reader import SPLITS

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

PIECE = 1 << 16
"""Characters of a document that are read at once, about; a longer document is cut where a word begins."""
FORMAT = 2
"""Of what is remembered of a file: another one where more is, or it is counted in another way."""
ROWS = 256
"""Rows of a data set of the hub that are read at once."""
WORD_START = re.compile(r"(?<=\S) (?=\S)")
PARQUET, JSON = ".parquet", (".jsonl", ".json")
SUFFIXES = f"plain text, {', '.join(JSON)}, {PARQUET}, and {', '.join(PACKED)} behind the first two"


class Piece(NamedTuple):
    """Part of a document; `ends` is True of its last one."""

    text: str
    ends: bool


@dataclass(frozen=True)
class FileFacts:
    """What is known of an inspected file: the SHA-256 of its bytes, that of its documents' texts, and what these have
    together; of a data set of the hub both are of its texts.

    Words stand between spaces; neither they nor characters and UTF-8 bytes count what ends a document.
    """

    sha256: str
    texts_sha256: str
    documents: int
    words: int
    characters: int
    bytes: int


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus: where the recipe names it, and how often an epoch has its documents."""

    path: Path
    key: KeyPath
    weight: float = 1.0


class Documents(Column):
    """The documents of files, in their order, read from the start whenever they are asked for."""

    def __init__(self, files: Sequence[CorpusFile], unit: str, column: str) -> None:
        self.files, self.unit, self.column = tuple(files), unit, column
        self.stamps = [file_stamp(file.path) for file in self.files]

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of all documents. Raises DataError if a file has changed since it was opened."""
        for file, stamp in zip(self.files, self.stamps, strict=True):
            yield from read_pieces(file.path, self.unit, self.column)
            if file_stamp(file.path) != stamp:
                raise changed(file.path)

    @cached_property
    def facts(self) -> list[FileFacts]:
        """What is known of each file. Raises DataError."""
        return [inspect(file.path, self.unit, self.column) for file in self.files]

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes of all files, and of how documents are read from them."""
        kinds = [suffix_of(file.path) for file in self.files]
        parts = [facts.sha256 for facts in self.facts], kinds, self.unit, self.column
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def weights(self) -> np.ndarray | None:
        """Return how often an epoch has each document, (documents,) float32; None where that is once."""
        if all(file.weight == 1 for file in self.files):
            return None
        counts = [facts.documents for facts in self.facts]
        return np.repeat(np.array([file.weight for file in self.files], np.float32), counts)

    def __len__(self) -> int:
        return sum(facts.documents for facts in self.facts)

    def __iter__(self) -> Iterator[str]:
        parts: list[str] = []
        for text, ends in self.pieces():
            parts.append(text)
            if ends:
                yield "".join(parts)
                parts = []

    def read(self, rows: Sequence[int]) -> list[str]:
        """Return the documents with these numbers; all up to the last of them are read."""
        wanted = set(rows)
        first = islice(self, max(wanted, default=-1) + 1)
        texts = {number: text for number, text in enumerate(first) if number in wanted}
        return [texts[row] for row in rows]

    def head(self, characters: int) -> list[str]:
        """Return the first documents, of so many characters together, about; the first one may be cut."""
        texts, parts = [], []
        for text, ends in self.pieces():
            parts.append(text)
            characters -= len(text) + 1
            if ends or characters <= 0:
                texts.append("".join(parts))
                parts = []
            if characters <= 0:
                break
        return texts


class HubDocuments(Documents):
    """The texts of a column of a data set of the hub, which `datasets` keeps on this machine."""

    def __init__(self, dataset: Any, column: str, origin: str) -> None:
        super().__init__((), "row", column)
        self.texts = tables.DatasetColumn(dataset, column, origin, as_line=lambda text: text or "")

    def pieces(self) -> Iterator[Piece]:
        for at in range(0, len(self.texts), ROWS):
            for text in self.texts[at : at + ROWS]:
                yield from cut(text)

    @cached_property
    def facts(self) -> list[FileFacts]:
        key = [self.texts.dataset._fingerprint, self.column]  # another one where the files of the data set change
        return [FileFacts(**cached_facts("texts", [FORMAT, *key], lambda: asdict(count(self.pieces()))))]


def open_corpus(recipe: Recipe, split: str, folders: Sequence[Path]) -> Documents:
    """Return the documents of a split of the recipe's text. Raises DataError if a file is not there."""
    text = recipe.dataset["text"]
    files, faults = find_files(recipe, split, folders)
    if faults:
        raise DataError(faults)
    return Documents(files, text["unit"], text["column"])


def open_documents(paths: Sequence[Path], unit: str, column: str) -> Documents:
    """Open files that a user names, as one text. Raises DataError with the faults of all that cannot be read."""
    problems = [(path, _kind_problem(path) if path.exists() else missing_file(str(path), [Path()])) for path in paths]
    if faults := [problem.in_file(path) for path, problem in problems if problem]:
        raise DataError(faults)
    return Documents([CorpusFile(path, ()) for path in paths], unit, column)


def check_corpora(recipe: Recipe, folders: Sequence[Path]) -> list[Fault]:
    """Return all faults of the files of the recipe's text."""
    text, files, faults = recipe.dataset["text"], list[CorpusFile](), list[Fault]()
    for split in (split for split in SPLITS if text[split] is not None):
        own, missing = find_files(recipe, split, folders)
        files, faults = [*files, *own], [*faults, *missing]
    lacking = _lacking_column(files, text["column"])
    of_column = [(file.key, str(path), problem) for path, (file, problem) in lacking.items()]
    with_columns = {file.path for file in files if suffix_of(file.path)[0] in (*JSON, PARQUET)}
    faults += text_files.name_faults(recipe, ("data", "text", "column"), of_column, len(with_columns))
    for file in files:
        if file.path in lacking:
            continue
        try:
            facts = inspect(file.path, text["unit"], text["column"])
        except DataError as error:
            faults += [recipe.fault(fault.code, file.key, fault.message, fault.hint) for fault in error.faults]
            continue
        if not facts.words:
            message = f"`{file.path}` has no words"
            faults.append(recipe.fault("empty", file.key, message, "give it a document with text"))
    return faults


def _lacking_column(files: Iterable[CorpusFile], column: str) -> dict[Path, tuple[CorpusFile, Problem]]:
    """Return the files with columns that have none of this name, by path, each with its problem."""
    lacking: dict[Path, tuple[CorpusFile, Problem]] = {}
    for file in files:
        if file.path not in lacking and suffix_of(file.path)[0] in (*JSON, PARQUET):
            for problem in tables.check_first_names(file.path, {"column": column}):
                lacking[file.path] = file, problem
    return lacking


def find_files(recipe: Recipe, split: str, folders: Sequence[Path]) -> tuple[list[CorpusFile], list[Fault]]:
    """Return the files of a split, those of a pattern in the order of their names, and the faults of their names."""
    key: KeyPath = ("data", "text", split)
    taken = text_files.named_files(recipe.dataset, folders)
    files: list[CorpusFile] = []
    faults: list[Fault] = []
    for place, name, weight in _named_files(recipe.dataset["text"][split], key):
        if weight != 1 and (split != "train" or recipe.carries_state):
            reason = "a text that is measured is read once" if split != "train" else "a text in streams is read once"
            message, own = f"{reason}, whatever it weighs", (*place[:-1], "weight")
            faults.append(recipe.fault("unused", own, message, "remove `weight`"))
        paths = text_files.matching_files(name, folders)
        problem = None if paths else missing_file(name, folders, taken=taken)
        problem = problem or next(filter(None, map(_kind_problem, paths)), None)
        if problem:
            faults.append(recipe.fault(problem.code, place, problem.message, problem.hint))
        else:
            files += [CorpusFile(path, place, weight) for path in paths]
    if not files and not faults:
        faults.append(recipe.fault("empty", key, "there is no file", f"write `{split}: FILE`"))
    return files, faults


def _named_files(value: Any, key: KeyPath) -> Iterator[tuple[KeyPath, str, float]]:
    """Yield the path in the recipe, the name and the weight of everything that names files."""
    if isinstance(value, str):
        yield key, value, 1.0
        return
    for at, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(part, str):
            yield (*key, at), part, 1.0
        else:
            yield (*key, at, "file"), part["file"], part["weight"]


def _kind_problem(path: Path) -> Problem | None:
    """Return why a file cannot be read at all; None where only its content can be at fault."""
    if problem := text_files.check_readable(path):
        return problem
    suffix, packed = suffix_of(path)
    is_packed = suffix == PARQUET and packed
    return Problem("file", f"`{path}` is Parquet, packed", "unpack it") if is_packed else None


# ------------------------------------------------------------------------------------------- reading


def read_pieces(path: Path, unit: str, column: str) -> Iterator[Piece]:
    """Yield the pieces of a file's documents. Raises DataError where it cannot be read, with the line."""
    suffix, packed = suffix_of(path)
    number = 0
    try:
        if suffix == PARQUET:
            for text in tables.parquet_texts(path, column):
                number += 1
                yield from cut(text)
            return
        with open_text(path) as file:
            if suffix in JSON:
                for number, line in enumerate(file, start=1):
                    yield from cut(_json_text(path, number, line, column))
            elif unit == "line":
                for number, line in enumerate(file, start=1):  # noqa: B007 (the fault names it)
                    yield from cut(line.removesuffix("\n").removesuffix("\r"))
            elif unit == "file":
                yield from _join(iter(lambda: file.read(PIECE), ""))
            else:
                yield from _paragraphs(file)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError([_reading_fault(path, packed, number, error)]) from error


def _json_text(path: Path, number: int, line: str, column: str) -> str:
    """Return the text of an object of JSON lines; a null is an empty document. Raises DataError."""
    with suppress(ValueError, KeyError, TypeError):
        text = tables.get_nested(parse_json(line), column)
        if isinstance(text, str | None) and not tables.SURROGATE.search(text or ""):
            return text or ""
    problem, *_ = tables.check_object(number, line, {"": column})
    raise DataError([problem._replace(message=f"`{path}`: {problem.message}").in_file(path)])


def cut(text: str) -> Iterator[Piece]:
    """Yield the pieces of a document."""
    if len(text) <= PIECE:
        return iter((Piece(text, True),))
    # in blocks: each piece is taken off what is left, which would copy a text of a gigabyte thousands of times
    return _join(text[at : at + PIECE] for at in range(0, len(text), PIECE))


def _join(blocks: Iterable[str]) -> Iterator[Piece]:
    """Yield the pieces of a document that comes in blocks; each but the first begins with the space before a word."""
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > PIECE:
            start = WORD_START.search(rest, PIECE)
            if start is None and len(rest) < 2 * PIECE:
                break
            at = start.start() if start else PIECE
            yield Piece(rest[:at], False)
            rest = rest[at:]
    yield Piece(rest, True)


def _paragraphs(file: Iterable[str]) -> Iterator[Piece]:
    """Yield the paragraphs of a file: lines between blank ones."""
    lines: list[str] = []
    for line in file:
        if line.strip():
            lines.append(line)
        elif lines:
            yield from cut("".join(lines).removesuffix("\n"))
            lines = []
    if lines:
        yield from cut("".join(lines).removesuffix("\n"))


def _reading_fault(path: Path, packed: str, number: int, error: Exception) -> Fault:
    """Return the fault of a file that could not be read up to the document after the `number`th."""
    where = f" after line {number:,}" if number else ""
    if isinstance(error, UnicodeDecodeError):
        is_plain = not packed and suffix_of(path)[0] != ".parquet"
        problem = text_files.check_utf8(path) if is_plain else None
        problem = problem or Problem("encoding", f"`{path}` is not UTF-8{where}", "write it again, as UTF-8")
    elif packed and isinstance(error, text_files.UNPACKING_ERRORS):
        message = f"`{path}` is damaged{where}: it cannot be unpacked to its end"
        problem = Problem("file", message, "get the file again")
    elif isinstance(error, OSError) and error.errno:
        fix = "make it readable, and do not change it while it is read"
        problem = Problem("file", f"`{path}` cannot be read: {error.strerror}", fix)
    else:
        message = f"`{path}` cannot be read: {one_line_error(error)}"
        problem = Problem("file", message, "repair it, or get the file again")
    return problem.in_file(path)


# ------------------------------------------------------------------------------------------- what is known of a file


def inspect(path: Path, unit: str, column: str) -> FileFacts:
    """Return what is known of a file. It is read where that is not remembered. Raises DataError with its first fault.

    A file counts as unchanged while its inode, size and times are the same, as it does for git.
    """
    stamp = file_stamp(path)

    def read() -> dict[str, Any]:
        facts = asdict(count(read_pieces(path, unit, column)))
        with path.open("rb") as file:
            facts["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
        if file_stamp(path) != stamp:
            message, fix = f"`{path}` has been changed while it was read", "wait until it is complete"
            raise DataError([Problem("changed", message, fix).in_file(path)])
        return facts

    return FileFacts(**cached_facts("texts", [FORMAT, str(path.resolve()), *stamp, unit, column], read))


def count(pieces: Iterable[Piece]) -> FileFacts:
    """Return what is known of documents, with the SHA-256 of their texts."""
    documents = words = characters = size = 0
    digest = hashlib.sha256()
    for text, ends in pieces:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(data + b"\xff" * ends)
        documents, words = documents + ends, words + len(text.split())
        characters, size = characters + len(text), size + len(data)
    sha256 = digest.hexdigest()
    return FileFacts(sha256, sha256, documents, words, characters, size)
