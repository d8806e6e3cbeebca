"""metrics.jsonl on a disk that is full, and after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from composer.run_dir import read_metrics
from composer.training.loggers import JsonLinesWriter

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no device that is always full")
def test_a_full_disk_raises_once() -> None:
    log = JsonLinesWriter(FULL)
    with pytest.raises(OSError, match="No space left"):
        log.write({"step": 1})
    log.close()  # nothing is left that would have to be written now


def test_damaged_rows_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    whole = [
        {"step": 1, "epoch": 0.5},
        {"step": 2, "epoch": 1, "a\u2028b": 1.0},
        {"step": 9, "epoch": 2},
    ]
    log = JsonLinesWriter(path)
    for row in whole:
        log.write(row)
    log.close()
    path.write_bytes(b'{"step": 1, "\xff\n' + path.read_bytes() + b'[1]\n{"step": 10, "a"')
    assert read_metrics(path) == whole
    JsonLinesWriter(path, after=2).close()
    assert read_metrics(path) == whole[:2]
    assert path.read_bytes().count(b"\n") == 2


def test_final_scores_are_recomputed_on_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = JsonLinesWriter(path)
    for row in ({"step": 2, "epoch": 1, "val/loss": 0.5}, {"step": 2, "test/loss": 0.25}):
        log.write(row)
    log.close()
    JsonLinesWriter(path, after=2).close()
    assert [row["step"] for row in read_metrics(path)] == [2]
