"""Data sources: pairs of a split from files, the hub, stories or tasks; their checks."""

from __future__ import annotations

import errno
import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from composer.data import stories, tables
from composer.data.corpora import check_corpora, open_corpus
from composer.data.documents import HubDocuments
from composer.data.pairs import TARGET, Pairs, available_splits, side_names, split_path
from composer.data.parallel_files import check_parallel, open_parallel
from composer.data.parquet_files import check_arrow_schema
from composer.data.tasks import TaskError
from composer.data.text_files import Problem
from composer.errors import DataError, Fault, os_error_hint
from composer.recipe.data_sections import Hub
from composer.recipe.schema_reader import SPLITS

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

MOST_ROWS = 500_000_000
"""Rows of an epoch at most where files have weights: their numbers take 4 GB."""


@dataclass(frozen=True, eq=False)
class DataSource:
    """The data of a recipe: checked once, and every split opened once, for all readers."""

    recipe: Recipe
    folders: Sequence[Path]
    _opened: dict[str, Pairs] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def faults(self) -> list[Fault]:
        """All faults of the data that the recipe names."""
        return [
            *self.recipe.tokenizer_faults(),
            *check_files(self.recipe, self.folders, self._opened),
        ]

    def pairs(self, split: str) -> Pairs:
        """Return the pairs of a split. Raises DataError with every fault of the data."""
        if split not in self._opened and self.faults:
            raise DataError(self.faults)
        if split not in self._opened:  # nor has the check generated it
            self._opened[split] = open_pairs(self.recipe, split, self.folders, self._opened)
        return self._opened[split]

    def with_pairs(self, opened: Mapping[str, Pairs]) -> DataSource:
        """Return the same data with these pairs in place of what the files have."""
        source = DataSource(self.recipe, self.folders)
        source._opened.update(opened)
        return source

    def all_pairs(self) -> dict[str, Pairs]:
        """Return the pairs of every split that there is. Raises DataError."""
        return {split: self.pairs(split) for split in available_splits(self.recipe)}


def open_pairs(
    recipe: Recipe, split: str, folders: Sequence[Path], opened: dict[str, Pairs] | None = None
) -> Pairs:
    """Open the pairs of one split, from files that have no fault (`check_files`).

    Raises DataError if a file has gone or changed since the check, or the hub does not give its
    data.
    """
    data = recipe.data
    try:
        if data.generate:
            pairs = generate_pairs(recipe, split)
        elif data.hub:
            pairs = _from_hub(recipe, split, folders)
        elif data.text:
            documents = open_corpus(recipe, split, folders)
            pairs = Pairs(
                {TARGET: documents}, weights=documents.weights() if split == "train" else None
            )
        elif data.babi:
            pairs = Pairs(*stories.open_babi(recipe, split, folders))
        else:
            pairs = open_parallel(recipe, split, folders, {} if opened is None else opened)
    except OSError as error:
        raise DataError([_read_fault(recipe, error)]) from error
    if faults := _size_faults(recipe, split, pairs):
        raise DataError(faults)
    return pairs


def check_files(
    recipe: Recipe, folders: Sequence[Path], opened: dict[str, Pairs] | None = None
) -> list[Fault]:
    """Return all faults of the data that the recipe names. Fast on large files; asks no network.

    opened: takes what is generated or opened anyway, so that it is not done twice.
    """
    data, opened = recipe.data, {} if opened is None else opened
    if data.generate:
        faults: set[Fault] = set()
        for split in SPLITS:
            try:
                # val and test are small, one training pair shows faults
                pairs = generate_pairs(recipe, split, train=1)
            except DataError as error:
                faults.update(error.faults)
            else:
                opened |= {} if split == "train" else {split: pairs}
        return sorted(faults)
    if data.hub:
        return []
    try:
        if data.text:
            return check_corpora(recipe, folders)
        if data.babi:
            return stories.check_babi(recipe, folders)
        return check_parallel(recipe, folders, opened)
    except OSError as error:
        return [_read_fault(recipe, error)]


def _size_faults(recipe: Recipe, split: str, pairs: Pairs) -> list[Fault]:
    path = split_path(recipe, split)
    counts = {side: len(lines) for side, lines in pairs.columns.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{side} {count:,}" for side, count in counts.items())
        message = f"the sides of {split} have different numbers of lines: {listed}"
        return [
            recipe.fault(
                "lines", path, message, "give every line its counterpart on the other sides"
            )
        ]
    # a text with a weight has one for each document
    rows = 0.0 if pairs.weights is None else float(pairs.weights.sum(dtype=np.float64))
    if rows > MOST_ROWS:
        message = (
            f"an epoch would have {rows:,.0f} {'documents' if recipe.reads_text else 'pairs'}, by"
            " the weights"
        )
        return [recipe.fault("bound", path, message, "write smaller weights")]
    if len(pairs):
        return []
    return [recipe.fault("empty", path, f"{split} has no pairs", "give it at least one pair")]


def _read_fault(recipe: Recipe, error: OSError) -> Fault:
    message = f"`{error.filename or 'a file'}` cannot be read: {error.strerror or error}"
    too_many = error.errno in (errno.EMFILE, errno.ENFILE)
    if too_many:
        fix = os_error_hint(error)
    else:
        fix = "restore it, and do not change it while it is in use"
    return recipe.fault("file", ("data",), message, fix)


def hub_of(recipe: Recipe) -> Hub:
    """Return the section `data.hub` of a recipe that has one."""
    assert recipe.data.hub is not None
    return recipe.data.hub


def find_hub_folder(recipe: Recipe, folders: Sequence[Path]) -> Path | None:
    """Return the folder that has the data of `hub`; None without one: they are downloaded then."""
    places = (folder / hub_of(recipe).id for folder in folders)
    return next((place for place in places if place.is_dir()), None)


def _from_hub(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    hub = hub_of(recipe)
    part = getattr(hub, split)
    place = str(find_hub_folder(recipe, folders) or hub.id)
    datasets = tables.import_datasets()
    try:
        dataset = datasets.load_dataset(place, hub.config, split=part)
    # the hub's client has no common class of errors: no network, no such id, no such split
    except Exception as error:
        message = (
            f"the data set `{hub.id}` has no `{part}` that can be read: {tables.root_cause(error)}"
        )
        fix = "check its name and the network"
        if glob.has_magic(place):
            fix = (
                f"call the folder `{place}` otherwise: `datasets` takes `[`, `*` and `?` in its"
                " path for a pattern"
            )
        problem = Problem("hub", message, fix, split if "split" in str(error) else "id")
        raise DataError([problem.at(recipe, ("data", "hub"))]) from error
    columns = {side: hub.of_side(side) for side in side_names(recipe)}
    problems = check_arrow_schema(dataset.features.arrow_schema, columns)
    if faults := [problem.at(recipe, ("data", "hub")) for problem in problems]:
        raise DataError(faults)
    if recipe.reads_text:
        return Pairs({TARGET: HubDocuments(dataset, hub.target, hub.id)})
    return Pairs(
        {side: tables.DatasetColumn(dataset, name, hub.id) for side, name in columns.items()}
    )


def is_endless(recipe: Recipe) -> bool:
    """Return True if each epoch of the recipe's task has training pairs of its own."""
    return recipe.data.generate is not None and recipe.data.generate.endless


def generate_pairs(recipe: Recipe, split: str, epoch: int = 0, **changes: Any) -> Pairs:
    """Generate the pairs of a split of a task; of an endless one, the training pairs of an epoch.

    changes: settings of the task in place of the recipe's.
    """
    task = recipe.data.generate
    assert task is not None
    try:
        source, target = replace(task, **changes).generate(split, epoch)
    except TaskError as error:
        path = (*task.at, error.setting)
        raise DataError([recipe.fault("task", path, error.message, error.fix)]) from error
    sides = dict.fromkeys(side_names(recipe), source)
    return Pairs({**sides, TARGET: target})
