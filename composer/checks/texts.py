"""Rules of texts: columns and windows that are not there, other forms of Unicode."""

from __future__ import annotations

import unicodedata
from typing import Literal

from composer.checks.problem import Problems, unused, warning
from composer.checks.read_data import ReadData, Rules
from composer.data.corpora import find_files
from composer.data.documents import is_plain
from composer.data.pairs import available_splits, split_path, text_names
from composer.data.split import held_out_sizes

Form = Literal["NFC", "NFD"]
FORMS: tuple[tuple[Form, Form], ...] = (("NFC", "NFD"), ("NFD", "NFC"))
"""Forms of Unicode for letters with accents, each with the other: as one character, and with the
marks behind it.
"""
SMALLER_NUMBER = "write a smaller number, or train on more text"


def column(read: ReadData) -> Problems:
    """Some file of a text has the column that is named."""
    recipe, path = read.recipe, ("data", "text", "column")
    if not recipe.data.text or not recipe.locate(path).is_written:
        return
    held_out = held_out_sizes(recipe.data.text)
    splits = [split for split in available_splits(recipe) if split not in held_out]
    for split in splits:
        files = find_files(recipe, split, read.source.folders)[0]
        if not all(is_plain(file.path) for file in files):
            return
    yield unused(path, "no file of the text has columns")


def windows(read: ReadData) -> Problems:
    """A window fits into the training text, and there are no more streams than tokens."""
    recipe, train = read.recipe, read.data.train
    if recipe.window is None or train is None or not read.is_all:
        return
    tokens = int(train.target.positions().sum())
    streams = recipe.training.tokens_per_batch // recipe.window
    message = f"the training text has {tokens:,} tokens"
    if recipe.window > tokens:
        yield warning(
            "budget", ("training", "window"), f"{message}, fewer than a window", SMALLER_NUMBER
        )
    elif recipe.carries_state and streams > tokens:
        path = ("training", "tokens_per_batch")
        yield warning(
            "budget", path, f"{message}, and is cut into {streams:,} streams", SMALLER_NUMBER
        )


def forms(read: ReadData) -> Problems:
    """Accents are in the same Unicode form as in training: NFC or NFD.

    Else they are other tokens, though they look alike.
    """
    recipe, data = read.recipe, read.data
    if "train" not in data.pairs:
        return
    for split, pairs in data.pairs.items():
        for side in text_names(recipe) if split != "train" else ():
            trained = data.pairs["train"].sides[side]
            for form, other in FORMS:
                count = sum(has_form(line, form) for line in pairs.sides[side])
                if not count or any(has_form(line, form) for line in trained):
                    continue
                if not any(has_form(line, other) for line in trained):
                    continue
                message = (
                    f"{count:,} of {len(pairs):,} lines of the {side} have letters with accents in"
                    f" the form {form}, and the training has them in {other} alone: to a model they"
                    " are other letters"
                )
                hint = (
                    f"write all texts in one form, as `unicodedata.normalize('{other}', line)` of"
                    " Python does"
                )
                yield warning("form", split_path(recipe, split), message, hint)


def has_form(line: str, form: Form) -> bool:
    """True if a line has accented letters in a form of Unicode that the other form writes apart."""
    if line.isascii():
        return False
    length, other = len(line), len(unicodedata.normalize("NFD" if form == "NFC" else "NFC", line))
    return other > length if form == "NFC" else other < length


RULES: Rules = (column, windows, forms)
