"""Made scenes: a caption relates the first digit to the others, and a question has one answer."""

from __future__ import annotations

import numpy as np

from prepare_data import digit_scenes


def test_a_caption_relates_the_first_digit_to_the_others():
    assert digit_scenes.caption([4], [8]) == "a eight"
    assert (
        digit_scenes.caption([1, 5, 7], [7, 3, 9])
        == "a seven above and left of a three, above a nine"
    )


def test_a_question_that_two_digits_answer_is_not_asked():
    # a one, a two and, below them, a three on either side of the column between
    questions = {
        digit_scenes.question([1, 6, 8], [1, 3, 3], np.random.default_rng(seed))
        for seed in range(60)
    }
    assert questions == {
        ("above and right of the three", "one"),
        ("above and left of the three", "one"),
        ("below and left of the one", "three"),
        ("below and right of the one", "three"),
        ("left of the three", "three"),
        ("right of the three", "three"),
    }


def test_three_equal_digits_in_a_row_are_not_asked_about():
    assert digit_scenes.question([0, 1, 2], [5, 5, 5], np.random.default_rng(1)) == ()
