"""What is right of a language that counts: the letters that are certain, and that a string ends when it must."""

from __future__ import annotations

import counting

WORDS = list("abaaabbb")


def test_a_counter_is_right_whatever_it_says_of_what_is_free():
    said = list("aabaabb")
    assert counting.marked(WORDS, [*said, ""], "anbn") == [True, True, True]
    assert counting.marked(WORDS, [*said, "a"], "anbn") == [True, True, True]


def test_a_string_that_goes_on_or_ends_too_early_is_wrong():
    said = list("aabaabb")
    assert counting.marked(WORDS, [*said, "b"], "anbn") == [True, True, False]
    assert counting.marked(WORDS, [*said[:-1], "a", "a"], "anbn") == [True, False, True]


def test_only_the_last_string_counts():
    assert counting.marked(WORDS, ["b"] * 3 + list("aabba"), "anbn") == [True, True, True]


def test_of_three_letters_the_second_is_certain_too():
    words = list("abcaabbcc")
    assert counting.marked(words, list("abcabbcca"), "anbncn") == [True] * 4


def test_a_folder_of_seeds_is_its_runs(tmp_path):
    for seed in (10, 2):
        (tmp_path / "many" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "many" / f"seed-{seed}.log").touch()
    found = [path.name for path in counting.runs_in([tmp_path / "many", tmp_path / "one"])]
    assert found == ["seed-2", "seed-10", "one"]


def test_table():
    row = [counting.Counted(15, 0.5, 0.991), counting.Counted(60, 0.0, 0.5)]
    assert counting.table([("one", row)]).splitlines()[2] == "| one | 50% (99.1%) | 0% (50.0%) |"
