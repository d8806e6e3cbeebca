"""Errors and warnings of a recipe before it trains: of its model, its data and this machine.

The rules are in `composer.checks`; here they run in order: for `check` and `plan` on a sample of
the data, for `train` on all data and the model that it has built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from composer.checks import budget, machine, samples
from composer.checks.budget import EpochSize
from composer.checks.planner import Plan, plan
from composer.checks.problem import Problems, faults
from composer.checks.read_data import ReadData
from composer.checks.teacher import teacher_faults
from composer.data.answer_limits import AnswerLimits
from composer.data.encoding import cache_faults
from composer.data.sources import DataSource, is_endless
from composer.errors import ComposerError, Fault, RecipeError
from composer.model.footprint import Sizes, sizes_of
from composer.recipe.recipe import Recipe
from composer.training.dry_run import (
    DataUse,
    DryRun,
    depends_on_sizes,
    dry_run,
    epoch_size,
    stand_in_sizes,
)
from composer.training.process_state import restored_process

if TYPE_CHECKING:
    from composer.training.setup import TrainingSetup

T = TypeVar("T")
SHOWN = ("enable_progress_bar", "enable_model_summary", "log_every_n_steps", "timeout_minutes")
"""Settings of `trainer` that Lightning never refuses."""


def check_recipe(recipe: Recipe, any_machine: bool = False, data: DataUse = "required") -> Plan:
    """Return the plan of a recipe, with all warnings. Raise ComposerError with all errors.

    any_machine: Whether to leave out what only this machine cannot do.
    """
    return check_and_sample(recipe, any_machine, data)[0]


def check_and_sample(
    recipe: Recipe, any_machine: bool, data: DataUse
) -> tuple[Plan, DryRun | None]:
    """Like `check_recipe`, with the sample of the data that was read; None if they are not here."""
    source = DataSource(recipe, recipe.folders())
    planned, sample = check_model_and_data(source, data=data)
    errors = [] if any_machine else machine_faults(source, planned, sample)
    if errors := [*errors, *size_faults(machine.quota, recipe, planned, sample)]:
        raise ComposerError(errors)
    read = None
    if sample:
        limits = AnswerLimits(planned.max_target_ratios, planned.ctc_frames)
        read = ReadData(source, limits, sample.unfiltered or sample.data, sample.is_all)
    epoch = epoch_size(recipe, sample)
    warnings = [*planned.warnings, *recipe_warnings(recipe, epoch, read, any_machine)]
    return replace(planned, warnings=tuple(warnings)), sample


def check_machine(recipe: Recipe) -> None:
    """Raise RecipeError if this machine lacks a device or a package, before processes start."""
    if errors := rule_faults(recipe, machine.RULES):
        raise RecipeError(errors)


def check_built_training(training: TrainingSetup) -> list[Fault]:
    """Return the warnings of a training that is set up.

    Raises RecipeError if this machine lacks memory, a device or a package.
    """
    recipe, model = training.recipe, training.module.model
    sizes = sizes_of(recipe, model)
    problems = [*machine.memory(recipe, sizes), *machine.quota(recipe, sizes)]
    if errors := [*faults(recipe, problems), *rule_faults(recipe, machine.RULES)]:
        raise RecipeError(errors)
    batches, epoch = training.data.batches, None
    if batches is not None and not recipe.training.curriculum:
        steps = batches.slices_in(0) / recipe.training.accumulate
        epoch = EpochSize(steps, not is_endless(recipe))
    read = None
    if training.plan is not None:  # in the main process
        read = ReadData(training.source, AnswerLimits.of(model), training.data.data)
    return recipe_warnings(recipe, epoch, read)


def recipe_warnings(
    recipe: Recipe, epoch: EpochSize | None, read: ReadData | None, any_machine: bool = False
) -> list[Fault]:
    """Return the warnings of the budget, of this machine, and of data that were read."""
    warnings = budget.warnings(recipe, epoch)
    if not any_machine:
        warnings += rule_faults(recipe, machine.WARNINGS)
    if read is not None:
        warnings += samples.warnings(read)
    return warnings


def rule_faults(recipe: Recipe, rules: Sequence[Callable[[Recipe], Problems]]) -> list[Fault]:
    """Return the faults that rules find in a recipe."""
    errors: list[Fault] = []
    for rule in rules:
        errors += faults(recipe, rule(recipe))
    return errors


def check_model_and_data(
    source: DataSource, sampled: bool = True, data: DataUse = "required"
) -> tuple[Plan, DryRun | None]:
    """Plan the model and encode a sample of the data. Raise ComposerError with every fault of both.

    Not `sampled`, it inspects the files alone: for a training, which encodes all of them next. The
    sizes of vocabularies are those of a sample, and else upper bounds.
    """
    recipe = source.recipe
    sizes = stand_in_sizes(recipe) if data == "none" else None
    planned, model_faults = _attempt(lambda: plan(recipe, sizes))
    limits = AnswerLimits()
    if planned:
        limits = AnswerLimits(planned.max_target_ratios, planned.ctc_frames)
    sample, data_faults = None, source.faults
    if sampled or (model_faults and depends_on_sizes(recipe)):
        sample, data_faults = _attempt(lambda: dry_run(source, limits, data))
    if sample and sample.is_all and depends_on_sizes(recipe):
        sizes = sample.data.tokenizers.sizes
        if planned is None or planned.vocabularies != sizes:
            model_faults = _attempt(lambda: plan(recipe, sizes))[1] or model_faults
    if data != "none":
        data_faults = [*data_faults, *teacher_faults(recipe, source.folders, data == "if_here")]
    if model_faults or data_faults or planned is None:
        raise ComposerError([*model_faults, *data_faults])
    return planned, sample


def _attempt(run: Callable[[], T]) -> tuple[T | None, list[Fault]]:
    """Return the value of `run()` and no faults, or None and the faults that it raises."""
    try:
        return run(), []
    except ComposerError as error:
        return None, error.faults


def machine_faults(source: DataSource, planned: Plan, sample: DryRun | None) -> list[Fault]:
    """Return the faults of a recipe on this machine alone: cache, memory, devices, packages."""
    recipe = source.recipe
    errors = cache_faults(source) if sample else []
    errors += size_faults(machine.memory, recipe, planned, sample)
    errors += rule_faults(recipe, machine.RULES)
    if {*recipe.explicit.get("trainer", {})} - {*SHOWN} or recipe.training.precision == "16-mixed":
        errors += trainer_faults(recipe)
    hint = "`check --any-machine` leaves this out"
    return [
        replace(fault, message=f"on this machine, {fault.message}", hint=f"{fault.hint}; {hint}")
        for fault in errors
    ]


def trainer_faults(recipe: Recipe) -> list[Fault]:
    """Return the faults that Lightning finds in a recipe."""
    # late: Lightning takes seconds to import
    from composer.training.trainer import build_trainer, silence_lightning

    try:
        with restored_process():
            silence_lightning()
            build_trainer(recipe)
    except RecipeError as error:
        return error.faults
    return []


def size_faults(
    rule: Callable[[Recipe, Sizes], Problems], recipe: Recipe, planned: Plan, sample: DryRun | None
) -> list[Fault]:
    """Return the faults of a rule about the number of parameters; [] without a sample."""
    if sample is None:
        return []
    errors = [*faults(recipe, rule(recipe, planned.sizes))]
    # planned with upper bounds of the vocabularies; a sample's are not larger
    if errors:
        planned = plan(recipe, sample.data.tokenizers.sizes)
        errors = [*faults(recipe, rule(recipe, planned.sizes))]
    return errors
