"""Run the cases of a part in a child process, with a journal of JSON lines: a run that was cut
short goes on.
"""

from __future__ import annotations

import ast
import importlib
import json
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu import CRASHED, FAILED, LATE, MISSING, OK, PARTS, Outcome, Row, Settings
from verify.worker import Worker, WorkerDied

PART_SECONDS = 480.0
POISON = ("CUDA error", "AcceleratorError", "cuBLAS error", "CUBLAS_STATUS", "device-side assert")
"""After such an error nothing works any more in a process."""
ALL = "all"
"""In place of a case, where a part could not even begin."""
Key = tuple[str, str]


class Journal:
    """The last outcome of each case, on disk. `machine` is where it ran: it must be the same for
    all.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.lock = file, threading.Lock()
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self.rows: dict[Key, dict[str, Any]] = {
            (row["part"], row["case"]): row for row in map(json.loads, lines)
        }
        self.machine = next((row["machine"] for row in self.rows.values() if row["machine"]), "")

    def add(self, part: str, case: str, outcome: Outcome, seconds: float) -> None:
        row = {
            "part": part,
            "case": case,
            "machine": self.machine,
            "seconds": round(seconds, 1),
            **outcome._asdict(),
        }
        self.rows[part, case] = row
        with self.lock, self.file.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(
            f"{part} {case}: {outcome.word}, {seconds:.1f} s  {first_line(outcome.text)}",
            flush=True,
        )
        for one in outcome.rows:
            print(
                f"    {one.label}: {one.value}{f' (target {one.target})' if one.target else ''}",
                flush=True,
            )

    def is_done(self, part: str, case: str) -> bool:
        """Return whether a case ended well; what failed, crashed, lacked a library or came too late
        runs again.
        """
        return self.rows.get((part, case), {}).get("word") == OK


def first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else ""


def run_part(
    part: str,
    settings: Settings,
    journal: Journal,
    seconds: float = PART_SECONDS,
    processes: int = 1,
) -> None:
    """Run what the journal does not have of a part, in processes of its own, for so many seconds at
    most.
    """
    until = time.monotonic() + seconds
    workers = [Worker(serve, part, settings, hang_seconds=seconds, memory=None)]
    try:
        cases, journal.machine = known_cases(workers[0], journal, part)
        left = [case for case in cases if not journal.is_done(part, case)]
        workers += [
            Worker(serve, part, settings, memory=None) for _ in range(min(processes, len(left)) - 1)
        ]
        share_cases(workers, part, left, journal, until)
    finally:
        for worker in workers:
            worker.end()


def share_cases(
    workers: Sequence[Worker], part: str, cases: Sequence[str], journal: Journal, until: float
) -> None:
    """Run cases side by side: each process takes the next one when it has done its last."""
    waiting = iter(cases)

    def take(worker: Worker) -> None:
        for case in waiting:
            run_case(worker, part, case, journal, until)

    with ThreadPoolExecutor(len(workers)) as pool:
        try:
            for done in [pool.submit(take, worker) for worker in workers]:
                done.result()
        except BaseException:  # Ctrl-C: what runs is ended, and nothing new begins
            deque(waiting, maxlen=0)
            for worker in workers:
                worker.process.kill()
            raise


def known_cases(worker: Worker, journal: Journal, part: str) -> tuple[Sequence[str], str]:
    """Return the cases of a part, and the machine; exit if the journal is of another machine."""
    try:
        cases, machine = worker.run(None)
    except WorkerDied as death:
        cases, machine = Outcome(CRASHED, str(death)), journal.machine
    if journal.machine and machine != journal.machine:
        sys.exit(
            f"{journal.file} is of {journal.machine}, and this is {machine}: name another folder"
        )
    if isinstance(cases, Outcome):  # the part could not even begin
        journal.machine = machine
        journal.add(part, ALL, cases, 0.0)
        return (), machine
    return cases, machine


def run_case(worker: Worker, part: str, case: str, journal: Journal, until: float) -> None:
    """Run one case; the process is new for the next one where this has spoiled it."""
    start = time.monotonic()
    if start >= until:
        journal.add(part, case, Outcome(LATE, "the part's time was over before it began"), 0.0)
        return
    worker.hang_seconds = until - start
    try:
        outcome = worker.run(case)
    except WorkerDied as death:
        is_late = time.monotonic() >= until
        outcome = (
            Outcome(LATE, "the part's time was over") if is_late else Outcome(CRASHED, str(death))
        )
    else:
        if any(word in outcome.text for word in POISON):
            worker.end()
            worker.start()
    journal.add(part, case, outcome, time.monotonic() - start)


def serve(case: str | None, part: str, settings: Settings) -> Any:
    """In the child: run a case; of None return the names of all cases, and what machine this is."""
    machine = ""
    try:
        machine = describe_machine(settings)
        module = importlib.import_module(f"benchmarks.gpu.parts.{part}")
        return (
            (tuple(module.cases(settings)), machine) if case is None else module.run(case, settings)
        )
    except ModuleNotFoundError as error:
        outcome = Outcome(MISSING, f"{error.name or error} is not installed")
    except BaseException as error:  # whatever it is, it is the outcome of this case
        outcome = Outcome(FAILED, f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}")
    return (outcome, machine) if case is None else outcome


def describe_machine(settings: Settings) -> str:
    """Return the device and torch's version. Sets float32 to be float32, on every device."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    name = torch.cuda.get_device_name(settings.device) if settings.is_cuda else "CPU"
    return f"{name}, torch {torch.__version__}{', small sizes' if settings.small else ''}"


# ------------------------------------------------------------------------------------------- the
# table


def describe_part(part: str) -> str:
    """Return the first line of a part's docstring, without importing what it needs."""
    source = (Path(__file__).parent / "parts" / f"{part}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0].rstrip(".")


def table(journal: Journal) -> str:
    """Return one markdown table of what was run; parts that were not say so."""
    lines = [
        f"{journal.machine or 'Nothing was run.'}",
        "",
        "| part | what | result | target |",
        "|---|---|---|---|",
    ]
    for part in PARTS:
        rows = [row for (name, _), row in journal.rows.items() if name == part]
        rows = [row for row in rows if row["case"] != ALL] or rows
        lines += [f"| {part} | {' | '.join(cells)} |" for cells in table_rows(part, rows)]
    return "\n".join(lines)


def table_rows(part: str, rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return the lines of a part: what is right as one line, what was measured as a line each."""
    if not rows:
        return [(describe_part(part), "not run", "")]
    measured = [Row(*one) for row in rows for one in row["rows"]]
    others = [row for row in rows if not row["rows"]]
    lines = [(cell(one.label), cell(one.value), cell(one.target)) for one in measured]
    if others:
        right = sum(row["word"] == OK for row in others)
        broken = [row for row in others if row["word"] != OK]
        trouble = "".join(
            f"; {row['case']} {row['word']}: {first_line(row['text'])}" for row in broken
        )
        lines.insert(
            0, (describe_part(part), cell(f"{right} of {len(others)} right{trouble}"), "all")
        )
    return lines


def cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
