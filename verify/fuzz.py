"""Fuzz the recipe reader with mutated recipes.

    python -m verify.fuzz --minutes 60 [--seed 1] [--plans 0.02] [--failures FOLDER]

Every case is one of the recipes in `recipes/`, as it is or resolved, with mutated bytes, words or
tree. It is read, resolved, validated and frozen, and a share of the accepted ones is planned. A
case fails if it raises anything but a `ComposerError`, if a fault points outside of its file, if an
accepted recipe does not round-trip through its dump, or if it takes longer than `SECONDS`. Cases
run in a child process, so that a crash or a hang does not end the fuzzing; the first case of each
failure is minimised, printed, and written into `--failures`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from composer.errors import ComposerError, Fault
from composer.recipe.recipe import Recipe, load
from composer.recipe.yaml_reader import MAX_BYTES
from verify.mutations import mutate
from verify.worker import Worker, WorkerDied

RECIPES = Path(__file__).parents[1] / "recipes"
SECONDS = 10.0  # CPU time limit for reading a recipe; hundreds of times the usual
PLAN_SECONDS = 60.0
REPORT_SECONDS = 60.0  # interval of progress reports
MINIMISE_TRIES = 300  # attempts to minimise a failure
NAME = "fuzzed.yaml"


class Case(NamedTuple):
    """The bytes of a recipe, the folder it is in, and whether to plan it."""

    data: bytes
    home: str
    plan: bool = False


class Result(NamedTuple):
    """Result of a case: fault codes, `read` or `planned`, or a failure."""

    outcomes: tuple[str, ...]
    failure: str = ""  # equal for equal bugs, whatever the case
    details: str = ""
    seconds: float = 0.0


class PropertyViolation(Exception):
    """A case violated a property."""


# -------------------------------------------------------------------------------------------
# properties


def run_case(case: Case, root: Path) -> Result:
    """Run a case whose folder is in `root`. Raise nothing."""
    file = root / case.home / NAME
    start = time.process_time()
    try:
        file.write_bytes(case.data)
        outcomes = read_recipe(file, case.plan)
    except PropertyViolation as violation:
        return Result((), str(violation), str(violation))
    except BaseException as error:
        return Result((), error_signature(error), traceback.format_exc(limit=-20))
    seconds = time.process_time() - start
    slow = (
        f"takes more than {SECONDS:g} s"
        if seconds > (PLAN_SECONDS if case.plan else SECONDS)
        else ""
    )
    return Result(outcomes, slow, slow, seconds)


def run_in(worker: Worker, case: Case) -> Result:
    """Run a case in a worker; one that killed it has failed."""
    try:
        return worker.run(case)
    except WorkerDied as death:
        return Result((), str(death), str(death))


def read_recipe(file: Path, plan: bool) -> tuple[str, ...]:
    """Return the codes of a recipe's faults, or `read` or `planned`.

    Raises PropertyViolation, and anything else that a bug raises.
    """
    try:
        recipe = load(file)
    except ComposerError as error:
        return fault_codes(error)
    check_round_trip(recipe, file)
    if not plan:
        return ("read",)
    try:
        recipe.plan()
    except ComposerError as error:
        return fault_codes(error)
    return ("planned",)


def fault_codes(error: ComposerError) -> tuple[str, ...]:
    """Return the codes of an error's faults, after checking the location of each."""
    if not error.faults or not error.render():
        raise PropertyViolation("rejected without a fault")
    lines = {name: read_lines(Path(name)) for name in {fault.file for fault in error.faults}}
    for fault in error.faults:
        check_location(fault, lines[fault.file])
    return tuple(fault.code for fault in error.faults)


def check_location(fault: Fault, lines: list[str]) -> None:
    """Raise PropertyViolation if a fault points to no place in its file."""
    if not 1 <= fault.line <= len(lines):
        raise PropertyViolation(f"a fault [{fault.code}] has a line outside of its file")
    line = lines[fault.line - 1]
    if not 1 <= fault.column <= len(line) + 1:
        raise PropertyViolation(f"a fault [{fault.code}] has a column outside of its line")
    if not line.startswith(fault.excerpt):
        raise PropertyViolation(f"a fault [{fault.code}] shows a different line")
    if not fault.message or any(
        "\n" in text or len(text) > 2000 for text in (fault.message, fault.hint)
    ):
        raise PropertyViolation(f"a fault [{fault.code}] has no message, or one that is too long")


def read_lines(file: Path) -> list[str]:
    """Return the lines of a file as an editor counts them; none if it does not exist."""
    if not file.is_file():
        return []
    with file.open("rb") as file_object:
        text = file_object.read(MAX_BYTES).decode("utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def check_round_trip(recipe: Recipe, file: Path) -> None:
    """Raise PropertyViolation if a dumped recipe reads as a different one."""
    again = file.with_name("again.yaml")
    again.write_text(recipe.dump(), encoding="utf-8")
    try:
        if load(again).fingerprints != recipe.fingerprints:
            raise PropertyViolation("the dump reads as a different recipe")
    except ComposerError as error:
        raise PropertyViolation(f"the dump is rejected: {error.faults[0].code}") from None


def error_signature(error: BaseException) -> str:
    """Return the type of an exception and where it was raised."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "composer" in frame.filename
    ]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}, {last.name}"


# ------------------------------------------------------------------------------------------- cases


def copy_recipes(folder: Path) -> list[Case]:
    """Copy all recipes into `folder`, as its own repository; return them as unchanged cases."""
    shutil.copytree(RECIPES, folder / "recipes")
    (folder / ".git").mkdir()
    return sorted(seed_cases(folder))


def seed_cases(folder: Path) -> Iterator[Case]:
    """Yield every recipe as it is, and resolved into one file without `extends`."""
    for file in (folder / "recipes").rglob("*.yaml"):
        home = str(file.parent.relative_to(folder))
        yield Case(file.read_bytes(), home)
        try:
            yield Case(load(file).dump().encode(), home)
        except ComposerError:  # a fragment, not a recipe
            continue


def mutate_case(cases: list[Case], random: Random, plans: float) -> Case:
    """Mutate a random case a few times."""
    case = random.choice(cases)
    data = case.data
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        data = mutate(data, random, random.choice(cases).data)
    return Case(data, case.home, random.random() < plans)


def minimise(case: Case, run: Callable[[Case], Result]) -> Case:
    """Return a part of a failing case with the same failure."""
    failure, tries, size = run(case).failure, 0, len(case.data) // 2
    while size and tries < MINIMISE_TRIES:
        start = 0
        while start < len(case.data) and tries < MINIMISE_TRIES:
            shorter = case._replace(data=case.data[:start] + case.data[start + size :])
            tries += 1
            if run(shorter).failure == failure:
                case = shorter
            else:
                start += size
        size //= 2
    return case


# -------------------------------------------------------------------------------------------
# command line


class Failure(NamedTuple):
    """A failure with its details and the smallest case that reproduces it."""

    failure: str
    details: str
    case: Case


class Statistics:
    """Counts of cases, outcomes and failures."""

    def __init__(self) -> None:
        self.cases = 0
        self.outcomes: Counter[str] = Counter()
        self.failures: dict[str, Failure] = {}
        self.slowest = Result(())

    def add(self, result: Result) -> bool:
        """Count a result; return True for the first of a new failure."""
        self.cases += 1
        self.outcomes.update(set(result.outcomes))
        self.slowest = max(self.slowest, result, key=lambda result: result.seconds)
        return bool(result.failure) and result.failure not in self.failures

    def summary(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common())
        slowest = (
            f"the slowest took {self.slowest.seconds:.2f} s"
            f" ({', '.join(sorted(set(self.slowest.outcomes)))})"
        )
        return f"{self.cases} cases, {len(self.failures)} failures\n{counts}\n{slowest}"


def fuzz(minutes: float, seed: int, plans: float, report: Callable[[str], None]) -> Statistics:
    """Run cases until the time is over."""
    statistics, random, start, reported = Statistics(), Random(seed), time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        cases = copy_recipes(Path(folder))
        worker = Worker(run_case, Path(folder))
        try:
            while (elapsed := time.monotonic() - start) < 60 * minutes:
                case = mutate_case(cases, random, plans)
                result = run_in(worker, case)
                if statistics.add(result):
                    report(f"{result.failure}\n{result.details}")
                    failure = Failure(
                        result.failure, result.details, minimise(case, partial(run_in, worker))
                    )
                    statistics.failures[result.failure] = failure
                if elapsed > reported + REPORT_SECONDS:
                    report(statistics.summary())
                    reported = elapsed
        finally:
            worker.end()
    return statistics


def write_failure(failure: Failure, folder: Path, number: int) -> None:
    """Write a failing case, and its details beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number}.yaml").write_bytes(failure.case.data)
    details = f"in {failure.case.home}: {failure.failure}\n{failure.details}\n"
    (folder / f"{number}.txt").write_text(details, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the recipe reader with mutated recipes.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--plans", type=float, default=0.02, help="share of cases that are also planned"
    )
    parser.add_argument("--failures", type=Path)
    options = parser.parse_args()
    report = partial(print, file=sys.stderr, flush=True)
    statistics = fuzz(options.minutes, options.seed, options.plans, report)
    for number, failure in enumerate(statistics.failures.values(), 1):
        print(
            f"\n{failure.failure}; in {failure.case.home}, {len(failure.case.data)}"
            f" bytes:\n{failure.case.data!r}"
        )
        if options.failures:
            write_failure(failure, options.failures, number)
    print(statistics.summary())
    return 1 if statistics.failures else 0


if __name__ == "__main__":
    sys.exit(main())
