"""`diff`: the changes from one recipe or run to another, with costs, scores and fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import wrap

from composer.comparison import tables
from composer.comparison.changes import (
    SECTIONS,
    Change,
    model_changes,
    record_changes,
    setting_changes,
)
from composer.comparison.outputs import Comparison
from composer.errors import ComposerError, Fault
from composer.fingerprint import read_verified
from composer.recipe.cache import SHORT_HASH
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir, find_run, seed_dirs
from composer.sweeps.leaderboard.run_references import split_reference
from composer.sweeps.point_arguments import point_from_args

Reference = str | Path | Recipe
LINE_WIDTH = 110
"""Lines are folded here; longer replacements put both values on lines of their own."""
MAX_PATHS = 6
"""Paths that are listed for a change that occurs in many places."""
DECIDING = ("model", "data", "training", "decoding")
"""Sections that decide what is trained."""
HEADS: Mapping[str, str] = {"trainer": "trainer (how it is run)", "run": "runs"}


def diff(
    a: Reference,
    b: Reference,
    data: str | Path | None = None,
    quick: bool = False,
    log: Callable[[str], None] | None = None,
) -> Difference:
    """Compare recipes, files, run folders, trials or points of sweeps; see `composer.diff`.

    Raises ComposerError with the faults of both.
    """
    folder = None if data is None else Path(data)
    sides: list[tables.Side] = []
    faults: list[Fault] = []
    for reference in (a, b):
        try:
            sides.append(open_side(reference, folder))
        except ComposerError as error:
            faults += error.faults
    if faults:
        raise ComposerError(faults)
    first, second = sides
    costs = tables.compare_costs(first, second)
    changes = setting_changes(first.recipe, second.recipe)
    changes += model_changes(first.recipe, second.recipe)
    say = log or (lambda _: None)
    tested = "" if quick else tables.run_tests(first, second, folder, say)
    agreement = tables.compare_fingerprints(first, second, folder, say)
    same_data_settings = not any(change.section == "data" for change in changes)
    # which no recipe says
    if same_data_settings and agreement.by_content and not agreement.same("data"):
        hashes = agreement.one["data"][:SHORT_HASH], agreement.other["data"][:SHORT_HASH]
        changes.append(Change("set", "data", "", "", "", "the lines in the files", *hashes))
    if first.folder and second.folder:
        changes += record_changes(first.record.as_data(), second.record.as_data())
    return Difference(first, second, tuple(changes), agreement, costs, tested)


def open_side(reference: Reference, data: Path | None) -> tables.Side:
    """Open a recipe, a recipe file, a run folder, a trial's folder, or `SWEEP#WHICH`.

    Raises ComposerError.

    WHICH is a point of a sweep's file, `axis=value,...`, or a trial by its rank or fingerprint.
    """
    if isinstance(reference, Recipe):
        suffix = " with settings" if reference.unchanged else ""
        return tables.Side(f"{reference.file}{suffix}", reference)
    path = Path(reference)
    if path.is_dir():
        return _open_folder(path, data)
    if (named := split_reference(str(reference))) is not None:
        sweep, which = named
        name = f"{sweep}#{which}"
        if "=" in which:
            return tables.Side(name, point_from_args(sweep, which.split(","), data)[0])
        run = find_run(name)
        return replace(_open_folder(run, data), name=f"{name}, {run.name}")
    return tables.Side(str(reference), load(path, (), data))


def _open_folder(path: Path, data: Path | None) -> tables.Side:
    """Open a run, or a trial of a sweep that has not been trained. Raises ComposerError."""
    run = RunDir(path)
    seeds = [seed for seed in seed_dirs(path).values() if seed.record.exists()]
    if not run.record.exists() and not seeds and run.recipe.is_file():
        return tables.Side(str(path), load(run.recipe, (), data))
    record = read_verified(run)
    return tables.Side(str(path), load(run.recipe, (), data), record, path)


@dataclass(frozen=True)
class Difference:
    """The difference of two recipes or runs, A and B.

    `tested` compares two runs on the same test lines, or says why they are not compared; "" if it
    was not requested.
    """

    one: tables.Side
    other: tables.Side
    changes: tuple[Change, ...]
    agreement: tables.Agreement
    costs: tuple[tables.Costs, tables.Costs]
    tested: Comparison | str

    @property
    def same(self) -> bool:
        """True if both train the same: fingerprints agree, and no deciding section differs."""
        differs = any(change.section in DECIDING for change in self.changes)
        return not differs and all(map(self.agreement.same, tables.KEYS))

    def text(self) -> str:
        """Return all of it as text."""
        lines = [f"A  {self.one.name}", f"B  {self.other.name}", ""]
        for section in (*SECTIONS, "run"):
            if changes := [change for change in self.changes if change.section == section]:
                lines.append(HEADS.get(section, section))
                for line in change_lines(changes):
                    lines += _fold(f"  {line}")
                lines.append("")
        lines += tables.costs_table(*self.costs)
        lines += tables.scores_table(self.one.scores, self.other.scores, self.tested)
        return "\n".join([*lines, f"fingerprints: {self.agreement.text()}"])

    def as_json(self) -> Mapping[str, object]:
        """Return all of it as plain data."""
        one, other = self.costs
        return {
            "a": self.one.name,
            "b": self.other.name,
            "same": self.same,
            "fingerprints": self.agreement.as_json(),
            "changes": [{**asdict(change), "text": change.text()} for change in self.changes],
            "costs": {"a": asdict(one), "b": asdict(other)},
            "scores": {"a": self.one.scores, "b": self.other.scores},
            "test": asdict(self.tested) if isinstance(self.tested, Comparison) else None,
            "no_test": self.tested if isinstance(self.tested, str) else "",
        }


def _fold(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return wrap(
        line, LINE_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def change_lines(changes: Iterable[Change]) -> Iterator[str]:
    """Yield the lines of some changes; the same change at several blocks once, with paths."""
    groups: dict[str, list[Change]] = {}
    for change in changes:
        groups.setdefault(change.what if change.where else change.text(), []).append(change)
    for what, group in groups.items():
        first = group[0]
        if len(group) > 1:
            yield f"{what}, in {len(group)} places:"
            for change in group[:MAX_PATHS]:
                yield f"  {change.block if change.kind == 'set' else change.where}"
            if len(group) > MAX_PATHS:
                yield f"  and {len(group) - MAX_PATHS} more"
        elif first.kind == "replaced" and isinstance(first.before, list):
            yield f"{first.where}, all of it:"
            yield from (f"  - {block}" for block in first.before)
            yield from (f"  + {block}" for block in first.after)
        elif first.kind == "replaced" and len(first.text()) > LINE_WIDTH:
            yield from (f"{first.where}:", f"  {first.before}", f"  -> {first.after}")
        else:
            yield first.text()
