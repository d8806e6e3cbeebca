"""From a recipe to what is trained on: pairs are opened, a tokenizer is trained, everything is encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from composer.data.babi import NONE
from composer.data.encoding import Corpus, Encoded, EndlessCorpus, Ids, encode
from composer.data.sources import SPLITS, TARGET, Pairs, check_files, generated, is_endless, open_pairs, sides, splits
from composer.data.stories import encode_lines, encode_stories, lines_learned, shape_of
from composer.data.tokenizer import Tokenizers, train
from composer.errors import DataError
from composer.model.vocabulary import FIXED, PAD, UNK

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

Keep = Callable[[Encoded], np.ndarray]
"""Which of some pairs are trained on: a bool each."""

STRANGE = 0.1  # a larger share of unknown tokens is told


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
    there = [split for split in splits(recipe) if split in wanted or (split == "train" and tokenizers is None)]
    pairs = {split: open_pairs(recipe, split, folders) for split in there}
    if tokenizers is None:
        lines = {side: lines_learned(recipe, side, pairs["train"].sides[side]) for side in sides(recipe)}
        tokenizers = train(recipe.dataset, lines)
    encoded = {split: _encoded(recipe, pairs[split], tokenizers) for split in there if split in wanted}
    notes = [note for split in encoded for note in pairs[split].notes]
    if "train" in encoded:
        encoded["train"] = _trainable(recipe, encoded["train"], pairs["train"], notes)
        _some_known(recipe, encoded["train"])
    for split, each in encoded.items():
        _of_one_length(recipe, split, each)
        _all_known(recipe, split, each, pairs[split])
        notes += [*_strange(split, each), *_measured_blank(split, pairs[split])]
    return Data(tokenizers, encoded.get("train"), encoded.get("val"), encoded.get("test"), pairs, notes)


def corpus_of(recipe: Recipe, first: Encoded, tokenizers: Tokenizers, keep: Keep) -> Corpus:
    """The training pairs of every epoch: `first`, or fresh ones where the task is endless.

    `keep` says which of fresh pairs are trained on; from `first` the others are gone already.
    """
    return EndlessCorpus(first, partial(_fresh, recipe, tokenizers, keep)) if is_endless(recipe) else first


def _fresh(recipe: Recipe, tokenizers: Tokenizers, keep: Keep, epoch: int) -> Encoded:
    pairs = generated(recipe, "train", epoch)
    encoded = _trainable(recipe, _encoded(recipe, pairs, tokenizers), pairs, [])
    _of_one_length(recipe, "train", encoded)
    return encoded.keep(keep(encoded))


def _encoded(recipe: Recipe, pairs: Pairs, tokenizers: Tokenizers) -> Encoded:
    ids = {side: _side(recipe, tokenizers, side, lines) for side, lines in pairs.sides.items()}
    target = ids.pop(TARGET)
    facts = None if pairs.facts is None else _together(pairs.facts)
    return Encoded(ids, target, pairs.sides[TARGET], np.arange(len(target)), facts)


def _side(recipe: Recipe, tokenizers: Tokenizers, side: str, lines: Sequence[str]) -> Ids:
    if shape := shape_of(recipe, side):
        return Ids.of_stories(encode_stories(shape, tokenizers, side, lines), tokenizers.size(side))
    return encode(lines, partial(encode_lines, recipe, tokenizers, side), tokenizers.size(side))


def _together(facts: Sequence[Sequence[int]]) -> np.ndarray:
    """Places of facts as one array, -1 where a row has fewer. -> (rows, F)"""
    most = max(map(len, facts), default=0)
    return np.array([[*row, *[NONE] * (most - len(row))] for row in facts], dtype=np.int64).reshape(-1, most)


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
    if kind not in FIXED:
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


def _strange(split: str, encoded: Encoded) -> list[str]:
    found = []
    for side, ids in {**encoded.sources, TARGET: encoded.target}.items():
        share = _share_unknown(ids)
        if share > STRANGE:
            found.append(f"{share:.0%} of the tokens of {split} {side} are unknown to the tokenizer")
    return found
