"""Encoding: pairs of text become ids in flat arrays; `load_data` opens, tokenizes, filters and
encodes the splits.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blocks.core.fixes import Fix, Remove, write
from composer.atomic_io import is_hash
from composer.data.answer_limits import MORE_FRAMES, NO_FRAMES, AnswerLimits
from composer.data.cache_entries import CORPORA, FEATURES, Append, Entry, cached_entry, make_folder
from composer.data.columns import FileNames, RowSubset, chunks_of, locate, place_of, row_type
from composer.data.documents import Documents, Piece, count
from composer.data.feature_files import encode_features
from composer.data.features import Features
from composer.data.ids import Encoded, Ids
from composer.data.line_hashes import are_among, line_hashes, row_hashes, sha256_of_hashes
from composer.data.pairs import TARGET, Pairs, available_splits, split_path, text_names
from composer.data.round_trips import kept_pieces
from composer.data.sources import DataSource
from composer.data.stories import NO_FACT, encode_side, story_fault, story_shape, tokenizer_lines
from composer.data.token_cache import (
    count_text,
    encode_column,
    encode_documents,
    is_cached,
    whole_column,
)
from composer.data.tokenizer import Tokenizers, tokenizer_kind, training_text
from composer.data.tokenizer_kinds import TokenizerKind
from composer.errors import DataError, Fault, RunError
from composer.model.features import feature_settings
from composer.model.special_tokens import UNK
from composer.recipe.text_lines import is_blank

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

MAX_TOKENS = 10_000
"""Tokens of a line that are measured or translated at most: a line of a million would take hours,
or all the memory.
"""
OF_REFERENCES = "scores leave out those without a reference"
NEEDS_TEXT = "give a pair text on every side"
SHOWN_CHARACTERS = 200
"""Characters of a line or a document that an error shows."""
MAX_UNK_RATE = 0.1
"""Share of unknown tokens above which a note says so."""


@dataclass(frozen=True)
class Data:
    """What a recipe trains, validates and tests on: those of its splits that were requested.

    `pairs` are the texts as the files have them; `notes` are lines for the user about what was left
    out.
    """

    tokenizers: Tokenizers
    splits: dict[str, Encoded]
    pairs: dict[str, Pairs]
    notes: list[str]

    @property
    def train(self) -> Encoded | None:
        """What is trained on."""
        return self.splits.get("train")

    @property
    def val(self) -> Encoded | None:
        """What the training is watched with."""
        return self.splits.get("val")


def load_data(
    recipe: Recipe,
    folders: Sequence[Path],
    tokenizers: Tokenizers | None = None,
    wanted: Sequence[str] | None = None,
) -> Data:
    """Check, open and encode the splits in `wanted`, with data files from `folders`. See
    `encode_data`.
    """
    return encode_data(DataSource(recipe, folders), tokenizers, wanted)


def encode_data(
    source: DataSource, tokenizers: Tokenizers | None = None, wanted: Sequence[str] | None = None
) -> Data:
    """Encode the splits in `wanted`, by default all; without `tokenizers`, train them on the
    training part.

    Training pairs with an empty side, or longer than `max_length`, are left out; lines of val and
    test never are.

    Raises:
        DataError: With all faults of the files, or if the text does not fit the tokenizer or the
            model's output.
    """
    recipe = source.recipe
    wanted = [split for split in available_splits(recipe) if wanted is None or split in wanted]
    pairs = {split: source.pairs(split) for split in wanted}
    tokenizers = tokenizers or train_source_tokenizers(source)
    notes = [note for split in wanted for note in pairs[split].notes]
    encoded, faults = dict[str, Encoded](), list[Fault]()
    for split in wanted:
        try:
            encode = encode_train if split == "train" else encode_split
            encoded[split], own = encode(source, tokenizers, split)
            notes += own
        except DataError as error:
            faults += error.faults
    if faults:
        raise DataError(faults)
    return Data(tokenizers, encoded, pairs, notes)


def encode_split(
    source: DataSource, tokenizers: Tokenizers, split: str
) -> tuple[Encoded, list[str]]:
    """Encode a split; of training pairs, those that are trained on. Return notes, too. Raises
    DataError.
    """
    recipe, pairs, notes = source.recipe, source.pairs(split), list[str]()
    ids, faults = encode_pairs(recipe, pairs, tokenizers), list[Fault]()
    if split == "train":
        rows = trainable_rows(recipe, ids, notes, pair_filters(source, ids))
        faults += [] if rows.any() else [_nothing_left(recipe, ids)]
        ids = ids if rows.all() else ids.keep(rows)
    longest = max(MAX_TOKENS, recipe.data.max_length)
    if split != "train" and ids.cut:
        notes.append(
            f"of {ids.cut:,} of {len(ids):,} {split} pairs only the first {longest:,} tokens are"
            " measured"
        )
    if faults := [*faults, *split_faults(recipe, split, ids, pairs)]:
        raise DataError(faults)
    for side in ids.texts:
        unknown, tokens = ids.count_unknown(side)
        if unknown > MAX_UNK_RATE * tokens:
            notes.append(
                f"{unknown / tokens:.0%} of the tokens of {split} {side} are unknown to the"
                " tokenizer"
            )
    if split != "train" and not recipe.reads_text and (blank := int((~nonempty(ids)).sum())):
        notes.append(
            f"{blank:,} of {len(pairs):,} {split} pairs have an empty side; {OF_REFERENCES}"
        )
    return ids, notes


def encode_train(
    source: DataSource, tokenizers: Tokenizers, split: str
) -> tuple[Encoded, list[str]]:
    """Encode the pairs that are trained on, as `encode_split`. Which those of many are, the cache
    knows.
    """
    recipe, pairs = source.recipe, source.pairs(split)
    if recipe.reads_text or recipe.data.babi or not all(map(is_cached, pairs.sides.values())):
        return encode_split(source, tokenizers, split)
    values = {
        side: encode_column(whole_column(it), side, tokenizers).values
        for side, it in pairs.sides.items()
    }

    def make(append: Append) -> tuple[list[str], str]:
        ids, notes = encode_split(source, tokenizers, split)
        spans = [span for side in values for span in (ids.sides[side].starts, ids.sides[side].ends)]
        for at, span in enumerate((ids.originals, *spans)):
            append(**{str(at): span.astype(row_type(int(span[-1])))})
        return notes, ids.sha256

    entries = [
        Path(str(ids.filename)).parent.name for ids in values.values() if isinstance(ids, np.memmap)
    ]
    held_out = (
        source.pairs(other).columns.values() for other in available_splits(recipe) if other != split
    )
    lines = [sha256_of_hashes(column) for columns in held_out for column in columns]
    rows = [sha256_of_rows(it) for it in pairs.sides.values()]
    parts = [entries, rows, lines, recipe.canonical["data"], recipe.canonical["model"]["output"]]

    def are_pairs(entry: Entry) -> bool:
        (notes, digest), (originals, *spans) = entry.facts, entry.arrays.values()
        sides = [Ids(own, *spans[2 * at : 2 * at + 2]) for at, own in enumerate(values.values())]
        inside = bool(((originals >= 0) & (originals < len(pairs))).all())
        are_rows = originals.ndim == 1 and originals.dtype.kind in "iu" and inside
        fit = all(len(own) == len(originals) and own.lies_within(len(own.values)) for own in sides)
        return fit and are_rows and is_hash(digest) and all(isinstance(note, str) for note in notes)

    with suppress(OSError, RunError):  # without a cache they are chosen anew
        (notes, digest), arrays = cached_entry("pairs", parts, make, are_pairs)
        originals, *spans = arrays.values()
        sides = {
            side: Ids(values[side], *spans[2 * at : 2 * at + 2]) for at, side in enumerate(values)
        }
        return (
            Encoded(sides, sides.pop(TARGET), pairs.sides[TARGET], originals, digest=digest),
            notes,
        )
    return encode_split(source, tokenizers, split)


def sha256_of_rows(lines: Sequence[str]) -> str:
    """Return the SHA-256 of which rows of a column are meant."""
    rows = lines.rows if isinstance(lines, RowSubset) else np.arange(len(lines))
    inner = sha256_of_rows(lines.column) if isinstance(lines, RowSubset) else ""
    return hashlib.sha256(inner.encode() + np.asarray(rows, np.int64).tobytes()).hexdigest()


def cache_faults(source: DataSource) -> list[Fault]:
    """Return the faults of those parts of the cache that the data go through, and that cannot be
    written.
    """
    pairs = {} if source.recipe.data.generate else source.all_pairs()  # a task's are drawn anew
    columns = [whole_column(lines) for part in pairs.values() for lines in part.sides.values()]
    is_read = {
        FEATURES: any(isinstance(column, FileNames) for column in columns),
        CORPORA: any(isinstance(column, Documents) or is_cached(column) for column in columns),
    }
    faults: list[Fault] = []
    for kind in (kind for kind, needed in is_read.items() if needed):
        try:
            make_folder(kind)
        except RunError as error:
            faults += error.faults
    return faults


def train_source_tokenizers(source: DataSource) -> Tokenizers:
    """Train a recipe's tokenizers on the training part of its data.

    Raises DataError with all faults of the files, or if no pair has text on every side: then there
    is nothing to learn.
    """
    recipe, pairs = source.recipe, source.pairs("train")
    if isinstance(documents := pairs.sides[TARGET], Documents):
        pieces = (piece.text for piece in documents.pieces())
        return train_tokenizers(recipe.canonical["data"], {TARGET: pieces}, recipe.tokenizer)
    if all(any(map(is_blank, row)) for row in zip(*pairs.sides.values(), strict=True)):
        row, text = ("documents", "text") if recipe.reads_text else ("pairs", "text on every side")
        message = f"none of the {len(pairs):,} training {row} has {text}"
        fix = "give a document text" if recipe.reads_text else NEEDS_TEXT
        raise DataError([recipe.fault("empty", split_path(recipe, "train"), message, fix)])
    lines = {side: tokenizer_lines(recipe, side, pairs.sides[side]) for side in text_names(recipe)}
    return train_tokenizers(recipe.canonical["data"], lines, recipe.tokenizer)


def train_tokenizers(
    section: Mapping[str, Any],
    sides: Mapping[str, Iterable[str]],
    kind: TokenizerKind | None = None,
) -> Tokenizers:
    """Train the tokenizer of a canonical recipe's section `data` on the lines of every side.

    `unigram` is not deterministic: with several processes one trains and the others load what it
    saved.
    """
    kind, lowercase = kind or tokenizer_kind(section["tokenizer"]), bool(section.get("lowercase"))
    texts = {
        side: (training_text(line, lowercase) for line in lines if not is_blank(line))
        for side, lines in sides.items()
    }
    parts = kind.train(texts)
    indices = {side: 0 if len(parts) == 1 else at for at, side in enumerate(sides)}
    return Tokenizers(kind, dict(section["tokenizer"]), lowercase, indices, tuple(parts))


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
            ids, longest = (
                encode_column(lines, side, tokenizers),
                max(MAX_TOKENS, recipe.data.max_length),
            )
            is_cut |= ids.lengths() > longest
            sides[side] = replace(ids, ends=np.minimum(ids.ends, ids.starts + longest))
    facts = None
    if pairs.facts is not None:
        most = max(map(len, pairs.facts), default=0)
        padded = [[*row, *[NO_FACT] * (most - len(row))] for row in pairs.facts]
        facts = np.array(padded, np.int64).reshape(len(padded), most)
    target = sides.pop(TARGET)
    sources = {
        side: sides[side] if side in sides else features[side]
        for side in pairs.sides
        if side != TARGET
    }
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
    """Yield a fault of each line that is no story as the model reads them. origin: of lines that no
    file has.
    """
    fix = (
        "end each sentence with a full stop; the model's sentences are no longer than those it was"
        " trained on"
    )
    shapes = {side: shape for side in sides if (shape := story_shape(recipe, side))}
    for side, shape in shapes.items():
        for row, text in enumerate(sides[side]):
            if message := story_fault(text, shape):
                file, number = locate(sides[side], row)
                yield Fault(str(file or origin), number, 1, "story", "", message, fix, text[:200])


def nonempty(encoded: Encoded) -> np.ndarray:
    """Return which pairs have text on every side. -> (pairs,) bool"""
    return np.asarray(np.min([ids.lengths() for ids in encoded.sides.values()], axis=0) > 0)


def trainable_rows(
    recipe: Recipe,
    encoded: Encoded,
    notes: list[str],
    filters: Iterable[tuple[str, np.ndarray]] = (),
) -> np.ndarray:
    """Return which pairs have text on every side, fit into `max_length` with their eos, and pass
    the filters.

    Stories are cut already, and a text is not left out where it is read in windows. What is left
    out is added to `notes`. filters: which pairs, (pairs,) bool, have a reason to be left out. ->
    (pairs,) bool
    """
    longest = recipe.data.max_length or np.inf
    rows, noun = np.ones(len(encoded), dtype=bool), "documents" if recipe.reads_text else "pairs"
    reasons = [] if recipe.reads_text else [("with an empty side", ~nonempty(encoded))]
    reasons += (
        [] if recipe.window else [(f"longer than {longest} tokens", _positions(encoded) > longest)]
    )
    for reason, without in (*reasons, *filters):
        if count := int((rows & without).sum()):
            notes.append(f"left out {count:,} of {len(rows):,} training {noun} {reason}")
        rows &= ~without
    return rows


def pair_filters(source: DataSource, encoded: Encoded) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the reasons for which `parallel` leaves out training pairs, each with those that have
    it, (pairs,) bool.
    """
    parallel = source.recipe.data.parallel
    if parallel is None:
        return
    if ratio := parallel.max_ratio:
        lengths = [ids.lengths() for ids in encoded.sides.values()]
        yield (
            f"of which a side is more than {ratio:g} times as long as another",
            np.max(lengths, 0) > ratio * np.min(lengths, 0),
        )
    sides = source.pairs("train").sides
    if parallel.decontaminate:
        held_out = [
            source.pairs(split) for split in available_splits(source.recipe) if split != "train"
        ]
        for side, lines in sides.items() if held_out else ():
            columns = [part.sides[side] for part in held_out]
            columns += (
                [lines for part in held_out for lines in part.references] if side == TARGET else []
            )
            measured = np.concatenate([*map(line_hashes, columns)])
            yield f"whose {side} is measured", are_among(line_hashes(lines), measured)
    if parallel.deduplicate:
        is_repeated = np.ones(len(encoded), dtype=bool)
        is_repeated[np.unique(row_hashes(*sides.values()), return_index=True)[1]] = False
        yield "that are repeated", is_repeated


def _positions(encoded: Encoded) -> np.ndarray:
    """Return the positions of the longest text of each pair, stories left aside. -> (pairs,)"""
    return np.asarray(
        np.max([ids.positions() for ids in encoded.texts.values() if not ids.is_story], axis=0)
    )


def _nothing_left(recipe: Recipe, encoded: Encoded) -> Fault:
    full, fits = nonempty(encoded), _positions(encoded) <= recipe.data.max_length
    blank, over = int((~full).sum()), int((full & ~fits).sum())
    message = (
        f"none of the {len(full):,} training pairs is left: {blank:,} are empty, {over:,} too long"
    )
    if blank == len(full):
        return recipe.fault("empty", split_path(recipe, "train"), message, NEEDS_TEXT)
    if blank + over == len(full):
        rest, path = " or more: eos counts", ("data", "max_length")
        rest += (
            f"; or `training: {{window: {recipe.data.max_length}}}`" if recipe.reads_text else ""
        )
        return recipe.fault(
            "empty", path, message, write(path, int(_positions(encoded)[full].min()), rest)
        )
    message = f"{message}, {len(full) - blank - over:,} are left out by the filters of `parallel`"
    cures = {
        "max_ratio": "raise `max_ratio`",
        "decontaminate": "remove `decontaminate`, or measure other pairs",
    }
    hint = ", or ".join(cure for key, cure in cures.items() if getattr(recipe.data.parallel, key))
    return recipe.fault("empty", ("data", "parallel"), message, hint)


def answerable_rows(
    recipe: Recipe, encoded: Encoded, limits: AnswerLimits, notes: list[str]
) -> np.ndarray:
    """Return which training pairs a model can learn to write; those left out are added to `notes`.

    Raises DataError if none is left. -> (rows,) bool
    """
    room, frames = limits.have_room(encoded), limits.have_frames(encoded)
    ratio = max(limits.ratios.values(), default=0)
    reasons = (
        (
            room,
            (
                f"whose answer is longer than {ratio:g} times its source: decoding could never"
                " write it"
            ),
        ),
        (frames, f"whose {NO_FRAMES}"),
    )
    for rows, reason in reasons:
        if not rows.all():
            notes.append(
                f"left out {int((~rows).sum()):,} of {len(rows):,} training pairs {reason}"
            )
    if not room.any():
        message = (
            f"no training pairs are left: every answer is longer than {ratio:g} times its source"
        )
        hint = "raise `max_length_ratio` of the block `grid`, or swap source and target"
        raise DataError([recipe.fault("empty", ("data",), message, hint)])
    if not (room & frames).any():
        message = "no training pairs are left: every answer needs more frames than CTC has"
        raise DataError([recipe.fault("empty", ("model", "output", "ctc"), message, MORE_FRAMES)])
    return room & frames


def measured_pairs(recipe: Recipe, split: str, encoded: Encoded, limits: AnswerLimits) -> Encoded:
    """Return those pairs of a split that the loss is of, see `AnswerLimits.measurable`. Raises
    DataError if none is.
    """
    rows = limits.measurable(encoded)
    if rows.any() or not len(encoded):
        return encoded if rows.all() else encoded.keep(rows)
    message = f"CTC has too few frames to write any of the {len(encoded):,} answers of {split}"
    raise DataError([recipe.fault("empty", ("model", "output", "ctc"), message, MORE_FRAMES)])


def split_faults(recipe: Recipe, split: str, encoded: Encoded, pairs: Pairs) -> list[Fault]:
    """Return the faults of a split: no text, answers of another length than the output's, tokens
    that are unknown.
    """
    own = [*length_faults(recipe, split, encoded), *_unknown_faults(recipe, split, encoded, pairs)]
    # of training pairs more are left out than those without text, which has a fault of its own
    if split == "train" or nonempty(encoded).any():
        return own
    row, text = ("document", "text") if recipe.reads_text else ("pair", "text on every side")
    message = (
        f"none of the {len(pairs):,} {row}s of {split} has {text}, so no score would mean anything"
    )
    if split not in available_splits(recipe):  # files that are evaluated
        return [*own, Fault(split, 0, 0, "empty", "", message, f"give a {row} {text}")]
    return [*own, recipe.fault("empty", split_path(recipe, split), message, f"give a {row} {text}")]


def length_faults(recipe: Recipe, split: str, encoded: Encoded) -> Iterator[Fault]:
    """Yield a fault if the output has a fixed length, and a target another one."""
    length, lengths = recipe.model.output.length, encoded.target.lengths()
    if length is not None and (lengths != length).any():
        row = int(np.flatnonzero(lengths != length)[0])
        line = int(encoded.originals[row])
        message = f"answers have {length} token{'s' if length > 1 else ''} here, and that of "
        message += (
            f"{place_of(encoded.lines, line, split)} has {lengths[row]}:"
            f" `{cut_text(encoded.lines[line])}`"
        )
        path = ("model", "output", "length")
        fix = Fix("remove it: the answers have several lengths", Remove(path))
        if (lengths == lengths[row]).all():
            fix = write(
                path, int(lengths[row]), " if the answers of all parts have as many, else remove it"
            )
        yield recipe.fault("length", path, message, fix)


def cut_text(text: str) -> str:
    """Return a text for an error, cut where it is a whole file."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _unknown_faults(recipe: Recipe, split: str, encoded: Encoded, pairs: Pairs) -> Iterator[Fault]:
    """Yield a fault of each side in which a tokenizer that learns nothing meets a token that it can
    never know, or of
    whose training part nothing is known, so that nothing can be learned."""
    tokenizer, word = recipe.tokenizer, recipe.data.tokenizer.word
    for side, ids in encoded.texts.items():
        unknown, real = encoded.count_unknown(side)
        if tokenizer.is_closed and unknown:
            row, at = ids.first(UNK)
            line = int(encoded.originals[row])
            text = pairs.sides[side][line]
            token = [*text.split(), text][at]
            place = place_of(pairs.sides[side], line, f"{split} {side}")
            message = (
                f"the tokenizer `{word}` does not know `{token}` in {place}: `{cut_text(text)}`"
            )
        elif split == "train" and real and unknown == real:
            token, message = "", f"the tokenizer `{word}` knows no token of train {side}"
        else:
            continue
        fix = tokenizer.unknown_fix(token, side == TARGET, itertools.chain(*pairs.sides.values()))
        yield recipe.fault("unknown", ("data", "tokenizer", word), message, fix)
