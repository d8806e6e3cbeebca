"""Sequences of symbols whose target is the source, rearranged: copy, reverse, duplicate, sort, bigram_flip."""

from __future__ import annotations

import inspect
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
    Symbols,
    TaskError,
    draw_lengths,
    lengths_of,
    request,
    symbol,
)


def _sequence_task(name: str, first_line: str, rearrange: Callable[[list[str]], list[str]]) -> Callable[..., Lines]:
    """A task over sequences of symbols; the target is the source, rearranged."""

    def task(
        split: Split,
        epoch: int = 0,
        *,
        symbols: Symbols = 26,
        min_length: Length = 1,
        max_length: Length = 20,
        test_lengths: list[Length] | None = None,
        train: Size = 20_000,
        val: Size = 500,
        test: Size = 1_000,
        seed: Seed = 1,
        endless: bool = True,
    ) -> Lines:
        """What the task does is said by its maker.

        Settings:
            symbols: different symbols, 2 to 702
            min_length: symbols of the shortest sequence
            max_length: symbols of the longest training and validation sequence
            test_lengths: symbols of the test sequences, to ask for longer ones than were trained; null: as in training
            train: training pairs of an epoch
            val: validation pairs
            test: test pairs, of each test length
            seed: what the draws start from
            endless: whether every epoch has new training pairs
        """
        ask = request(split, epoch, endless, seed, train, val, test)

        def any_sequence(numbers: random.Random, length: int) -> Key:
            return tuple(numbers.choices(range(symbols), k=length))

        keys = draw_lengths(ask, lengths_of(min_length, max_length, test_lengths), any_sequence)
        rows = [[symbol(index) for index in key] for key in keys]
        return Lines([" ".join(row) for row in rows], [" ".join(rearrange(row)) for row in rows])

    task.__name__ = task.__qualname__ = name
    _, _, settings = (inspect.getdoc(task) or "").partition("\n\n")
    task.__doc__ = f"{first_line}\n\n{settings}\n"
    return task


copy = _sequence_task("copy", 'A sequence of symbols, given back as it is: "d a c" is "d a c".', list)
reverse = _sequence_task(
    "reverse", 'A sequence of symbols, given back from its end: "d a c" is "c a d".', lambda row: row[::-1]
)
duplicate = _sequence_task(
    "duplicate", 'A sequence of symbols, given back twice: "d a c" is "d a c d a c".', lambda row: row * 2
)
sort = _sequence_task("sort", 'A sequence of symbols, in alphabetical order: "d a c" is "a c d".', sorted)
bigram_flip = _sequence_task(
    "bigram_flip",
    'A sequence of symbols with each two exchanged: "d a c b" is "a d b c"; one that is over stays. (Grefenstette et '
    "al. 2015, section 4.1.)",
    lambda row: [symbol for at in range(0, len(row), 2) for symbol in reversed(row[at : at + 2])],
)


Kinds = Annotated[int, Bounds(minimum=1, maximum=4)]
"""How many kinds of brackets there are."""

OPENING, CLOSING = "([{<", ")]}>"
NOTHING, BROKEN = ".", "x"


def parentheses(
    split: Split,
    epoch: int = 0,
    *,
    kinds: Kinds = 2,
    min_length: Length = 1,
    max_length: Length = 20,
    test_lengths: list[Length] | None = None,
    train: Size = 20_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = True,
) -> Lines:
    """Brackets, and after each of them the one that must close next: "( [ ] )" is ") ] ) .".

    `.` is where nothing is open, and `x` stands from the first bracket on that closes what is not open innermost: so
    the answer has a word for each bracket, and says of each beginning whether it is balanced (`.`), can still become
    so, or no longer can (`x`). Half of the sequences have one bracket in place of which any was drawn.

    Settings:
        kinds: kinds of brackets, 1 to 4: ( ), [ ], { }, < >
        min_length: brackets of the shortest sequence
        max_length: brackets of the longest training and validation sequence
        test_lengths: brackets of the test sequences, to ask for longer ones than were trained; null: as in training
        train: training pairs of an epoch
        val: validation pairs
        test: test pairs, of each test length
        seed: what the draws start from
        endless: whether every epoch has new training pairs
    """
    ask = request(split, epoch, endless, seed, train, val, test)

    def any_brackets(numbers: random.Random, length: int) -> Key:
        return _brackets(numbers, length, kinds)

    keys = draw_lengths(ask, lengths_of(min_length, max_length, test_lengths), any_brackets)
    sources = [[(OPENING + CLOSING)[each] for each in key] for key in keys]
    return Lines([" ".join(row) for row in sources], [" ".join(closing_next(row)) for row in sources])


def _brackets(numbers: random.Random, length: int, kinds: int) -> Key:
    """0 to 3 open and 4 to 7 close. Every second bracket closes, where it can; then perhaps one is changed."""
    open_: list[int] = []
    row = []
    for _ in range(length):
        if open_ and numbers.random() < 0.5:
            row.append(4 + open_.pop())
        else:
            open_.append(numbers.randrange(kinds))
            row.append(open_[-1])
    if numbers.random() < 0.5:
        row[numbers.randrange(length)] = numbers.randrange(kinds) + 4 * numbers.randrange(2)
    return tuple(row)


def closing_next(row: Sequence[str]) -> list[str]:
    """After each bracket, the one that must close next; `.` if none, `x` once it cannot be balanced any more."""
    open_: list[str] = []
    answer: list[str] = []
    for bracket in row:
        if bracket in OPENING:
            open_.append(CLOSING[OPENING.index(bracket)])
        elif not open_ or open_.pop() != bracket:
            return answer + [BROKEN] * (len(row) - len(answer))
        answer.append(open_[-1] if open_ else NOTHING)
    return answer


Dialects = Annotated[int, Bounds(minimum=2, maximum=100)]
"""How many dialects there are."""
Reads = Literal["nothing", "last", "all"]
"""What a model knows of an answer when it writes a word: nothing, the word before, or all words before."""


def dialect(
    split: Split,
    epoch: int = 0,
    *,
    symbols: Symbols = 10,
    dialects: Dialects = 4,
    every: Count = 3,
    min_length: Length = 1,
    max_length: Length = 20,
    test_lengths: list[Length] | None = None,
    train: Size = 20_000,
    val: Size = 500,
    test: Size = 1_000,
    seed: Seed = 1,
    endless: bool = True,
) -> Lines:
    """Symbols, given back with the marked ones in one of several dialects: "a c B d a A" is "a c B2 d a A2".

    Every third symbol is marked, by a capital. The dialect of a line is drawn evenly, and its source does not show it.

    Settings:
        symbols: different symbols, 2 to 702
        dialects: different dialects, 2 to 100
        every: how many symbols after one another have one marked among them; 1: each is
        min_length: symbols of the shortest sequence
        max_length: symbols of the longest training and validation sequence
        test_lengths: symbols of the test sequences, to ask for longer ones than were trained; null: as in training
        train: training pairs of an epoch
        val: validation pairs
        test: test pairs, of each test length
        seed: what the draws start from
        endless: whether every epoch has new training pairs
    """
    ask = request(split, epoch, endless, seed, train, val, test)

    def any_sequence(numbers: random.Random, length: int) -> Key:
        return tuple(numbers.choices(range(symbols), k=length))

    keys = draw_lengths(ask, lengths_of(min_length, max_length, test_lengths), any_sequence)
    spoken = ask.generator("dialects").choices(range(1, dialects + 1), k=len(keys))
    sources = [marked([symbol(index) for index in key], every) for key in keys]
    targets = [in_dialect(row, every, each) for row, each in zip(sources, spoken, strict=True)]
    return Lines([" ".join(row) for row in sources], [" ".join(row) for row in targets])


def marked(row: Sequence[str], every: int) -> list[str]:
    """Each `every`-th symbol in capitals."""
    return [word.upper() if at % every == 0 else word for at, word in enumerate(row, 1)]


def in_dialect(row: Sequence[str], every: int, which: int) -> list[str]:
    """Each `every`-th symbol with the dialect's number behind it."""
    return [f"{word}{which}" if at % every == 0 else word for at, word in enumerate(row, 1)]


def dialect_optimum(sources: Sequence[str], dialects: int, every: int, reads: Reads) -> float:
    """The least loss on these lines that a model can have, in nats per target token, eos counted.

    Of m marked words, a model that reads nothing of its answer must guess all: m log(dialects) nats. One that reads all
    words before guesses the first alone: log(dialects), if m > 0. The word before tells the dialect only where each
    word is marked (`every: 1`); else who reads it alone guesses as if it read nothing.
    """
    lengths = [len(source.split()) for source in sources]
    once = reads == "all" or (reads == "last" and every == 1)
    guesses = sum(min(length // every, 1) if once else length // every for length in lengths)
    return guesses * math.log(dialects) / sum(length + 1 for length in lengths)


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
    ask = request(split, epoch, endless, seed, train, val, test)

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


def ngrams_optimum(lines: Sequence[str], context: int) -> float:
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
    ask = request(split, epoch, endless, seed, train, val, test)
    lengths = lengths_of(min_length, max_length, test_lengths)
    form = _checked_form(pattern, lengths)

    def any_strings(numbers: random.Random, last: int) -> Key:
        drawn = [*(numbers.randint(min_length, max_length) for _ in range(strings - 1)), last]
        return tuple(itertools.chain.from_iterable(form.counts(numbers, n) for n in drawn))

    keys = draw_lengths(ask, lengths, any_strings)
    return _language([_spelled(key, form.letters) for key in keys])


def _spelled(key: Key, letters: str) -> str:
    return " ".join(" ".join(letter * count) for count, letter in zip(key, itertools.cycle(letters), strict=False))


def _checked_form(pattern: Pattern, lengths: Lengths) -> Form:
    """Raises TaskError."""
    form = FORMS[pattern]
    for setting, least in (("min_length", lengths.shortest), ("test_lengths", min(lengths.tested, default=form.least))):
        if least < form.least:
            message = f"`{pattern}` has no string of n = {least}"
            raise TaskError(setting, message, f"write `{setting}` of {form.least} or more")
    return form


def certain_words(words: Sequence[str], pattern: Pattern) -> list[bool]:
    """Of each word of a line of counting, whether those before it leave no other; the line's first does not count.

    What comes after an `a` is free, after a `b` of `anbmcnm` too; all else is certain, the next string's `a` as well.
    """
    free = {"", "a", "b"} if pattern == "anbmcnm" else {"", "a"}
    return [before not in free for before in ["", *words][:-1]]


def _language(lines: list[str]) -> Lines:
    return Lines([""] * len(lines), lines)
