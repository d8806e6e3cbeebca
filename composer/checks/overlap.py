"""Rules against overlap of training and measured data: pairs, files, documents; and equal sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from blocks.core.fixes import Fix, write
from composer.checks.problem import Problem, Problems, warning
from composer.checks.read_data import ReadData, Rules
from composer.data.cache_entries import cached_array
from composer.data.corpora import held_out_files, open_files
from composer.data.documents import Documents
from composer.data.line_hashes import (
    are_among,
    are_hashes_of,
    combine_hashes,
    hash_lines,
    line_hashes,
)
from composer.data.pairs import TARGET, Pairs, available_splits, split_path
from composer.data.sources import DataSource
from composer.data.split import held_out_sizes
from composer.errors import DataError

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

USUAL_SHARE = 0.01
"""Share of lines, or of a text, that training repeats in any data: short sentences."""
DISTINCT_SHARE = 0.5
"""Share of different targets in the training from which on a target tells of its pair; labels and
numbers repeat.
"""
SHORT_DOCUMENT = 20
"""Characters of a document below which it may be repeated by chance."""
TOO_GOOD = "so the scores will be too good"


def overlap(read: ReadData) -> Problems:
    """No measured data from files or the hub are trained on, and no side equals another.

    Raises DataError if the test is the training part.
    """
    source, recipe, pairs, is_all = read.source, read.recipe, read.data.pairs, read.is_all
    if recipe.data.text:
        yield from shared_files(source)
        yield from whole_files(source)
        yield from shared_documents(recipe, pairs, is_all)
    if recipe.reads_text or not (recipe.data.parallel or recipe.data.table or recipe.data.hub):
        return
    trained = PairHashes.of(pairs["train"])
    for split, part in pairs.items():
        measured = trained if split == "train" else PairHashes.of(part)
        if split == "test" and is_training(source, measured.pairs, trained.pairs, is_all):
            message = "these are the training pairs, so the scores would say nothing"
            fix = "name others, or hold some out: `test: 100`"
            raise DataError([recipe.fault("overlap", split_path(recipe, split), message, fix)])
        if any(np.array_equal(side, measured.targets) for side in measured.sides):
            message = (
                f"source and target of {split} are the same lines, so all there is to learn is to"
                " copy"
            )
            fix = "name two files, or two columns"
            yield warning("overlap", split_path(recipe, split), message, fix)
        if split != "train" and not (recipe.data.parallel and recipe.data.parallel.decontaminate):
            yield from shared_pairs(recipe, split, measured, trained, is_all)


@dataclass(frozen=True)
class PairHashes:
    """Hashes of the pairs of a split, their sources, targets and sides; 0 without text."""

    pairs: np.ndarray
    sources: np.ndarray
    targets: np.ndarray
    sides: Sequence[np.ndarray]

    @classmethod
    def of(cls, pairs: Pairs) -> PairHashes:
        """Hash what models read and write of pairs."""
        hashes = {side: line_hashes(lines) for side, lines in pairs.sides.items()}
        targets, everything = hashes.pop(TARGET), [*hashes.values()]
        sources = combine_hashes(everything) if everything else np.zeros(len(targets), np.uint64)
        return cls(combine_hashes([*everything, targets]), sources, targets, everything)


def is_training(
    source: DataSource, measured: np.ndarray, trained: np.ndarray, is_all: bool
) -> bool:
    """True if the test is the training part, by the hashes of its pairs."""
    if not np.array_equal(measured, trained):
        return False
    test, train = (source.pairs(split) for split in ("test", "train"))
    return is_all or np.array_equal(PairHashes.of(test).pairs, PairHashes.of(train).pairs)


def shared_pairs(
    recipe: Recipe, split: str, measured: PairHashes, trained: PairHashes, is_all: bool
) -> Iterator[Problem]:
    """Yield warnings of a split's pairs, and of other sources and targets, that are trained on."""
    path, total = split_path(recipe, split), len(measured.pairs)
    least = "" if is_all else "at least "
    fix = Fix(f"remove them from the training pairs, or choose others for {split}")
    if recipe.data.parallel:
        fix = write(("data", "parallel", "decontaminate"), True, " under `parallel`")
    is_pair = is_shared(measured.pairs, trained.pairs)
    if is_unusual(is_pair):
        message = (
            f"{least}{is_pair.sum():,} of {total:,} pairs of {split} are also in the training data,"
            f" {TOO_GOOD}"
        )
        yield warning("overlap", path, message, fix)
    others = [("source", "target", measured.sources, trained.sources)]
    if len(np.unique(trained.targets)) > DISTINCT_SHARE * len(trained.targets):
        others.append(("target", "source", measured.targets, trained.targets))
    for side, other, own, known in others if measured.sides else ():
        is_other = is_shared(own, known) & ~is_pair
        if is_unusual(is_other):
            count = f"{least}{is_other.sum():,} of {total:,} pairs of {split}"
            message = f"the {side} of {count} is trained on with another {other}, {TOO_GOOD}"
            yield warning("overlap", path, message, fix)


def is_shared(measured: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """True for each hash of a line with text that is among those of training. -> (lines,) bool"""
    return np.asarray(np.isin(measured, trained[are_among(trained, measured)]) & (measured != 0))


def is_unusual(is_repeated: np.ndarray) -> bool:
    """True if more is repeated than in any data."""
    return bool(is_repeated.sum() > USUAL_SHARE * len(is_repeated))


def shared_files(source: DataSource) -> Iterator[Problem]:
    """Yield a warning of each split of a text with a file that is trained on, in whatever format.

    Raises DataError if the test is the training part.
    """
    recipe = source.recipe
    held_out = held_out_sizes(recipe.data.text)
    splits = [split for split in available_splits(recipe) if split not in held_out]
    corpora = {split: open_files(recipe, split, source.folders) for split in splits}
    contents = {}
    for split, corpus in corpora.items():
        contents[split] = [facts.texts_sha256 for facts in corpus.facts]
    trained = {*contents.pop("train")}
    for split, hashes in contents.items():
        shared = [number for number, content in enumerate(hashes) if content in trained]
        if split == "test" and {*hashes} == trained:
            message = "this is the training text, so the scores would say nothing"
            path = split_path(recipe, split)
            raise DataError([recipe.fault("overlap", path, message, "name another")])
        if shared:
            file = corpora[split].files[shared[0]].path
            message = f"`{file}` of {split} is also in the training data, {TOO_GOOD}"
            fix = "leave it out of the training files"
            yield warning("overlap", split_path(recipe, split), message, fix)


def whole_files(source: DataSource) -> Iterator[Problem]:
    """Yield a warning of each training file of a text of which everything is held out."""
    noun = documents_noun(source.recipe)
    for path in held_out_files(source.recipe, source.folders):
        message = f"all of `{path}` is held out, so nothing of it is trained on"
        fix = f"hold out fewer {noun}"
        yield warning("overlap", ("data", "text", "train"), message, fix)


def shared_documents(recipe: Recipe, pairs: Mapping[str, Pairs], is_all: bool) -> Iterator[Problem]:
    """Yield a warning of each part of a text that shares longer documents with training."""
    held_out = held_out_sizes(recipe.data.text)
    if not held_out:  # files are compared as a whole, and to hash a large text takes minutes
        return
    noun, trained = documents_noun(recipe), document_hashes(pairs["train"].sides[TARGET])
    for split in held_out:
        texts = pairs[split].sides[TARGET]
        sizes = np.array([*map(len, texts)])
        is_repeated = is_shared(document_hashes(texts), trained) & (sizes >= SHORT_DOCUMENT)
        if sizes[is_repeated].sum() > USUAL_SHARE * sizes.sum():
            least = "" if is_all else "at least "
            count = f"{least}{is_repeated.sum():,} of {len(sizes):,} {noun} of {split}"
            message = f"{count} are repeated in the training text, {TOO_GOOD}"
            fix = "remove the repeated ones from the files"
            yield warning("overlap", split_path(recipe, split), message, fix)


def documents_noun(recipe: Recipe) -> str:
    """Return the word of `new` for the documents of a text: `lines`, `paragraphs` or `files`."""
    assert recipe.data.text is not None
    return f"{recipe.data.text.unit}s"


def document_hashes(texts: Sequence[str]) -> np.ndarray:
    """Return a hash of each document; those of files are cached. -> (documents,) uint64"""
    if not isinstance(texts, Documents):
        return hash_lines(texts)
    return cached_array(
        "lines", ["documents", texts.sha256], lambda: hash_lines(texts), are_hashes_of(len(texts))
    )


RULES: Rules = (overlap,)
