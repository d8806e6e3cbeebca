"""A law over all recipes runs over a sample of them by default; the others are marked `slow`.

`pytest -m ""` runs all of them, `SAMPLE_SEED=2 pytest` another sample.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest

SEED = int(os.environ.get("SAMPLE_SEED", "1"))


def sampled(cases: Sequence[Any], size: int) -> list[Any]:
    """Return all cases as parameters of a test, those outside of a sample of `size` marked `slow`."""
    sample = set(random.Random(SEED).sample(range(len(cases)), min(size, len(cases))))
    return [case if index in sample else pytest.param(case, marks=pytest.mark.slow) for index, case in enumerate(cases)]
