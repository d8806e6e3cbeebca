"""Stories: a line of text whose sentences become a grid, sentences by words.

A story is read without capitals and without the marks that end its sentences, and so is the question about it. The same
is done to what a trained run is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from composer.model.vocabulary import PAD

if TYPE_CHECKING:
    from composer.data.tokenizer import Tokenizers
    from composer.recipe.recipe import Recipe

STORY, QUESTION = "story", "question"
ENDS = re.compile(r"[.?!](?=\s|$)")
"""The end of a sentence."""


class Shape(NamedTuple):
    """How many sentences of a story are read, the last ones, and for how many words each has room."""

    sentences: int
    words: int


def shape_of(recipe: Recipe, side: str) -> Shape | None:
    """The shape of a side that is a story; None of any other."""
    told = recipe.dataset.get("babi")
    return Shape(told["sentences"], told["words"]) if told and side == STORY else None


def join_story(text: str) -> str:
    """The words of a sentence with single spaces between, in lower case, without the mark at its end."""
    return " ".join(ENDS.sub(" ", text).lower().split())


def sentences(line: str) -> list[str]:
    """The sentences of a story, each as its plain words."""
    return [" ".join(words) for each in ENDS.split(line.lower()) if (words := each.split())]


def story_fault(line: str, shape: Shape) -> str:
    """Why a line is no story of this shape; "" where it is one."""
    lengths = [len(each.split()) for each in sentences(line)[-shape.sentences :]]
    if not lengths:
        return "this story has no sentence"
    if max(lengths) <= shape.words:
        return ""
    return f"a sentence of this story has {max(lengths)} words, and there is room for {shape.words}"


def lines_learned(recipe: Recipe, side: str, lines: Iterable[str]) -> Iterable[str]:
    """What the tokenizer of a side is trained on: its lines, of a story its sentences."""
    if shape_of(recipe, side):
        return _sentences(lines)
    return map(join_story, lines) if _is_asked(recipe, side) else lines


def encode_side(
    recipe: Recipe, tokenizers: Tokenizers, side: str, lines: Sequence[str]
) -> list[list[int]] | list[np.ndarray]:
    """The ids of each line of a side, without bos and eos; of a story, (sentences, words) each, padded on the right."""
    shape = shape_of(recipe, side)
    return encode_stories(shape, tokenizers, side, lines) if shape else encode_lines(recipe, tokenizers, side, lines)


def encode_lines(recipe: Recipe, tokenizers: Tokenizers, side: str, lines: Sequence[str]) -> list[list[int]]:
    """The ids of each line of a side that is no story."""
    return tokenizers.encode(side, [*map(join_story, lines)] if _is_asked(recipe, side) else lines)


def encode_stories(shape: Shape, tokenizers: Tokenizers, side: str, lines: Sequence[str]) -> list[np.ndarray]:
    """The ids of each story, (sentences, words). Each sentence, which many stories share, is encoded once."""
    told = [sentences(line)[-shape.sentences :] for line in lines]
    different = [*dict.fromkeys(each for story in told for each in story)]
    known = {
        each: [*ids, *[PAD] * (shape.words - len(ids))]
        for each, ids in zip(different, tokenizers.encode(side, different), strict=True)
    }
    return [np.array([known[each] for each in story], dtype=np.int64).reshape(-1, shape.words) for story in told]


def _is_asked(recipe: Recipe, side: str) -> bool:
    return bool(recipe.dataset.get("babi")) and side == QUESTION


def _sentences(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from sentences(line)
