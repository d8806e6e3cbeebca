"""What is known before a training: all errors of the model, of a sample of the data and of this
machine.

The rules stand in `composer.checks`; here they are run in their order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from composer.checks import budget, machine, samples
from composer.checks.machine import Sizes
from composer.checks.planner import Plan, plan
from composer.checks.problem import Problems, faults
from composer.checks.read_data import ReadData
from composer.data.answer_limits import AnswerLimits
from composer.data.encoding import cache_faults
from composer.data.sources import DataSource
from composer.errors import ComposerError, Fault, RecipeError
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

T = TypeVar("T")
SHOWN = ("enable_progress_bar", "enable_model_summary", "log_every_n_steps", "timeout_minutes")
"""Settings of `trainer` that Lightning never refuses."""


def check_recipe(recipe: Recipe, any_machine: bool = False, data: DataUse = "required") -> Plan:
    """Return the plan of a recipe, with all warnings. Raise ComposerError with all that training
    would refuse.

    any_machine: Whether to leave out what only this machine cannot do.
    """
    return check_and_sample(recipe, any_machine, data)[0]


def check_and_sample(
    recipe: Recipe, any_machine: bool, data: DataUse
) -> tuple[Plan, DryRun | None]:
    """Return what `check_recipe` does, and what was read of the data, None where they are not here."""
    source = DataSource(recipe, recipe.folders())
    planned, sample = check_model_and_data(source, data=data)
    errors = [] if any_machine else machine_faults(source, planned, sample)
    if errors := [*errors, *size_faults(machine.quota, recipe, planned, sample)]:
        raise ComposerError(errors)
    warnings = [*planned.warnings, *budget.warnings(recipe, epoch_size(recipe, sample))]
    for rule in () if any_machine else machine.WARNINGS:
        warnings += faults(recipe, rule(recipe))
    if sample:
        limits = AnswerLimits(planned.max_target_ratios, planned.ctc_frames)
        warnings += samples.warnings(
            ReadData(source, limits, sample.unfiltered or sample.data, sample.is_all)
        )
    return replace(planned, warnings=tuple(warnings)), sample


def check_model_and_data(
    source: DataSource, sampled: bool = True, data: DataUse = "required"
) -> tuple[Plan, DryRun | None]:
    """Plan the model and encode a sample of the data. Raise ComposerError with every fault of both.

    Not `sampled`, it inspects the files alone: for a training, which encodes all of them next. The
    size of a vocabulary counts where a sample tells it, and else its upper bound.
    """
    recipe = source.recipe
    sizes = stand_in_sizes(recipe) if data == "none" else None
    planned, of_model = _attempt(lambda: plan(recipe, sizes))
    limits = (
        AnswerLimits(planned.max_target_ratios, planned.ctc_frames) if planned else AnswerLimits()
    )
    if sampled or (of_model and depends_on_sizes(recipe)):
        sample, of_data = _attempt(lambda: dry_run(source, limits, data))
    else:
        sample, of_data = None, source.faults
    if sample and sample.is_all and depends_on_sizes(recipe):
        sizes = sample.data.tokenizers.sizes
        if planned is None or planned.vocabularies != sizes:
            of_model = _attempt(lambda: plan(recipe, sizes))[1] or of_model
    if of_model or of_data or planned is None:
        raise ComposerError([*of_model, *of_data])
    return planned, sample


def _attempt(run: Callable[[], T]) -> tuple[T | None, list[Fault]]:
    """Return what a function returns, or with None why it refuses."""
    try:
        return run(), []
    except ComposerError as error:
        return None, error.faults


def machine_faults(source: DataSource, planned: Plan, sample: DryRun | None) -> list[Fault]:
    """Return why a recipe does not train on this machine: its cache, memory, devices, their
    precision, its packages.
    """
    recipe, errors = source.recipe, cache_faults(source) if sample else []
    errors += size_faults(machine.memory, recipe, planned, sample)
    for rule in machine.RULES:
        errors += faults(recipe, rule(recipe))
    if {*recipe.explicit.get("trainer", {})} - {*SHOWN} or recipe.training.precision == "16-mixed":
        # late: Lightning takes seconds to import
        from composer.training.setup import build_trainer, silence_lightning

        try:
            with restored_process():
                silence_lightning()
                build_trainer(recipe)
        except RecipeError as error:
            errors += error.faults
    hint = "`check --any-machine` leaves this out"
    return [
        replace(fault, message=f"on this machine, {fault.message}", hint=f"{fault.hint}; {hint}")
        for fault in errors
    ]


def size_faults(
    rule: Callable[[Recipe, Sizes], Problems], recipe: Recipe, planned: Plan, sample: DryRun | None
) -> list[Fault]:
    """Return what a rule has against the number of parameters, which is certain only with a sample."""
    errors = [*faults(recipe, rule(recipe, Sizes(planned.parameters, planned.frozen)))]
    # planned with bounds of the vocabularies, which are smaller; a sample's are not larger
    if errors and sample:
        planned = plan(recipe, sample.data.tokenizers.sizes)
        errors = [*faults(recipe, rule(recipe, Sizes(planned.parameters, planned.frozen)))]
    return errors if sample else []
