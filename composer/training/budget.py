"""The budget of a training: steps, epochs, minutes; the first that is used up ends it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Budget:
    """What may be spent; at least one of the three is given."""

    steps: int | None = None
    epochs: int | None = None
    minutes: float | None = None

    def spent(self, steps: int, epochs: float, minutes: float | None) -> float:
        """The share that is used up, 0 to 1: the largest of the shares of what is limited, and known."""
        shares = [
            used / limit
            for used, limit in ((steps, self.steps), (epochs, self.epochs), (minutes, self.minutes))
            if limit is not None and used is not None
        ]
        return min(1.0, max(shares, default=0.0))


class Clock:
    """Minutes of training, over all resumptions.

    On a CPU the process's own time over its threads, so that a busy neighbour changes nothing; else time as it passes.
    """

    def __init__(self, on_cpu: bool, before: float = 0.0) -> None:
        self.on_cpu, self.before, self.began = on_cpu, before, self._now(on_cpu)

    def minutes(self) -> float:
        """Minutes since the training first began."""
        return self.before + self._now(self.on_cpu) - self.began

    @staticmethod
    def _now(on_cpu: bool) -> float:
        return (time.process_time() / torch.get_num_threads() if on_cpu else time.monotonic()) / 60
