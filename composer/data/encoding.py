"""Encoding: pairs of text become ids in flat arrays; `load_data` opens, tokenizes, filters and encodes the splits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from composer.data.sources import (
    SPLITS,
    TARGET,
    DataSource,
    Pairs,
    available_splits,
    generate_pairs,
    is_endless,
    side_names,
)
from composer.data.stories import (
    NO_FACT,
    is_question,
    normalize_sentence,
    split_sentences,
    story_shape,
    tokenizer_lines,
)
from composer.data.tokenizer import CHUNK_LINES, Tokenizers, train_tokenizers
from composer.errors import DataError
from composer.model.encoder_decoder import FIXED_VOCABULARIES, PAD, UNK

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

CACHED_EPOCHS = 3
"""Epochs of an endless task in memory: the present one and the next, whichever was used last."""
MAX_UNK_RATE = 0.1
"""Share of unknown tokens above which a note says so."""


@dataclass(frozen=True)
class Ids:
    """Ragged array of ids: row r is values[starts[r] : starts[r + 1]].

    Of stories the values are (sentences, words), padded on the right, and a row is a story.
    """

    values: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, chunks: Iterable[list[list[int]] | list[np.ndarray]], vocabulary: int) -> Ids:
        """Pack rows into the smallest integer type that holds every id of the vocabulary."""
        dtype = np.uint16 if vocabulary <= 1 << 16 else np.uint32
        values, lengths = [], [0]
        for rows in chunks:
            values.append(np.concatenate([np.asarray(row, dtype) for row in rows]))
            lengths += map(len, rows)
        return cls(np.concatenate(values or [np.zeros(0, dtype)]), np.cumsum(lengths))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> list[int] | np.ndarray:
        """Return a row; of a story an array (sentences, words)."""
        row = range(len(self))[row]
        values = self.values[self.starts[row] : self.starts[row + 1]]
        return values.astype(np.int64) if self.is_story else values.tolist()

    @property
    def is_story(self) -> bool:
        return self.values.ndim == 2

    def lengths(self) -> np.ndarray:
        """Return the number of ids of each row; of a story the number of sentences."""
        return np.diff(self.starts)

    def positions(self) -> np.ndarray:
        """Return the positions of each row without padding, eos included; of a story sentences times words."""
        return self.lengths() * self.values.shape[1] if self.is_story else self.lengths() + 1

    def keep(self, rows: np.ndarray) -> Ids:
        """Return only these rows (bool, one per row), in their order."""
        counts = self.lengths()
        return Ids(self.values[np.repeat(rows, counts)], np.concatenate([[0], np.cumsum(counts[rows])]))


@dataclass(frozen=True)
class Encoded:
    """Ids of every side of a split, without bos and eos; `sources` by what the encoders read.

    `lines` are the target's lines as the files have them, for BLEU; `originals` the number of each row's line. `facts`:
    (rows, F), the indices in each row's story of the sentences that support the answer, -1 for none; None without
    stories.
    """

    sources: dict[str, Ids]
    target: Ids
    lines: Sequence[str]
    originals: np.ndarray
    facts: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.target)

    @property
    def sides(self) -> dict[str, Ids]:
        """Sources and target by name."""
        return {**self.sources, TARGET: self.target}

    def keep(self, rows: np.ndarray) -> Encoded:
        """Return only these rows (bool, one per row)."""
        sources = {side: ids.keep(rows) for side, ids in self.sources.items()}
        facts = None if self.facts is None else self.facts[rows]
        return Encoded(sources, self.target.keep(rows), self.lines, self.originals[rows], facts)

    def of_epoch(self, epoch: int) -> Encoded:
        """Return the pairs of an epoch: the same in every one."""
        return self

    @property
    def sha256(self) -> str:
        """Hash of all ids, which shows whether the data of a resumed run have changed."""
        digest = hashlib.sha256()
        for ids in self.sides.values():
            digest.update(ids.starts.tobytes() + ids.values.astype(np.uint32).tobytes())
        if self.facts is not None:
            digest.update(self.facts.tobytes())
        return digest.hexdigest()


class Corpus(Protocol):
    """The pairs of every epoch as a function of its number: `Encoded` is always the same, `EndlessCorpus` is not."""

    def of_epoch(self, epoch: int) -> Encoded: ...


class EndlessCorpus:
    """Corpus with new pairs in every epoch.

    A few epochs are cached, since the first batches of the next epoch are prefetched before the present one ends.
    """

    def __init__(self, first: Encoded, generate: Callable[[int], Encoded]) -> None:
        self.first, self.generate = first, lru_cache(CACHED_EPOCHS)(generate)

    def of_epoch(self, epoch: int) -> Encoded:
        """Return the pairs of an epoch; those of epoch 0 are there from the start."""
        return self.generate(epoch) if epoch else self.first


@dataclass(frozen=True)
class Data:
    """What a recipe trains, validates and tests on. A split that was not requested, or does not exist, is None.

    `pairs` are the texts as the files have them; `notes` are lines for the user about what was left out.
    """

    tokenizers: Tokenizers
    train: Encoded | None
    val: Encoded | None
    test: Encoded | None
    pairs: dict[str, Pairs]
    notes: list[str]

    def split(self, name: str) -> Encoded | None:
        """Return train, val or test by name."""
        return {"train": self.train, "val": self.val, "test": self.test}[name]


def load_data(
    recipe: Recipe, folders: Sequence[Path], tokenizers: Tokenizers | None = None, wanted: Sequence[str] = SPLITS
) -> Data:
    """Check, open and encode the splits in `wanted`, with data files from `folders`. See `encode_data`."""
    return encode_data(DataSource(recipe, folders), tokenizers, wanted)


def encode_data(source: DataSource, tokenizers: Tokenizers | None = None, wanted: Sequence[str] = SPLITS) -> Data:
    """Encode the splits in `wanted`; without `tokenizers`, train them on the training part.

    Training pairs with an empty side, or longer than `max_length`, are left out; lines of val and test never are.

    Raises:
        DataError: With all faults of the files, or if the text does not fit the tokenizer or the model's output.
    """
    recipe = source.recipe
    wanted = [split for split in available_splits(recipe) if split in wanted]
    opened = wanted if tokenizers is not None or "train" in wanted else ["train", *wanted]
    pairs = {split: source.pairs(split) for split in opened}
    tokenizers = tokenizers or train_source_tokenizers(source)
    encoded = {split: _encode_pairs(recipe, pairs[split], tokenizers) for split in wanted}
    notes = [note for split in wanted for note in pairs[split].notes]
    if "train" in encoded:
        encoded["train"] = _filter_trainable(recipe, encoded["train"], pairs["train"], notes)
    for split, ids in encoded.items():
        notes += _check_unknown_tokens(recipe, split, ids, pairs[split])
        _check_output_length(recipe, split, ids)
        if split != "train" and (blank := int((~_nonempty(pairs[split])).sum())):
            notes.append(f"{blank:,} of {len(pairs[split]):,} {split} pairs have an empty side, and are measured too")
    return Data(tokenizers, encoded.get("train"), encoded.get("val"), encoded.get("test"), pairs, notes)


def train_source_tokenizers(source: DataSource) -> Tokenizers:
    """Train a recipe's tokenizers on the training part of its data. Raises DataError with all faults of the files."""
    recipe, sides = source.recipe, source.pairs("train").sides
    lines = {side: tokenizer_lines(recipe, side, sides[side]) for side in side_names(recipe)}
    return train_tokenizers(recipe.dataset, lines)


def training_corpus(
    recipe: Recipe, first: Encoded, tokenizers: Tokenizers, keep: Callable[[Encoded], np.ndarray]
) -> Corpus:
    """Return the training pairs of every epoch: always `first`, or new ones if the task is endless.

    `keep` selects those of new pairs that are trained on, (pairs,) bool; `first` has been filtered already.
    """

    def generate(epoch: int) -> Encoded:
        pairs = generate_pairs(recipe, "train", epoch)
        encoded = _filter_trainable(recipe, _encode_pairs(recipe, pairs, tokenizers), pairs, [])
        _check_output_length(recipe, "train", encoded)
        return encoded.keep(keep(encoded))

    return EndlessCorpus(first, generate) if is_endless(recipe) else first


def encode_side(
    recipe: Recipe, tokenizers: Tokenizers, side: str, lines: Sequence[str]
) -> list[list[int]] | list[np.ndarray]:
    """Encode each line of a side, without bos and eos; a story to (sentences, words), padded on the right."""
    if is_question(recipe, side):
        lines = [*map(normalize_sentence, lines)]
    shape = story_shape(recipe, side)
    if shape is None:
        return tokenizers.encode(side, lines)
    stories = [split_sentences(line)[-shape.sentences :] for line in lines]
    # many stories share a sentence, so each is encoded once
    sentences = [*dict.fromkeys(sentence for story in stories for sentence in story)]
    rows = {
        sentence: [*ids, *[PAD] * (shape.words - len(ids))]
        for sentence, ids in zip(sentences, tokenizers.encode(side, sentences), strict=True)
    }
    return [np.array([rows[sentence] for sentence in story], np.int64).reshape(-1, shape.words) for story in stories]


def _encode_pairs(recipe: Recipe, pairs: Pairs, tokenizers: Tokenizers) -> Encoded:
    sides: dict[str, Ids] = {}
    for side, lines in pairs.sides.items():
        chunks = (lines[at : at + CHUNK_LINES] for at in range(0, len(lines), CHUNK_LINES))
        sides[side] = Ids.of((encode_side(recipe, tokenizers, side, chunk) for chunk in chunks), tokenizers.size(side))
    facts = None
    if pairs.facts is not None:
        most = max(map(len, pairs.facts), default=0)
        padded = [[*row, *[NO_FACT] * (most - len(row))] for row in pairs.facts]
        facts = np.array(padded, np.int64).reshape(-1, most)
    target = sides.pop(TARGET)
    return Encoded(sides, target, pairs.sides[TARGET], np.arange(len(target)), facts)


def _nonempty(pairs: Pairs) -> np.ndarray:
    """Return which pairs have text on every side. -> (pairs,) bool"""
    sides = [np.fromiter((bool(line.strip()) for line in lines), bool, len(lines)) for lines in pairs.sides.values()]
    result: np.ndarray = np.logical_and.reduce(sides)
    return result


def _filter_trainable(recipe: Recipe, encoded: Encoded, pairs: Pairs, notes: list[str]) -> Encoded:
    """Drop pairs that are empty on a side or, with their eos, too long for `max_length`; stories are cut already."""
    longest = recipe.dataset.get("max_length") or np.inf
    full = _nonempty(pairs)
    short = np.logical_and.reduce([ids.lengths() + 1 <= longest for ids in encoded.sides.values() if not ids.is_story])
    if blank := int((~full).sum()):
        notes.append(f"left out {blank:,} of {len(full):,} training pairs with an empty side")
    if over := int((full & ~short).sum()):
        notes.append(f"left out {over:,} of {len(full):,} training pairs longer than {longest} tokens")
    if not (full & short).any():
        message = f"none of the {len(full):,} training pairs is left: {blank:,} are empty, {over:,} too long"
        raise DataError([recipe.fault("empty", ("data", "max_length"), message, "check the files and `max_length`")])
    return encoded if (full & short).all() else encoded.keep(full & short)


def _check_output_length(recipe: Recipe, split: str, encoded: Encoded) -> None:
    """Raise DataError if the output has a fixed length, and a target another one."""
    length, lengths = recipe.model["output"]["length"], encoded.target.lengths()
    if length is None or (lengths == length).all():
        return
    row = int(np.flatnonzero(lengths != length)[0])
    line = int(encoded.originals[row])
    message = f"answers have {length} tokens here, and that of line {line + 1:,} of {split} has {lengths[row]}: "
    message += f"`{encoded.lines[line]}`"
    raise DataError([recipe.fault("length", ("model", "output", "length"), message, "remove it, or correct the data")])


def _check_unknown_tokens(recipe: Recipe, split: str, encoded: Encoded, pairs: Pairs) -> Iterator[str]:
    """Yield a note of each side with many unknown tokens.

    Raises:
        DataError: If a tokenizer that learns nothing meets a token that it can never know, or if a side of the training
            part has only unknown tokens, from which nothing can be learned.
    """
    kind = next(iter(recipe.dataset["tokenizer"]))
    for side, ids in encoded.sides.items():
        rate = float((ids.values == UNK).sum()) / max(1, int((ids.values != PAD).sum()))
        if split == "train" and rate == 1:
            message = f"the tokenizer `{kind}` knows no token of train {side}"
            hint = "lower its `min_count`, raise its `size`, or train without `--from`"
            raise DataError([recipe.fault("unknown", ("data", "tokenizer", kind), message, hint)])
        if kind in FIXED_VOCABULARIES and rate:
            at = int(np.flatnonzero(ids.values == UNK)[0])
            line = int(encoded.originals[np.searchsorted(ids.starts, at, side="right") - 1])
            text = f"line {line + 1:,} of {split} {side}: `{pairs.sides[side][line]}`"
            hint = "see `seqcomposer schema` for what it takes; the task and the tokenizer must agree"
            message = f"the tokenizer `{kind}` does not know all of {text}"
            raise DataError([recipe.fault("unknown", ("data", "tokenizer", kind), message, hint)])
        if rate > MAX_UNK_RATE:
            yield f"{rate:.0%} of the tokens of {split} {side} are unknown to the tokenizer"
