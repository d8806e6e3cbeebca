"""What every test of a recipe starts from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    """Float64 everywhere, so that equal means equal; a fixed seed."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
