"""The memory that a training of a sweep asks a cluster for, where the sweep's file does not say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from composer.errors import ComposerError
from composer.sweeps.points import PointCost, point_recipe
from composer.sweeps.sweep import MEMORY_UNITS, Resources, Sweep
from composer.training.training_plan import plan_training


def with_planned_memory(
    sweep: Sweep, points: Sequence[PointCost], say: Callable[[str], None]
) -> Resources:
    """Return the resources of a trial, with the planned memory of the largest point if unset.

    The plan is multiplied by 1.5 for fragmentation, plus 1.5 GiB for Python and torch.
    With a GPU the tensors are in its memory, and the need for main memory is unknown.
    """
    needs = sweep.resources
    if needs.memory is not None or needs.gpus or not points:
        return needs
    largest = max(points, key=lambda point: (point.parameters, point.flops))
    with suppress(ComposerError):  # which its training reports
        planned = plan_training(point_recipe(sweep, largest.point)).memory.bytes
        needs = replace(needs, memory=int(1.5 * planned + 1.5 * MEMORY_UNITS["G"]))
        request = f"each trial asks for {needs.describe()}, as planned for the largest point"
        say(f"no `memory` in `resources`: {request}")
    return needs
