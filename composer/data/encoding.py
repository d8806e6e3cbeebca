"""Encode pairs of text as ids in flat arrays; `load_data` opens, tokenizes and filters splits."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from composer.atomic_io import is_hash
from composer.data.cache_entries import CORPORA, FEATURES, Append, Entry, cached_entry, make_folder
from composer.data.columns import FileNames, RowSubset, chunks_of, locate, row_type
from composer.data.documents import Documents, Piece, count
from composer.data.feature_files import encode_features
from composer.data.features import Features
from composer.data.ids import Encoded, Ids
from composer.data.line_hashes import sha256_of_hashes
from composer.data.pairs import TARGET, Pairs, available_splits
from composer.data.round_trips import kept_pieces
from composer.data.sources import DataSource
from composer.data.split_faults import split_faults
from composer.data.stories import NO_FACT, encode_side, story_fault, story_shape
from composer.data.token_cache import (
    count_text,
    encode_column,
    encode_documents,
    is_cached,
    whole_column,
)
from composer.data.tokenizer import Tokenizers
from composer.data.tokenizer_training import train_source_tokenizers
from composer.data.training_pairs import nothing_left, pair_filters, trainable_rows
from composer.errors import DataError, Fault, RunError
from composer.model.features import feature_settings
from composer.model.special_tokens import UNK

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

MAX_TOKENS = 10_000
"""Tokens of a line that are read at most: a line of a million would take hours or all memory."""
LEFT_OUT_OF_SCORES = "scores leave out those without a reference"
MAX_UNK_RATE = 0.1
"""Share of unknown tokens above which a note says so."""


@dataclass(frozen=True)
class Data:
    """The requested splits of a recipe, encoded.

    `pairs` are the texts as the files have them; `notes` are lines for the user about what was left
    out.
    """

    tokenizers: Tokenizers
    splits: dict[str, Encoded]
    pairs: dict[str, Pairs]
    notes: list[str]

    @property
    def train(self) -> Encoded | None:
        """The training split."""
        return self.splits.get("train")

    @property
    def val(self) -> Encoded | None:
        """The validation split."""
        return self.splits.get("val")


def load_data(
    recipe: Recipe,
    folders: Sequence[Path],
    tokenizers: Tokenizers | None = None,
    wanted: Sequence[str] | None = None,
) -> Data:
    """Check, open and encode the splits in `wanted`, see `encode_data`."""
    return encode_data(DataSource(recipe, folders), tokenizers, wanted)


def encode_data(
    source: DataSource, tokenizers: Tokenizers | None = None, wanted: Sequence[str] | None = None
) -> Data:
    """Encode the splits in `wanted`, by default all; without `tokenizers`, train them first.

    Training pairs with an empty side, or longer than `max_length`, are left out; lines of val and
    test never are.

    Raises:
        DataError: With all faults of the files, or if the text does not fit the tokenizer or the
            model's output.
    """
    recipe = source.recipe
    if wanted is None:
        wanted = available_splits(recipe)
    wanted = [split for split in available_splits(recipe) if split in wanted]
    pairs = {split: source.pairs(split) for split in wanted}
    tokenizers = tokenizers or train_source_tokenizers(source)
    notes = [*itertools.chain.from_iterable(pairs[split].notes for split in wanted)]
    encoded, faults = dict[str, Encoded](), list[Fault]()
    for split in wanted:
        try:
            if split == "train":
                encoded[split], split_notes = encode_train(source, tokenizers)
            else:
                encoded[split], split_notes = encode_split(source, tokenizers, split)
            notes += split_notes
        except DataError as error:
            faults += error.faults
    if faults:
        raise DataError(faults)
    return Data(tokenizers, encoded, pairs, notes)


def encode_split(
    source: DataSource, tokenizers: Tokenizers, split: str
) -> tuple[Encoded, list[str]]:
    """Encode a split; of training pairs, those that are trained on. -> ids, notes

    Raises DataError.
    """
    recipe, pairs, notes = source.recipe, source.pairs(split), list[str]()
    ids, faults = encode_pairs(recipe, pairs, tokenizers), list[Fault]()
    if split == "train":
        rows = trainable_rows(recipe, ids, notes, pair_filters(source, ids))
        if not rows.any():
            faults.append(nothing_left(recipe, ids))
        ids = ids if rows.all() else ids.keep(rows)
    elif ids.cut:
        longest = max(MAX_TOKENS, recipe.data.max_length)
        notes.append(
            f"of {ids.cut:,} of {len(ids):,} {split} pairs only the first {longest:,} tokens are"
            " measured"
        )
    if faults := [*faults, *split_faults(recipe, split, ids, pairs)]:
        raise DataError(faults)
    for side in ids.texts:
        unknown, tokens = ids.count_unknown(side)
        if unknown > MAX_UNK_RATE * tokens:
            share = f"{unknown / tokens:.0%} of the tokens of {split} {side}"
            notes.append(f"{share} are unknown to the tokenizer")
    if split != "train" and not recipe.reads_text and (blank := int((~ids.nonempty()).sum())):
        notes.append(
            f"{blank:,} of {len(pairs):,} {split} pairs have an empty side; {LEFT_OUT_OF_SCORES}"
        )
    return ids, notes


def encode_train(source: DataSource, tokenizers: Tokenizers) -> tuple[Encoded, list[str]]:
    """Encode the pairs that are trained on, as `encode_split`; those of large files are cached."""
    recipe, pairs = source.recipe, source.pairs("train")
    if recipe.reads_text or recipe.data.babi or not all(map(is_cached, pairs.sides.values())):
        return encode_split(source, tokenizers, "train")
    values = {}
    for side, lines in pairs.sides.items():
        values[side] = encode_column(whole_column(lines), side, tokenizers).values
    try:
        return CachedTrainingPairs(source, tokenizers, values).load()
    except (OSError, RunError):  # the cache cannot be used
        return encode_split(source, tokenizers, "train")


@dataclass(frozen=True)
class CachedTrainingPairs:
    """The training pairs of large files, whose choice is an entry of the cache.

    The entry has the row of each pair in the data, and for each side the start and the end of its
    ids among `values`, the ids of whole columns.
    """

    source: DataSource
    tokenizers: Tokenizers
    values: Mapping[str, np.ndarray]

    def load(self) -> tuple[Encoded, list[str]]:
        """Return the ids of the pairs, and notes. Raises OSError, RunError and DataError."""
        (notes, digest), arrays = cached_entry("pairs", self.key(), self.make, self.is_valid)
        sides, lines = self.sides(arrays), self.source.pairs("train").sides[TARGET]
        sources = {side: ids for side, ids in sides.items() if side != TARGET}
        return Encoded(sources, sides[TARGET], lines, arrays["0"], digest=digest), notes

    def key(self) -> list[object]:
        """Return everything that the choice depends on."""
        recipe, columns = self.source.recipe, list[Sequence[str]]()
        for split in available_splits(recipe):
            if split != "train":
                columns += self.source.pairs(split).columns.values()
        files = [ids.filename for ids in self.values.values() if isinstance(ids, np.memmap)]
        return [
            [Path(str(file)).parent.name for file in files],
            [sha256_of_rows(lines) for lines in self.source.pairs("train").sides.values()],
            [sha256_of_hashes(column) for column in columns],
            recipe.canonical["data"],
            recipe.canonical["model"]["output"],
        ]

    def make(self, append: Append) -> tuple[list[str], str]:
        """Choose the pairs; append their rows, and the spans of their ids."""
        ids, notes = encode_split(self.source, self.tokenizers, "train")
        columns = [ids.originals]
        for side in self.values:
            columns += [ids.sides[side].starts, ids.sides[side].ends]
        for at, column in enumerate(columns):
            append(**{str(at): column.astype(row_type(int(column[-1])))})
        return notes, ids.sha256

    def sides(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Ids]:
        """Return the ids of each side, by the spans of an entry."""
        spans = [*arrays.values()][1:]
        sides: dict[str, Ids] = {}
        for at, (side, values) in enumerate(self.values.items()):
            sides[side] = Ids(values, spans[2 * at], spans[2 * at + 1])
        return sides

    def is_valid(self, entry: Entry) -> bool:
        """True if an entry can be one that `make` made."""
        (notes, digest), rows = entry.facts, entry.arrays["0"]
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            return False
        if not ((rows >= 0) & (rows < len(self.source.pairs("train")))).all():
            return False
        for ids in self.sides(entry.arrays).values():
            if len(ids) != len(rows) or not ids.lies_within(len(ids.values)):
                return False
        return is_hash(digest) and all(isinstance(note, str) for note in notes)


def sha256_of_rows(lines: Sequence[str]) -> str:
    """Return the SHA-256 of the row numbers of a subset of a column."""
    if not isinstance(lines, RowSubset):
        return hashlib.sha256(np.arange(len(lines)).tobytes()).hexdigest()
    digest = hashlib.sha256(sha256_of_rows(lines.column).encode())
    digest.update(np.asarray(lines.rows, np.int64).tobytes())
    return digest.hexdigest()


def cache_faults(source: DataSource) -> list[Fault]:
    """Return the faults of the parts of the cache that the data need and that cannot be written."""
    pairs = {} if source.recipe.data.generate else source.all_pairs()  # a task's are drawn anew
    columns: list[Sequence[str]] = []
    for part in pairs.values():
        columns += map(whole_column, part.sides.values())
    kinds = []
    if any(isinstance(column, FileNames) for column in columns):
        kinds.append(FEATURES)
    if any(isinstance(column, Documents) or is_cached(column) for column in columns):
        kinds.append(CORPORA)
    faults: list[Fault] = []
    for kind in kinds:
        try:
            make_folder(kind)
        except RunError as error:
            faults += error.faults
    return faults


def encode_pairs(recipe: Recipe, pairs: Pairs, tokenizers: Tokenizers) -> Encoded:
    """Encode the pairs of a split, without bos and eos; of a line without end, the first tokens.

    A text goes through the cache, but for a sample.
    """
    if isinstance(documents := pairs.sides[TARGET], Documents):
        return encode_documents(documents, tokenizers)
    sides: dict[str, Ids] = {}
    features: dict[str, Features] = {}
    is_cut = np.zeros(len(pairs), dtype=bool)
    for side, lines in pairs.sides.items():
        if settings := feature_settings(recipe.data, side):
            features[side] = encode_features(lines, settings, f"the column of `{side}`")
        elif recipe.data.babi:
            shape = story_shape(recipe, side)
            chunks = (encode_side(recipe, tokenizers, side, chunk) for chunk in chunks_of(lines))
            sides[side] = Ids.of(chunks, tokenizers.sizes[side], shape.words if shape else None)
        else:
            ids = encode_column(lines, side, tokenizers)
            longest = max(MAX_TOKENS, recipe.data.max_length)
            is_cut |= ids.lengths() > longest
            sides[side] = replace(ids, ends=np.minimum(ids.ends, ids.starts + longest))
    facts = None
    if pairs.facts is not None:
        most = max(map(len, pairs.facts), default=0)
        padded = [[*row, *[NO_FACT] * (most - len(row))] for row in pairs.facts]
        facts = np.array(padded, np.int64).reshape(len(padded), most)
    target = sides.pop(TARGET)
    encoded: dict[str, Ids | Features] = {**sides, **features}
    sources = {side: encoded[side] for side in pairs.sides if side != TARGET}
    counts = None
    if recipe.reads_text:
        pieces = kept_pieces(tokenizers, (Piece(text, True) for text in documents))
        counts = count_text([count(pieces)], target, target.count(UNK))
    return Encoded(
        sources, target, documents, np.arange(len(target)), facts, counts, cut=int(is_cut.sum())
    )


def story_faults(
    recipe: Recipe, sides: Mapping[str, Sequence[str]], origin: str
) -> Iterator[Fault]:
    """Yield a fault for each line that is no story as the model reads it.

    origin: The name of lines that have no file.
    """
    fix = (
        "end each sentence with a full stop; the model's sentences are no longer than those it was"
        " trained on"
    )
    for side, lines in sides.items():
        shape = story_shape(recipe, side)
        if shape is None:
            continue
        for row, text in enumerate(lines):
            if message := story_fault(text, shape):
                file, number = locate(lines, row)
                yield Fault(str(file or origin), number, 1, "story", "", message, fix, text[:200])
