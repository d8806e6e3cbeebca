"""The file of decoded lines is checked before anything is decoded."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.atomic_io import check_output
from composer.errors import RunError


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    check_output(tmp_path / "new.jsonl", "--hypotheses")
    for name, reason in ((".", "this is a folder"), ("none/new.jsonl", "there is no folder")):
        with pytest.raises(
            RunError, match=rf"{reason}(.|\n)*name another file with `--hypotheses`"
        ):
            check_output(tmp_path / name, "--hypotheses")
