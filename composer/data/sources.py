"""Data sources: pairs of train, val and test from text, tables, the hub, stories or a generated task; their checks."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from composer.data import stories, tables, text_files
from composer.data.corpora import Documents, check_corpora, open_corpus
from composer.data.text_files import Problem, RowSubset, TextColumn, count_shared, keep_once, row_hashes, split_rows
from composer.errors import DataError, Fault
from composer.recipe.schema_reader import DATA_SOURCES, SPLITS

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

TARGET = "target"
SAMPLED = 1 << 18
"""Characters of a corpus that are read for a sample of it."""


@dataclass(frozen=True)
class Pairs:
    """Lines of every side of one split, by side. A side is read when it is indexed; files stay on disk.

    `facts` are, for each pair, the indices of the sentences of its story that support the answer; None without stories.
    `notes` are lines for the user. `references` are columns of further references of each line, beside the target.
    """

    sides: Mapping[str, Sequence[str]]
    facts: Sequence[Sequence[int]] | None = None
    notes: Sequence[str] = ()
    references: Sequence[Sequence[str]] = ()

    def __len__(self) -> int:
        return len(self.sides[TARGET])

    def __getitem__(self, at: int) -> dict[str, str]:
        return {side: lines[at] for side, lines in self.sides.items()}

    def keep(self, rows: np.ndarray) -> Pairs:
        """Return the pairs with these row numbers, in their order."""
        facts = None if self.facts is None else [self.facts[row] for row in rows]
        sides = {side: RowSubset(lines, rows) for side, lines in self.sides.items()}
        return Pairs(sides, facts, references=[RowSubset(lines, rows) for lines in self.references])

    def columns(self) -> dict[str, Sequence[str]]:
        """Return the lines of every side, and those of further references as `target-2` and so on."""
        return {**self.sides, **{f"{TARGET}-{number}": lines for number, lines in enumerate(self.references, start=2)}}

    @classmethod
    def of_columns(cls, columns: Mapping[str, Sequence[str]]) -> Pairs:
        """Return the pairs of named columns, see `columns`."""
        references = {name: lines for name, lines in columns.items() if name.startswith(f"{TARGET}-")}
        sides = {name: lines for name, lines in columns.items() if name not in references}
        return cls(sides, references=[*references.values()])

    def sample(self, count: int) -> Pairs:
        """Return at most `count` pairs, in memory: the first ones, and as many spread over the rest; of a corpus the
        first documents."""
        if isinstance(text := self.sides[TARGET], Documents):
            return Pairs({TARGET: text.head(SAMPLED)})
        first, pairs = count // 2, self
        if len(self) > count:
            rest = np.linspace(first, len(self) - 1, count - first, dtype=np.int64)
            pairs = self.keep(np.concatenate([np.arange(first), rest]))
        references = [[*lines] for lines in pairs.references]
        return Pairs({side: [*lines] for side, lines in pairs.sides.items()}, pairs.facts, pairs.notes, references)


@dataclass(frozen=True, eq=False)
class DataSource:
    """The data of a recipe, with its files in `folders`: checked once, and every split opened once, for all readers."""

    recipe: Recipe
    folders: Sequence[Path]
    _opened: dict[str, Pairs] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def faults(self) -> list[Fault]:
        """All faults of the data that the recipe names."""
        return check_files(self.recipe, self.folders, self._opened)

    def pairs(self, split: str) -> Pairs:
        """Return the pairs of a split. Raises DataError with every fault of the data."""
        if split not in self._opened and self.faults:
            raise DataError(self.faults)
        if split not in self._opened:  # nor has the check generated it
            self._opened[split] = open_pairs(self.recipe, split, self.folders)
        return self._opened[split]

    def sample(self, count: int) -> DataSource:
        """Return the same data with at most `count` pairs of each split: its first ones, and as many from the rest.

        Of a task's training pairs, the first; its val and test are small.
        """
        sample, task = DataSource(self.recipe, self.folders), task_settings(self.recipe)
        if task:
            few = generate_pairs(self.recipe, "train", train=min(task["train"], count))
            sample._opened.update({"train": few, "val": self.pairs("val"), "test": self.pairs("test")})
            return sample
        for split in available_splits(self.recipe):
            sample._opened[split] = self.pairs(split).sample(count)
        return sample

    def all_pairs(self) -> dict[str, Pairs]:
        """Return the pairs of every split that there is. Raises DataError."""
        return {split: self.pairs(split) for split in available_splits(self.recipe)}

    def overlap_warnings(self, pairs: Mapping[str, Pairs], is_all: bool = True) -> Iterator[Fault]:
        """Yield a warning of each split of files or the hub that shares pairs with training, or teaches to copy.

        pairs: All, or a sample of each split if not `is_all`. Raises DataError if the test is the training part.
        """
        recipe, parallel = self.recipe, self.recipe.dataset.get("parallel") or {}
        if not (parallel or recipe.dataset.get("hub")):
            return
        trained = row_hashes(*pairs["train"].sides.values())
        for split, part in pairs.items():
            path, rows = split_path(recipe, split), row_hashes(*part.sides.values())
            if split == "test" and np.array_equal(rows, trained):
                message = "these are the training pairs, so the scores would say nothing"
                raise DataError([recipe.fault("overlap", path, message, "name others, or hold some out: `test: 100`")])
            target = row_hashes(part.sides[TARGET])
            if any(np.array_equal(row_hashes(part.sides[side]), target) for side in source_names(recipe)):
                message = f"source and target of {split} are the same lines, so all there is to learn is to copy"
                yield recipe.fault("overlap", path, message, "name two files, or two columns").as_warning()
            if split != "train" and (shared := count_shared(rows, trained)):
                count = f"{'' if is_all else 'at least '}{shared:,} of {len(part):,} pairs of {split}"
                fix = f"remove them from the training pairs, or choose others for {split}"
                if isinstance(parallel.get(split), int):
                    train = parallel["train"]
                    files = [train["file"]] if train.get("file") else column_names(recipe, train).values()
                    fix = f"keep one of each pair: `{keep_once(files)}`"
                message = f"{count} are trained on, too, which flatters the scores"
                yield recipe.fault("overlap", path, message, fix).as_warning()


def side_names(recipe: Recipe) -> list[str]:
    """Return the sides of a pair: what the encoders read, then `target`."""
    return [*source_names(recipe), TARGET]


def source_names(recipe: Recipe) -> list[str]:
    """Return what the encoders read: `source`, the encoders' names, or nothing."""
    if recipe.model.get("encoders"):
        return list(recipe.model["encoders"])
    return ["source"] if recipe.model.get("encoder") is not None else []


def available_splits(recipe: Recipe) -> list[str]:
    """Return those of train, val and test that the recipe's data has, and the names of its further test sets."""
    data = recipe.dataset
    if data.get("generate"):
        return list(SPLITS)
    if data.get("babi"):
        return [split for split in SPLITS if split != "val" or data["babi"]["val"]]
    settings = data.get("parallel") or data.get("text") or data.get("hub") or {}
    return [*(split for split in SPLITS if settings.get(split)), *(settings.get("test_sets") or {})]


def open_pairs(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    """Open the pairs of one split, from files that have no fault (`check_files`).

    Raises DataError if a file has gone or changed since the check, or the hub does not give its data.
    """
    data = recipe.dataset
    try:
        if data.get("generate"):
            pairs = generate_pairs(recipe, split)
        elif data.get("hub"):
            pairs = _from_hub(recipe, split, folders)
        elif data.get("text"):
            pairs = Pairs({TARGET: open_corpus(recipe, split, folders)})
        elif data.get("babi"):
            pairs = Pairs(*stories.open_babi(recipe, split, folders))
        else:
            pairs = _open_parallel(recipe, split, folders)
    except OSError as error:
        raise DataError([_read_fault(recipe, error)]) from error
    if faults := _size_faults(recipe, split, pairs):
        raise DataError(faults)
    return pairs


def check_files(recipe: Recipe, folders: Sequence[Path], opened: dict[str, Pairs] | None = None) -> list[Fault]:
    """Return all faults of the data that the recipe names. Fast on large files; asks no network.

    opened: takes the pairs of splits that are generated anyway, so that it is not done twice.
    """
    data = recipe.dataset
    if data.get("generate"):
        faults: set[Fault] = set()
        for split in SPLITS:
            try:
                pairs = generate_pairs(recipe, split, train=1)  # val and test are small, one training pair shows faults
            except DataError as error:
                faults.update(error.faults)
            else:
                (opened if split != "train" and opened is not None else {})[split] = pairs
        return sorted(faults)
    if data.get("hub"):
        problem = tables.missing_package("id", "the hub is")
        return [_fault(recipe, ("data", "hub"), problem)] if problem else []
    try:
        if data.get("text"):
            return check_corpora(recipe, folders)
        return stories.check_babi(recipe, folders) if data.get("babi") else _check_parallel(recipe, folders)
    except OSError as error:
        return [_read_fault(recipe, error)]


def split_path(recipe: Recipe, split: str) -> tuple[str, ...]:
    """Return the path in the recipe of what a split is read from."""
    kind = next(kind for kind in DATA_SOURCES if recipe.dataset.get(kind))
    if kind not in ("parallel", "text", "hub"):
        return ("data", kind)
    return ("data", kind, split) if split in SPLITS else ("data", kind, "test_sets", split)


def split_settings(recipe: Recipe, split: str) -> Any:
    """Return what the section `parallel` says of a split: its files, or the number of pairs that are held out."""
    parallel = recipe.dataset["parallel"]
    return parallel[split] if split in SPLITS else parallel["test_sets"][split]


def column_names(recipe: Recipe, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the file, or the column, of every side and of further references, see `Pairs.columns`."""
    target, *references = [settings[TARGET]] if isinstance(settings[TARGET], str) else settings[TARGET]
    sides = {side: str(settings[side]) for side in source_names(recipe)}
    return {**sides, TARGET: target, **{f"{TARGET}-{number}": name for number, name in enumerate(references, start=2)}}


def _size_faults(recipe: Recipe, split: str, pairs: Pairs) -> list[Fault]:
    path = split_path(recipe, split)
    counts = {side: len(lines) for side, lines in pairs.columns().items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{side} {count:,}" for side, count in counts.items())
        message = f"the sides of {split} have different numbers of lines: {listed}"
        return [recipe.fault("lines", path, message, "give every line its counterpart on the other sides")]
    return [] if len(pairs) else [recipe.fault("empty", path, f"{split} has no pairs", "give it at least one pair")]


def _read_fault(recipe: Recipe, error: OSError) -> Fault:
    message = f"`{error.filename or 'a file'}` cannot be read: {error.strerror or error}"
    return recipe.fault("file", ("data",), message, "restore it, and do not change it while it is in use")


def _fault(recipe: Recipe, path: tuple[str, ...], problem: Problem) -> Fault:
    key, _, number = problem.key.partition("-")  # target-2 is the second of a list
    keys = (key, int(number) - 1) if number else (key,) if key else ()
    return recipe.fault(problem.code, (*path, *keys), problem.message, problem.hint)


def _open_parallel(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    sizes = held_out_sizes(recipe.dataset["parallel"])
    if not sizes or split not in ("train", *sizes):
        return _open_split(recipe, split, folders)
    pairs = _open_split(recipe, "train", folders)
    return pairs.keep(split_rows(len(pairs), sizes)[split])


def _open_split(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    settings = split_settings(recipe, split)
    names = column_names(recipe, settings)
    if not settings.get("file"):
        return Pairs.of_columns({side: TextColumn(_require_file(name, folders)) for side, name in names.items()})
    path = _require_file(settings["file"], folders)
    try:
        return Pairs.of_columns(tables.open_columns(path, names))
    except Exception as error:  # pandas, Arrow and `datasets` have no common class of errors
        if tables.KINDS[path.suffix.lower()] in tables.READ_IN_PLACE:
            raise
        message = f"`{path}` cannot be read: {_root_cause(error)}"
        problem = Problem("file", "table", message, "repair it, or save it as TSV")
        raise DataError([_fault(recipe, split_path(recipe, split), problem)]) from error


def _require_file(name: str, folders: Sequence[Path]) -> Path:
    path = text_files.find_file(name, folders)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return path


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:  # `datasets` wraps the error that says what is wrong
        error = error.__cause__
    return str(error) or type(error).__name__


def _check_parallel(recipe: Recipe, folders: Sequence[Path]) -> list[Fault]:
    parallel = recipe.dataset["parallel"]
    sizes = held_out_sizes(parallel)
    faults: list[Fault] = []
    for split in available_splits(recipe):
        if split not in sizes:
            settings = split_settings(recipe, split)
            names, file = column_names(recipe, settings), settings.get("file")
            problems = _check_columns(file, names, folders) if file else text_files.check_texts(names, folders)
            faults += [_fault(recipe, split_path(recipe, split), problem) for problem in problems]
    if faults or not sizes:
        return faults
    count, held_out = len(_open_split(recipe, "train", folders)), sum(sizes.values())
    if held_out < count:
        return []
    split = max(sizes, key=lambda name: sizes[name])
    message = f"{' and '.join(sizes)} take {held_out:,} pairs, and the training files have {count:,}"
    example = f"write, for example, `{split}: {max(1, count // 20)}`"
    return [recipe.fault("empty", ("data", "parallel", split), message, example)]


def _check_columns(name: str, columns: Mapping[str, str], folders: Sequence[Path]) -> list[Problem]:
    kind = tables.KINDS.get(Path(name).suffix.lower())
    if kind is None:
        message = f"`{name}` ends in none of {', '.join(tables.KINDS)}"
        return [Problem("file", "file", message, "give it the suffix of its format")]
    path = text_files.find_file(name, folders)
    if path is None:
        return [text_files.missing_file("file", name, folders)]
    problem = tables.missing_package("file", f"{kind} is") if kind in ("csv", "parquet") else None
    problem = problem or text_files.check_readable("file", path)
    if not problem and kind != "parquet":
        problem = text_files.check_utf8("file", path)
    return [problem] if problem else [*tables.check_table(path, columns)]


def held_out_sizes(parallel: Mapping[str, object]) -> dict[str, int]:
    """Return how many pairs of the training files each of val and test takes, where it has no files of its own."""
    return {split: size for split in ("val", "test") if isinstance(size := parallel.get(split), int)}


def find_hub_folder(recipe: Recipe, folders: Sequence[Path]) -> Path | None:
    """Return the folder that has the data of `hub`; None without one: they are downloaded then."""
    places = (folder / recipe.dataset["hub"]["id"] for folder in folders)
    return next((place for place in places if place.is_dir()), None)


def _from_hub(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    hub = recipe.dataset["hub"]
    place = str(find_hub_folder(recipe, folders) or hub["id"])
    datasets = tables.import_datasets()
    try:
        dataset = datasets.load_dataset(place, hub.get("config"), split=hub[split])
    except Exception as error:  # the hub's client has no common class of errors: no network, no such id, no such split
        message = f"the data set `{hub['id']}` has no `{hub[split]}` that can be read: {_root_cause(error)}"
        problem = Problem(split if "split" in str(error) else "id", "hub", message, "check its name and the network")
        raise DataError([_fault(recipe, ("data", "hub"), problem)]) from error
    columns = {side: hub[side] for side in side_names(recipe)}
    problems = tables.check_arrow_schema(dataset.features.arrow_schema, columns)
    if faults := [_fault(recipe, ("data", "hub"), problem) for problem in problems]:
        raise DataError(faults)
    return Pairs({side: tables.DatasetColumn(dataset, name, hub["id"]) for side, name in columns.items()})


def task_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings of the recipe's generated task; {} without one."""
    return next(iter((recipe.dataset.get("generate") or {}).values()), {})


def is_endless(recipe: Recipe) -> bool:
    """Return True if each epoch of the recipe's task has training pairs of its own."""
    return bool(task_settings(recipe).get("endless"))


def generate_pairs(recipe: Recipe, split: str, epoch: int = 0, **changes: Any) -> Pairs:
    """Generate the pairs of a split of the recipe's task; of an endless one, the training pairs of this epoch.

    changes: settings of the task in place of the recipe's.
    """
    from composer.data.tasks import TASKS, TaskError

    ((task, settings),) = recipe.dataset["generate"].items()
    try:
        lines = TASKS[task](split, epoch, **{**settings, **changes})
    except TaskError as error:
        path = ("data", "generate", task, error.setting)
        raise DataError([recipe.fault("task", path, error.message, error.fix)]) from error
    return Pairs({side: lines.target if side == TARGET else lines.source for side in side_names(recipe)})
