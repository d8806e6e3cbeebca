"""`translate`: a filter from lines to lines.

Input is taken as it comes: what is there is translated together, so that a file goes through in large batches and a
program that writes one line and waits gets its answer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from composer.errors import DataError, Fault, RunError, RunFailed, os_error_reason
from composer.inference.run import Decoding, Run, Translation, decoding_settings, open_run, translate_lines

BLOCK_BYTES = 1 << 16
"""Bytes that are read at once."""
BATCH_LINES = 1024
"""Lines that are sorted by length and translated together, at most."""


class Job(NamedTuple):
    """What is done with every line."""

    runs: Sequence[Run]
    decoding: Decoding
    n_best: int
    scores: bool


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
) -> None:
    """Translate the lines of `source` (stdin) to `output` (stdout): `n_best` lines out for each line in, in order.

    Several runs are an ensemble, which decodes as the first one's recipe says. A blank line gives empty lines. With
    `scores` each line starts with the sum of the log-probabilities of its tokens, and a tab. `prefix` is a file whose
    lines say how the translations of the same line begin. Raises RunError, RecipeError and DataError; what is before a
    line at fault has been translated.
    """
    opened = [open_run(path, overrides if at == 0 else ()) for at, path in enumerate(runs)]
    work = Job(opened, decoding_settings(opened[0].recipe, beam), n_best, scores)
    with ExitStack() as files:
        begun = files.enter_context(open_input(prefix)) if prefix else None
        read = files.enter_context(open_input(source)) if source else sys.stdin.buffer
        write = files.enter_context(open_output(output, source, prefix)) if output else unbuffered_stdout()
        if not source and sys.stdin.isatty():
            print_status("type a line and Enter to translate it; Ctrl-D ends\n")
        translate_stream(
            work, Stream(read, str(source or "<stdin>")), Stream(begun, str(prefix)) if begun else None, write
        )
        if not write.isatty() and sys.stderr.isatty():
            print_status(f"\r\x1b[Kwrote {output}\n" if output else "\r\x1b[K")


class Stream(NamedTuple):
    """A stream of lines, and what it is called in a fault."""

    stream: BinaryIO
    name: str


def translate_stream(work: Job, lines: Stream, prefixes: Stream | None, output: BinaryIO) -> None:
    """Translate all lines, as many at a time as are available."""
    count = 0
    for chunk in read_chunks(lines.stream):
        good, fault = decode_utf8(chunk, lines.name, count)
        begun = read_prefixes(prefixes, len(good), count) if prefixes else None
        results = translate_lines(work.runs, good, work.decoding, begun, work.n_best, count, lines.name)
        write_all(output, b"".join(format_line(best, work.scores) for row in results for best in row))
        count += len(chunk)
        if not output.isatty() and sys.stderr.isatty():
            print_status(f"\r{count:,} lines translated")
        if fault:
            raise DataError([fault])
    if prefixes and prefixes.stream.readline():
        raise line_count_error(prefixes, f"this file has more lines than the {count:,} of {lines.name}", count + 1)


def read_chunks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Yield the lines of a stream without line breaks, as many at a time as are available."""
    rest = b""
    while block := read_available(stream):
        *complete, rest = (rest + block).split(b"\n")
        for at in range(0, len(complete), BATCH_LINES):
            yield complete[at : at + BATCH_LINES]
    if rest:
        yield [rest]


def read_available(stream: BinaryIO) -> bytes:
    """Return what can be read without waiting, waiting only if there is nothing; b"" at the end."""
    read1 = getattr(stream, "read1", stream.read)  # a stream that is not buffered has no `read1`
    block: bytes = read1(BLOCK_BYTES)
    return block


def decode_utf8(chunk: Sequence[bytes], name: str, before: int) -> tuple[list[str], Fault | None]:
    """Return the texts of lines up to the first that is not UTF-8, and its fault."""
    texts: list[str] = []
    for number, raw in enumerate(chunk, start=before + 1):
        line = raw.removesuffix(b"\r")
        try:
            texts.append(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            return texts, utf8_fault(name, number, error)
    return texts, None


def utf8_fault(name: str, line: int, error: UnicodeDecodeError) -> Fault:
    """Return the fault for a line that is not UTF-8, with the byte where it stops."""
    byte, column = error.object[error.start], len(error.object[: error.start].decode("utf-8", "replace")) + 1
    message = f"this is not UTF-8 at line {line}, byte {error.start + 1} of the line: 0x{byte:02x}"
    hint = "convert it, with `iconv -f ISO-8859-1 -t UTF-8` if it is Latin-1"
    return Fault(name, line, column, "encoding", "", message, hint)


def print_status(text: str) -> None:
    """Print to stderr, for the person at the terminal."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def read_prefixes(prefixes: Stream, count: int, before: int) -> list[str]:
    """Return the next lines of the file of prefixes. Raises DataError."""
    raw = [line.removesuffix(b"\n") for line in islice(prefixes.stream, count)]
    texts, fault = decode_utf8(raw, prefixes.name, before)
    if fault:
        raise DataError([fault])
    if len(texts) < count:
        raise line_count_error(prefixes, "this file ends before the text does", before + len(texts))
    return texts


def line_count_error(prefixes: Stream, message: str, line: int) -> DataError:
    """Return the error for prefixes that are not as many as the lines."""
    hint = "give every line of the input one line here, empty where nothing is forced"
    return DataError([Fault(prefixes.name, max(1, line), 1, "lines", "", message, hint)])


def format_line(translation: Translation, scores: bool) -> bytes:
    """Return one line of the output."""
    score = f"{translation.score:.4f}\t" if scores else ""
    return f"{score}{translation.text}\n".encode()


def write_all(output: BinaryIO, content: bytes) -> None:
    """Write all of it now. Raises RunFailed if the disk is full."""
    try:
        while content:
            content = content[output.write(content) :]
        output.flush()
    except BrokenPipeError:  # whoever reads has left
        raise
    except OSError as error:
        raise RunFailed.of(
            f"the translations cannot be written: {os_error_reason(error)}",
            "make room, or name another file with `--output F`",
        ) from None


# ------------------------------------------------------------------------------------------- files


def unbuffered_stdout() -> BinaryIO:
    """Return stdout without its buffer: what a full disk did not take must not come back at the end."""
    sys.stdout.flush()
    raw: BinaryIO = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
    return raw


def open_input(path: str | Path) -> BinaryIO:
    """Open a file to read. Raises RunError."""
    try:
        return Path(path).open("rb")
    except OSError as error:
        raise RunError.of(f"this file cannot be read: {os_error_reason(error)}", "check its name", str(path)) from None


def open_output(path: str | Path, *inputs: str | Path | None) -> BinaryIO:
    """Open a file to write, which is not one of the inputs. Raises RunError."""
    for path_read in inputs:
        if path_read and Path(path).exists() and Path(path).samefile(path_read):
            raise RunError.of("this file is being read", "write to another one with `--output F`", str(path))
    try:
        return Path(path).open("wb", buffering=0)
    except OSError as error:
        raise RunError.of(f"this file cannot be written: {os_error_reason(error)}", "name another", str(path)) from None
