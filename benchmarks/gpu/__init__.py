"""What a GPU changes, in parts of at most eight minutes: see `python -m benchmarks.gpu --help`.

A part is a file of `parts`: `cases(settings)` names its cases, `run(case, settings)` returns an
Outcome, and the first line of its docstring is what `--help` and the table say of it. A new part is
a new file, and a name in PARTS.
"""

from __future__ import annotations

from typing import NamedTuple

PARTS = (
    "blocks",
    "values",
    "recipes",
    "resume",
    "strategies",
    "compiled",
    "graphs",
    "training",
    "training_peers",
    "training_loop",
    "decoding",
    "decoding_peers",
)
"""Every part, in the order in which they run: first whether it is right, then how fast it is."""


class Settings(NamedTuple):
    """Where everything runs, and whether at sizes for a CPU and a minute."""

    device: str
    small: bool

    @property
    def is_cuda(self) -> bool:
        return self.device.startswith("cuda")


class Row(NamedTuple):
    """What was measured: a line of the table. target: what it should be, as text; empty without."""

    label: str
    value: str
    target: str = ""


class Outcome(NamedTuple):
    """The outcome of a case: one of OK, FAILED, MISSING, CRASHED, LATE, and what it measured."""

    word: str
    text: str = ""
    rows: tuple[Row, ...] = ()


OK = "ok"
FAILED = "failed"
MISSING = "missing"  # a library that is not installed here
CRASHED = "crashed"  # the process ended
LATE = "late"  # the part's time was over
