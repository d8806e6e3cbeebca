"""A run that is trained again: `train RUN/recipe.yaml`, and whether the same came of it.

A repeat finds its data where the run found them, reads with the run's own tokenizer (not every tokenizer is the same
when it is trained twice), begins with the weights that the run began with, and spends a budget in minutes as the run
did, step by step. Whatever changes the fingerprint makes it another run; then nothing of this is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.atomic_io import sha256_of_file
from composer.data.sources import DataSource
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.fingerprint import InitialWeights, fingerprint_pairs, initial_weights
from composer.model.weights import describe_difference
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir
from composer.training import provenance
from composer.training.metrics_logger import pace_of

OTHER_DATA = "the data are not those that it was trained on"
OTHER_RECIPE = "its recipe.yaml was changed since it was begun, or this version of seqcomposer reads it otherwise"
IN_MINUTES = "its budget is in minutes, and how they were spent is no longer known"
ON_GPU = "sums on a GPU are rounded in no fixed order without `trainer: {deterministic: true}`"


@dataclass(frozen=True)
class ReproducedRun:
    """The run that is trained again, and its run.json."""

    folder: RunDir
    record: Mapping[str, Any]

    def place(self, runs: Path, name: str) -> Path:
        """Where the repeat goes if nobody says: beside other runs, and never into the run itself."""
        first, second = runs / f"{name}-repeat", runs / f"{name}-repeat-2"
        return second if is_same(first, self.folder.path) else first

    def tokenizers(self, source: DataSource) -> Tokenizers | None:
        """The run's own tokenizers; None where the data are others. Raises RunError where they are not its own."""
        if fingerprint_pairs(source.recipe, source.all_pairs())["data"] != self.record["fingerprints"]["data"]:
            return None
        found = Tokenizers.load(self.folder.tokenizer)
        if found.sha256 != self.record.get("tokenizer"):
            raise RunError.of(
                "this tokenizer is not the one that the run was trained with",
                "restore tokenizer.json as it was",
                str(self.folder.tokenizer),
            )
        return found

    def beginning(self) -> Path | None:
        """The run with whose weights this one began, wherever it is now. Raises RunError where it is nowhere."""
        wanted = self.record.get("began_from")
        if not wanted:
            return None
        for place in self.near():
            if is_beginning(place, wanted):
                return place
        where = f" in {self.record['start_from']}" if self.record.get("start_from") else ""
        raise RunError.of(
            f"this run began with the weights of another{where}, and that is neither there nor beside this run; "
            f"their SHA-256 is {wanted['weights']}",
            "name the folder of that run with `--from RUN`",
            str(self.folder.path),
        )

    def near(self) -> Iterator[Path]:
        """Runs that may be the one to begin with: where it was, then those beside this run that have its weights."""
        if self.record.get("start_from"):
            yield Path(self.record["start_from"])
        for path in sorted(self.folder.path.parent.glob("*/run.json")):
            try:
                known = RunDir(path.parent).read().get("weights")
            except RunError:
                continue
            if known == self.record["began_from"]["weights"]:
                yield path.parent

    def pace(self) -> dict[int, float]:
        """How fast this run spent its budget, where that is in minutes."""
        return pace_of(self.folder.metrics)

    def told(self, recipe: Recipe, fingerprints: Mapping[str, str], now: Mapping[str, Any]) -> dict[str, Any]:
        """What the repeat's run.json keeps of this run; `now` is the lock of the repeat."""
        known = self.record["fingerprints"]
        differs = [OTHER_RECIPE] if known["says"] != recipe.fingerprints["run"] else []
        differs += [OTHER_DATA] if known["data"] != fingerprints["data"] else []
        differs += provenance.differences(self.record, now)
        resumed = self.record.get("resumed_with") or []
        return {
            "run": str(self.folder.path),
            "fingerprint": known["run"],
            "weights": self.record.get("weights"),
            "differs": [*differs, *(f"it was resumed otherwise, {each}" for each in resumed)],
        }


def find_original_run(recipe: Recipe, run: str | Path | None, start_from: str | Path | None) -> ReproducedRun | None:
    """The run whose recipe this is, with nothing laid over it that decides; None of any other recipe.

    A run that is resumed in its own folder is none, nor one that begins with other weights than it did, nor one whose
    run.json is of an older version.
    """
    folder = RunDir(recipe.file.absolute().parent)
    if recipe.file.name != folder.recipe.name or not folder.record.exists():
        return None
    if run is not None and is_same(Path(run), folder.path):
        return None
    record = folder.read()
    known = record.get("fingerprints")
    if not isinstance(known, dict) or "says" not in known:
        return None
    if load(folder.recipe).fingerprints["run"] != recipe.fingerprints["run"]:
        return None
    if start_from is not None and not is_beginning(Path(start_from), record.get("began_from")):
        return None
    return ReproducedRun(folder, record)


def is_beginning(run: Path, wanted: InitialWeights | None) -> bool:
    """Whether a run is the one to begin with."""
    folder = RunDir(run)
    there = folder.weights.is_file() and folder.tokenizer.is_file()
    return wanted is not None and there and initial_weights(folder) == wanted


def is_same(one: Path, other: Path) -> bool:
    """Whether two paths are one folder."""
    return one.resolve() == other.resolve()


# ------------------------------------------------------------------------------------------- at the end


def verdict(repeat_of: Mapping[str, Any], recipe: Recipe, weights: Path, on_gpu: bool) -> tuple[bool | None, str]:
    """Whether a repeat has ended with the run's weights, None where there are none to compare with; and in words."""
    run, wanted = repeat_of["run"], repeat_of["weights"]
    if wanted is None:
        return None, f"nothing to compare with: {run} had not finished when this began"
    if sha256_of_file(weights) == wanted:
        return True, f"the same weights as {run}, to the last bit"
    difference = compared(Path(run), wanted, weights)
    if not difference:
        return True, f"the same weights as {run}, to the last bit, in a file that is written otherwise"
    in_minutes = recipe.training["max_minutes"] is not None and not pace_of(RunDir(Path(run)).metrics)
    reasons = [*repeat_of["differs"], *([IN_MINUTES] if in_minutes else []), *perhaps(recipe, on_gpu)]
    why = f"that may be because: {'; '.join(reasons)}" if reasons else "nothing is known that would explain it"
    return False, f"not the same weights as {run}: {difference}; {why}"


def compared(run: Path, wanted: str, weights: Path) -> str:
    """How the weights of a repeat differ from the run's; "" where they do not."""
    theirs = RunDir(run).weights
    if not theirs.is_file() or sha256_of_file(theirs) != wanted:
        return "their SHA-256 is another, and the weights themselves are no longer there"
    return describe_difference(theirs, weights)


def perhaps(recipe: Recipe, on_gpu: bool) -> Iterator[str]:
    """Why the same training of the same recipe may end otherwise on the same machine."""
    if on_gpu and recipe.trainer["deterministic"] is not True:
        yield ON_GPU
