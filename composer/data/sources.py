"""Sources of pairs: where a recipe's text comes from, side by side, and all that can be wrong with it."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.data import stories, tables, text_files
from composer.data.text_files import Problem
from composer.errors import DataError, Fault

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe
import numpy as np

from composer.data.text_files import Column

SPLITS = ("train", "val", "test")
TARGET = "target"


@dataclass(frozen=True)
class Pairs:
    """The lines of every side of one split. A side is read when it is indexed; files stay on disk.

    `facts` are, of every pair, the places in its story of what bears the answer; None where there are no stories.
    `notes` are lines for the user.
    """

    sides: Mapping[str, Sequence[str]]
    facts: Sequence[Sequence[int]] | None = None
    notes: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.sides[TARGET])

    def __getitem__(self, at: int) -> dict[str, str]:
        return {side: lines[at] for side, lines in self.sides.items()}


def side_names(recipe: Recipe) -> list[str]:
    """What a pair of this recipe is made of: what the encoders read, then `target`."""
    return [*source_names(recipe), TARGET]


def source_names(recipe: Recipe) -> list[str]:
    """What the encoders read: `source`, the encoders' names, or nothing."""
    if recipe.model.get("encoders"):
        return list(recipe.model["encoders"])
    return ["source"] if recipe.model.get("encoder") is not None else []


def available_splits(recipe: Recipe) -> list[str]:
    """Which of train, val and test the recipe's data has."""
    data = recipe.dataset
    if data.get("generate"):
        return list(SPLITS)
    if data.get("babi"):
        return [split for split in SPLITS if split != "val" or data["babi"]["val"]]
    there = data.get("parallel") or data.get("hub") or {}
    return [split for split in SPLITS if there.get(split)]


def open_pairs(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    """The pairs of one split. The recipe's files have been checked (`check_files`). Raises DataError."""
    try:
        pairs = _opened(recipe, split, folders)
    except OSError as error:
        raise DataError([_unread(recipe, error)]) from error
    if faults := _size_faults(recipe, split, pairs):
        raise DataError(faults)
    return pairs


def _opened(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    data = recipe.dataset
    if data.get("generate"):
        return generate_pairs(recipe, split)
    if data.get("hub"):
        return _from_hub(recipe, split, folders)
    if data.get("babi"):
        return Pairs(*stories.open_babi(recipe, split, folders))
    return _from_files(recipe, split, folders)


def check_files(recipe: Recipe, folders: Sequence[Path]) -> list[Fault]:
    """All that is wrong with the data that the recipe names. Quick on big files; asks no network."""
    data = recipe.dataset
    if data.get("generate"):
        return _check_generated(recipe)
    if data.get("hub"):
        problem = tables.missing_package("id", "the hub is")
        return [_fault(recipe, ("data", "hub"), problem)] if problem else []
    try:
        if data.get("babi"):
            return stories.check_babi(recipe, folders)
        faults = [fault for split in available_splits(recipe) for fault in _check_split(recipe, split, folders)]
        return faults or _check_held_out(recipe, folders)
    except OSError as error:
        return [_unread(recipe, error)]


def _unread(recipe: Recipe, error: OSError) -> Fault:
    """That a file which was there has gone, or cannot be read to its end."""
    message = f"`{error.filename or 'a file'}` cannot be read: {error.strerror or error}"
    return recipe.fault("file", ("data",), message, "restore it, and leave it alone while it is in use")


def _size_faults(recipe: Recipe, split: str, pairs: Pairs) -> list[Fault]:
    """That a split has no pairs, or not as many lines on every side."""
    (kind,) = (each for each in ("parallel", "hub", "babi", "generate") if recipe.dataset.get(each))
    place = ("data", kind, split) if kind in ("parallel", "hub") else ("data", kind)
    counts = {side: len(lines) for side, lines in pairs.sides.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{side} {count:,}" for side, count in counts.items())
        message = f"the sides of {split} have different numbers of lines: {told}"
        return [recipe.fault("lines", place, message, "line by line they must belong together")]
    return [] if len(pairs) else [recipe.fault("empty", place, f"{split} has no pairs", "give it at least one pair")]


# ------------------------------------------------------------------------------------------- files


def _from_files(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    """The pairs of a split's own files, or of the training files those that belong to it."""
    # DROPPED

    parallel = recipe.dataset["parallel"]
    sizes = held_out_sizes(parallel)
    if not sizes or (split not in sizes and split != "train"):
        return _pairs_in(recipe, parallel[split], split, folders)
    whole = _pairs_in(recipe, parallel["train"], "train", folders)
    rows = split_rows(len(whole), sizes)[split]
    return Pairs({side: RowSubset(lines, rows) for side, lines in whole.sides.items()})


def _pairs_in(recipe: Recipe, told: Mapping[str, Any], split: str, folders: Sequence[Path]) -> Pairs:
    wanted = {side: str(told[side]) for side in side_names(recipe)}
    if not told.get("file"):
        return Pairs({side: text_files.TextColumn(_found(name, folders)) for side, name in wanted.items()})
    path = _found(told["file"], folders)
    kind = tables.KINDS[path.suffix.lower()]
    if kind in ("tsv", "json"):
        column = tables.tsv_column if kind == "tsv" else tables.json_column
        return Pairs({side: column(path, name) for side, name in wanted.items()})
    try:
        dataset = _load_file(kind, path, wanted.values())
    except Exception as error:  # pandas, Arrow and `datasets` have no common class of errors
        problem = Problem("file", "table", f"`{path}` cannot be read: {_cause(error)}", "mend it, or save it as TSV")
        raise DataError([_fault(recipe, ("data", "parallel", split), problem)]) from error
    return Pairs(tables.dataset_columns(dataset, wanted, str(path)))


def _cause(error: BaseException) -> str:
    """What the innermost of some errors says: `datasets` wraps them."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _load_file(kind: str, path: Path, names: Iterable[str]) -> Any:
    datasets = _datasets()
    settings: dict[str, Any] = {}
    if kind == "csv":
        # every field is a text as it stands: neither "NA" nor 007 nor an empty field means anything else
        texts = datasets.Features({name: datasets.Value("string") for name in dict.fromkeys(names)})
        settings = {"features": texts, "na_filter": False, "keep_default_na": False, "encoding": "utf-8-sig"}
    # a place of its own for every content: `datasets` knows a file by its name and time, which can stay as they were
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    cache = Path(datasets.config.HF_DATASETS_CACHE) / "seqcomposer" / content[:32]
    return datasets.load_dataset(kind, data_files=[str(path)], split="train", cache_dir=str(cache), **settings)


def _found(name: str, folders: Sequence[Path]) -> Path:
    path = text_files.find_file(name, folders)
    if path is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return path


def _check_split(recipe: Recipe, split: str, folders: Sequence[Path]) -> Iterator[Fault]:
    told = recipe.dataset["parallel"][split]
    if isinstance(told, int):
        return iter(())
    wanted = {side: str(told[side]) for side in side_names(recipe)}
    found = _table(told["file"], wanted, folders) if told.get("file") else _texts(split, wanted, folders)
    return (_fault(recipe, ("data", "parallel", split), each) for each in found)


def _texts(split: str, wanted: Mapping[str, str], folders: Sequence[Path]) -> list[Problem]:
    """What is wrong with line-aligned files: with each of them, else with their lengths."""
    paths = {side: text_files.find_file(name, folders) for side, name in wanted.items()}
    found = [
        problem
        for side, path in paths.items()
        if (problem := _text(side, path) if path else text_files.missing_file(side, wanted[side], folders))
    ]
    if found:
        return found
    counts = {side: text_files.count_lines(path) for side, path in paths.items() if path}
    first, *others = counts
    return [_unequal(split, first, other, counts, wanted) for other in others if counts[other] != counts[first]]


def _check_held_out(recipe: Recipe, folders: Sequence[Path]) -> list[Fault]:
    """That val and test take more pairs of the training files than there are."""
    # DROPPED

    parallel = recipe.dataset["parallel"]
    sizes = held_out_sizes(parallel)
    if not sizes:
        return []
    count = len(_pairs_in(recipe, parallel["train"], "train", folders))
    if sum(sizes.values()) < count:
        return []
    split = next(iter(sizes))
    message = f"{' and '.join(sizes)} take {sum(sizes.values()):,} pairs, and the training files have {count:,}"
    most = max(1, count // 20)
    return [recipe.fault("empty", ("data", "parallel", split), message, f"write, for example, `{split}: {most}`")]


def _text(side: str, path: Path) -> Problem | None:
    return text_files.check_readable(side, path) or text_files.check_utf8(side, path)


def _unequal(split: str, one: str, other: str, counts: Mapping[str, int], wanted: Mapping[str, str]) -> Problem:
    told = f"`{wanted[one]}` has {counts[one]:,} lines and `{wanted[other]}` has {counts[other]:,}"
    return Problem(other, "lines", f"{told}; line by line they must belong together", f"mend the {split} files")


def _table(name: str, wanted: Mapping[str, str], folders: Sequence[Path]) -> list[Problem]:
    """What is wrong with a file with columns."""
    kind = tables.KINDS.get(Path(name).suffix.lower())
    if kind is None:
        ends = ", ".join(tables.KINDS)
        return [Problem("file", "file", f"`{name}` ends in none of {ends}", "rename it by what it holds")]
    path = text_files.find_file(name, folders)
    if path is None:
        return [text_files.missing_file("file", name, folders)]
    broken = (kind in ("csv", "parquet") and tables.missing_package("file", f"{kind} is")) or text_files.check_readable(
        "file", path
    )
    broken = broken or (text_files.check_utf8("file", path) if kind != "parquet" else None)
    return [broken] if broken else tables.check_table(path, wanted)


# ------------------------------------------------------------------------------------------- hub and tasks


def _from_hub(recipe: Recipe, split: str, folders: Sequence[Path]) -> Pairs:
    told = recipe.dataset["hub"]
    local = next((folder / told["id"] for folder in folders if (folder / told["id"]).is_dir()), None)
    try:
        dataset = _datasets().load_dataset(
            str(local or told["id"]), told.get("config"), split=told[split], revision=told.get("revision")
        )
    except Exception as error:  # the hub's client has no common class of errors: no network, no such id, no such split
        message = f"the data set `{told['id']}` has no `{told[split]}` that can be read: {_cause(error)}"
        problem = Problem(split if "split" in str(error) else "id", "hub", message, "check its name and the network")
        raise DataError([_fault(recipe, ("data", "hub"), problem)]) from error
    wanted = {side: told[side] for side in side_names(recipe)}
    faults = [
        _fault(recipe, ("data", "hub"), each)
        for each in tables.check_arrow_schema(dataset.features.arrow_schema, wanted)
    ]
    if faults:
        raise DataError(faults)
    return Pairs(tables.dataset_columns(dataset, wanted, told["id"]))


def _datasets() -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets


def is_endless(recipe: Recipe) -> bool:
    """Whether each epoch of the recipe's task has training pairs of its own."""
    return any(settings.get("endless") for settings in (recipe.dataset.get("generate") or {}).values())


def generate_pairs(recipe: Recipe, split: str, epoch: int = 0) -> Pairs:
    """The pairs of a split of the recipe's task; of an endless one, the training pairs of this epoch."""
    from composer.data.tasks import TASKS
    from composer.data.tasks.draws import TaskError

    ((task, settings),) = recipe.dataset["generate"].items()
    try:
        lines = TASKS[task](split, epoch, **settings)
    except TaskError as error:
        raise DataError([_task_fault(recipe, task, error.setting, error.message, error.fix)]) from error
    return Pairs({side: lines.target if side == TARGET else lines.source for side in side_names(recipe)})


def _check_generated(recipe: Recipe) -> list[Fault]:
    """Draws what is small, and one training pair."""
    from composer.data.tasks import TASKS
    from composer.data.tasks.draws import TaskError

    ((task, settings),) = recipe.dataset["generate"].items()
    found = []
    for split in SPLITS:
        try:
            TASKS[task](split, **{**settings, "train": 1})
        except TaskError as error:
            found.append(_task_fault(recipe, task, error.setting, error.message, error.fix))
    return sorted(set(found))


def _task_fault(recipe: Recipe, task: str, setting: str, message: str, fix: str) -> Fault:
    return recipe.fault("task", ("data", "generate", task, setting), message, fix)


def _fault(recipe: Recipe, place: tuple[str, ...], problem: Problem) -> Fault:
    path = (*place, problem.key) if problem.key else place
    return recipe.fault(problem.code, path, problem.message, problem.hint)


HELD_OUT = ("val", "test")


class RowSubset(Column):
    """Some lines of a column, in their order."""

    def __init__(self, whole: Sequence[str], rows: np.ndarray) -> None:
        self.whole, self.rows = whole, rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int]) -> list[str]:
        wanted = self.rows[np.asarray(rows, dtype=np.int64)]
        if not len(wanted):
            return []
        first, last = int(wanted.min()), int(wanted.max())
        if last - first > 2 * len(wanted):
            return [self.whole[int(at)] for at in wanted]
        lines = self.whole[first : last + 1]  # neighbours are read at once
        return [lines[at - first] for at in wanted]


def held_out_sizes(parallel: Mapping[str, object]) -> dict[str, int]:
    """How many pairs of the training files each of val and test takes; nothing of those that have files."""
    return {split: size for split in HELD_OUT if isinstance(size := parallel.get(split), int)}


def split_rows(count: int, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Which of `count` pairs are trained on, validated with and tested on: those held out are spread evenly.

    The same for the same numbers, whatever the text: a line that is added at the end moves few others.
    """
    held = sum(sizes.values())
    places = (np.arange(held) * 2 + 1) * count // (2 * max(held, 1))
    test = np.zeros(held, dtype=bool)
    test[(np.arange(sizes.get("test", 0)) * 2 + 1) * held // (2 * max(sizes.get("test", 0), 1))] = True
    train = np.ones(count, dtype=bool)
    train[places] = False
    return {"train": np.flatnonzero(train), "val": places[~test], "test": places[test]}
