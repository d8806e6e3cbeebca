"""Languages, for models without an encoder: dynamic_ngrams (Graves et al. 2014) and counting (Joulin & Mikolov 2015).

The sources are empty. Of both it is known what can be known of a word from those before it: `optimum`, `certain`.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Literal, NamedTuple

from blocks.core.contract import Bounds, Count
from composer.data.tasks.draws import (
    Key,
    Length,
    Lengths,
    Lines,
    Seed,
    Size,
    Split,
    TaskError,
    asked,
    draw_lengths,
    lengths_of,
)

Before = Annotated[int, Bounds(minimum=0, maximum=16)]
"""How many bits decide about the next."""
Pattern = Literal["anbn", "anbncn", "anbncndn", "anb2n", "anbmcnm"]
"""What the strings of a counting language look like."""


# ------------------------------------------------------------------------------------------- N-grams


def dynamic_ngrams(
    split: Split,
    epoch: int = 0,
    *,
    context: Before = 5,
    min_length: Length = 200,
    max_length: Length = 200,
    test_lengths: list[Length] | None = None,
    train: Size = 20_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = True,
) -> Lines:
    """Bits, each drawn by the few before it, from a table that is drawn anew for each line: "0 1 1 0 1". No source.

    For each context the table has the probability of a 1, from Beta(1/2, 1/2); the bits that have too few before them
    are even. (Graves et al. 2014, section 4.4, with contexts of 5 bits.)

    Settings:
        context: how many bits decide about the next, 0 to 16
        min_length: bits of the shortest line
        max_length: bits of the longest training and validation line
        test_lengths: bits of the test lines, to ask for longer ones than were trained; null: as in training
        train: training lines of an epoch
        val: validation lines
        test: test lines, of each test length
        seed: what the draws start from
        endless: whether every epoch has new training lines
    """
    ask = asked(split, epoch, endless, seed, train, val, test)

    def any_bits(numbers: random.Random, length: int) -> Key:
        return _bits(numbers, length, context)

    keys = draw_lengths(ask, lengths_of(min_length, max_length, test_lengths), any_bits)
    return _language([" ".join(map(str, key)) for key in keys])


def _bits(numbers: random.Random, length: int, context: int) -> Key:
    table = [numbers.betavariate(0.5, 0.5) for _ in range(2**context)]
    bits: list[int] = []
    known = 0  # the bits before, as a number
    for at in range(length):
        bits.append(int(numbers.random() < (table[known] if at >= context else 0.5)))
        known = (2 * known + bits[-1]) % 2**context
    return tuple(bits)


def optimum(lines: Sequence[str], context: int) -> float:
    """What the best predictor pays for these lines of dynamic_ngrams, in bits a line; that they end costs nothing.

    Of a bit after a context c that had n_0 zeros and n_1 ones after it before, p(1) = (n_1 + 1/2) / (n_0 + n_1 + 1)
    (Graves et al. 2014, eq. 10): the mean of the table's entry, given all that was seen. Bits without a context cost 1.
    """
    return sum(_price(line.split(), context) for line in lines) / len(lines)


def _price(bits: Sequence[str], context: int) -> float:
    seen: Counter[tuple[str, ...]] = Counter()
    paid = float(min(context, len(bits)))
    for at in range(context, len(bits)):
        known = tuple(bits[at - context : at])
        paid -= math.log2((seen[*known, bits[at]] + 0.5) / (seen[*known, "0"] + seen[*known, "1"] + 1))
        seen[*known, bits[at]] += 1
    return paid


# ------------------------------------------------------------------------------------------- counting


class Form(NamedTuple):
    """How a counting language makes a string: its letters, how often each comes, and the least n."""

    letters: str
    counts: Callable[[random.Random, int], tuple[int, ...]]
    least: int = 1


def _sum(numbers: random.Random, total: int) -> tuple[int, ...]:
    first = numbers.randint(1, total - 1)
    return first, total - first, total


FORMS: dict[Pattern, Form] = {
    "anbn": Form("ab", lambda numbers, n: (n, n)),
    "anbncn": Form("abc", lambda numbers, n: (n, n, n)),
    "anbncndn": Form("abcd", lambda numbers, n: (n, n, n, n)),
    "anb2n": Form("ab", lambda numbers, n: (n, 2 * n)),
    "anbmcnm": Form("abc", _sum, least=2),
}
"""Every pattern. Of `anbmcnm`, n says how often c comes, and a and b share it."""


def counting(
    split: Split,
    epoch: int = 0,
    *,
    pattern: Pattern = "anbn",
    strings: Count = 10,
    min_length: Length = 2,
    max_length: Length = 15,
    test_lengths: list[Length] | None = None,
    train: Size = 20_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = True,
) -> Lines:
    """Strings of a language that counts, one after another, with n drawn for each: "a a b b a b". No source.

    In the test, when `test_lengths` are given, the last string of a line has that n and the others are as in training.
    (Joulin & Mikolov 2015, section 4.1.)

    Settings:
        pattern: anbn | anbncn | anbncndn | anb2n | anbmcnm: how often each letter comes; of the last, c comes n times,
            and a and b together as often
        strings: strings of a line
        min_length: the least n; 2 or more for anbmcnm
        max_length: the largest n in training and validation
        test_lengths: the n of the last string of each test line; null: as in training
        train: training lines of an epoch
        val: validation lines
        test: test lines, of each test length
        seed: what the draws start from
        endless: whether every epoch has new training lines
    """
    ask = asked(split, epoch, endless, seed, train, val, test)
    lengths = lengths_of(min_length, max_length, test_lengths)
    form = _form(pattern, lengths)

    def any_strings(numbers: random.Random, last: int) -> Key:
        drawn = [*(numbers.randint(min_length, max_length) for _ in range(strings - 1)), last]
        return tuple(itertools.chain.from_iterable(form.counts(numbers, n) for n in drawn))

    keys = draw_lengths(ask, lengths, any_strings)
    return _language([_spelled(key, form.letters) for key in keys])


def _spelled(key: Key, letters: str) -> str:
    return " ".join(" ".join(letter * count) for count, letter in zip(key, itertools.cycle(letters), strict=False))


def _form(pattern: Pattern, lengths: Lengths) -> Form:
    """Raises TaskError."""
    form = FORMS[pattern]
    for setting, least in (("min_length", lengths.shortest), ("test_lengths", min(lengths.tested, default=form.least))):
        if least < form.least:
            message = f"`{pattern}` has no string of n = {least}"
            raise TaskError(setting, message, f"write `{setting}` of {form.least} or more")
    return form


def certain(words: Sequence[str], pattern: Pattern) -> list[bool]:
    """Of each word of a line of counting, whether those before it leave no other; the line's first does not count.

    What comes after an `a` is free, after a `b` of `anbmcnm` too; all else is certain, the next string's `a` as well.
    """
    free = {"", "a", "b"} if pattern == "anbmcnm" else {"", "a"}
    return [before not in free for before in ["", *words][:-1]]


def _language(lines: list[str]) -> Lines:
    return Lines([""] * len(lines), lines)
