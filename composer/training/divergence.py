"""Explanation of a training that diverges: the step, and the block whose loss or gradient was first not finite."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from blocks.core.contract import Block, Path
from composer.errors import RunFailed
from composer.recipe.recipe import Recipe

DIVERGED = "lower the learning rate, give the schedule more `warmup_steps`, or set `training.clip_norm: 1.0`"
"""Fix of a loss, weight or optimizer state that is not finite."""
TRACED_STEPS = 20
"""Steps that are remembered: more than lie between two rows of metrics, where the loss is looked at."""


class DivergenceTrace:
    """Losses and norms of gradients of the last steps. They stay on the device until a loss is not finite."""

    def __init__(self) -> None:
        self.losses: deque[tuple[int, Tensor]] = deque(maxlen=TRACED_STEPS)
        self.norms: deque[tuple[int, Tensor]] = deque(maxlen=TRACED_STEPS)

    def add_gradients(self, step: int, model: nn.Module) -> None:
        """Remember the norm of every gradient of a step."""
        gradients = [p.grad if p.grad is not None else p.new_zeros(()) for p in model.parameters()]
        self.norms.append((step, torch.stack(torch._foreach_norm(gradients))))

    def error(self, message: str, recipe: Recipe, model: nn.Module) -> RunFailed:
        """Return the error of a training that `message` says has diverged, with the block where it began."""
        loss = next((step for step, loss in self.losses if not loss.isfinite()), None)
        bad = next(((step, norms) for step, norms in self.norms if not norms.isfinite().all()), None)
        path: Path = ()
        if bad is not None and (loss is None or bad[0] < loss):
            path = _last_block(model, (~bad[1].isfinite()).tolist())
            message += f"; the gradient of step {bad[0] + 1:,} was the first that was not finite"
            message += f", and the last block in which it was not is `{path[-1]}`" if path else ""
        elif loss is not None:
            message += f"; the loss of step {loss + 1:,} was the first that was not finite"
            before = next((norms for step, norms in self.norms if step == loss - 1), None)
            if before is not None:
                path = _last_block(model, (before == before.max()).tolist())
                message += f", and the largest gradient before it, {float(before.max()):.3g}"
                message += f", was that of `{path[-1]}`" if path else ""
        hint = DIVERGED + (", or put a `norm` before this block" if path else "")
        return RunFailed([recipe.fault("diverged", path, message, hint)]) if path else RunFailed.of(message, hint)


def _last_block(model: nn.Module, marked: list[bool]) -> Path:
    """Return the path of the innermost block with the last of the marked parameters; () if it is in no block."""
    owners = {id(parameter): block.path for block in _blocks(model) for parameter in block.parameters()}
    paths = [owners.get(id(parameter), ()) for parameter in model.parameters()]
    return next((path for path, is_marked in zip(paths[::-1], marked[::-1], strict=True) if is_marked and path), ())


def _blocks(model: nn.Module) -> Iterator[Any]:
    # inner blocks come later, and take the place of those around them
    return (module for module in model.modules() if isinstance(module, Block) and module.path)
