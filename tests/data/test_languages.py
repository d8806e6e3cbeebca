"""Tasks without a source: what can be known of a word is what the lines themselves say."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from benchmarks.counting import certain_words
from composer.data.tasks import TaskError
from composer.data.tasks.sequences import FORMS, Counting, DynamicNgrams

SIZES: dict[str, Callable[..., bool]] = {
    "anbn": lambda a, b: a == b,
    "anbncn": lambda a, b, c: a == b == c,
    "anbncndn": lambda a, b, c, d: a == b == c == d,
    "anb2n": lambda a, b: b == 2 * a,
    "anbmcnm": lambda a, b, c: c == a + b,
}


# -------------------------------------------------------------------------------------------
# N-grams


def test_bits_follow_a_table_of_their_own_line() -> None:
    lines = DynamicNgrams(train=300, context=2, min_length=400, max_length=400).generate("train")
    assert set(lines.source) == {""}
    shares = []
    for line in lines.target:
        after = Counter(bits for bits in zip(*(line.split()[at:] for at in range(3)), strict=False))
        for known in itertools.product("01", repeat=2):
            seen = after[*known, "0"] + after[*known, "1"]
            shares += [after[*known, "1"] / seen] if seen > 30 else []
    mean = sum(shares) / len(shares)
    spread = sum((share - mean) ** 2 for share in shares) / len(shares)
    assert mean == pytest.approx(0.5, abs=0.06)
    # of Beta(1/2, 1/2) the variance is 1/8; contexts that are seldom seen are left out, which costs
    # some of it
    assert 0.08 < spread < 0.14


# -------------------------------------------------------------------------------------------
# counting


def strings(line: str) -> list[str]:
    return re.findall("a+[^a]+", line.replace(" ", ""))


@pytest.mark.parametrize("pattern", FORMS)
def test_strings_belong_to_the_language(pattern: str) -> None:
    lines = Counting(train=200, pattern=pattern, strings=4, min_length=2, max_length=6).generate(
        "train"
    )
    assert set(lines.source) == {""}
    for line in lines.target:
        assert len(strings(line)) == 4
        for string in strings(line):
            runs = [(letter, len(list(run))) for letter, run in itertools.groupby(string)]
            assert "".join(letter for letter, _ in runs) == FORMS[pattern].letters
            assert SIZES[pattern](*(count for _, count in runs))
    last = {
        string[-1] * string.count(string[-1]) for line in lines.target for string in strings(line)
    }
    assert len(last) == 5


def test_a_test_line_ends_with_the_string_of_the_test_length() -> None:
    lines = Counting(test=5, strings=5, max_length=6, test_lengths=[30, 7]).generate("test")
    counts_by_line = [[string.count("b") for string in strings(line)] for line in lines.target]
    assert [counts[-1] for counts in counts_by_line] == [30] * 5 + [7] * 5
    assert max(count for counts in counts_by_line for count in counts[:-1]) <= 6


@pytest.mark.parametrize("pattern", FORMS)
def test_certain_words_are_those_on_which_all_lines_agree(pattern: str) -> None:
    follow: dict[str, set[str]] = defaultdict(set)
    for line in map("".join, itertools.product(every_string(pattern, 5), repeat=2)):
        for at in range(1, len(line)):
            follow[line[:at]].add(line[at])
    # shorter strings: what follows them could have been longer
    for line in map("".join, itertools.product(every_string(pattern, 4), repeat=2)):
        agreed = [len(follow[line[:at]]) == 1 for at in range(1, len(line))]
        assert certain_words(list(line), pattern) == [False, *agreed]
    assert certain_words([], pattern) == []


def every_string(pattern: str, most: int) -> list[str]:
    """All strings of the language with n up to `most`."""
    letters = FORMS[pattern].letters
    counts = itertools.product(range(1, 2 * most + 1), repeat=len(letters))
    possible = [sizes for sizes in counts if SIZES[pattern](*sizes)]
    n_of = {sizes: sizes[-1] if pattern == "anbmcnm" else sizes[0] for sizes in possible}
    return [
        "".join(a * k for a, k in zip(letters, sizes, strict=True))
        for sizes in possible
        if n_of[sizes] <= most
    ]


def test_a_string_that_no_language_has_is_refused() -> None:
    with pytest.raises(TaskError, match="no string of n = 1") as raised:
        Counting(pattern="anbmcnm", min_length=1).generate("train")
    assert raised.value.setting == "min_length"
    with pytest.raises(TaskError) as raised:
        Counting(pattern="anbmcnm", test_lengths=[9, 1]).generate("test")
    assert raised.value.setting == "test_lengths"


def test_a_context_as_long_as_the_line_decides_nothing() -> None:
    assert DynamicNgrams(train=3, context=9, min_length=10, max_length=10).generate("train")
    with pytest.raises(TaskError, match="has none that the 10 before it decide"):
        DynamicNgrams(train=3, context=10, min_length=10, max_length=10).generate("train")
