"""The plan of a training: of its model and its largest batch, and a trial on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.checks.planner import Plan, at_sizes
from composer.data.largest_batch import BatchSize
from composer.data.teacher import find_teacher
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir, recorded_data
from composer.training.dry_run import largest_batch_of
from composer.training.memory_estimate import MemoryEstimate, estimate_memory
from composer.training.preflight import check_and_sample

if TYPE_CHECKING:
    from composer.training.trial_run import TrialRun


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(Plan):
    """Plan with the largest batch of the training, and the trial of it on this machine, if any."""

    recipe: Recipe = field(repr=False)
    batch: BatchSize
    trial: TrialRun | None

    @cached_property
    def memory(self) -> MemoryEstimate:
        """Memory of the training; it is counted at the first use, which takes seconds."""
        folder = find_teacher(self.recipe, self.recipe.folders())
        teacher = load(RunDir(folder).recipe) if folder else None
        spelled = self.trial and self.trial.spelled
        return estimate_memory(self.recipe, self.vocabularies, self.batch, spelled, teacher)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data, with `training`, its memory, and `trial`."""
        blocks = Plan(**{field.name: getattr(self, field.name) for field in fields(Plan)}).as_json()
        trial = {} if self.trial is None else {"trial": self.trial.as_json()}
        return {**blocks, "training": self.memory.as_json(), **trial}


def plan_training(recipe: Recipe, time: bool = False) -> TrainingPlan:
    """Return the plan of a recipe and its training; with `time`, after a trial.

    Without a trial no data need be there. After one the sizes of vocabularies are known; else they
    are upper bounds.
    """
    planned, sample = check_and_sample(recipe, True, "required" if time else "if_here")
    if not time:
        return TrainingPlan(
            **vars(planned), recipe=recipe, batch=largest_batch_of(recipe, sample), trial=None
        )
    from composer.training.trial_run import time_training  # late: Lightning takes seconds to import

    trial = time_training(recipe)
    planned = at_sizes(planned, recipe, trial.vocabularies)
    return TrainingPlan(**vars(planned), recipe=recipe, batch=trial.batch, trial=trial)


def plan_run(run: RunDir, data: str | Path | None = None, time: bool = False) -> TrainingPlan:
    """Return the plan of a run, with its vocabularies, and its data if they are there.

    Raises ComposerError.
    """
    sizes = run.read().vocabularies
    planned = plan_training(load(run.recipe, (), data or recorded_data(run.path)), time)
    if not sizes:
        return planned
    known = at_sizes(planned, planned.recipe, sizes)
    blocks = {field.name: getattr(known, field.name) for field in fields(Plan)}
    return TrainingPlan(**blocks, recipe=planned.recipe, batch=planned.batch, trial=planned.trial)
