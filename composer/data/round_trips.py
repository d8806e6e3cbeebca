"""From text to ids and back: references that a tokenizer cannot write, and text that ids hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from composer.data.documents import Piece
from composer.data.pairs import TARGET
from composer.data.tokenizer import CHUNK_LINES, Tokenizers
from composer.metrics.references import References, is_exact, references_of
from composer.model.special_tokens import UNK
from composer.suggest import character_name
from composer.text_lines import answer_line

SHOWN = 30
"""Characters of a text that are shown on each side of the first that does not come back."""


class LostReferences(NamedTuple):
    """Lines without a reference that comes back from its ids, among all with one, and the first."""

    lost: int
    lines: int
    reference: str = ""
    output: str = ""

    def describe(self) -> str:
        """Return in words how many references are lost, and what they bound; "" if none is."""
        if not self.lost:
            return ""
        most = f"{100 * (1 - self.lost / self.lines):.4g} %"
        counts = f"{self.lost:,} of {self.lines:,} references cannot be written by this tokenizer"
        return f"{counts}: exact match is at most {most}; {self.example()}"

    def example(self) -> str:
        """Describe the first lost reference, with the first character that does not come back."""
        at = len(self.output)
        for place, pair in enumerate(zip(self.reference, self.output, strict=False)):
            if pair[0] != pair[1]:
                at = place
                break
        name = f", at {character_name(self.reference[at])}" if at < len(self.reference) else ""
        return f"`{cut_around(self.reference, at)}` becomes `{cut_around(self.output, at)}`{name}"


def cut_around(text: str, at: int) -> str:
    """Return the part of a text around one of its characters."""
    first, last = max(0, at - SHOWN), at + SHOWN
    return f"{'...' * (first > 0)}{text[first:last]}{'...' * (last < len(text))}"


def lost_references(
    tokenizers: Tokenizers, references: References, are_words_known: bool = True
) -> LostReferences:
    """Count the lines without a reference that comes back from its ids, as an answer is written.

    references: One or more of each line. are_words_known: False if the tokenizer was trained on a
    sample, so that unknown tokens may be known later.
    """
    lost, lines, first = 0, 0, ("", "")
    rows = zip(*references, strict=True)
    while chunk := [*islice(rows, CHUNK_LINES)]:
        row_ids = tokenizers.encode(TARGET, [row[0] or "" for row in chunk])
        texts = tokenizers.decode(TARGET, row_ids)
        for row, ids, text in zip(chunk, row_ids, texts, strict=True):
            line_references = references_of(row)
            if not line_references:
                continue
            lines += 1
            if not are_words_known and UNK in ids:
                continue
            if is_exact(answer_line(text), line_references):
                continue
            decoded = tokenizers.decode(TARGET, tokenizers.encode(TARGET, line_references))
            if any(is_exact(answer_line(answer), line_references) for answer in decoded):
                continue
            if not lost:
                first = (line_references[0].strip(), answer_line(decoded[0]).strip())
            lost += 1
    return LostReferences(lost, lines, *first)


def kept_pieces(tokenizers: Tokenizers, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield pieces of documents as their ids hold them, which a loss is of; unknown tokens stay."""
    begun = False
    for text, ends in pieces:
        restored = tokenizers.kept_text(TARGET, text)
        if begun and text[:1].isspace() and not restored[:1].isspace():
            restored = f" {restored}"
        begun = not ends
        yield Piece(restored, ends)
