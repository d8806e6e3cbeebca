"""Where a training began to diverge: losses and gradient norms of its last steps."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm

from blocks.core.contract import Block
from composer.errors import KeyPath, RunFailed
from composer.training.meter import ROW_STEPS
from composer.training.module import Seq2SeqModule

TRACED_STEPS = 2 * ROW_STEPS
"""Steps that are traced: more than lie between two rows of metrics, where the loss is looked at."""


class DivergenceTrace:
    """Losses and gradient norms of the last steps, on their device."""

    def __init__(self) -> None:
        self.losses: deque[tuple[int, Tensor]] = deque(maxlen=TRACED_STEPS)
        self.norms: deque[tuple[int, Tensor]] = deque(maxlen=TRACED_STEPS)

    def add_gradients(self, step: int, model: nn.Module) -> None:
        """Remember the norm of every gradient of a step."""
        norms = []
        for parameter in model.parameters():
            gradient = parameter.grad if parameter.grad is not None else parameter.new_zeros(())
            norms.append(vector_norm(gradient))
        self.norms.append((step, torch.stack(norms)))  # (P,)

    def error(self, message: str, module: Seq2SeqModule) -> RunFailed:
        """Return the error of a training that has diverged, at the first bad block."""
        loss, gradient = self.first_bad_loss(), self.first_bad_gradient()
        path: KeyPath = ()
        if gradient is not None and (loss is None or gradient < loss):
            norms = self.norms_of(gradient)
            assert norms is not None
            path = _last_block(module.model, (~norms.isfinite()).tolist())
            message += f"; the gradient of step {gradient + 1:,} was the first that was not finite"
            message += f", and the last block in which it was not is `{path[-1]}`" if path else ""
        elif loss is not None:
            message += f"; the loss of step {loss + 1:,} was the first that was not finite"
            norms = self.norms_of(loss - 1)
            if norms is not None:
                path = _last_block(module.model, (norms == norms.max()).tolist())
                message += f", and the largest gradient before it, {float(norms.max()):.3g}"
                message += f", was that of `{path[-1]}`" if path else ""
        hint = (
            "lower the learning rate, give the schedule more `warmup_steps`, or set"
            " `training.clip_norm: 1.0`"
        )
        if not path:
            return RunFailed.of(message, hint)
        hint += ", or put a `norm` before this block"
        return RunFailed([module.recipe.fault("diverged", path, message, hint)])

    def first_bad_loss(self) -> int | None:
        """Return the first step whose loss is NaN or infinite."""
        return next((step for step, loss in self.losses if not loss.isfinite()), None)

    def first_bad_gradient(self) -> int | None:
        """Return the first step with a gradient that is NaN or infinite."""
        return next((step for step, norms in self.norms if not norms.isfinite().all()), None)

    def norms_of(self, step: int) -> Tensor | None:
        """Return the gradient norms of a step, (P,); None if it was not traced."""
        return next((norms for at, norms in self.norms if at == step), None)


def _last_block(model: nn.Module, marked: list[bool]) -> KeyPath:
    """Return the path of the innermost block with the last marked parameter; () if none."""
    owners: dict[int, KeyPath] = {}
    for module in model.modules():
        # inner blocks come later, and take the place of those around them
        if isinstance(module, Block) and module.path:
            owners |= {id(parameter): module.path for parameter in module.parameters()}
    last: KeyPath = ()
    for parameter, is_marked in zip(model.parameters(), marked, strict=True):
        if is_marked and id(parameter) in owners:
            last = owners[id(parameter)]
    return last
