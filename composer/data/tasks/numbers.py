"""number_words: numbers in words, from one language to another. The one door to num2words."""

from __future__ import annotations

import random
from functools import cache
from typing import Annotated, Literal

from num2words import num2words

from blocks.core.contract import Bounds
from composer.data.tasks.draws import Key, Lines, Seed, Size, Split, asked, draw

Maximum = Annotated[int, Bounds(minimum=99, maximum=999_999)]
"""The largest number of a task."""
Language = Literal["da", "de", "en", "es", "fi", "fr", "hu", "it", "nl", "pl", "pt", "sv", "tr"]


def number_words(
    split: Split,
    epoch: int = 0,
    *,
    maximum: Maximum = 999_999,
    source: Language = "en",
    target: Language = "de",
    train: Size = 30_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = False,
) -> Lines:
    """Number words, from English to German if not said: "four hundred and twenty-one", "vierhunderteinundzwanzig".

    Test and validation numbers are all different and drawn evenly from 0 to `maximum`. One training number in five is
    drawn by its number of digits first, so that short numbers are seen too.

    Settings:
        maximum: the largest number, 99 to 999999
        source: the language that is read: da, de, en, es, fi, fr, hu, it, nl, pl, pt, sv or tr
        target: the language that is written, one of the same
        train: training pairs of an epoch
        val: validation pairs
        test: test pairs
        seed: what the draws start from
        endless: whether every epoch has new training pairs
    """
    digits = len(str(maximum))

    def evenly(numbers: random.Random) -> Key:
        return (numbers.randint(0, maximum),)

    def short_ones_too(numbers: random.Random) -> Key:
        if numbers.random() < 0.8:
            return evenly(numbers)
        length = numbers.randint(1, digits)
        return (numbers.randint(0 if length == 1 else 10 ** (length - 1), min(maximum, 10**length - 1)),)

    ask = asked(split, epoch, endless, seed, train, val, test)
    numbers = [number for (number,) in draw(ask, short_ones_too if split == "train" else evenly)]
    return Lines([in_words(number, source) for number in numbers], [in_words(number, target) for number in numbers])


def in_words(number: int, language: str) -> str:
    """A number from 0 to 999,999 as num2words writes it."""
    by_pieces = {"en": english, "de": german}.get(language)
    return _words(number, language) if by_pieces is None else by_pieces(number)


def english(number: int) -> str:
    """A number from 0 to 999,999 as num2words writes it in English, from cached pieces."""
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _words(rest, "en")
    joint = "" if not rest else ", " if rest >= 100 else " and "
    return f"{_words(thousands, 'en')} thousand{joint}{_words(rest, 'en') if rest else ''}"


def german(number: int) -> str:
    """A number from 0 to 999,999 as num2words writes it in German, from cached pieces."""
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _words(rest, "de")
    head = "ein" if thousands == 1 else _words(thousands, "de")
    return f"{head}tausend{_words(rest, 'de') if rest else ''}"


@cache
def _words(number: int, language: str) -> str:
    return str(num2words(number, lang=language))
