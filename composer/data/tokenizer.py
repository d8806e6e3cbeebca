"""The tokenizers of all sides of a run, trained once on its training data, and their file."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from composer.atomic_io import atomic_write, read_text
from composer.data.tokenizer_files import File
from composer.data.tokenizer_kinds import (
    FORMAT,
    Bits,
    Bpe,
    Byte,
    Char,
    Integers,
    Part,
    TokenizerKind,
    Unigram,
    Word,
)
from composer.errors import RunError, one_line_error
from composer.model.special_tokens import NUM_SPECIAL, UNK
from composer.text_lines import is_blank

# lines that are encoded at once: enough to be fast, few enough not to fill the memory
CHUNK_LINES = 10_000
TOKENIZERS: dict[str, type[TokenizerKind]] = {
    kind.word: kind for kind in (Word, Char, Byte, Bpe, Unigram, Bits, Integers, File)
}
"""Every kind of tokenizer by its word in a recipe."""
MAX_LINE, MAX_WORD = 1 << 20, 10_000
"""Characters of a line that become tokens at most, and of a word that a tokenizer is trained on."""
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
"""The decoded form of an incomplete character."""


def tokenizer_kind(choice: Mapping[str, Mapping[str, Any]]) -> TokenizerKind:
    """Return the kind that a canonical recipe chooses, by its word with settings."""
    ((word, settings),) = choice.items()
    return TOKENIZERS[word](**settings)


def training_text(line: str, lowercase: bool) -> str:
    """Return the part of a line that trains a tokenizer: time grows with the square of a word."""
    line = (line.lower() if lowercase else line)[:MAX_LINE]
    return re.sub(r"\S+", lambda word: word[0][:MAX_WORD], line) if len(line) > MAX_WORD else line


def side_prefixes(section: Mapping[str, Any], sides: Iterable[str]) -> dict[str, str]:
    """Return the prefixes of a canonical section `data`, of those of these sides that have one."""
    prefixes = section.get("prefix") or {}
    return {side: prefixes[side] for side in sides if prefixes.get(side)}


def without_special(ids: Sequence[int]) -> list[int]:
    """Return the ids of a row without pad, bos and eos."""
    return [index for index in ids if index >= UNK]


@dataclass(frozen=True)
class Tokenizers:
    """Tokenizers of every side: `target`, and `source` or encoders' names; joint sides share one.

    `settings` is the tokenizer of the recipe with its defaults, which `kind` is made of;
    `lowercase` belongs to it, so that the input of a trained run is treated as its training text
    was. `sides` gives each side's index in `parts`. `prefixes` are the texts that every line of a
    side begins with, as ids alone: a text that is decoded is without its side's.
    """

    kind: TokenizerKind
    settings: dict[str, Any]
    lowercase: bool
    sides: dict[str, int]
    parts: tuple[Part, ...]
    prefixes: Mapping[str, str] = field(default_factory=dict)

    def with_prefixes(self, prefixes: Mapping[str, str]) -> Tokenizers:
        """Return the same tokenizers with other prefixes."""
        return replace(self, prefixes=prefixes)

    def encode(self, side: str, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line with the prefix of its side, without bos and eos.

        A blank line has no prefix, so that no pair without text seems to have one.
        """
        prefix = self.prefixes.get(side, "")
        return self._encode(side, [prefix * (not is_blank(line)) for line in lines], lines)

    def encode_beginnings(self, side: str, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the beginnings of lines, with the prefix of their side."""
        prefix, common = self.prefixes.get(side, ""), self.beginning(side)
        rows = self._encode(side, [prefix] * len(texts), texts)
        return [row if text else common for row, text in zip(rows, texts, strict=True)]

    def beginning(self, side: str) -> list[int]:
        """Return the ids that all lines of a side begin with, those of its prefix.

        Without the spaces at its end: they may be part of the first token of a line.
        """
        prefix = self.prefixes.get(side, "").rstrip()
        return self._encode(side, [prefix], [""])[0] if prefix else []

    def _encode(self, side: str, prefixes: Iterable[str], lines: Iterable[str]) -> list[list[int]]:
        texts = map(self._prepare, lines, prefixes)
        chunks = iter(lambda: list(itertools.islice(texts, CHUNK_LINES)), [])
        rows: list[list[int]] = []
        for chunk in chunks:
            rows += self.kind.encode(self._part(side), chunk)
        return rows

    def encode_pieces(
        self, side: str, pieces: Sequence[str], follows: Sequence[bool]
    ) -> list[list[int]]:
        """Return the ids of pieces of texts, without bos and eos.

        follows: True for pieces that continue the one before.
        """
        first: list[str] = []
        later: list[str] = []
        for piece, goes_on in zip(pieces, follows, strict=True):
            (later if goes_on else first).append(piece)
        ids = {False: iter(self.encode(side, first)), True: iter(self._encode_rest(side, later))}
        return [next(ids[bool(goes_on)]) for goes_on in follows]

    def _encode_rest(self, side: str, pieces: Sequence[str]) -> list[list[int]]:
        if not pieces:
            return []
        return self.kind.encode_rest(self._part(side), [*map(self._prepare, pieces)])

    def decode(self, side: str, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of ids, without pad, bos and eos; unk shows as `⟨unk⟩`.

        Without the prefix of its side, either.
        """
        texts = self.decode_pieces(side, rows)
        if not (prefix := self.prefixes.get(side)):
            return texts
        # not every tokenizer gives a text back as it was
        (shown,) = self.decode_pieces(side, [self.beginning(side)])
        spaces = prefix[len(prefix.rstrip()) :]
        return [remove_prefix(text, shown, spaces) for text in texts]

    def decode_pieces(self, side: str, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of ids as `decode`, of rows that are parts of a line."""
        rows = [*map(without_special, rows)]
        texts = self._part(side).decode_batch(rows, skip_special_tokens=False)
        return [self.kind.restore(text) for text in texts]

    def decode_answers(
        self, side: str, rows: Sequence[Sequence[int]], ended: Sequence[bool]
    ) -> list[str]:
        """Return the text of each row; if it was cut, without an incomplete last character."""
        texts = []
        for text, is_whole in zip(self.decode(side, rows), ended, strict=True):
            texts.append(text if is_whole else text.removesuffix(UNFINISHED))
        return texts

    @property
    def is_exact(self) -> bool:
        """True if ids hold all of a text except unknown characters."""
        return self.kind.is_exact and not self.lowercase

    def kept_text(self, side: str, text: str) -> str:
        """Return the text that ids hold; unknown tokens stay if the kind can tell them."""
        return self.kind.kept_text(self._part(side), self._lower(text))

    def vocabulary(self, side: str) -> list[str]:
        """Return the token of every id, as the tokenizer names it."""
        return [self._part(side).id_to_token(index) or "" for index in range(self.sizes[side])]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of ids of each side, the four special ones included."""
        return {side: self._part(side).get_vocab_size() for side in self.sides}

    @property
    def sha256(self) -> str:
        """SHA-256 of its text, which holds everything that decides about an id."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def gives_ids_of(self, other: Tokenizers) -> bool:
        """True if each text has the same ids, whatever the path of a file was."""
        own, theirs = ([part.to_str() for part in one.parts] for one in (self, other))
        same = own == theirs and self.sides == other.sides and self.lowercase == other.lowercase
        return same and self.kind.word == other.kind.word

    @cached_property
    def text(self) -> str:
        """The content of tokenizer.json, which `from_text` reads."""
        parts = [json.loads(part.to_str()) for part in self.parts]
        head = {
            "format": FORMAT,
            "settings": self.settings,
            "lowercase": self.lowercase,
            "sides": self.sides,
            **({"prefixes": dict(self.prefixes)} if self.prefixes else {}),
        }
        return (
            json.dumps({**head, "parts": parts}, ensure_ascii=False, sort_keys=True, indent=1)
            + "\n"
        )

    def save(self, path: Path) -> None:
        """Write tokenizer.json atomically: a concurrent reader sees the old file or the new one."""
        atomic_write(path, self.text.encode())

    @classmethod
    def load(cls, path: Path) -> Tokenizers:
        """Read a file that `save` wrote. Raises RunError."""
        try:
            return cls.from_text(read_text(path), path)
        except (OSError, ValueError) as error:
            raise _unreadable(error, path) from error

    @classmethod
    def from_text(cls, text: str, origin: Path | str = "") -> Tokenizers:
        """Return the tokenizers of a `text`; `origin` names its file in errors. Raises RunError."""
        try:
            data = json.loads(text)
            if data["format"] != FORMAT:
                raise ValueError(
                    f"the format is {data['format']!r}, and this version reads {FORMAT!r}"
                )
            kind = tokenizer_kind(data["settings"])
            parts = tuple(map(kind.load, data["parts"]))
            sizes = [
                NUM_SPECIAL <= p.get_vocab_size() > max(p.get_vocab().values(), default=0)
                for p in parts
            ]
            if (
                not all(sizes)
                or not {*data["sides"].values()} <= {*range(len(parts))}
                or not data["sides"]
            ):
                raise ValueError("it has no vocabulary, or ids beyond it")
            prefixes = data.get("prefixes", {})
            if not {*prefixes} <= {*data["sides"]} or not all(
                isinstance(text, str) for text in prefixes.values()
            ):
                raise ValueError("a prefix is no text, or of another side")
            return cls(kind, data["settings"], data["lowercase"], data["sides"], parts, prefixes)
        except RunError:
            raise
        except Exception as error:  # tokenizers raises bare Exceptions
            raise _unreadable(error, origin) from error

    def _prepare(self, line: str, prefix: str = "") -> str:
        return self.kind.prepare((prefix + self._lower(line))[:MAX_LINE])

    def _lower(self, line: str) -> str:
        return line.lower() if self.lowercase else line

    def _part(self, side: str) -> Part:
        return self.parts[self.sides[side]]


def remove_prefix(text: str, prefix: str, spaces: str) -> str:
    """Return a text without the prefix that it begins with, and the spaces after it.

    spaces: Those of the prefix; a tokenizer may have others in their place.
    """
    if not text.startswith(prefix):
        return text
    rest = text.removeprefix(prefix)
    if rest.startswith(spaces):
        return rest.removeprefix(spaces)
    return rest.lstrip()


def _unreadable(error: Exception, origin: Path | str) -> RunError:
    message = f"the tokenizer cannot be read: {one_line_error(error)}"
    return RunError.of(message, "take the file from the run", str(origin))
