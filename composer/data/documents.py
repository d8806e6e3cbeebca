"""Documents of files of text, plain or packed, JSON lines or Parquet, read one after another.

Nothing is held in memory but a piece of a document. A file is inspected once: what is known of it
is remembered in the user's cache, by its path, size and times.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from composer.atomic_io import file_stamp, is_hash, sha256_of_file
from composer.data import parquet_files, tables, text_files
from composer.data.cache_entries import cached_facts
from composer.data.column_names import get_nested
from composer.data.columns import Column, changed
from composer.data.text_files import Problem, file_identity, open_text, suffix_of
from composer.errors import DataError, Fault, KeyPath, one_line_error
from composer.text_lines import empty_if_blank, is_blank, unify_breaks, without_break

PIECE = 1 << 16
"""Characters of a document that are read at once, about; longer ones are cut into pieces."""
FORMAT = 3
"""Version of the cached facts of a file; raise it if they change."""
ROWS = 256
"""Rows of a data set of the hub that are read at once."""
WORD_START = re.compile(r"(?<=\S) (?=\S)")
SPACE_START = re.compile(r"(?<=\S)\s")
MARK_START = re.compile(r"(?<=\w)[^\w\s]")
PARQUET, JSON = ".parquet", (".jsonl", ".json")


class Piece(NamedTuple):
    """Part of a document; `ends` is True of its last one."""

    text: str
    ends: bool


@dataclass(frozen=True)
class FileFacts:
    """Facts of an inspected file.

    Its bytes and its documents' texts have an SHA-256 each; for a data set of the hub both are of
    its texts.

    Words stand between spaces; neither they nor characters and UTF-8 bytes count what ends a
    document.
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
        """Yield the pieces of all documents.

        Raises DataError if a file has changed since opening.
        """
        for number in range(len(self.files)):
            yield from self.pieces_of(number)

    def pieces_of(self, number: int) -> Iterator[Piece]:
        """Yield the pieces of one file's documents. Raises as `pieces`."""
        path = self.files[number].path
        yield from read_pieces(path, self.unit, self.column)
        if file_stamp(path) != self.stamps[number]:
            raise changed(path)

    @cached_property
    def facts(self) -> list[FileFacts]:
        """The facts of each file. Raises DataError."""
        return [inspect(file.path, self.unit, self.column) for file in self.files]

    @property
    def sha256(self) -> str:
        """SHA-256 of the bytes of all files (of a part, its texts) and of the way they are read."""
        kinds = [suffix_of(file.path) for file in self.files]
        parts = [facts.sha256 for facts in self.facts], kinds, self.unit, self.column
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def content_sha256(self) -> str:
        """SHA-256 of the documents' texts, whatever the names of their files."""
        contents = [facts.texts_sha256 for facts in self.facts]
        if len(contents) == 1:
            return contents[0]
        return remembered_count(contents, self.pieces).texts_sha256

    def weights(self) -> np.ndarray | None:
        """Return the copies of each document in an epoch, (documents,); None if all have one."""
        if all(file.weight == 1 for file in self.files):
            return None
        counts = [facts.documents for facts in self.facts]
        return np.repeat(np.array([file.weight for file in self.files], np.float32), counts)

    def __len__(self) -> int:
        return sum(facts.documents for facts in self.facts)

    def place(self, row: int) -> tuple[Path | None, int]:
        before = 0
        # of the hub there are no files
        for file, facts in zip(self.files, self.facts, strict=False):
            if row < before + facts.documents:
                return file.path, first_line(file.path, self.unit, row - before)
            before += facts.documents
        return None, row + 1

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
        """Return the first documents, of about `characters` together; the first one may be cut."""
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

    def __init__(self, dataset: object, column: str, origin: str) -> None:
        super().__init__((), "row", column)
        self.texts = tables.DatasetColumn(dataset, column, origin, as_line=lambda text: text or "")

    def pieces(self) -> Iterator[Piece]:
        for at in range(0, len(self.texts), ROWS):
            for text in self.texts[at : at + ROWS]:
                yield from cut(text)

    @cached_property
    def facts(self) -> list[FileFacts]:
        # the fingerprint is another one where the files of the data set change
        return [remembered_count([self.texts.dataset._fingerprint, self.column], self.pieces)]


class DocumentSubset(Documents):
    """Some documents of a text, in their order. is_wanted: (documents,) bool"""

    def __init__(self, text: Documents, is_wanted: np.ndarray) -> None:
        super().__init__(text.files, text.unit, text.column)
        self.text, self.is_wanted = text, is_wanted

    def pieces(self) -> Iterator[Piece]:
        before = 0
        for at, facts in enumerate(self.text.facts):
            number, before = before, before + facts.documents
            if not self.is_wanted[number:before].any():
                continue
            for piece in self.text.pieces_of(at):
                if self.is_wanted[number]:
                    yield piece
                number += piece.ends

    @cached_property
    def key(self) -> list[str]:
        """Everything that its documents depend on."""
        return [self.text.sha256, hashlib.sha256(np.packbits(self.is_wanted).tobytes()).hexdigest()]

    @cached_property
    def facts(self) -> list[FileFacts]:
        return [remembered_count(self.key, self.pieces)]

    def place(self, row: int) -> tuple[Path | None, int]:
        return self.text.place(int(np.flatnonzero(self.is_wanted)[row]))

    def head(self, characters: int) -> list[str]:
        key = [*self.key, characters]  # the end of a long file is far to seek
        return list(
            cached_facts(
                "heads", key, lambda: super(DocumentSubset, self).head(characters), are_texts
            )
        )

    def weights(self) -> np.ndarray | None:
        weights = self.text.weights()
        return None if weights is None else weights[self.is_wanted]


def read_pieces(path: Path, unit: str, column: str) -> Iterator[Piece]:
    """Yield the pieces of a file's documents. Raises DataError with the line that is at fault."""
    suffix, packed = suffix_of(path)
    number = 0
    try:
        if suffix == PARQUET:
            for text in parquet_files.parquet_texts(path, column):
                number += 1
                yield from cut(text)
            return
        with open_text(path) as file:
            if suffix in JSON:
                for number, line in enumerate(file, start=1):
                    yield from cut(_json_text(path, number, line, column))
            elif unit == "line":
                for number, line in enumerate(file, start=1):  # noqa: B007 (the fault names it)
                    yield from cut(without_break(line))
            elif unit == "file":
                yield from _join(_blocks(file))
            else:
                yield from _paragraphs(file)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise DataError([_reading_fault(path, packed, number, error)]) from error


def is_plain(path: Path) -> bool:
    """True if a file is plain text, perhaps packed, without columns."""
    return suffix_of(path)[0] not in (*JSON, PARQUET)


def _json_text(path: Path, number: int, line: str, column: str) -> str:
    """Return the text of an object of JSON lines; a null is an empty document. Raises DataError."""
    with suppress(ValueError, KeyError, TypeError):
        text = get_nested(tables.parse_row(line), column)
        if isinstance(text, str | None) and not tables.SURROGATE.search(text or ""):
            return text or ""
    problem, *_ = tables.check_object(number, line, {"": column})
    raise DataError([problem._replace(message=f"`{path}`: {problem.message}").in_file(path)])


def cut(text: str) -> Iterator[Piece]:
    """Yield the pieces of a document, with line feeds as its line breaks; a blank one is empty."""
    text = empty_if_blank(unify_breaks(text))
    if len(text) <= PIECE:
        return iter((Piece(text, True),))
    # in blocks: each piece is taken off what is left, which would copy a text of a gigabyte
    # thousands of times
    return _join(text[at : at + PIECE] for at in range(0, len(text), PIECE))


def _blocks(file: TextIO) -> Iterator[str]:
    """Yield the text of a file in blocks, with line feeds, without the last line break."""
    end = ""
    while block := file.read(PIECE):
        block = end + block
        text = without_break(block)
        end = block[len(text) :]
        yield unify_breaks(text)


def _join(blocks: Iterable[str]) -> Iterator[Piece]:
    """Yield the pieces of a document that comes in blocks; one that is short and blank is empty."""
    rest, begun = "", False
    for block in blocks:
        rest += block
        while (at := _find_cut(rest)) is not None:
            yield Piece(rest[:at], False)
            rest, begun = rest[at:], True
    yield Piece(rest if begun else empty_if_blank(rest), True)


def _find_cut(text: str) -> int | None:
    """Return the place to cut a text that may go on; None to wait for more text.

    That is the first space before a word after PIECE characters; where there is none in as many
    more, another space;
    else a mark after a letter, as between Chinese clauses; else anywhere.
    """
    if len(text) <= PIECE:
        return None
    place = WORD_START.search(text, PIECE, 2 * PIECE)
    if place is None and len(text) < 2 * PIECE:
        return None
    place = place or SPACE_START.search(text, PIECE, 2 * PIECE)
    marks = (
        mark
        for mark in MARK_START.finditer(text, PIECE, 2 * PIECE)
        if unicodedata.category(mark[0])[0] != "M"
    )
    place = place or next(marks, None)
    return place.start() if place else PIECE


def _paragraphs(file: Iterable[str]) -> Iterator[Piece]:
    """Yield the paragraphs of a file: lines between blank ones."""
    lines: list[str] = []
    for line in file:
        if not is_blank(line):
            lines.append(line)
        elif lines:
            yield from cut(without_break("".join(lines)))
            lines = []
    if lines:
        yield from cut(without_break("".join(lines)))


def first_line(path: Path, unit: str, number: int) -> int:
    """Return the line (from 1), or row of Parquet (from 0), where a document of a file begins."""
    if unit == "line" or not is_plain(path):
        return number + 1
    if unit == "file":
        return 1
    begun, after_blank = 0, True
    with open_text(path) as file:
        for line, blank in enumerate(map(is_blank, file), start=1):
            begun += after_blank and not blank
            if begun > number:
                return line
            after_blank = blank
    raise IndexError(number)


def _reading_fault(path: Path, packed: str, number: int, error: Exception) -> Fault:
    """Return the fault of a file that could not be read up to the document after the `number`th."""
    where = f" after line {number:,}" if number else ""
    if isinstance(error, UnicodeDecodeError):
        is_plain = not packed and suffix_of(path)[0] != ".parquet"
        problem = text_files.check_utf8(path) if is_plain else None
        problem = problem or Problem(
            "encoding", f"`{path}` is not UTF-8{where}", "write it again, as UTF-8"
        )
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


# ------------------------------------------------------------------------------------------- what
# is known of a file


def inspect(path: Path, unit: str, column: str) -> FileFacts:
    """Return facts of a file, from the cache or by reading it.

    Raises DataError with its first fault.

    A file counts as unchanged while its inode, size and times are the same, as it does for git.
    """
    stamp = file_stamp(path)

    def read() -> dict[str, Any]:
        facts = asdict(count(read_pieces(path, unit, column)))
        facts["sha256"] = sha256_of_file(path)
        if file_stamp(path) != stamp:
            message = f"`{path}` has been changed while it was read"
            fix = "wait until it is complete"
            raise DataError([Problem("changed", message, fix).in_file(path)])
        return facts

    return FileFacts(**cached_facts("texts", [*file_identity(path), unit, column], read, are_facts))


def remembered_count(key: Sequence[object], pieces: Callable[[], Iterable[Piece]]) -> FileFacts:
    """Return facts of documents by a key, from the cache or by reading them."""
    return FileFacts(**cached_facts("texts", key, lambda: asdict(count(pieces())), are_facts))


def are_facts(value: Any) -> bool:
    """True if a value can be the fields of FileFacts."""
    types = {field.name: field.type for field in fields(FileFacts)}
    if value.keys() != types.keys():
        return False
    hashes = [value[name] for name, kind in types.items() if kind == "str"]
    counts = [value[name] for name, kind in types.items() if kind != "str"]
    return (
        all(map(is_hash, hashes))
        and all(type(count) is int for count in counts)
        and min(counts) >= 0
    )


def are_texts(value: object) -> bool:
    """True for a list of texts."""
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def count(pieces: Iterable[Piece]) -> FileFacts:
    """Count documents, and hash their texts."""
    documents = words = characters = size = 0
    digest = hashlib.sha256()
    in_word = False  # whether the piece before was cut in a word, or before a mark
    for text, ends in pieces:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(data + b"\xff" * ends)
        documents += ends
        words += len(text.split()) - (in_word and not text[:1].isspace())
        in_word = not ends and not text[-1:].isspace()
        characters, size = characters + len(text), size + len(data)
    sha256 = digest.hexdigest()
    return FileFacts(sha256, sha256, documents, words, characters, size)
