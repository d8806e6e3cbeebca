"""`translate`: a filter from lines to lines.

Input is taken as it comes: what is there is translated together, so that a file goes through in
large batches and a program that writes one line and waits gets its answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from composer.atomic_io import os_errors_as_run_errors, refuse_overwriting
from composer.data.text_files import MAGIC, count_lines
from composer.errors import DataError, Fault, RunError, RunFailed, os_error_reason
from composer.formatting import format_lines, show_progress, strip_control_characters
from composer.inference.draft_runs import open_draft
from composer.inference.lines import split_source, write_note
from composer.inference.run import decoding_settings, open_run, translate_lines
from composer.inference.target_lengths import MIN_LENGTH_LIMIT
from composer.model.features import feature_settings
from composer.recipe.choices import Decoder

STDIN = "<stdin>"
BATCH_LINES = 1024
"""Lines that are sorted by length and translated together, at most."""
WATCHED_LINES = 128
"""The same where somebody watches the progress, and of lines that name files, which are larger than
text.
"""


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
    """Translate the lines of `source` (stdin) to `output` (stdout): `n_best` lines out for each
    line in, in order.

    Several runs are an ensemble, which decodes as the first one's recipe says. A blank line gives
    empty lines; where a line has fewer than `n_best` texts that differ, empty ones follow. With
    `scores` each line starts with the sum of the log-probabilities of its tokens, and a tab.
    `prefix` is a file whose lines say how the translations of the same line begin. `draft` is a
    run, which proposes tokens. At the end notes say how many answers were cut, and
    how many tokens of a draft were accepted. Raises RunError, RecipeError and DataError; what was
    read before a line at fault has been translated.
    """
    models = [
        open_run(path, overrides if at == 0 else (), checkpoint) for at, path in enumerate(runs)
    ]
    decoding, sides = decoding_settings(models[0].recipe, beam), models[0].recipe.sources
    proposing = None if draft is None else open_draft(draft, models, decoding)
    inputs = [source, prefix] if prefix else [source]
    names, count, cut = [str(path or STDIN) for path in inputs], 0, list[int]()
    with ExitStack() as files:
        streams = [open_input(path, files) for path in inputs]
        write = files.enter_context(open_output(output, *inputs)) if output else unbuffered_stdout()
        shows_progress = not write.isatty() and sys.stderr.isatty()
        total = (
            count_lines(Path(source))
            if shows_progress and source and Path(source).is_file()
            else None
        )
        progress = (
            show_progress("translating", total)
            if shows_progress
            else nullcontext(lambda count: None)
        )
        advance = files.enter_context(progress)
        if not source and sys.stdin.isatty():
            write_note("type a line and Enter to translate it; Ctrl-D ends")
        names_files = any(feature_settings(models[0].recipe.data, side) for side in sides)
        size = WATCHED_LINES if shows_progress or names_files else BATCH_LINES
        for texts, *forced in read_columns(streams, names, size):
            begun = forced[0] if forced else None
            lines = [
                split_source(text, sides, count + at, names[0])
                for at, text in enumerate(texts, start=1)
            ]
            results = translate_lines(
                models, lines, decoding, begun, n_best, count, names[0], draft=proposing
            )
            cut += [count + at for at, row in enumerate(results, start=1) if not row[0].ended]
            best = [hypothesis for row in results for hypothesis in row]
            outputs = "".join(
                f"{score:.4f}\t{text}\n" if scores else f"{text}\n" for text, score, _ in best
            )
            # a file or a pipe gets every byte, a terminal nothing that it would obey
            write_all(write, strip_control_characters(outputs) if write.isatty() else outputs)
            count += len(texts)
            advance(len(texts))
    if cut:
        write_note(describe_cut(cut, count, decoding))
    if proposing:
        write_note(str(proposing))
    if shows_progress and output:
        write_note(f"wrote {output}")


def describe_cut(cut: Sequence[int], count: int, decoding: Decoder) -> str:
    """Return which of `count` answers were cut, and the settings that allow longer ones."""
    limits = f"`decoding.{decoding.word}.max_length` (now {decoding.max_length:g})"
    if decoding.max_length > MIN_LENGTH_LIMIT:  # a ratio never allows fewer tokens than these
        limits += f" or `decoding.{decoding.word}.max_ratio` (now {decoding.max_ratio:g})"
    verb = "was" if len(cut) == 1 else "were"
    return (
        f"{len(cut):,} of {count:,} answers {verb} cut at the maximum length, {format_lines(cut)}:"
        f" raise {limits}"
    )


def read_columns(
    streams: Sequence[BinaryIO], names: Sequence[str], size: int
) -> Iterator[list[list[str]]]:
    """Yield the lines of aligned files, a list for each, as many at a time as the first one has,
    `size` at most.

    Raises DataError for a line that is not UTF-8, once those before it are taken, and for a file of
    another length.
    """
    (first, *others), count = streams, 0
    for chunk in read_chunks(first, size):
        texts, fault = decode_utf8(chunk, names[0], count)
        columns = [texts]
        for other, name in zip(others, names[1:], strict=True):
            raw = [line.removesuffix(b"\n") for line in islice(other, len(texts))]
            own, own_fault = decode_utf8(raw, name, count)
            if own_fault:
                raise DataError([own_fault])
            if len(own) < len(texts):
                raise line_count_error(
                    name, "this file ends before the text does", count + len(own)
                )
            columns.append(own)
        yield columns
        if fault:
            raise DataError([fault])
        count += len(chunk)
    for other, name in zip(others, names[1:], strict=True):
        if other.readline():
            raise line_count_error(
                name, f"this file has more lines than the {count:,} of {names[0]}", count + 1
            )


def read_chunks(stream: BinaryIO, size: int) -> Iterator[list[bytes]]:
    """Yield the lines of a stream without line breaks, as many at a time as are available, `size`
    at most.
    """
    # `read1` returns what is there already; `read` of a stream without a buffer does so too
    read = getattr(stream, "read1", stream.read)
    begun: list[bytes] = []  # of the line that has not ended, joined once
    while block := read(1 << 16):
        *complete, rest = block.split(b"\n")
        if complete:
            complete[0], begun = b"".join([*begun, complete[0]]), []
        begun.append(rest)
        for at in range(0, len(complete), size):
            yield complete[at : at + size]
    if line := b"".join(begun):
        yield [line]


def decode_utf8(chunk: Sequence[bytes], name: str, before: int) -> tuple[list[str], Fault | None]:
    """Return the texts of lines up to the first that is not UTF-8, and its fault."""
    texts: list[str] = []
    for number, raw in enumerate(chunk, start=before + 1):
        line = raw.removesuffix(b"\r")
        try:
            texts.append(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            at, column = (
                error.start,
                len(error.object[: error.start].decode("utf-8", "replace")) + 1,
            )
            place = f"line {number}, byte {at + 1} of the line: 0x{error.object[at]:02x}"
            latin = ("", "convert it, with `iconv -f ISO-8859-1 -t UTF-8` if it is Latin-1")
            known = (text for magic, text in MAGIC.items() if number == 1 and raw.startswith(magic))
            kind, hint = next(known, latin)
            message = f"this is not UTF-8 at {place}{kind and f'; {kind}'}"
            return texts, Fault(name, number, column, "encoding", "", message, hint)
    return texts, None


def line_count_error(name: str, message: str, line: int) -> DataError:
    """Return the error of a file that has not as many lines as the first."""
    hint = "give every line of the input one line here, empty where nothing is forced"
    return DataError([Fault(name, max(1, line), 1, "lines", "", message, hint)])


def write_all(output: BinaryIO, text: str) -> None:
    """Write all of it now. Raises RunFailed if the disk is full."""
    content = text.encode()
    try:
        while content:
            content = content[output.write(content) :]
        output.flush()
    except BrokenPipeError:  # the reader has left, which `main` answers without a message
        raise
    except OSError as error:
        message = f"the translations cannot be written: {os_error_reason(error)}"
        raise RunFailed.of(message, "make room, or name another file with `--output F`") from None


def unbuffered_stdout() -> BinaryIO:
    """Return stdout without its buffer: what a full disk did not take must not come back at the
    end.
    """
    sys.stdout.flush()
    return getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)


def open_input(path: str | Path | None, files: ExitStack) -> BinaryIO:
    """Open a file to read, which `files` closes; None is stdin. Raises RunError."""
    if path is None:
        return sys.stdin.buffer
    try:
        return files.enter_context(Path(path).open("rb"))
    except IsADirectoryError:
        fix = "name a file of lines; several runs are for `translate`: an ensemble"
        raise RunError.of("this is a folder, and lines are read here", fix, str(path)) from None
    except OSError as error:
        raise RunError.of(
            f"this file cannot be read: {os_error_reason(error)}", "check its name", str(path)
        ) from None


def open_output(path: str | Path, *inputs: str | Path | None) -> BinaryIO:
    """Open a file to write, which is not one of the inputs. Raises RunError."""
    for path_read in inputs:
        if path_read and Path(path).exists() and Path(path).samefile(path_read):
            raise RunError.of(
                "this file is being read", "write to another one with `--output F`", str(path)
            )
    with os_errors_as_run_errors(path, "this file cannot be written", "name another"):
        refuse_overwriting(Path(path), "--output")
        return open(path, "wb", buffering=0)  # the caller closes it
