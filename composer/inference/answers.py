"""From lines to answers: the one way of `translate`, evaluations and validations in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from composer.data.ids import Encoded
from composer.data.pairs import TARGET
from composer.data.tokenizer import Tokenizers
from composer.formatting import format_lines
from composer.inference.decode import SourceIds, decode_all
from composer.inference.decoders import Hypothesis
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
from composer.recipe.text_lines import answer_line, is_blank


class Translation(NamedTuple):
    """A line of text, and the sum of the log-probabilities of its tokens. Not `ended`: cut at its
    maximum length.
    """

    text: str
    score: float
    ended: bool = True


@dataclass(frozen=True)
class SourceLines:
    """Lines as a model reads them. Blank ones are among the `count`, and are not read: their
    answers are empty.

    rows: The places of those with text among the lines; all that follows is of these.
    ids: By the encoders' keys; none without encoders.
    prefixes: Ids with which each answer begins.
    numbers: What the random numbers of sampling depend on.
    """

    count: int
    rows: Sequence[int]
    ids: Mapping[str, Sequence[SourceIds]]
    prefixes: Sequence[Sequence[int]]
    numbers: Sequence[int]

    def select(self, at: slice) -> SourceLines:
        """Return the lines with these of the lines that have text; all others are left blank."""
        ids = {side: rows[at] for side, rows in self.ids.items()}
        return SourceLines(self.count, self.rows[at], ids, self.prefixes[at], self.numbers[at])


def has_text(line: Line) -> bool:
    """Return whether a line has text for an encoder."""
    return not all(map(is_blank, line))


def read_lines(
    recipe: Recipe,
    tokenizers: Tokenizers,
    lines: Sequence[Line],
    prefixes: Sequence[str] | None = None,
    first: int = 0,
    origin: str = LINES,
) -> SourceLines:
    """Return lines as a model reads them, and how their answers begin. Raises DataError.

    first: How many lines came before in `origin`, the file that faults name.
    """
    rows = [at for at, line in enumerate(lines) if has_text(line)]
    _, ids = encode_lines(recipe, tokenizers, {first + at + 1: lines[at] for at in rows}, origin)
    begun = [(prefixes[at] if prefixes else "") if ids else lines[at][0] for at in rows]
    places = [f"{origin}:{first + at + 1}" for at in rows]
    read = {side: [*map(cut_line, column, places)] for side, column in ids.items()}
    what = "the prefix of this line" if ids else "this line"
    forced = zip(tokenizers.encode(TARGET, begun), places, strict=True)
    begin = [[*cut_line(row, place, what)] for row, place in forced]
    if unknown := [
        first + at + 1 for at, ids_begun in zip(rows, begin, strict=True) if UNK in ids_begun
    ]:
        noun = "the prefix" if ids else "the line"
        write_note(
            f"{origin}: the tokenizer does not know all of {noun} of {format_lines(unknown)}"
        )
    return SourceLines(len(lines), rows, read, begin, [first + at for at in rows])


def encoded_lines(lines: Sequence[Line], encoded: Encoded, origin: str = LINES) -> SourceLines:
    """Return the sources of a split as a model reads them: `read_lines` of ids that are known."""
    rows = [at for at, line in enumerate(lines) if has_text(line)]
    places = [f"{origin}:{at + 1}" for at in rows]
    columns = {side: [ids[at] for at in rows] for side, ids in encoded.sources.items()}
    read = {side: [*map(cut_line, column, places)] for side, column in columns.items()}
    return SourceLines(len(lines), rows, read, [()] * len(rows), rows)


def answer_lines(
    models: Sequence[EncoderDecoder],
    tokenizers: Tokenizers,
    lines: SourceLines,
    decoding: Decoder,
    n_best: int = 1,
    on_batch: Callable[[float], None] = lambda share: None,
    draft: Draft | None = None,
) -> list[list[Translation]]:
    """Return the n best answers of each line by a model or an ensemble, best first; of a blank line
    empty ones.

    Their texts differ, but for draws; where there are fewer than n, empty ones without probability
    follow. on_batch, draft: see `decode_all`. Raises RunError, RunFailed.
    """
    num_hypotheses = n_best
    if n_best > 1 and not (decoding.draws or decoding.one_answer):
        # of a beam's hypotheses several may be one text: all of them are compared
        num_hypotheses = max(n_best, decoding.num_hypotheses(models))
    to_texts = partial(tokenizers.decode, TARGET)
    with oom_as_run_failed(lines.ids):
        results = decode_all(
            models,
            lines.ids,
            decoding,
            lines.prefixes,
            num_hypotheses,
            lines.numbers,
            to_texts,
            on_batch,
            draft=draft,
        )
    answers = [[Translation("", 0.0)] * n_best for _ in range(lines.count)]
    for row, hypotheses in zip(lines.rows, results, strict=True):
        texts = translations(tokenizers, hypotheses)
        texts = texts if decoding.draws else distinct(texts)[:n_best]
        # a tiny vocabulary may have fewer answers than n, too
        answers[row] = [*texts, *[Translation("", float("-inf"))] * (n_best - len(texts))]
    return answers


def translations(tokenizers: Tokenizers, hypotheses: Sequence[Hypothesis]) -> list[Translation]:
    """Return hypotheses as lines of text."""
    ended = [hypothesis.ended for hypothesis in hypotheses]
    texts = tokenizers.decode_answers(TARGET, [hypothesis.ids for hypothesis in hypotheses], ended)
    rows = zip(map(answer_line, texts), hypotheses, strict=True)
    return [Translation(text, hypothesis.score, hypothesis.ended) for text, hypothesis in rows]


def distinct(texts: Sequence[Translation]) -> list[Translation]:
    """Return the best of the translations with one text, in their order: several rows of tokens may
    be one text.
    """
    by_text: dict[str, Translation] = {}
    for translation in texts:
        by_text.setdefault(translation.text, translation)
    return [*by_text.values()]
