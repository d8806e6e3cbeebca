"""The state of every source of random numbers, as plain types that a checkpoint may hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """The states of this process: torch, its GPUs, python and numpy."""
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": list(random.getstate()),
        "numpy": [str(kind), [int(key) for key in keys], *rest],
    }


def restore(states: dict[str, Any]) -> None:
    """Puts the states back that `capture` gave."""
    torch.set_rng_state(states["torch"].cpu())
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))


def begin_anew(*numbers: int) -> None:
    """A stream of its own for these numbers, from their hash: neighbours have nothing to do with each other."""
    words = np.random.SeedSequence(numbers).generate_state(6)
    torch.manual_seed(int(words[0]) << 31 | int(words[1]))
    random.seed(int(words[2]) << 32 | int(words[3]))
    np.random.seed(words[4:])
