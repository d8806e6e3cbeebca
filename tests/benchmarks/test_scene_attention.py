"""Attention on the cells of a scene: parts of a cell add up to it, and digits are named in the
order of their cells.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import scene_attention
from prepare_data import digit_scenes


def test_the_parts_of_a_cell_add_up_to_it():
    weights = np.zeros((1, 6, 6))
    weights[0, 2:4, 4:6] = 0.2  # the middle row's last cell
    weights[0, 0, 1] = 0.2
    assert scene_attention.cell_shares(weights.reshape(1, 36))[0] == pytest.approx(
        [0.2, 0, 0, 0, 0, 0.8, 0, 0, 0]
    )


def test_only_words_that_name_a_digit_count():
    cells, digits = [2, 7], [7, 3]
    words = digit_scenes.caption(cells, digits).split()
    assert words == ["a", "seven", "above", "and", "right", "of", "a", "three"]
    weights = np.full((len(words), 9), 0.0)
    weights[1, 2], weights[7, 7], weights[0, 0] = 0.9, 0.6, 1.0
    assert scene_attention.digit_shares(words, weights, cells) == pytest.approx([0.9, 0.6])
