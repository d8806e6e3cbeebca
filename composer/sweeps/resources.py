"""What a trial of a sweep needs: GPUs, CPUs, memory and minutes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from composer.formatting import count_noun

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
        parts = [count_noun(f"{self.gpus:g}", "GPU")] if self.gpus else []
        parts += [count_noun(self.cpus or 1, "CPU")]
        parts += [f"{self.memory / UNITS['G']:.3g} GiB"] if self.memory else []
        return ", ".join(parts)


def read_resources(settings: Mapping[str, Any]) -> Resources:
    """Return the resources of the key `resources` of a sweep, which its schema has checked."""
    memory = settings.get("memory")  # `16G` or `1.5G`
    size = None if memory is None else int(float(memory[:-1]) * UNITS[memory[-1]])
    return Resources(settings.get("gpus"), settings.get("cpus"), size, settings.get("minutes"))
