"""Reads recipes that nobody would write, for as long as it is told to.

    python -m benchmarks.fuzz --minutes 60 [--seed 1] [--plans 0.02] [--failures FOLDER]

Every case is one of the recipes in `recipes/`, or one of them resolved, whose bytes, words or tree have been changed.
It is read, resolved, validated and frozen, and a share of those that are accepted is planned. A case fails if anything
but a `ComposerError` comes of it, if a fault points outside of its file, if what is accepted does not read back as the
same recipe, or if it takes longer than `SECONDS`. Cases run in a process of their own, so that neither a crash nor a
hang ends the fuzzing; the first case of each failure is made smaller, printed, and written into `--failures`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import NamedTuple

from benchmarks.mutations import mutated
from composer.errors import ComposerError, Fault
from composer.recipe.recipe import Recipe, load
from composer.recipe.yaml_reader import MAX_BYTES

RECIPES = Path(__file__).parents[1] / "recipes"
SECONDS = 10.0  # of processor time that reading a recipe may take; hundreds of times what it takes
PLAN_SECONDS = 60.0
PATIENCE = 180.0  # seconds of wall time after which a case hangs; the machine may be busy
MEMORY = 6 << 30
PULSE = 60.0  # seconds after which it is told what has been seen so far
TRIES = 300  # of making a failure smaller
NAME = "fuzzed.yaml"


class Case(NamedTuple):
    """The bytes of a recipe, the folder that it lies in, and whether it is planned too."""

    data: bytes
    home: str
    planned: bool = False


class Verdict(NamedTuple):
    """What came of a case: the codes of its faults, `read` or `planned`; or what is wrong with that."""

    outcomes: tuple[str, ...]
    failure: str = ""  # the same for the same mistake, whatever the case
    told: str = ""
    seconds: float = 0.0


class Wrong(Exception):
    """What a case has shown."""


# ------------------------------------------------------------------------------------------- the property


def judge(case: Case, root: Path) -> Verdict:
    """What comes of a case whose folder lies in `root`. Raises nothing."""
    file = root / case.home / NAME
    began = time.process_time()
    try:
        file.write_bytes(case.data)
        outcomes = outcome(file, case.planned)
    except Wrong as wrong:
        return Verdict((), str(wrong), str(wrong))
    except BaseException as error:
        return Verdict((), signature(error), traceback.format_exc(limit=-20))
    seconds = time.process_time() - began
    slow = f"takes more than {SECONDS:g} s" if seconds > (PLAN_SECONDS if case.planned else SECONDS) else ""
    return Verdict(outcomes, slow, slow, seconds)


def outcome(file: Path, planned: bool) -> tuple[str, ...]:
    """The codes of a recipe's faults, or what could be done with it. Raises Wrong, and whatever it should not."""
    try:
        recipe = load(file)
    except ComposerError as error:
        return codes(error)
    check_readable(recipe, file)
    if not planned:
        return ("read",)
    try:
        recipe.plan()
    except ComposerError as error:
        return codes(error)
    return ("planned",)


def codes(error: ComposerError) -> tuple[str, ...]:
    """The codes of its faults, each of which must have its place."""
    if not error.faults or not error.render():
        raise Wrong("refused without a fault")
    lines = {name: lines_of(Path(name)) for name in {fault.file for fault in error.faults}}
    for fault in error.faults:
        check_place(fault, lines[fault.file])
    return tuple(fault.code for fault in error.faults)


def check_place(fault: Fault, lines: list[str]) -> None:
    """Raises Wrong where a fault points at nothing in its file."""
    if not 1 <= fault.line <= len(lines):
        raise Wrong(f"a fault [{fault.code}] names no line of its file")
    line = lines[fault.line - 1]
    if not 1 <= fault.column <= len(line) + 1:
        raise Wrong(f"a fault [{fault.code}] names no column of its line")
    if not line.startswith(fault.excerpt):
        raise Wrong(f"a fault [{fault.code}] shows another line than its own")
    if not fault.message or any("\n" in each or len(each) > 2000 for each in (fault.message, fault.hint)):
        raise Wrong(f"a fault [{fault.code}] says nothing, or too much")


def lines_of(file: Path) -> list[str]:
    """The lines of a file as an editor counts them; none where there is no such file."""
    if not file.is_file():
        return []
    with file.open("rb") as opened:
        text = opened.read(MAX_BYTES).decode("utf-8-sig", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def check_readable(recipe: Recipe, file: Path) -> None:
    """Raises Wrong where a recipe, written anew, is another one."""
    again = file.with_name("again.yaml")
    again.write_text(recipe.dump(), encoding="utf-8")
    try:
        if load(again).fingerprints != recipe.fingerprints:
            raise Wrong("what was dumped reads as another recipe")
    except ComposerError as error:
        raise Wrong(f"what was dumped is refused: {error.faults[0].code}") from None


def signature(error: BaseException) -> str:
    """An exception and where it was raised."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if "composer" in each.filename]
    last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name}, {last.name}"


# ------------------------------------------------------------------------------------------- a process of its own


class Lab:
    """A process that judges cases, and is begun anew where a case has killed it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.begin()

    def begin(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, self.root), daemon=True)
        self.process.start()
        theirs.close()

    def judge(self, case: Case) -> Verdict:
        try:
            self.line.send(case)
            if self.line.poll(PATIENCE):
                return self.line.recv()
            told = f"no answer within {PATIENCE:g} s"
        except (EOFError, OSError):
            self.process.join()
            told = f"the process ended with {self.process.exitcode}"
        self.end()
        self.begin()
        return Verdict((), told, told)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.line.close()


def serve(line: Connection, root: Path) -> None:
    """Judges what comes over the line until it is closed."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            line.send(judge(line.recv(), root))
        except EOFError:
            return


# ------------------------------------------------------------------------------------------- cases


def laboratory(folder: Path) -> list[Case]:
    """A copy of all recipes in `folder`, as a repository of its own, and the cases that they are unchanged."""
    shutil.copytree(RECIPES, folder / "recipes")
    (folder / ".git").mkdir()
    return sorted(seeds(folder))


def seeds(folder: Path) -> Iterator[Case]:
    """Every recipe as it stands, and as one file that extends nothing."""
    for file in (folder / "recipes").rglob("*.yaml"):
        home = str(file.parent.relative_to(folder))
        yield Case(file.read_bytes(), home)
        try:
            yield Case(load(file).dump().encode(), home)
        except ComposerError:  # a base, which is no recipe yet
            continue


def changed(some: list[Case], random: Random, plans: float) -> Case:
    """One case, changed a few times."""
    case = random.choice(some)
    data = case.data
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        data = mutated(data, random, random.choice(some).data)
    return Case(data, case.home, random.random() < plans)


def smaller(case: Case, judged: Callable[[Case], Verdict]) -> Case:
    """A part of a failing case that fails in the same way."""
    failure, tries, size = judged(case).failure, 0, len(case.data) // 2
    while size and tries < TRIES:
        begin = 0
        while begin < len(case.data) and tries < TRIES:
            less = case._replace(data=case.data[:begin] + case.data[begin + size :])
            tries += 1
            if judged(less).failure == failure:
                case = less
            else:
                begin += size
        size //= 2
    return case


# ------------------------------------------------------------------------------------------- the command


class Found(NamedTuple):
    """A failure: what it is, all that is known of it, and the smallest case that shows it."""

    failure: str
    told: str
    case: Case


class Tally:
    """What has been seen."""

    def __init__(self) -> None:
        self.cases = 0
        self.outcomes: Counter[str] = Counter()
        self.found: dict[str, Found] = {}
        self.slowest = Verdict(())

    def add(self, verdict: Verdict) -> bool:
        """Whether it is the first of its kind to fail."""
        self.cases += 1
        self.outcomes.update(set(verdict.outcomes))
        self.slowest = max(self.slowest, verdict, key=lambda each: each.seconds)
        return bool(verdict.failure) and verdict.failure not in self.found

    def told(self) -> str:
        counted = ", ".join(f"{name} {count}" for name, count in self.outcomes.most_common())
        slow = f"the slowest took {self.slowest.seconds:.2f} s ({', '.join(sorted(set(self.slowest.outcomes)))})"
        return f"{self.cases} cases, {len(self.found)} failures\n{counted}\n{slow}"


def fuzz(minutes: float, seed: int, plans: float, tell: Callable[[str], None]) -> Tally:
    """Judges cases until the time is over."""
    tally, random, began, told = Tally(), Random(seed), time.monotonic(), 0.0
    with tempfile.TemporaryDirectory() as folder:
        some = laboratory(Path(folder))
        lab = Lab(Path(folder))
        try:
            while (passed := time.monotonic() - began) < 60 * minutes:
                case = changed(some, random, plans)
                verdict = lab.judge(case)
                if tally.add(verdict):
                    tell(f"{verdict.failure}\n{verdict.told}")
                    tally.found[verdict.failure] = Found(verdict.failure, verdict.told, smaller(case, lab.judge))
                if passed > told + PULSE:
                    tell(tally.told())
                    told = passed
        finally:
            lab.end()
    return tally


def write(found: Found, folder: Path, number: int) -> None:
    """The case, and beside it what came of it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{number}.yaml").write_bytes(found.case.data)
    (folder / f"{number}.txt").write_text(f"in {found.case.home}: {found.failure}\n{found.told}\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description="Reads recipes that nobody would write.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plans", type=float, default=0.02, help="the share of cases that are planned too")
    parser.add_argument("--failures", type=Path)
    asked = parser.parse_args()
    tally = fuzz(asked.minutes, asked.seed, asked.plans, lambda text: print(text, file=sys.stderr, flush=True))
    for number, found in enumerate(tally.found.values(), 1):
        print(f"\n{found.failure}; in {found.case.home}, {len(found.case.data)} bytes:\n{found.case.data!r}")
        if asked.failures:
            write(found, asked.failures, number)
    print(tally.told())
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
