"""What a trial of a sweep needs: GPUs, CPUs, memory and minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Resources:
    """What one trial needs; None is what the sweep's file does not say.

    Attributes:
        gpus: How many GPUs, a whole number; below 1 the share of one, which several trials use at once.
        cpus: How many CPUs.
        memory: Bytes of memory.
        minutes: Minutes of a worker, after which Slurm ends it; a trial that is not done goes on with the next.
    """

    gpus: float | None = None
    cpus: int | None = None
    memory: int | None = None
    minutes: float | None = None

    @property
    def whole_gpus(self) -> int:
        """How many GPUs a machine must give to a worker."""
        return math.ceil(self.gpus or 0)

    def gpus_of(self, trials: int) -> int:
        """Return how many GPUs so many trials at once need; shares of one that do not fit need another."""
        if self.gpus is None or self.gpus >= 1 or self.gpus == 0:
            return trials * self.whole_gpus
        return math.ceil(trials / int(1 / self.gpus))

    def describe(self) -> str:
        """Return what is needed in words: `2 GPUs, 4 CPUs, 16 GiB`."""
        gpus, cpus = f"{self.gpus or 0:g}", self.cpus or 1
        parts = [f"{gpus} GPU{'' if gpus == '1' else 's'}"] if self.gpus else []
        parts.append(f"{cpus} CPU{'' if cpus == 1 else 's'}")
        return ", ".join([*parts, *([f"{self.memory / UNITS['G']:.3g} GiB"] if self.memory else [])])


def read_resources(settings: Mapping[str, Any]) -> Resources:
    """Return the resources of the key `resources` of a sweep, which its schema has checked."""
    memory = parse_bytes(settings["memory"]) if "memory" in settings else None
    return Resources(settings.get("gpus"), settings.get("cpus"), memory, settings.get("minutes"))


def parse_bytes(text: str) -> int:
    """Return the bytes in a size such as `16G` or `1.5G`."""
    return int(float(text[:-1]) * UNITS[text[-1]])
