"""Every script of verify/ runs on a small budget and finds no fault."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from verify import fingerprints, guards, kills, random_stacks, unchanged, whole_runs

CHECKOUT = str(Path(__file__).parents[2])


def words_of(folder: Path) -> list[str]:
    """Return the outcomes in the journal of random cases."""
    rows = (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(row)["word"] for row in rows]


def test_random_stacks(tmp_path: Path) -> None:
    assert random_stacks.main(["--count", "3", "--folder", str(tmp_path)]) == 0
    assert len(words_of(tmp_path)) == 3
    assert set(words_of(tmp_path)) <= {"accepted", "refused"}


@pytest.mark.slow
def test_whole_runs(tmp_path: Path) -> None:
    assert whole_runs.main(["--count", "1", "--folder", str(tmp_path)]) == 0
    assert words_of(tmp_path)[-1] == "whole"


@pytest.mark.slow
def test_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--rounds", "1", "--kills", "1", "--folder", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["kills", *arguments])
    with pytest.raises(SystemExit) as end:
        kills.main()
    assert not end.value.code
    assert re.search(r"round 0: .*identical", capsys.readouterr().out)


@pytest.mark.slow
def test_unchanged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["unchanged", CHECKOUT, CHECKOUT, "--quick"])
    with pytest.raises(SystemExit) as end:
        unchanged.main()
    assert not end.value.code
    counts = re.findall(r": (\d+) of (\d+) are identical", capsys.readouterr().out)
    assert len(counts) > 2
    assert all(same == total != "0" for same, total in counts)


@pytest.mark.slow
def test_fingerprints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["fingerprints", CHECKOUT, CHECKOUT])
    fingerprints.main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| recipes")]
    assert rows
    assert all(re.search(r"`\w{16}` \| the same \|$", row) for row in rows)


@pytest.mark.slow
def test_guards(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["guards", CHECKOUT])
    guards.main()
    counts = [int(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
    assert len(counts) > len(guards.ROWS)
    assert min(counts) > 0
