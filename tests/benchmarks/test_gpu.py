"""The benchmark of a GPU: every part runs on a CPU at tiny sizes; a crash is a line, and a journal
goes on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import CRASHED, FAILED, LATE, MISSING, OK, PARTS, Outcome, Row, Settings
from benchmarks.gpu.__main__ import main, parse_arguments
from benchmarks.gpu.compare import describe_faults
from benchmarks.gpu.journal import Journal, describe_part, run_case, serve, table
from verify.worker import WorkerDied

LIBRARIES = ("transformers", "ctranslate2")


class StandIn:
    """A worker whose answers are known."""

    def __init__(self, *answers: Outcome | None) -> None:
        self.answers, self.starts, self.hang_seconds = list(answers), 0, 0.0

    def run(self, case: Any) -> Outcome:
        answer = self.answers.pop(0)
        if answer is None:
            raise WorkerDied("the process ended with -11")
        return answer

    def start(self) -> None:
        self.starts += 1

    def end(self) -> None:
        pass


def test_every_part_is_a_file_with_a_line_that_says_what_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path(__file__).parents[2] / "benchmarks" / "gpu" / "parts"
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(PARTS)
    with pytest.raises(SystemExit):
        parse_arguments(["--help"])
    text = capsys.readouterr().out
    assert all(describe_part(part) in text for part in PARTS)


def test_a_crash_is_a_line_and_a_journal_goes_on(tmp_path: Path) -> None:
    journal, worker = (
        Journal(tmp_path / "journal.jsonl"),
        StandIn(None, Outcome(OK), Outcome(FAILED, "CUDA error: x")),
    )
    journal.machine = "CPU"
    for case in ("crashes", "works", "spoils"):
        run_case(worker, "blocks", case, journal, float("inf"))
    run_case(worker, "blocks", "comes late", journal, 0.0)
    assert worker.starts == 1, "after an error of CUDA the process is of no use"
    again = Journal(tmp_path / "journal.jsonl")
    assert {case: row["word"] for (_, case), row in again.rows.items()} == {
        "crashes": CRASHED,
        "works": OK,
        "spoils": FAILED,
        "comes late": LATE,
    }
    assert [case for _, case in again.rows if again.is_done("blocks", case)] == ["works"]


def test_the_table_says_what_was_not_run_and_what_is_wrong(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.machine = "CPU"
    journal.add("blocks", "norm", Outcome(OK), 1.0)
    journal.add("blocks", "rnn", Outcome(FAILED, "outputs: 0.3\nand more"), 1.0)
    journal.add("training", "32", Outcome(OK, rows=(Row("ours to by hand", "1.02", "0.95"),)), 1.0)
    lines = table(Journal(tmp_path / "journal.jsonl")).splitlines()
    assert lines[0] == "CPU"
    assert any("1 of 2 right; rnn failed: outputs: 0.3 |" in line for line in lines)
    assert "| training | ours to by hand | 1.02 | 0.95 |" in lines
    assert sum("not run" in line for line in lines) == len(PARTS) - 2


def test_an_error_may_be_a_few_times_that_of_the_cpu() -> None:
    exact, near, far = (
        torch.full((4,), value, dtype=torch.float64) for value in (1.0, 1.0 + 1e-7, 1.1)
    )
    assert not describe_faults(torch.float32, {"y": [near]}, {"y": [exact]}, {"y": [exact]})
    assert describe_faults(torch.float32, {"y": [far]}, {"y": [near]}, {"y": [exact]})
    assert not describe_faults(torch.float32, {"y": [far]}, {"y": [far]}, {"y": [exact]})
    assert describe_faults(
        torch.float32, {"y": [far * float("nan")]}, {"y": [near]}, {"y": [exact]}
    )
    assert describe_faults(torch.float32, {"y": [near[:2]]}, {"y": [near]}, {"y": [exact]})


@pytest.mark.slow
def test_a_part_has_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--small", "--device", "cpu", "--folder", str(tmp_path), "--part", "graphs"])
    journal = Journal(tmp_path / "journal.jsonl")
    assert [(part, row["word"]) for (part, _), row in journal.rows.items()] == [("graphs", OK)] * 4
    assert sum(line.startswith("| graphs | ") for line in capsys.readouterr().out.splitlines()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("part", sorted(set(PARTS) - {"graphs"}))
def test_a_part_runs_on_a_cpu(part: str) -> None:
    settings = Settings("cpu", small=True)
    cases, machine = serve(None, part, settings)
    assert cases
    assert machine.startswith("CPU")
    for outcome in (
        [cases] if isinstance(cases, Outcome) else [serve(case, part, settings) for case in cases]
    ):
        lacks_library = outcome.word == MISSING and any(name in outcome.text for name in LIBRARIES)
        assert outcome.word == OK or lacks_library, outcome.text
