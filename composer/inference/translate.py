"""`translate`: a filter from lines to lines.

Lines that are available are translated together, so that a file goes through in large batches
and a program that writes one line and waits gets its answer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from composer.data.text_files import count_lines
from composer.errors import DataError
from composer.formatting import format_lines, show_progress, strip_control_characters
from composer.inference.answers import Translation
from composer.inference.draft_runs import open_draft
from composer.inference.drafts import Draft
from composer.inference.line_streams import (
    BATCH_LINES,
    STDIN,
    open_input,
    open_output,
    read_columns,
    unbuffered_stdout,
    write_all,
)
from composer.inference.lines import split_source, write_note
from composer.inference.run import (
    Run,
    continued_positions,
    decoding_settings,
    open_run,
    translate_lines,
)
from composer.inference.target_lengths import MIN_LENGTH_LIMIT
from composer.model.features import feature_settings
from composer.recipe.choices import Decoder
from composer.recipe.recipe import Recipe

WATCHED_LINES = 128
"""Maximum lines translated together while progress is shown, or if lines name files."""


def translate(
    runs: Sequence[str | Path],
    overrides: Sequence[str] = (),
    *,
    beam: int | None = None,
    n_best: int = 1,
    scores: bool = False,
    prefix: str | Path | None = None,
    source: str | Path | None = None,
    output: str | Path | None = None,
    checkpoint: str | int | None = None,
    draft: str | Path | None = None,
) -> None:
    """Translate the lines of `source` (stdin) to `output` (stdout), in order.

    Notes on stderr count the answers that were cut, and the tokens of a draft that were accepted.

    Args:
        runs: Folders of runs; several are an ensemble, which decodes as the first one's recipe.
        overrides: `key=value` settings of the first run.
        beam: The size of a beam, in place of the recipe's decoding.
        n_best: Lines written for each line read. Their texts differ; empty ones follow where a
            line has fewer, and for a blank line.
        scores: True to begin each line with the sum of its tokens' log-probabilities, and a tab.
        prefix: A file whose lines are forced beginnings of the translations.
        source: The file to read, by default stdin.
        output: The file to write, by default stdout.
        checkpoint: `last`, `best` or a step, in place of the final weights.
        draft: A run that proposes tokens.

    Raises RunError, RecipeError and DataError; lines before a line at fault have been translated.
    """
    opened = [open_run(runs[0], overrides, checkpoint)]
    opened += [open_run(path, checkpoint=checkpoint) for path in runs[1:]]
    recipe = opened[0].recipe
    decoding = decoding_settings(recipe, beam)
    drafting = None if draft is None else open_draft(draft, opened, decoding)
    inputs = [source, prefix] if prefix else [source]
    names = [str(path or STDIN) for path in inputs]
    count, cut = 0, list[int]()
    with ExitStack() as files:
        streams = [open_input(path, files) for path in inputs]
        write = files.enter_context(open_output(output, *inputs)) if output else unbuffered_stdout()
        is_watched = not write.isatty() and sys.stderr.isatty()
        advance = open_progress(source, files) if is_watched else None
        if not source and sys.stdin.isatty():
            write_note("type a line and Enter to translate it; Ctrl-D ends")
        size = WATCHED_LINES if is_watched or reads_files(recipe) else BATCH_LINES
        for texts, *prefixes in read_columns(streams, names, size):
            block = Block(texts, prefixes[0] if prefixes else None, count, names[0])
            rows, error = translate_block(opened, block, decoding, n_best, drafting)
            outputs = format_translations(rows, scores)
            # a file or a pipe gets every byte; a terminal would obey control characters
            write_all(write, strip_control_characters(outputs) if write.isatty() else outputs)
            if error:
                raise error
            cut += [at for at, row in enumerate(rows, start=count + 1) if not row[0].ended]
            count += len(texts)
            if advance:
                advance(len(texts))
    if cut:
        write_note(describe_cut(cut, count, decoding, continued_positions(opened)))
    if drafting:
        write_note(str(drafting))
    if is_watched and output:
        write_note(f"wrote {output}")


class Block(NamedTuple):
    """Lines that are translated together, and the prefixes of their translations.

    first: Lines before them in the file `origin`.
    """

    lines: Sequence[str]
    prefixes: Sequence[str] | None
    first: int
    origin: str

    def before(self, error: DataError) -> Block:
        """Return the lines before the first one at fault; none where the error names no line."""
        places = [
            fault.line - self.first - 1 for fault in error.faults if fault.file == self.origin
        ]
        good = slice(max(0, min([*places, len(self.lines) - 1])) if places else 0)
        return self._replace(lines=self.lines[good], prefixes=self.prefixes and self.prefixes[good])


def translate_block(
    runs: Sequence[Run], block: Block, decoding: Decoder, n_best: int, draft: Draft | None
) -> tuple[list[list[Translation]], DataError | None]:
    """Return the translations of the lines before the first one at fault, and its error."""
    sides, error = runs[0].recipe.sources, None
    while True:
        try:
            lines = [
                split_source(text, sides, number, block.origin)
                for number, text in enumerate(block.lines, start=block.first + 1)
            ]
            rows = translate_lines(
                runs, lines, decoding, block.prefixes, n_best, block.first, block.origin, draft
            )
        except DataError as caught:
            if not block.lines:
                raise
            error, block = caught, block.before(caught)
        else:
            return rows, error


def open_progress(source: str | Path | None, files: ExitStack) -> Callable[[int], None]:
    """Return a function that shows translated lines on stderr, until `files` closes."""
    total = None
    if source is not None and Path(source).is_file():
        total = count_lines(Path(source))
    return files.enter_context(show_progress("translating", total))


def reads_files(recipe: Recipe) -> bool:
    """True if a line names a file for one of the encoders."""
    return any(feature_settings(recipe.data, side) for side in recipe.sources)


def format_translations(rows: Sequence[Sequence[Translation]], scores: bool) -> str:
    """Return a line for each translation, with its score and a tab if `scores`."""
    lines = []
    for row in rows:
        for translation in row:
            score = f"{translation.score:.4f}\t" if scores else ""
            lines.append(f"{score}{translation.text}\n")
    return "".join(lines)


def describe_cut(
    cut: Sequence[int], count: int, decoding: Decoder, positions: int | None = None
) -> str:
    """Return a note on the answers that were cut, with the settings that allow longer ones.

    positions: Those of a language model, beyond which it writes nothing.
    """
    limits = f"`decoding.{decoding.word}.max_length` (now {decoding.max_length:g})"
    if decoding.max_length > MIN_LENGTH_LIMIT:  # a ratio never allows fewer tokens than these
        limits += f" or `decoding.{decoding.word}.max_ratio` (now {decoding.max_ratio:g})"
    verb = "was" if len(cut) == 1 else "were"
    answers = f"{len(cut):,} of {count:,} answers {verb} cut at the maximum length"
    fix = f"raise {limits}"
    if positions is not None:
        has = f"this model has {positions:,} positions"
        fix = f"{has}: shorten them" if positions <= decoding.max_length else f"{fix}; {has}"
    return f"{answers}, {format_lines(cut)}: {fix}"
