"""Counting accuracy: the deterministic letters, and the end of a string."""

from __future__ import annotations

from benchmarks import counting

WORDS = list("abaaabbb")


def test_predictions_of_random_letters_do_not_count():
    predictions = list("aabaabb")
    assert counting.check_letters(WORDS, [*predictions, ""], "anbn") == [True, True, True]
    assert counting.check_letters(WORDS, [*predictions, "a"], "anbn") == [True, True, True]


def test_a_string_that_goes_on_or_ends_too_early_is_wrong():
    predictions = list("aabaabb")
    assert counting.check_letters(WORDS, [*predictions, "b"], "anbn") == [True, True, False]
    assert counting.check_letters(WORDS, [*predictions[:-1], "a", "a"], "anbn") == [
        True,
        False,
        True,
    ]


def test_only_the_last_string_is_scored():
    assert counting.check_letters(WORDS, ["b"] * 3 + list("aabba"), "anbn") == [True, True, True]


def test_with_three_letters_the_second_is_deterministic_too():
    words = list("abcaabbcc")
    assert counting.check_letters(words, list("abcabbcca"), "anbncn") == [True] * 4


def test_a_folder_of_seeds_gives_its_runs(tmp_path):
    for seed in (10, 2):
        (tmp_path / "many" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "many" / f"seed-{seed}.log").touch()
    names = [path.name for path in counting.find_runs([tmp_path / "many", tmp_path / "one"])]
    assert names == ["seed-2", "seed-10", "one"]


def test_the_table_shows_both_accuracies_per_length():
    row = [counting.CountingAccuracy(15, 0.5, 0.991), counting.CountingAccuracy(60, 0.0, 0.5)]
    assert counting.table([("one", row)]).splitlines()[2] == "| one | 50% (99.1%) | 0% (50.0%) |"
