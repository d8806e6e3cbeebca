"""From lines to answers: used by `translate`, evaluations and validations in training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple

from composer.data.ids import Encoded
from composer.data.pairs import TARGET
from composer.data.tokenizer import Tokenizers
from composer.formatting import format_lines
from composer.inference.decode import Row, decode_all, make_rows
from composer.inference.decoders.search import Hypothesis, Options
from composer.inference.drafts import Draft
from composer.inference.lines import (
    LINES,
    Line,
    cut_line,
    encode_lines,
    oom_as_run_failed,
    write_note,
)
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import UNK
from composer.recipe.choices import Decoder
from composer.recipe.recipe import Recipe
from composer.text_lines import answer_line, is_blank


class Translation(NamedTuple):
    """A line of text, and the sum of the log-probabilities of its tokens.

    ended: False if it was cut at its maximum length.
    """

    text: str
    score: float
    ended: bool = True


@dataclass(frozen=True)
class SourceLines:
    """Lines as a model reads them. Blank lines are not read: their answers are empty.

    count: All lines.
    places: The places of the lines with text among all.
    rows: The same lines as ids.
    """

    count: int
    places: Sequence[int]
    rows: Sequence[Row]

    def select(self, at: slice) -> SourceLines:
        """Return these of the lines with text; all others are left blank."""
        return SourceLines(self.count, self.places[at], self.rows[at])


def has_text(line: Line) -> bool:
    """True if a line has text for an encoder."""
    return not all(map(is_blank, line))


def read_lines(
    recipe: Recipe,
    tokenizers: Tokenizers,
    lines: Sequence[Line],
    prefixes: Sequence[str] | None = None,
    first: int = 0,
    origin: str = LINES,
) -> SourceLines:
    """Encode lines, and the prefixes of their answers. Raises DataError.

    first: Lines that came before in `origin`, the file that faults name.
    """
    places = [at for at, line in enumerate(lines) if has_text(line)]
    numbers = [first + at for at in places]
    _, ids = encode_lines(recipe, tokenizers, {first + at + 1: lines[at] for at in places}, origin)
    names = [f"{origin}:{number + 1}" for number in numbers]
    sources = {side: [*map(cut_line, column, names)] for side, column in ids.items()}
    if not ids:
        texts = [lines[at][0] for at in places]
    else:
        texts = [prefixes[at] for at in places] if prefixes else [""] * len(places)
    what = "the prefix of this line" if ids else "this line"
    encoded = zip(tokenizers.encode_beginnings(TARGET, texts), names, strict=True)
    begun = [[*cut_line(row, name, what)] for row, name in encoded]
    rows = make_rows(sources, begun, numbers)
    if unknown := [row.number + 1 for row in rows if UNK in row.prefix]:
        of = "the prefix of " if ids else ""
        write_note(f"{origin}: the tokenizer does not know all of {of}{format_lines(unknown)}")
    return SourceLines(len(lines), places, rows)


def encoded_lines(tokenizers: Tokenizers, lines: Sequence[Line], encoded: Encoded) -> SourceLines:
    """Return the sources of an encoded split, like `read_lines`."""
    places = [at for at, line in enumerate(lines) if has_text(line)]
    names = [f"{LINES}:{at + 1}" for at in places]
    sources = {}
    for side, ids in encoded.sources.items():
        sources[side] = [*map(cut_line, [ids[at] for at in places], names)]
    begun = [tokenizers.beginning(TARGET)] * len(places)
    return SourceLines(len(lines), places, make_rows(sources, begun, places))


def answer_lines(
    models: Sequence[EncoderDecoder],
    tokenizers: Tokenizers,
    lines: SourceLines,
    decoding: Decoder,
    n_best: int = 1,
    on_batch: Callable[[float], None] = lambda share: None,
    draft: Draft | None = None,
) -> list[list[Translation]]:
    """Return the n best answers of each line, best first; empty ones for a blank line.

    Their texts differ, unless they are drawn; where there are fewer than n, empty ones without
    probability follow. on_batch, draft: see `decode_all`. Raises RunError, RunFailed.
    """
    num_hypotheses = n_best
    if n_best > 1 and not (decoding.draws or decoding.one_answer):
        # several hypotheses of a beam may be one text: all of them are compared
        num_hypotheses = max(n_best, decoding.num_hypotheses(models))
    options = Options(num_hypotheses, partial(tokenizers.decode, TARGET), draft=draft)
    sources = chain.from_iterable(row.sources.values() for row in lines.rows)
    with oom_as_run_failed(sources):
        results = decode_all(models, lines.rows, decoding, options, on_batch)
    answers = [[Translation("", 0.0)] * n_best for _ in range(lines.count)]
    for place, hypotheses in zip(lines.places, results, strict=True):
        texts = translations(tokenizers, hypotheses)
        texts = texts if decoding.draws else distinct(texts)[:n_best]
        # a tiny vocabulary may also have fewer answers than n
        answers[place] = [*texts, *[Translation("", float("-inf"))] * (n_best - len(texts))]
    return answers


def translations(tokenizers: Tokenizers, hypotheses: Sequence[Hypothesis]) -> list[Translation]:
    """Return hypotheses as lines of text."""
    ended = [hypothesis.ended for hypothesis in hypotheses]
    texts = tokenizers.decode_answers(TARGET, [hypothesis.ids for hypothesis in hypotheses], ended)
    rows = zip(map(answer_line, texts), hypotheses, strict=True)
    return [Translation(text, hypothesis.score, hypothesis.ended) for text, hypothesis in rows]


def distinct(texts: Sequence[Translation]) -> list[Translation]:
    """Return the best translation of each text: different tokens may spell the same text."""
    by_text: dict[str, Translation] = {}
    for translation in texts:
        by_text.setdefault(translation.text, translation)
    return [*by_text.values()]
