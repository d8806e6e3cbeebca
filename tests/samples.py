"""A law over many cases runs over a sample of them by default, over more with `-m slow`, and over
all by hand.

`pytest -m ""` runs all of them, `SAMPLE_SEED=2 pytest` other samples.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

SEED = int(os.environ.get("SAMPLE_SEED", "1"))


def sampled(cases: Sequence[Any], size: int, slow: int | None = None) -> list[Any]:
    """Return all cases as parameters: `size` without a mark, `slow` others (or all) `slow`, the
    rest `exhaustive`.
    """
    order = random.Random(SEED).sample(range(len(cases)), len(cases))
    end = len(cases) if slow is None else size + slow
    marks = dict.fromkeys(order[size:end], pytest.mark.slow) | dict.fromkeys(
        order[end:], pytest.mark.exhaustive
    )
    return [
        pytest.param(case, marks=marks[at]) if at in marks else case
        for at, case in enumerate(cases)
    ]
