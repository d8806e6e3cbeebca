"""Training speed: both loops run to their end and are compared, on a few generated lines."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from benchmarks import training
from benchmarks.training import Side


@pytest.mark.slow
def test_both_loops_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, stream = tmp_path / "multi30k", random.Random(0)
    folder.mkdir()
    for split, lines in (("train", 400), ("val", 2), ("test_2016_flickr", 2)):
        for language in ("en", "de"):
            words = ("".join(stream.choices("abcdefghij", k=4)) for _ in range(8 * lines))
            text = "\n".join(" ".join(row) for row in zip(*[words] * 8, strict=True))
            (folder / f"{split}.{language}").write_text(text + "\n", encoding="utf-8")
    arguments = [
        "--data",
        str(tmp_path),
        "--models",
        "gru_attention",
        "--rounds",
        "1",
        "--steps",
        "1",
        "--precision",
        "32",
    ]
    monkeypatch.setattr(training, "WARM_UP", 1)
    monkeypatch.setattr(sys, "argv", ["training.py", *arguments])
    training.main()
    printed = capsys.readouterr().out
    assert "ours 32 to bare 32" in printed.splitlines()[-1]


def test_each_precision_is_compared_with_bare_and_with_the_first() -> None:
    ours, bare = Side("ours", "32"), Side("bare", "32")
    low, bare_low = Side("ours", "bf16-mixed"), Side("bare", "bf16-mixed")
    assert training.list_pairs(["32", "bf16-mixed"], False) == [
        (ours, bare),
        (low, bare_low),
        (low, ours),
    ]
    compiled = ours._replace(compiled=True), bare._replace(compiled=True)
    assert training.list_pairs(["32"], True) == [
        (ours, bare),
        compiled,
        (compiled[0], ours),
        (compiled[1], bare),
    ]
