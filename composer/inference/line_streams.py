"""Streams of lines: stdin, stdout and files, read as lines arrive and written at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from composer.atomic_io import os_errors_as_run_errors, refuse_overwriting
from composer.data.text_files import LATIN_HINT, magic_kind
from composer.errors import DataError, Fault, RunError, RunFailed, os_error_reason

STDIN = "<stdin>"
BATCH_LINES = 1024
"""Maximum lines that are sorted by length and decoded together."""


def read_columns(
    streams: Sequence[BinaryIO], names: Sequence[str], size: int
) -> Iterator[list[list[str]]]:
    """Yield lines of aligned files, a list for each: those the first one has now, at most `size`.

    Raises DataError for a line that is not UTF-8, after yielding those before it, and for a file of
    another length.
    """
    first, *others = [*zip(streams, names, strict=True)]
    count = 0
    for chunk in read_chunks(first[0], size):
        texts, fault = decode_utf8(chunk, first[1], count)
        columns = [texts]
        for stream, name in others:
            raw = [line.removesuffix(b"\n") for line in islice(stream, len(texts))]
            other_texts, other_fault = decode_utf8(raw, name, count)
            if other_fault:
                raise DataError([other_fault])
            if len(other_texts) < len(texts):
                message = "this file ends before the text does"
                raise line_count_error(name, message, count + len(other_texts))
            columns.append(other_texts)
        yield columns
        if fault:
            raise DataError([fault])
        count += len(chunk)
    for stream, name in others:
        if stream.readline():
            message = f"this file has more lines than the {count:,} of {first[1]}"
            raise line_count_error(name, message, count + 1)


def read_chunks(stream: BinaryIO, size: int) -> Iterator[list[bytes]]:
    """Yield the lines that a stream has now, at most `size` at a time, without line breaks."""
    # `read1` returns the bytes that are there; so does `read` of a stream without a buffer
    read = getattr(stream, "read1", stream.read)
    begun: list[bytes] = []  # parts of the line that has not ended, joined once
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
    """Decode lines up to the first that is not UTF-8; return them and its fault."""
    texts: list[str] = []
    for number, raw in enumerate(chunk, start=before + 1):
        line = raw.removesuffix(b"\r")
        try:
            texts.append(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError as error:
            return texts, encoding_fault(error, name, number, raw)
    return texts, None


def encoding_fault(error: UnicodeDecodeError, name: str, number: int, raw: bytes) -> Fault:
    """Return the fault of a line that is not UTF-8; the first line may show the kind of file."""
    known = magic_kind(raw) if number == 1 else None
    kind, hint = known or ("", LATIN_HINT)
    byte, column = error.start, len(error.object[: error.start].decode("utf-8", "replace")) + 1
    place = f"line {number}, byte {byte + 1} of the line: 0x{error.object[byte]:02x}"
    message = f"this is not UTF-8 at {place}{kind and f'; {kind}'}"
    return Fault(name, number, column, "encoding", "", message, hint)


def line_count_error(name: str, message: str, line: int) -> DataError:
    """Return the error of a file that has more or fewer lines than the first."""
    hint = "give every line of the input one line here, empty where nothing is forced"
    return DataError([Fault(name, max(1, line), 1, "lines", "", message, hint)])


def write_all(output: BinaryIO, text: str) -> None:
    """Write a whole text now. Raises RunFailed if the disk is full."""
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
    """Return stdout without its buffer, which would write again at exit after a full disk."""
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
        message = f"this file cannot be read: {os_error_reason(error)}"
        raise RunError.of(message, "check its name", str(path)) from None


def open_output(path: str | Path, *inputs: str | Path | None) -> BinaryIO:
    """Open a file to write, unless it is one of the inputs. Raises RunError."""
    for path_read in inputs:
        if path_read and Path(path).exists() and Path(path).samefile(path_read):
            fix = "write to another one with `--output F`"
            raise RunError.of("this file is being read", fix, str(path))
    with os_errors_as_run_errors(path, "this file cannot be written", "name another"):
        refuse_overwriting(Path(path), "--output")
        return open(path, "wb", buffering=0)  # the caller closes it
