"""The difference of two recipes or runs: what to change in the one to get the other, and what that costs and brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.comparison import diff_text
from composer.comparison.changes import Change
from composer.comparison.costs import Costs, costs
from composer.comparison.fingerprints import Agreement, agreement, data_changes
from composer.comparison.model_changes import model_changes
from composer.comparison.runs import compared, record_changes
from composer.comparison.settings import setting_changes
from composer.comparison.sources import Named, Side, both
from composer.sweeps.significance import Comparison

DECIDING = ("model", "data", "training", "decoding")


@dataclass(frozen=True)
class Difference:
    """What two recipes or runs have different.

    `tested` is the comparison of two runs on the same test lines, or why there is none; "" where it was not asked for.
    """

    one: Side
    other: Side
    changes: tuple[Change, ...]
    agreement: Agreement
    costs: tuple[Costs, Costs]
    tested: Comparison | str

    @property
    def same(self) -> bool:
        """Whether both train the same: the three fingerprints agree, and nothing that decides differs."""
        return self.agreement.all and not any(change.section in DECIDING for change in self.changes)

    def text(self) -> str:
        """All of it, for people to read."""
        return diff_text.text(self)

    def sentence(self) -> str:
        """What a reader would say of it."""
        return diff_text.sentence(self)

    def as_json(self) -> Mapping[str, Any]:
        """All of it as plain data."""
        tested = self.tested.as_json() if isinstance(self.tested, Comparison) else None
        return {
            "a": self.one.name,
            "b": self.other.name,
            "same": self.same,
            "sentence": self.sentence(),
            "fingerprints": self.agreement.as_json(),
            "changes": [change.as_json() for change in self.changes],
            "costs": {name: each.as_json() for name, each in zip("ab", self.costs, strict=True)},
            "scores": {name: dict(each.scores) for name, each in zip("ab", (self.one, self.other), strict=True)},
            "test": tested,
            "no_test": self.tested if isinstance(self.tested, str) else "",
        }


def diff(
    a: Named, b: Named, data: str | Path | None = None, quick: bool = False, say: Callable[[str], None] | None = None
) -> Difference:
    """What has to change in `a` to get `b`: recipes, files, run folders, trials and points of sweeps.

    data: where data files are looked up first. quick: whether two runs' translations are left uncompared. say: who is
    told what takes long. Raises ComposerError with the faults of both.
    """
    place = None if data is None else Path(data)
    one, other = both(a, b, place)
    measured = costs(one, other)
    changes = [*setting_changes(one.recipe, other.recipe), *model_changes(one.recipe, other.recipe)]
    tested = "" if quick else compared(one, other, place, say or (lambda _: None))
    agreed = agreement(one, other, place)
    changes += [*data_changes(agreed, changes), *record_changes(one, other)]
    return Difference(one, other, tuple(changes), agreed, measured, tested)
