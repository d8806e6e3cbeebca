"""Training pairs that are left out, and why: empty, too long, filtered, or impossible to write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from blocks.core.fixes import write
from composer.data.answer_limits import MORE_FRAMES, NO_FRAMES, AnswerLimits
from composer.data.ids import Encoded
from composer.data.line_hashes import are_among, line_hashes, row_hashes
from composer.data.pairs import TARGET, available_splits, split_path
from composer.data.sources import DataSource
from composer.errors import DataError, Fault

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

NEEDS_TEXT = "give a pair text on every side"


def trainable_rows(
    recipe: Recipe,
    encoded: Encoded,
    notes: list[str],
    filters: Iterable[tuple[str, np.ndarray]] = (),
) -> np.ndarray:
    """True for pairs with text on every side that fit into `max_length` and pass the filters.

    Stories are cut already, and a text that is read in windows has no limit. Adds to `notes` what
    is left out.

    filters: Reasons to leave out pairs, each with those that have it, (pairs,) bool.
    -> (pairs,) bool
    """
    longest = recipe.data.max_length or np.inf
    noun = "documents" if recipe.reads_text else "pairs"
    reasons: list[tuple[str, np.ndarray]] = []
    if not recipe.reads_text:
        reasons.append(("with an empty side", ~encoded.nonempty()))
    if not recipe.window:
        reasons.append((f"longer than {longest} tokens", _positions(encoded) > longest))
    rows = np.ones(len(encoded), dtype=bool)
    for reason, is_left_out in (*reasons, *filters):
        if count := int((rows & is_left_out).sum()):
            notes.append(f"left out {count:,} of {len(rows):,} training {noun} {reason}")
        rows &= ~is_left_out
    return rows


def pair_filters(source: DataSource, encoded: Encoded) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the filters of `parallel`: a reason, and the pairs that have it, (pairs,) bool."""
    parallel = source.recipe.data.parallel
    if parallel is None:
        return
    if ratio := parallel.max_ratio:
        lengths = [ids.lengths() for ids in encoded.sides.values()]
        is_uneven = np.max(lengths, 0) > ratio * np.min(lengths, 0)
        yield f"with a side more than {ratio:g} times as long as another", is_uneven
    sides = source.pairs("train").sides
    if parallel.decontaminate:
        yield from measured_lines(source, sides)
    if parallel.deduplicate:
        is_repeated = np.ones(len(encoded), dtype=bool)
        is_repeated[np.unique(row_hashes(*sides.values()), return_index=True)[1]] = False
        yield "that are repeated", is_repeated


def measured_lines(
    source: DataSource, sides: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the training pairs of each side with a line that another split has, too."""
    measured = [
        source.pairs(split) for split in available_splits(source.recipe) if split != "train"
    ]
    if not measured:
        return
    for side, lines in sides.items():
        columns = [pairs.sides[side] for pairs in measured]
        if side == TARGET:
            for pairs in measured:
                columns += pairs.references
        hashes = np.concatenate([*map(line_hashes, columns)])
        yield f"whose {side} is measured", are_among(line_hashes(lines), hashes)


def _positions(encoded: Encoded) -> np.ndarray:
    """Return the positions of the longest text of each pair, except stories. -> (pairs,)"""
    texts = [ids.positions() for ids in encoded.texts.values() if not ids.is_story]
    return np.asarray(np.max(texts, axis=0))


def nothing_left(recipe: Recipe, encoded: Encoded) -> Fault:
    """Return the fault of training data of which every pair is left out."""
    full, fits = encoded.nonempty(), _positions(encoded) <= recipe.data.max_length
    blank, over = int((~full).sum()), int((full & ~fits).sum())
    message = (
        f"none of the {len(full):,} training pairs is left: {blank:,} are empty, {over:,} too long"
    )
    if blank == len(full):
        return recipe.fault("empty", split_path(recipe, "train"), message, NEEDS_TEXT)
    if blank + over == len(full):
        rest, path = " or more: eos counts", ("data", "max_length")
        if recipe.reads_text:
            rest += f"; or `training: {{window: {recipe.data.max_length}}}`"
        shortest = int(_positions(encoded)[full].min())
        return recipe.fault("empty", path, message, write(path, shortest, rest))
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
    """True for training pairs whose answer the model can write; notes those left out.

    Raises DataError if none is left. -> (rows,) bool
    """
    has_room, has_frames = limits.have_room(encoded), limits.have_frames(encoded)
    ratio = max(limits.ratios.values(), default=0)
    too_long = (
        f"whose answer is longer than {ratio:g} times its source: decoding could never write it"
    )
    for rows, reason in ((has_room, too_long), (has_frames, f"whose {NO_FRAMES}")):
        if not rows.all():
            left_out = int((~rows).sum())
            notes.append(f"left out {left_out:,} of {len(rows):,} training pairs {reason}")
    if not has_room.any():
        message = (
            f"no training pairs are left: every answer is longer than {ratio:g} times its source"
        )
        hint = "raise `max_length_ratio` of the block `grid`, or swap source and target"
        raise DataError([recipe.fault("empty", ("data",), message, hint)])
    if not (has_room & has_frames).any():
        message = "no training pairs are left: every answer needs more frames than CTC has"
        raise DataError([recipe.fault("empty", ("model", "output", "ctc"), message, MORE_FRAMES)])
    return has_room & has_frames


def measured_pairs(recipe: Recipe, split: str, encoded: Encoded, limits: AnswerLimits) -> Encoded:
    """Return the pairs of a split that count in the loss, see `AnswerLimits.measurable`.

    Raises DataError if there is none.
    """
    rows = limits.measurable(encoded)
    if rows.any() or not len(encoded):
        return encoded if rows.all() else encoded.keep(rows)
    message = f"CTC has too few frames to write any of the {len(encoded):,} answers of {split}"
    raise DataError([recipe.fault("empty", ("model", "output", "ctc"), message, MORE_FRAMES)])
