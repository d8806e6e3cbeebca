"""`report`: one page of a run, for people."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from composer.run_dir import RunDir
from composer.viz.collect import Asked, Say, find
from composer.viz.page import must_be_free, write_html
from composer.viz.report_sections import contents

NAME = "report.html"


def report(
    run: str | PathLike[str],
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
    folder = RunDir(Path(run))
    folder.read()
    file = Path(output) if output else folder.path / NAME
    must_be_free(file, "report")
    found = find(folder, Asked(split, Path(data) if data is not None else None, sentences), say)
    for note in found.notes:
        say(note)
    return write_html(file, "report", contents(found))
