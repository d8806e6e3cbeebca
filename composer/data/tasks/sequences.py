"""Tasks of symbol sequences and formal languages.

copy, reverse, duplicate, sort, bigram_flip: the target is the source, rearranged. parentheses: what
must close next. dialect: a copy in one of several dialects. dynamic_ngrams (Graves et al. 2014) and
counting (Joulin & Mikolov 2015): languages for models without an encoder, whose sources are empty.
"""

from __future__ import annotations

import itertools
import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from blocks.core.settings import Bounds, Count
from composer.data.tasks import (
    Draws,
    Key,
    Length,
    Lines,
    Longest,
    SequenceTask,
    Shortest,
    TaskError,
)

Symbols = Annotated[int, Bounds(minimum=2, maximum=702), "different symbols, 2 to 702"]
Kinds = Annotated[int, Bounds(minimum=1, maximum=4)]
"""Number of kinds of brackets."""
Dialects = Annotated[int, Bounds(minimum=2, maximum=100)]
Context = Annotated[int, Bounds(minimum=0, maximum=12)]
"""Number of bits that decide about the next."""
Pattern = Literal["anbn", "anbncn", "anbncndn", "anb2n", "anbmcnm"]
"""Form of the strings of a counting language."""

OPENING, CLOSING = "([{<", ")]}>"
NONE_OPEN, BROKEN = ".", "x"


class SymbolTask(SequenceTask):
    """Task of symbols: a to z, then aa, ab ..."""

    items = "symbols"
    if TYPE_CHECKING:
        symbols: int

    def rows(self, draws: Draws) -> list[list[str]]:
        """Draw sequences of the symbols."""
        names = [*ascii_lowercase, *map("".join, itertools.product(ascii_lowercase, repeat=2))]
        keys = draws.keys_by_length(
            lambda numbers, length: tuple(numbers.choices(range(self.symbols), k=length))
        )
        return [look_up(names, key) for key in keys]


def look_up(words: Sequence[str], key: Key) -> list[str]:
    """Return the words at the indices of a key."""
    return [words[index] for index in key]


class Rearrangement(SymbolTask):
    """Task whose targets are the sources, rearranged."""

    symbols: Symbols = 26

    @abstractmethod
    def rearrange(self, row: list[str]) -> list[str]:
        """Return the target of a source."""

    def lines(self, draws: Draws) -> Lines:
        rows = self.rows(draws)
        return Lines.of(rows, map(self.rearrange, rows))


class Copy(Rearrangement):
    """Copy a sequence of symbols: "d a c" is "d a c"."""

    word = "copy"

    def rearrange(self, row: list[str]) -> list[str]:
        return row


class Reverse(Rearrangement):
    """Reverse a sequence of symbols: "d a c" is "c a d"."""

    word = "reverse"

    def rearrange(self, row: list[str]) -> list[str]:
        return row[::-1]


class Duplicate(Rearrangement):
    """Write a sequence of symbols twice: "d a c" is "d a c d a c"."""

    word = "duplicate"

    def rearrange(self, row: list[str]) -> list[str]:
        return row * 2


class Sort(Rearrangement):
    """Sort a sequence of symbols alphabetically: "d a c" is "a c d"."""

    word = "sort"

    def rearrange(self, row: list[str]) -> list[str]:
        return sorted(row)


class BigramFlip(Rearrangement):
    """Exchange each two symbols: "d a c b" is "a d b c" (Grefenstette et al. 2015, section 4.1).

    An odd last symbol stays.
    """

    word = "bigram_flip"

    def rearrange(self, row: list[str]) -> list[str]:
        flipped: list[str] = []
        for at in range(0, len(row), 2):
            flipped += reversed(row[at : at + 2])
        return flipped


class Dialect(SymbolTask):
    """Copy symbols, the marked ones in one of several dialects: "a c B d a A" is "a c B2 d a A2".

    Every third symbol is marked, by a capital. The dialect of a line is drawn evenly, and its
    source does not show it. So models differ by what each word of an answer can know of the others,
    and by nothing else: all words but the marked ones are certain, and each of these is even among
    the dialects until the answer's own words tell which it is.

    Settings:
        dialects: different dialects, 2 to 100
        every: how many symbols after one another have one marked among them; 1: each is
    """

    word = "dialect"
    has_capitals = True
    symbols: Symbols = 10
    dialects: Dialects = 4
    every: Count = 3

    def lines(self, draws: Draws) -> Lines:
        rows = self.rows(draws)
        numbers = draws.generator("dialects").choices(range(1, self.dialects + 1), k=len(rows))
        targets = [
            mark(row, self.every, str(number)) for row, number in zip(rows, numbers, strict=True)
        ]
        return Lines.of([mark(row, self.every) for row in rows], targets)


def mark(row: Sequence[str], every: int, suffix: str = "") -> list[str]:
    """Return the row with each `every`-th symbol in capitals, and the suffix behind it."""
    marked = list(row)
    for at in range(every - 1, len(row), every):
        marked[at] = f"{row[at].upper()}{suffix}"
    return marked


class Parentheses(SequenceTask):
    """Name after each bracket of a sequence the one that must close next: "( [ ] )" is ") ] ) .".

    `.` is where nothing is open, and `x` stands from the first bracket on that closes what is not
    open innermost: so the answer has a word for each bracket, and says of each beginning whether it
    is balanced (`.`), can still become so, or no longer can (`x`). Half of the sequences have one
    bracket in place of which any was drawn.

    Settings:
        kinds: kinds of brackets, 1 to 4: ( ), [ ], { }, < >
    """

    word = "parentheses"
    items = "brackets"
    kinds: Kinds = 2

    def lines(self, draws: Draws) -> Lines:
        keys = draws.keys_by_length(lambda numbers, length: _brackets(numbers, length, self.kinds))
        sources = [look_up(OPENING + CLOSING, key) for key in keys]
        return Lines.of(sources, map(closing_next, sources))


def _brackets(numbers: random.Random, length: int, kinds: int) -> Key:
    """Draw brackets, 0 to 3 open and 4 to 7 close; every second row is balanced if possible."""
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
    """Return the bracket that must close next, after each; `.` if none, `x` once unbalanced."""
    open_: list[str] = []
    answer: list[str] = []
    for bracket in row:
        if bracket in OPENING:
            open_.append(CLOSING[OPENING.index(bracket)])
        elif not open_ or open_.pop() != bracket:
            return answer + [BROKEN] * (len(row) - len(answer))
        answer.append(open_[-1] if open_ else NONE_OPEN)
    return answer


class DynamicNgrams(SequenceTask):
    """Predict bits by a table of the bits before, a new one for each line: "0 1 1 0 1". No source.

    For each context the table has the probability of a 1, from Beta(1/2, 1/2); the bits that have
    too few before them are even. (Graves et al. 2014, section 4.4, with contexts of 5 bits.)

    Settings:
        context: how many bits decide about the next, 0 to 12
    """

    word = "dynamic_ngrams"
    items = "bits"
    row = "line"
    pairs = "lines"
    context: Context = 5
    min_length: Shortest = 200
    max_length: Longest = 200

    def lines(self, draws: Draws) -> Lines:
        context = self.context
        if context >= (longest := max([self.max_length, *draws.test_lengths])):
            message = f"a line of {longest} bits has none that the {context} before it decide"
            raise TaskError(
                "context", message, f"write `context: {longest - 1}` or less, or longer lines"
            )

        def random_bits(numbers: random.Random, length: int) -> Key:
            table = [numbers.betavariate(0.5, 0.5) for _ in range(2**context)]
            bits: list[int] = []
            before = 0  # the bits of the context, as a number
            for at in range(length):
                bits.append(int(numbers.random() < (table[before] if at >= context else 0.5)))
                before = (2 * before + bits[-1]) % 2**context
            return tuple(bits)

        keys = draws.keys_by_length(random_bits)
        return Lines.of([()] * len(keys), keys)


class Form(NamedTuple):
    """Strings of a counting language: letters, repeats of each for some n, and the least n."""

    letters: str
    counts: Callable[[random.Random, int], tuple[int, ...]]
    least: int = 1


FORMS: dict[Pattern, Form] = {
    "anbn": Form("ab", lambda numbers, n: (n, n)),
    "anbncn": Form("abc", lambda numbers, n: (n, n, n)),
    "anbncndn": Form("abcd", lambda numbers, n: (n, n, n, n)),
    "anb2n": Form("ab", lambda numbers, n: (n, 2 * n)),
    "anbmcnm": Form(
        "abc", lambda numbers, n: (first := numbers.randint(1, n - 1), n - first, n), least=2
    ),
}
"""Every pattern. Of `anbmcnm`, n says how often c comes, and a and b share it."""


class Counting(SequenceTask):
    """Predict strings of a counting language, each with its own n: "a a b b a b". No source.

    In the test, when `test_lengths` are given, the last string of a line has that n and the others
    are as in training. (Joulin & Mikolov 2015, section 4.1.)

    Settings:
        pattern: anbn | anbncn | anbncndn | anb2n | anbmcnm: how often each letter comes; of the
            last, c comes n times, and a and b together as often
        strings: strings of a line
        min_length: the least n; 2 or more for anbmcnm
        max_length: the largest n in training and validation
        test_lengths: the n of the last string of each test line; null: as in training
    """

    word = "counting"
    items = "strings"
    row = "line"
    pairs = "lines"
    pattern: Pattern = "anbn"
    strings: Count = 10
    min_length: Length = 2
    max_length: Length = 15

    def lines(self, draws: Draws) -> Lines:
        form = FORMS[self.pattern]
        tested = min(draws.test_lengths, default=form.least)
        for setting, shortest in (("min_length", self.min_length), ("test_lengths", tested)):
            if shortest < form.least:
                message = f"`{self.pattern}` has no string of n = {shortest}"
                raise TaskError(setting, message, f"write `{setting}` of {form.least} or more")

        def random_strings(numbers: random.Random, last: int) -> Key:
            before = (
                numbers.randint(self.min_length, self.max_length) for _ in range(self.strings - 1)
            )
            return tuple(
                itertools.chain.from_iterable(form.counts(numbers, n) for n in [*before, last])
            )

        lines = []
        for key in draws.keys_by_length(random_strings):
            runs = zip(key, itertools.cycle(form.letters), strict=False)
            lines.append(" ".join(" ".join(letter * count) for count, letter in runs))
        return Lines([""] * len(lines), lines)
