"""Outputs and their references: exact matches, word and character error rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from composer.text_lines import is_blank

Texts = Sequence[str]
References = Sequence[Sequence[str | None]]
"""One or more references of each line: columns as long as the lines. A blank one is none."""


class Compared(NamedTuple):
    """The outputs that have a reference, with their references: input of every metric of texts.

    rows: The numbers of their lines.
    references: Columns, the first of which has a text for each output; None where a line has fewer
        than others.
    """

    rows: list[int]
    hypotheses: list[str]
    references: list[list[str | None]]

    @property
    def per_line(self) -> int | None:
        """Number of references of each output; None where some have more than others."""
        return None if any(None in column for column in self.references) else len(self.references)


def references_of(row: Sequence[str | None]) -> list[str]:
    """Return the references of one line: those of its texts that are not blank."""
    texts = [text for text in row if text is not None]
    return [text for text in texts if not is_blank(text)]


def compare(hypotheses: Texts, references: References) -> Compared:
    """Return the outputs whose lines have a reference, with these; a blank text is no reference."""
    lines = [references_of(row) for row in zip(*references, strict=True)]
    rows = [row for row, (_, line) in enumerate(zip(hypotheses, lines, strict=True)) if line]
    columns = zip_longest(*(lines[row] for row in rows))
    return Compared(rows, [hypotheses[row] for row in rows], [list(column) for column in columns])


def is_exact(text: str, references: Sequence[str | None]) -> bool:
    """True if an output equals a reference of its line; spaces around them do not count."""
    return text.strip() in map(str.strip, references_of(references))


def exact_match(hypotheses: Texts, references: References) -> float:
    """Return the share of outputs that equal a reference."""
    rows = zip(*references, strict=True)
    return sum(map(is_exact, hypotheses, rows)) / len(hypotheses)


def error_counts(unit: str, hypotheses: Texts, references: References) -> list[tuple[int, int]]:
    """Return the edits of each output, and the length of its closest reference, in `words` or
    `characters`.
    """
    import jiwer

    process = jiwer.process_words if unit == "words" else jiwer.process_characters
    counts = []
    for text, *row in zip(hypotheses, *references, strict=True):
        edits_and_lengths = []
        for reference in references_of(row):
            result = process(reference, text)
            edits = result.substitutions + result.deletions + result.insertions
            length = result.hits + result.substitutions + result.deletions
            edits_and_lengths.append((edits, length))
        counts.append(min(edits_and_lengths, key=lambda pair: pair[0] / pair[1]))
    return counts


def error_rate(name: str) -> Callable[[Texts, References], float]:
    """Return jiwer's error rate of this name; of several references the closest counts."""

    def compute(hypotheses: Texts, references: References) -> float:
        import jiwer

        rate = getattr(jiwer, name)
        closest = []
        for text, *row in zip(hypotheses, *references, strict=True):
            closest.append(min(references_of(row), key=lambda reference: rate(reference, text)))
        return float(rate(closest, list(hypotheses)))

    return compute
