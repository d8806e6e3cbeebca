"""Faults of an encoded split: no text, answers of a wrong length, unknown tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from blocks.core.fixes import Fix, Remove, write
from composer.data.columns import place_of
from composer.data.ids import Encoded
from composer.data.pairs import TARGET, Pairs, available_splits, split_path
from composer.errors import Fault
from composer.model.special_tokens import UNK

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

SHOWN_CHARACTERS = 200
"""Characters of a line or a document that an error shows."""


def split_faults(recipe: Recipe, split: str, encoded: Encoded, pairs: Pairs) -> list[Fault]:
    """Return all faults of an encoded split."""
    faults = [
        *length_faults(recipe, split, encoded),
        *unknown_faults(recipe, split, encoded, pairs),
    ]
    # training pairs are left out for more reasons than a lack of text, and have their own fault
    if split == "train" or encoded.nonempty().any():
        return faults
    row, text = ("document", "text") if recipe.reads_text else ("pair", "text on every side")
    message = (
        f"none of the {len(pairs):,} {row}s of {split} has {text}, so no score would mean anything"
    )
    fix = f"give a {row} {text}"
    if split not in available_splits(recipe):  # files that are evaluated
        return [*faults, Fault(split, 0, 0, "empty", "", message, fix)]
    return [*faults, recipe.fault("empty", split_path(recipe, split), message, fix)]


def length_faults(recipe: Recipe, split: str, encoded: Encoded) -> Iterator[Fault]:
    """Yield a fault if the output has a fixed length, and a target another one."""
    length, lengths = recipe.model.output.length, encoded.target.lengths()
    if length is None or (lengths == length).all():
        return
    row = int(np.flatnonzero(lengths != length)[0])
    line = int(encoded.originals[row])
    tokens = f"{length} token{'s' if length > 1 else ''}"
    place, text = place_of(encoded.lines, line, split), cut_text(encoded.lines[line])
    message = f"answers have {tokens} here, and that of {place} has {lengths[row]}: `{text}`"
    path = ("model", "output", "length")
    fix = Fix("remove it: the answers have several lengths", Remove(path))
    if (lengths == lengths[row]).all():
        rest = " if the answers of all parts have as many, else remove it"
        fix = write(path, int(lengths[row]), rest)
    yield recipe.fault("length", path, message, fix)


def cut_text(text: str) -> str:
    """Return a text for an error, cut if it is long."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def unknown_faults(recipe: Recipe, split: str, encoded: Encoded, pairs: Pairs) -> Iterator[Fault]:
    """Yield a fault of each side with tokens that its tokenizer can never know.

    These are unknown tokens of a tokenizer that learns nothing, and a training part of which every
    token is unknown.
    """
    tokenizer, word = recipe.tokenizer, recipe.data.tokenizer.word
    for side, ids in encoded.texts.items():
        unknown, total = encoded.count_unknown(side)
        if tokenizer.is_closed and unknown:
            row, at = ids.first(UNK)
            line = int(encoded.originals[row])
            text = pairs.sides[side][line]
            token = [*text.split(), text][at]
            place = place_of(pairs.sides[side], line, f"{split} {side}")
            message = (
                f"the tokenizer `{word}` does not know `{token}` in {place}: `{cut_text(text)}`"
            )
        elif split == "train" and total and unknown == total:
            token, message = "", f"the tokenizer `{word}` knows no token of train {side}"
        else:
            continue
        fix = tokenizer.unknown_fix(token, side == TARGET, itertools.chain(*pairs.sides.values()))
        yield recipe.fault("unknown", ("data", "tokenizer", word), message, fix)
