"""`report`: one page of a run, for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from composer.errors import RunError
from composer.report.contents import contents
from composer.report.findings import Asked, Say, find
from composer.training.run_folder import RunFolder
from composer.training.whole import write_whole

NAME = "report.html"
BEGINNING = b"<!DOCTYPE html>"


def report(
    run: str | Path,
    split: str | None = None,
    data: str | Path | None = None,
    sentences: Sequence[str] = (),
    output: str | Path | None = None,
    say: Say = lambda text: None,
) -> Path:
    """Writes the page of a run, `report.html` in its folder, and returns where it is. The run need not have finished.

    `split` is the part of the data that is translated: the test part, or else the validation part. The alignments of
    `sentences` are drawn, or those of a few of the data. `say` is told how far it has come. Raises RunError,
    RecipeError and DataError.
    """
    folder = RunFolder(Path(run))
    folder.read()
    file = Path(output) if output else folder.path / NAME
    must_be_free(file)
    found = find(folder, Asked(split, Path(data) if data is not None else None, sentences), say)
    for note in found.notes:
        say(note)
    try:
        write_whole(file, contents(found).encode())
    except OSError as error:
        raise cannot_write(file, error.strerror or str(error)) from None
    return file


def must_be_free(file: Path) -> None:
    """Raises RunError where a page cannot be written; what is there may only be a page."""
    if not file.parent.is_dir():
        raise cannot_write(file, "its folder is not there")
    try:
        is_page = not file.exists() or (file.is_file() and file.read_bytes()[: len(BEGINNING)] == BEGINNING)
    except OSError as error:
        raise cannot_write(file, error.strerror or str(error)) from None
    if not is_page:
        raise cannot_write(file, "what is there is no report, and would be lost")


def cannot_write(file: Path, why: str) -> RunError:
    """That a page cannot be written, in words."""
    return RunError.of(f"the report cannot be written: {why}", "name another file with `--output FILE`", str(file))
