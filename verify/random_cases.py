"""Run random cases in child processes, with a journal: an interrupted run resumes after its last
case.

A case is tested in a folder of its own, DIR/NUMBER; a failed one stays there, with `failure.txt`,
to be run alone. The journal, DIR/journal.jsonl, has a line for each case; it belongs to one seed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verify.worker import Worker, WorkerDied

FAILED = "failed"
HANG_SECONDS = 600.0
FAILURE = "failure.txt"
DRAWING = threading.Lock()  # Hypothesis draws in one thread at a time


@dataclass(frozen=True)
class Outcome:
    """What came of a case: a word to count, what it was about, and for a failure its details."""

    word: str
    subject: str = ""
    details: str = ""
    traits: tuple[str, ...] = ()


class Journal:
    """The outcomes of cases by their numbers, on disk."""

    def __init__(self, file: Path, seed: int) -> None:
        self.file, self.seed, self.lock = file, seed, threading.Lock()
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        self.rows: dict[int, dict[str, Any]] = {row["case"]: row for row in map(json.loads, lines)}
        if {row["seed"] for row in self.rows.values()} - {seed}:
            sys.exit(f"{file} has the cases of another seed: name another folder")

    def add(self, number: int, outcome: Outcome, seconds: float, cpu: float) -> None:
        times = {"seconds": round(seconds, 2), "cpu": round(cpu, 2)}
        row = {"seed": self.seed, "case": number, **times, **asdict(outcome)}
        with self.lock:
            self.rows[number] = row
            with self.file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row, ensure_ascii=False) + "\n")
            print(
                f"{number:6}  {seconds:6.1f} s  {outcome.word:9}{outcome.subject}"[:160],
                file=sys.stderr,
                flush=True,
            )

    def counted(self, without: str) -> int:
        with self.lock:
            return sum(row["word"] != without for row in self.rows.values())


def options(description: str, count: int) -> argparse.ArgumentParser:
    """Return a parser of the options that every benchmark of random cases has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=count, help="number of cases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder", type=Path, required=True, metavar="DIR", help="for the journal and failed cases"
    )
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument(
        "--only", type=int, metavar="NUMBER", help="run this case alone, here, and keep its folder"
    )
    return parser


def run_cases(
    chosen: argparse.Namespace,
    write: Callable[[str, Path], Path],
    test: Callable[[Path], Outcome],
    uncounted: str = "",
) -> int:
    """Run the cases that the journal does not have; return the exit status.

    `write` puts the case that it draws by the text `SEED, NUMBER` into a folder; `test` runs in a
    child process. Cases whose outcome is `uncounted` do not count for `--count`.
    """
    chosen.folder.mkdir(parents=True, exist_ok=True)
    if chosen.only is not None:
        outcome = test(write_case(chosen, chosen.only, write))
        print(outcome.word, outcome.subject, outcome.details, sep="\n")
        return int(outcome.word == FAILED)
    journal = Journal(chosen.folder / "journal.jsonl", chosen.seed)
    start, stop = time.monotonic(), threading.Event()
    numbers = (number for number in itertools.count() if number not in journal.rows)

    def work() -> None:
        worker = Worker(measure, test, hang_seconds=HANG_SECONDS)
        try:
            while journal.counted(uncounted) < chosen.count and not stop.is_set():
                with DRAWING:
                    number = next(numbers)
                    file = write_case(chosen, number, write)
                run_case(worker, number, file, journal)
        finally:
            worker.end()

    with ThreadPoolExecutor(chosen.workers) as threads:
        try:
            futures = [threads.submit(work) for _ in range(chosen.workers)]
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        finally:
            stop.set()  # Ctrl-C, or an error of one: the others end after their case
    rows = [row for _, row in sorted(journal.rows.items())]
    print_table(rows, time.monotonic() - start, chosen.folder)
    return int(any(row["word"] == FAILED for row in rows))


def write_case(chosen: argparse.Namespace, number: int, write: Callable[[str, Path], Path]) -> Path:
    """Write a case into a new folder; what an interrupted one left there is removed."""
    folder = case_folder(chosen.folder, number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return write(f"{chosen.seed}, {number}", folder)


def case_folder(folder: Path, number: int) -> Path:
    return folder / f"{number:05}"


def run_case(worker: Worker, number: int, file: Path, journal: Journal) -> None:
    """Run a case, and keep its folder if it fails."""
    start = time.monotonic()
    try:
        outcome, cpu = worker.run(file)
    except WorkerDied as death:
        outcome, cpu = Outcome(FAILED, str(death)), 0.0
    if outcome.details or outcome.word == FAILED:
        (file.parent / FAILURE).write_text(
            f"{outcome.subject}\n\n{outcome.details}\n", encoding="utf-8"
        )
    else:
        shutil.rmtree(file.parent)
    journal.add(number, outcome, time.monotonic() - start, cpu)


def measure(file: Path, test: Callable[[Path], Outcome]) -> tuple[Outcome, float]:
    """Return the outcome of a case and its seconds of processor time."""
    start = time.process_time()
    return test(file), time.process_time() - start


def print_table(rows: list[Mapping[str, Any]], seconds: float, folder: Path) -> None:
    """Print how often each outcome was, what the accepted cases were made of, and every failure."""
    words = Counter(row["word"] for row in rows)
    for word, count in words.most_common():
        cpu = sum(row["cpu"] for row in rows if row["word"] == word)
        print(
            f"{word:12}{count:6}{100 * count / len(rows):6.1f} %{cpu / count:8.2f} s of processor"
            " time each"
        )
    minutes = sum(row["cpu"] for row in rows) / 60
    print(
        f"{'all':12}{len(rows):6}; {minutes:.1f} minutes of processor time, {seconds / 60:.1f}"
        " since the start"
    )
    traits = Counter(trait for row in rows for trait in row["traits"])
    for name in dict.fromkeys(trait.partition(" ")[0] for trait in traits):
        values = {
            trait.partition(" ")[2]: count
            for trait, count in traits.items()
            if trait.startswith(f"{name} ")
        }
        print(f"{name}: " + ", ".join(f"{value} {values[value]}" for value in sorted(values)))
    subjects = Counter(
        row["subject"] for row in rows if row["word"] == "refused" and row["subject"]
    )
    if subjects:
        print(
            "refused because of: "
            + ", ".join(f"{subject} {count}" for subject, count in subjects.most_common(20))
        )
    for row in rows:
        if row["word"] == FAILED or row["details"]:
            print(f"{row['word']}: {case_folder(folder, row['case'])}: {row['subject']}")
