"""Several optimizers of different parameters as one, which Lightning steps, saves and restores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer


class JointOptimizer(Optimizer):
    """Optimizer of the parameters of several, each of which takes the steps of its own.

    Its groups are theirs, in order, and so is its state.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        groups: list[dict[str, Any]] = []
        for part in parts:
            groups += part.param_groups
        super().__init__(groups, {})
        self.parts, self.sizes = [*parts], [len(part.param_groups) for part in parts]
        self._share()

    def _share(self) -> None:
        """Give each part its groups, and the state of all."""
        start = 0
        for part, size in zip(self.parts, self.sizes, strict=True):
            part.param_groups = self.param_groups[start : start + size]
            part.state = self.state
            start += size

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step of each part, and return the loss of a closure that computes gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the state of all parts."""
        super().load_state_dict(dict(state_dict))
        self._share()
