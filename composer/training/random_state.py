"""States of all random number generators: seed, capture, restore."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def seed_all(*numbers: int) -> None:
    """Seed all generators from a hash of these numbers; neighbours give unrelated streams."""
    words = np.random.SeedSequence(numbers).generate_state(6)
    torch.manual_seed(int(words[0]) << 31 | int(words[1]))
    random.seed(int(words[2]) << 32 | int(words[3]))
    np.random.seed(words[4:])


def capture_rng_state() -> dict[str, object]:
    """Return the states of this process's generators as plain types and tensors.

    They are those of torch, its GPUs, Python and NumPy.

    No lists of numbers: a checkpoint of a small model would take longer for these than for its
    weights.
    """
    version, internal, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, torch.tensor(internal), gauss],
        "numpy": [str(kind), torch.tensor(np.asarray(keys, dtype=np.int64)), *rest],
    }


def restore_rng_state(states: dict[str, Any]) -> None:
    """Restore what `capture_rng_state` returned; GPU states only on a machine with as many GPUs."""
    torch.set_rng_state(states["torch"].cpu())
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal.tolist()), gauss))
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *rest))
