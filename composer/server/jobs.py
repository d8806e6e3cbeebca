"""Requests as work for the models, checked before they wait."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import chain
from time import monotonic

from composer.data.encoding import MAX_TOKENS
from composer.data.pairs import TARGET
from composer.formatting import count_noun
from composer.inference.answers import Translation, has_text
from composer.inference.generate import encode_prompts, generation_settings, write_texts
from composer.inference.lines import (
    LINES,
    GivenLine,
    check_lines,
    check_positions,
    encode_lines,
)
from composer.inference.methods import Beam, Greedy, Viterbi
from composer.inference.run import Run, decoding_settings, translate_lines
from composer.recipe.choices import Decoder
from composer.server.refusals import Refused
from composer.server.requests import GenerateBody, TranslateBody

Answers = list[list[Translation]]
"""The n best answers of each line."""


class Dropped(Exception):
    """Ends a text that nobody waits for."""


@dataclass(eq=False)
class Job:
    """Lines of a request that wait for their answers.

    arrived: When it began to wait. is_dropped: True if nobody waits for it any more.
    """

    run: Run
    lines: Sequence[GivenLine]
    decoding: Decoder
    prefixes: Sequence[str] | None = None
    answers: Future[Answers] = field(default_factory=Future, init=False)
    arrived: float = field(default_factory=monotonic, init=False)
    is_dropped: bool = field(default=False, init=False)

    @property
    def batch(self) -> Hashable | None:
        """What jobs of one batch have in common; None of a job that is decoded alone."""
        return None

    def decode(self, batch: Sequence[Job]) -> Answers:
        """Return the answers of all lines of a batch, of which this is the first job."""
        raise NotImplementedError


@dataclass(eq=False)
class Translating(Job):
    """Lines to translate."""

    beam: int | None = None
    n_best: int = 1

    @classmethod
    def of(cls, run: Run, body: TranslateBody) -> Translating:
        """Return the work of a request. Raises Refused and ComposerError for its mistakes."""
        decoding = decoding_settings(run.recipe, body.beam)
        check_n_best(decoding, body.n_best)
        check_lengths(run, body.lines, body.prefixes)
        return cls(run, body.lines, decoding, body.prefixes, body.beam, body.n_best)

    @property
    def batch(self) -> Hashable | None:
        if not isinstance(self.decoding, Greedy | Beam | Viterbi):
            return None  # the numbers that it draws depend on a line's place
        return id(self.run), self.beam, self.n_best, self.prefixes is None

    def decode(self, batch: Sequence[Job]) -> Answers:
        lines = [line for job in batch for line in job.lines]
        prefixes = [prefix for job in batch for prefix in job.prefixes or ()]
        begun = None if self.prefixes is None else prefixes
        return translate_lines([self.run], lines, self.decoding, begun, self.n_best)


def check_n_best(decoding: Decoder, n_best: int) -> None:
    """Raise Refused if a method finds fewer answers of a line than are asked for."""
    most = n_best
    if isinstance(decoding, Beam):
        most = decoding.size
    elif decoding.one_answer:
        most = 1
    if n_best > most:
        finds = f"a beam of {most}" if isinstance(decoding, Beam) else f"`{decoding.word}`"
        message = f"{finds} finds {count_noun(most, 'answer')}, and {n_best} are asked for"
        raise Refused(422, "n_best", message, f'send `"beam": {n_best}`')


def check_lengths(run: Run, lines: Sequence[GivenLine], prefixes: Sequence[str] | None) -> None:
    """Raise Refused for a line that would be cut, and ComposerError for another mistake."""
    texts, begun = check_lines(run.recipe, lines, prefixes, "prefixes")
    numbered = {number: line for number, line in enumerate(texts, start=1) if has_text(line)}
    _, ids = encode_lines(run.recipe, run.tokenizers, numbered)
    targets = begun or [] if ids else [line[0] for line in texts]
    begun_ids = run.tokenizers.encode_beginnings(TARGET, targets)
    rows = chain(begun_ids, *ids.values())
    if (longest := max(map(len, rows), default=0)) > MAX_TOKENS:
        message = f"a line has {longest:,} tokens, and {MAX_TOKENS:,} are read"
        raise Refused(413, "size", message, "split it")
    if not ids:
        numbers = range(1, len(texts) + 1)
        numbered_ids = dict(zip(numbers, begun_ids, strict=True))
        check_positions(run.model.max_positions, numbered_ids, LINES)


@dataclass(eq=False)
class Writing(Job):
    """A text to continue, of which pieces are written as they come."""

    ids: Sequence[int] = ()
    write: Callable[[str], None] = lambda piece: None

    @classmethod
    def of(cls, run: Run, body: GenerateBody, write: Callable[[str], None]) -> Writing:
        """Return the work of a request. Raises Refused and ComposerError for its mistakes."""
        if run.recipe.sources:
            message = "this model answers a source, and continues no text"
            raise Refused(422, "model", message, "post its lines to /v1/translate")
        names = {"temperature", "top_k", "top_p", "seed"}
        sampling = body.model_dump(include=names, exclude_none=True)
        decoding = generation_settings(run.recipe, sampling, max_length=body.max_length)
        prompts = None if body.prompt is None else [body.prompt]
        (ids,) = encode_prompts(run, prompts)
        return cls(run, [body.prompt or ""], decoding, ids=ids, write=write)

    def decode(self, batch: Sequence[Job]) -> Answers:
        return [write_texts(self.run, [[*self.ids]], self.decoding, self._write)]

    def _write(self, _: int, piece: str) -> None:
        if self.is_dropped:
            raise Dropped
        self.write(piece)
