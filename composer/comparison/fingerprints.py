"""Which of the three fingerprints of two recipes or runs agree, by the content of their data where it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.comparison.changes import Change
from composer.comparison.sources import Side
from composer.data import text_files
from composer.data.sources import splits
from composer.errors import ComposerError
from composer.fingerprint import fingerprint_data
from composer.recipe.cache import SHORT_HASH

KEYS = ("model", "data", "run")
MOST_BYTES = 1 << 28
"""Files of more than this are compared by their names: reading them would take a minute."""

Prints = Mapping[str, str]


@dataclass(frozen=True)
class Agreement:
    """The fingerprints of both. `by_content`: of the lines in the data; else of what the recipes say of them.

    `unread` is why data that are at hand could not be read.
    """

    one: Prints
    other: Prints
    by_content: bool
    unread: str = ""

    def same(self, key: str) -> bool:
        """Whether a fingerprint agrees: `model`, `data` or `run`."""
        return self.one[key] == self.other[key]

    @property
    def all(self) -> bool:
        """Whether the same is trained."""
        return all(map(self.same, KEYS))

    def text(self) -> str:
        """Which agree, in words."""
        same = [key for key in KEYS if self.same(key)]
        other = [key for key in KEYS if not self.same(key)]
        told = [f"{_row(same)} the same"] if same else []
        told += [f"{_row(other)} not"] if same and other else [f"{_row(other)} differ"] if other else []
        why = f", which cannot be read: {self.unread}" if self.unread else ""
        return f"{', '.join(told)}{'' if self.by_content else f' (data by the names of their files{why})'}"

    def as_json(self) -> Mapping[str, Any]:
        kept = {name: {key: each[key] for key in KEYS} for name, each in (("a", self.one), ("b", self.other))}
        return {"same": {key: self.same(key) for key in KEYS}, "by_content": self.by_content, **kept}


def _row(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def agreement(one: Side, other: Side, data: Path | None) -> Agreement:
    """How the fingerprints of two agree."""
    unread = ""
    try:
        first, second = of_content(one, data), of_content(other, data)
        if first and second:
            return Agreement(first, second, by_content=True)
    except ComposerError as error:
        unread = error.faults[0].message
    # what is made by the recipe itself, or lies where the other's lies, is the same where it is said the same
    certain = one.recipe.dataset == other.recipe.dataset and not one.is_run and not other.is_run
    certain = certain and (_makes_its_own(one) or one.recipe.folders(data) == other.recipe.folders(data))
    certain = certain or (_makes_its_own(one) and _makes_its_own(other))
    return Agreement(one.recipe.fingerprints, other.recipe.fingerprints, by_content=certain, unread=unread)


def data_changes(found: Agreement, changes: Sequence[Change]) -> list[Change]:
    """That the same files hold other lines, which no recipe says."""
    if found.same("data") or not found.by_content or any(change.section == "data" for change in changes):
        return []
    short = (each["data"][:SHORT_HASH] for each in (found.one, found.other))
    return [Change("set", "data", "", "", "", "the lines in the files", *short)]


def _makes_its_own(side: Side) -> bool:
    return bool(side.recipe.dataset.get("generate"))


def of_content(side: Side, data: Path | None) -> Prints:
    """The fingerprints by content: run.json's; of a recipe, those of its files. Nothing where they are not known.

    Raises DataError where the files cannot be used.
    """
    kept = side.record.get("fingerprints")
    if isinstance(kept, dict) and "says" in kept:
        return kept
    if side.is_run or not are_at_hand(side, data):
        return {}
    return fingerprint_data(side.recipe, side.recipe.folders(data))


def are_at_hand(side: Side, data: Path | None) -> bool:
    """Whether all data are in files that are here, and not too long to be read for this."""
    parallel = side.recipe.dataset.get("parallel") or {}
    splits_in_files = [parallel[split] for split in splits(side.recipe) if isinstance(parallel.get(split), dict)]
    named = [name for each in splits_in_files for name in each.values() if name]
    there = [text_files.find(name, side.recipe.folders(data)) for name in named]
    return bool(there) and all(there) and sum(each.stat().st_size for each in there if each) <= MOST_BYTES
