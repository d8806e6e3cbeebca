"""Encoded pairs: ids in flat arrays, so that millions of lines fit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from composer.data.sources import (
    SPLITS,
    TARGET,
    Pairs,
    available_splits,
    check_files,
    generate_pairs,
    is_endless,
    open_pairs,
    side_names,
)
from composer.data.stories import (
    NO_FACT,
    StoryShape,
    is_question,
    normalize_sentence,
    split_sentences,
    story_shape,
    tokenizer_lines,
)
from composer.data.tokenizer import Tokenizers, train_tokenizers
from composer.errors import DataError
from composer.model.vocabulary import FIXED_VOCABULARIES, PAD, UNK

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe


CHUNK_LINES = 10_000  # lines that are encoded at once

CACHED_EPOCHS = 3
"""Epochs that are remembered: the present one and the next, whichever was asked for last."""

Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True)
class Ids:
    """Rows of ids, one after another. Row r is values[starts[r] : starts[r + 1]].

    Of stories the values are (sentences, words), padded on the right, and a row is a story.
    """

    values: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, chunks: Iterable[list[list[int]]], vocabulary: int) -> Ids:
        """Packs rows into the smallest type that holds every id of the vocabulary."""
        kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
        values, lengths = [np.zeros(0, dtype=kind)], [np.zeros(1, dtype=np.int64)]
        for rows in chunks:
            values.append(np.fromiter((each for row in rows for each in row), dtype=kind))
            lengths.append(np.fromiter(map(len, rows), dtype=np.int64))
        return cls(np.concatenate(values), np.cumsum(np.concatenate(lengths)))

    @classmethod
    def of_stories(cls, stories: Sequence[np.ndarray], vocabulary: int) -> Ids:
        """Packs stories, (sentences, words) each, all of as many words."""
        kind = np.uint16 if vocabulary <= 1 << 16 else np.uint32
        return cls(np.concatenate(stories).astype(kind), np.cumsum([0, *map(len, stories)]))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> list[int] | np.ndarray:
        """A row; of a story an array (sentences, words)."""
        row = range(len(self))[row]
        found = self.values[self.starts[row] : self.starts[row + 1]]
        return found.astype(np.int64) if self.is_story else found.tolist()

    @property
    def is_story(self) -> bool:
        return self.values.ndim == 2

    def lengths(self) -> np.ndarray:
        """How many ids each row has; of a story how many sentences."""
        return np.diff(self.starts)

    def positions(self) -> np.ndarray:
        """How many positions each row has alone, its eos counted; of a story its sentences times their room."""
        return self.lengths() * self.values.shape[1] if self.is_story else self.lengths() + 1

    def real(self) -> int:
        """How many of all positions are no padding."""
        return int(np.count_nonzero(self.values)) if self.is_story else int(self.positions().sum())

    def keep(self, rows: np.ndarray) -> Ids:
        """Only these rows (bool, one per row), in their order."""
        counts = self.lengths()
        return Ids(self.values[np.repeat(rows, counts)], np.concatenate([[0], np.cumsum(counts[rows])]))


@dataclass(frozen=True)
class Encoded:
    """The ids of every side of a split, without bos and eos; `sources` by what the encoders read.

    `lines` are the target's lines as the files have them, for BLEU; `originals` the number of each row's line. `facts`:
    (rows, F), the places in each row's story of the sentences that bear the answer, -1 for none; None without stories.
    """

    sources: dict[str, Ids]
    target: Ids
    lines: Sequence[str]
    originals: np.ndarray
    facts: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.target)

    def keep(self, rows: np.ndarray) -> Encoded:
        """Only these rows (bool, one per row)."""
        sources = {side: ids.keep(rows) for side, ids in self.sources.items()}
        facts = None if self.facts is None else self.facts[rows]
        return Encoded(sources, self.target.keep(rows), self.lines, self.originals[rows], facts)

    def of_epoch(self, epoch: int) -> Encoded:
        """The pairs of an epoch: the same in every one."""
        return self

    @property
    def sha256(self) -> str:
        """The fingerprint of all ids: whether the data are still what they were."""
        digest = hashlib.sha256()
        for ids in (*self.sources.values(), self.target):
            digest.update(ids.starts.tobytes() + ids.values.astype(np.uint32).tobytes())
        if self.facts is not None:
            digest.update(self.facts.tobytes())
        return digest.hexdigest()


class Corpus(Protocol):
    """The pairs of every epoch, a pure function of its number: of `Encoded` always the same, of `Endless` others."""

    def of_epoch(self, epoch: int) -> Encoded: ...


class EndlessCorpus:
    """Fresh pairs in every epoch. Some are kept: batches of the next epoch are fetched before the present one ends."""

    def __init__(self, first: Encoded, fresh: Callable[[int], Encoded]) -> None:
        self.first, self.fresh = first, lru_cache(CACHED_EPOCHS)(fresh)

    def of_epoch(self, epoch: int) -> Encoded:
        """The pairs of an epoch; those of epoch 0 are there from the start."""
        return self.fresh(epoch) if epoch else self.first


def encode(lines: Sequence[str], encoder: Encode, vocabulary: int) -> Ids:
    """The ids of all lines, chunk by chunk."""
    return Ids.of((encoder(lines[at : at + CHUNK_LINES]) for at in range(0, len(lines), CHUNK_LINES)), vocabulary)


Keep = Callable[[Encoded], np.ndarray]
"""Which of some pairs are trained on: a bool each."""

MAX_UNK_RATE = 0.1  # a larger share of unknown tokens is told


@dataclass(frozen=True)
class Data:
    """What a recipe trains, validates and tests on. A split that was not asked for, or is not there, is None.

    `pairs` are the texts as the files have them; `notes` are lines for the user about what was left out.
    """

    tokenizers: Tokenizers
    train: Encoded | None
    val: Encoded | None
    test: Encoded | None
    pairs: dict[str, Pairs]
    notes: list[str]

    def split(self, name: str) -> Encoded | None:
        """train, val or test by name."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]


def load_data(
    recipe: Recipe, folders: Sequence[Path], tokenizers: Tokenizers | None = None, wanted: Sequence[str] = SPLITS
) -> Data:
    """Opens and encodes the splits that are wanted. Without `tokenizers`, trains them on the training part.

    Training pairs with an empty side, or longer than `max_length`, are left out; lines of val and test never are.
    Raises DataError with all that is wrong with the files.
    """
    faults = check_files(recipe, folders)
    if faults:
        raise DataError(faults)
    there = [
        split for split in available_splits(recipe) if split in wanted or (split == "train" and tokenizers is None)
    ]
    pairs = {split: open_pairs(recipe, split, folders) for split in there}
    if tokenizers is None:
        lines = {side: tokenizer_lines(recipe, side, pairs["train"].sides[side]) for side in side_names(recipe)}
        tokenizers = train_tokenizers(recipe.dataset, lines)
    encoded = {split: _encoded(recipe, pairs[split], tokenizers) for split in there if split in wanted}
    notes = [note for split in encoded for note in pairs[split].notes]
    if "train" in encoded:
        encoded["train"] = _trainable(recipe, encoded["train"], pairs["train"], notes)
        _some_known(recipe, encoded["train"])
    for split, each in encoded.items():
        _of_one_length(recipe, split, each)
        _all_known(recipe, split, each, pairs[split])
        notes += [*_unk_rate_notes(split, each), *_measured_blank(split, pairs[split])]
    return Data(tokenizers, encoded.get("train"), encoded.get("val"), encoded.get("test"), pairs, notes)


def training_corpus(recipe: Recipe, first: Encoded, tokenizers: Tokenizers, keep: Keep) -> Corpus:
    """The training pairs of every epoch: `first`, or fresh ones where the task is endless.

    `keep` says which of fresh pairs are trained on; from `first` the others are gone already.
    """
    return EndlessCorpus(first, partial(_fresh, recipe, tokenizers, keep)) if is_endless(recipe) else first


def _fresh(recipe: Recipe, tokenizers: Tokenizers, keep: Keep, epoch: int) -> Encoded:
    pairs = generate_pairs(recipe, "train", epoch)
    encoded = _trainable(recipe, _encoded(recipe, pairs, tokenizers), pairs, [])
    _of_one_length(recipe, "train", encoded)
    return encoded.keep(keep(encoded))


def _encoded(recipe: Recipe, pairs: Pairs, tokenizers: Tokenizers) -> Encoded:
    ids = {side: _side(recipe, tokenizers, side, lines) for side, lines in pairs.sides.items()}
    target = ids.pop(TARGET)
    facts = None if pairs.facts is None else _together(pairs.facts)
    return Encoded(ids, target, pairs.sides[TARGET], np.arange(len(target)), facts)


def _side(recipe: Recipe, tokenizers: Tokenizers, side: str, lines: Sequence[str]) -> Ids:
    if shape := story_shape(recipe, side):
        return Ids.of_stories(encode_stories(shape, tokenizers, side, lines), tokenizers.size(side))
    return encode(lines, partial(encode_lines, recipe, tokenizers, side), tokenizers.size(side))


def _together(facts: Sequence[Sequence[int]]) -> np.ndarray:
    """Places of facts as one array, -1 where a row has fewer. -> (rows, F)"""
    most = max(map(len, facts), default=0)
    return np.array([[*row, *[NO_FACT] * (most - len(row))] for row in facts], dtype=np.int64).reshape(-1, most)


def _trainable(recipe: Recipe, encoded: Encoded, pairs: Pairs, notes: list[str]) -> Encoded:
    """Without pairs that are empty on a side, or too long for `max_length` with their eos; stories are cut already."""
    longest = recipe.dataset.get("max_length") or np.inf
    every = [ids for ids in (*encoded.sources.values(), encoded.target) if not ids.is_story]
    full = _full(pairs)
    short = np.logical_and.reduce([ids.lengths() + 1 <= longest for ids in every])
    if blank := int((~full).sum()):
        notes.append(f"left out {blank:,} of {len(full):,} training pairs with an empty side")
    if over := int((full & ~short).sum()):
        notes.append(f"left out {over:,} of {len(full):,} training pairs longer than {longest} tokens")
    if not (full & short).any():
        message = f"none of the {len(full):,} training pairs is left: {blank:,} are empty, {over:,} too long"
        raise DataError([recipe.fault("empty", ("data", "max_length"), message, "check the files and `max_length`")])
    return encoded if (full & short).all() else encoded.keep(full & short)


def _of_one_length(recipe: Recipe, split: str, encoded: Encoded) -> None:
    """Raises DataError where answers should all have as many tokens, and one has not."""
    wanted, found = recipe.model["output"]["length"], encoded.target.lengths()
    if wanted is None or (found == wanted).all():
        return
    row = int(np.flatnonzero(found != wanted)[0])
    line = int(encoded.originals[row])
    message = (
        f"answers have {wanted} tokens here, and that of line {line + 1:,} of {split} has {found[row]}: "
        f"`{encoded.lines[line]}`"
    )
    raise DataError([recipe.fault("length", ("model", "output", "length"), message, "remove it, or mend the data")])


def _all_known(recipe: Recipe, split: str, encoded: Encoded, pairs: Pairs) -> None:
    """Raises DataError where a tokenizer that learns nothing meets what it can never know."""
    ((kind, _),) = recipe.dataset["tokenizer"].items()
    if kind not in FIXED_VOCABULARIES:
        return
    for side, ids in {**encoded.sources, TARGET: encoded.target}.items():
        found = np.flatnonzero(ids.values == UNK)
        if len(found):
            line = int(encoded.originals[np.searchsorted(ids.starts, found[0], side="right") - 1])
            message = f"the tokenizer `{kind}` does not know all of line {line + 1:,} of {split} {side}: "
            message += f"`{pairs.sides[side][line]}`"
            hint = "see `seqcomposer schema` for what it takes; the task and the tokenizer must agree"
            raise DataError([recipe.fault("unknown", ("data", "tokenizer", kind), message, hint)])


def _some_known(recipe: Recipe, encoded: Encoded) -> None:
    """Raises DataError where a side of the training part has no token but unknown ones: nothing could be learned."""
    for side, ids in {**encoded.sources, TARGET: encoded.target}.items():
        if _share_unknown(ids) == 1:
            ((kind, _),) = recipe.dataset["tokenizer"].items()
            message = f"the tokenizer `{kind}` knows no token of train {side}"
            hint = "lower its `min_count`, raise its `size`, or train without `--from`"
            raise DataError([recipe.fault("unknown", ("data", "tokenizer", kind), message, hint)])


def _share_unknown(ids: Ids) -> float:
    return float((ids.values == UNK).sum()) / max(1, int((ids.values != PAD).sum()))


def _full(pairs: Pairs) -> np.ndarray:
    """Which pairs have a text on every side. -> (pairs,) bool"""
    found: np.ndarray = np.logical_and.reduce([_not_blank(lines) for lines in pairs.sides.values()])
    return found


def _not_blank(lines: Sequence[str]) -> np.ndarray:
    return np.fromiter((bool(line.strip()) for line in lines), dtype=bool, count=len(lines))


def _measured_blank(split: str, pairs: Pairs) -> list[str]:
    """That pairs of val or test have an empty side: none is left out of what is measured."""
    blank = 0 if split == "train" else int((~_full(pairs)).sum())
    return [f"{blank:,} of {len(pairs):,} {split} pairs have an empty side, and are measured too"] if blank else []


def _unk_rate_notes(split: str, encoded: Encoded) -> list[str]:
    found = []
    for side, ids in {**encoded.sources, TARGET: encoded.target}.items():
        share = _share_unknown(ids)
        if share > MAX_UNK_RATE:
            found.append(f"{share:.0%} of the tokens of {split} {side} are unknown to the tokenizer")
    return found


def encode_side(
    recipe: Recipe, tokenizers: Tokenizers, side: str, lines: Sequence[str]
) -> list[list[int]] | list[np.ndarray]:
    """The ids of each line of a side, without bos and eos; of a story, (sentences, words) each, padded on the right."""
    shape = story_shape(recipe, side)
    return encode_stories(shape, tokenizers, side, lines) if shape else encode_lines(recipe, tokenizers, side, lines)


def encode_lines(recipe: Recipe, tokenizers: Tokenizers, side: str, lines: Sequence[str]) -> list[list[int]]:
    """The ids of each line of a side that is no story."""
    return tokenizers.encode(side, [*map(normalize_sentence, lines)] if is_question(recipe, side) else lines)


def encode_stories(shape: StoryShape, tokenizers: Tokenizers, side: str, lines: Sequence[str]) -> list[np.ndarray]:
    """The ids of each story, (sentences, words). Each sentence, which many stories share, is encoded once."""
    told = [split_sentences(line)[-shape.sentences :] for line in lines]
    different = [*dict.fromkeys(each for story in told for each in story)]
    known = {
        each: [*ids, *[PAD] * (shape.words - len(ids))]
        for each, ids in zip(different, tokenizers.encode(side, different), strict=True)
    }
    return [np.array([known[each] for each in story], dtype=np.int64).reshape(-1, shape.words) for story in told]
