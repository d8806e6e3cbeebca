"""The quick start killed and resumed against one never interrupted, with deterministic algorithms:
every bit.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.gpu import FAILED, OK, Outcome, Settings
from benchmarks.gpu.trainings import SMALL_STEPS, STEPS, command, differences, train

PRECISIONS = {"float32": "32", "bf16-mixed": "bf16-mixed", "16-mixed": "16-mixed"}


def cases(settings: Settings) -> list[str]:
    return list(PRECISIONS)[: None if settings.is_cuda else 2][:: 2 if settings.small else 1]


def run(case: str, settings: Settings) -> Outcome:
    precision = [f"training.precision={PRECISIONS[case]}"]
    half = (SMALL_STEPS if settings.small else STEPS) // 2
    with tempfile.TemporaryDirectory() as folder:
        unbroken, killed = Path(folder, "unbroken"), Path(folder, "killed")
        train(command(unbroken, settings, more=precision), unbroken)
        train(command(killed, settings, more=precision), killed, kill_at=half)
        train(command(killed, settings, more=precision), killed)
        faults = differences(unbroken, killed)
    return Outcome(
        FAILED if faults else OK, "; ".join(faults) or f"killed after step {half}, identical"
    )
