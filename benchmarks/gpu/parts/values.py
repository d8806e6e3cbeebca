"""Laws about values with everything on the device, in float64: chunks, causality, padding, rows,
states.

They are those of `composer.testing`, run with the device as torch's default one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.gpu import FAILED, OK, Outcome, Settings
from benchmarks.gpu.parts import blocks
from composer.testing import CAUSAL, LAWS, Case, LawError
from tests.laws.test_blocks import EXCEPTIONS

GRADIENT_LAWS = ("causality", "padding", "packing")
"""They compute gradients in evaluation mode, which cuDNN's recurrent layers cannot: PyTorch's own
kernels do.
"""
NAMES = (
    *(
        "no_side_effects",
        "start_ignores_values",
        "initial_output",
        "reordering",
        "chunks",
        "ragged_chunks",
    ),
    *(
        "last_state",
        "independent_rows",
        "kept_states",
        "unchanged_leaves",
        "rollback",
        *GRADIENT_LAWS,
    ),
)


def cases(settings: Settings) -> list[str]:
    return blocks.cases(settings)


def run(name: str, settings: Settings) -> Outcome:
    faults, count = [], 0
    for case in blocks.law_cases(name, settings.small):
        for law in NAMES:
            if (case.causal or law not in CAUSAL) and law not in EXCEPTIONS.get(name, {}):
                count += 1
                faults += broken(LAWS[law], case, law, settings.device)
    return Outcome(FAILED if faults else OK, "\n".join(faults) or f"{count} laws")


def broken(law: Callable[[Case], None], case: Case, name: str, device: str) -> list[str]:
    """Return what a law says of a case; nothing where it holds."""
    try:
        with (
            torch.device(device),
            torch.backends.cudnn.flags(enabled=name not in GRADIENT_LAWS, allow_tf32=False),
        ):
            law(case)
    except (LawError, RuntimeError, NotImplementedError) as error:
        return [
            str(error)
            if isinstance(error, LawError)
            else f"{name} {case.place} {dict(case.settings)}: {error}"
        ]
    return []
