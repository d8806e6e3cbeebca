"""What is known before a training: settings that its budget never reaches, and what this machine cannot do."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import torch

from composer.data.answer_limits import AnswerLimits
from composer.data.documents import Documents
from composer.data.encoding import (
    Data,
    answerable_rows,
    cache_faults,
    encode_data,
    split_faults,
    train_source_tokenizers,
)
from composer.data.epochs import encode_trainable
from composer.data.ids import Encoded
from composer.data.largest_batch import BatchSize, largest_batch
from composer.data.pairs import TARGET
from composer.data.sampler import TrainBatchSampler
from composer.data.samples import in_memory, read_sample
from composer.data.sources import DataSource, find_hub_folder, generate_pairs, is_endless
from composer.data.tokenizer_cache import cached_tokenizers
from composer.errors import ComposerError, DataError, Fault, KeyPath, RecipeError
from composer.evaluation import download_warnings, tokenizer_faults
from composer.model.features import feature_settings
from composer.model.machine import available_memory
from composer.model.no_effect import unused
from composer.model.planner import Plan, at_sizes, plan
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir, recorded_data
from composer.training.machine_checks import int8_faults, process_faults, speed_warnings
from composer.training.memory_estimate import (
    MemoryEstimate,
    checkpoint_bytes,
    estimate_memory,
    training_device,
    weight_bytes,
)
from composer.training.process_state import restored_process
from composer.training.sample_warnings import data_warnings
from composer.training.schedules import EpochDecay, Plateau

if TYPE_CHECKING:
    from composer.training.trial_run import TrialRun

T = TypeVar("T")
LONG_WARMUP, USUAL_WARMUP = 0.2, 0.05
"""Shares of the budget: above which a warm-up of the learning rate is reported, and what is suggested instead."""
PAIR_SECONDS, PAIR_BYTES = 20e-6, 500
"""Of a pair that a task draws, about; it is more of long ones."""
ESTIMATE_ERROR, ESTIMATE_STEPS = 0.25, 2
"""Share and number of steps by which an epoch may have more or fewer than a sample of its lengths says."""

DataUse = Literal["required", "if_here", "none"]
"""Which data files a check reads: all of them, those that are on this machine, or none, even where they are."""
STAND_IN_SIZE = 32_000
"""The vocabulary that counts in place of that of a tokenizer file that is not here, and is not to be read."""

SHORTER_WARMUP = f"lower `warmup_steps`; {USUAL_WARMUP} is a twentieth of the budget"


class EpochSize(NamedTuple):
    """Steps of an epoch of all pairs, and its extreme lengths, 0 if unknown; `is_exact` if all epochs have as many."""

    steps: float
    is_exact: bool = True
    longest: int = 0
    shortest: int = 0

    @classmethod
    def of(cls, recipe: Recipe, sample: DryRun | None) -> EpochSize | None:
        """Return the size of an epoch of the pairs in a sample of the data; None without one."""
        if sample is None or sample.data.train is None:
            return None
        curriculum = recipe.training.curriculum
        lengths = (sample.later or sample.data.train).lengths(curriculum.by if curriculum else None)
        steps, endless = sample.steps_per_epoch(recipe.training.tokens_per_batch), is_endless(recipe)
        shortest = int(lengths.min()) if sample.is_all or endless else 0
        return cls(steps, sample.is_all and not endless, int(lengths.max()), shortest)


def check_recipe(recipe: Recipe, any_machine: bool = False, data: DataUse = "required") -> Plan:
    """Return the plan of a recipe, with all warnings. Raise ComposerError with all that training would refuse.

    any_machine: Whether to leave out what only this machine cannot do.
    """
    return check_and_sample(recipe, any_machine, data)[0]


def check_and_sample(recipe: Recipe, any_machine: bool, data: DataUse) -> tuple[Plan, DryRun | None]:
    """Return what `check_recipe` does, and what was read of the data, None where they are not here."""
    source = DataSource(recipe, recipe.folders())
    planned, sample = check_model_and_data(source, data=data)
    faults = [] if any_machine else machine_faults(source, planned, sample)
    if faults := [*faults, *size_faults(quota_fault, recipe, planned, sample)]:
        raise ComposerError(faults)
    warnings = [*planned.warnings, *budget_warnings(recipe, EpochSize.of(recipe, sample))]
    warnings += [] if any_machine else [*speed_warnings(recipe), *download_warnings(recipe)]
    if sample:
        limits = AnswerLimits(planned.max_target_ratios, planned.ctc_frames)
        warnings += data_warnings(source, limits, sample.unfiltered or sample.data, sample.is_all)
    return replace(planned, warnings=tuple(warnings)), sample


def check_model_and_data(
    source: DataSource, sampled: bool = True, data: DataUse = "required"
) -> tuple[Plan, DryRun | None]:
    """Plan the model and encode a sample of the data. Raise ComposerError with every fault of both.

    Not `sampled`, it inspects the files alone: for a training, which encodes all of them next. The size of a vocabulary
    counts where a sample tells it, and else its upper bound.
    """
    recipe = source.recipe
    sizes = stand_in_sizes(recipe) if data == "none" else None
    planned, faults = _attempt(lambda: plan(recipe, sizes))
    limits = AnswerLimits(planned.max_target_ratios, planned.ctc_frames) if planned else AnswerLimits()
    if sampled or (faults and depends_on_sizes(recipe)):
        sample, of_data = _attempt(lambda: dry_run(source, limits, data))
    else:
        sample, of_data = None, source.faults
    if sample and sample.is_all and depends_on_sizes(recipe):
        sizes = sample.data.tokenizers.sizes
        if planned is None or planned.vocabularies != sizes:
            faults = _attempt(lambda: plan(recipe, sizes))[1] or faults
    if faults or of_data or planned is None:
        raise ComposerError([*faults, *of_data])
    return planned, sample


def depends_on_sizes(recipe: Recipe) -> bool:
    """Return whether the sizes of vocabularies decide whether a model can be built."""
    return recipe.model.embedding.depends_on_size or recipe.model.output.kind.depends_on_size


def stand_in_sizes(recipe: Recipe) -> dict[str, int] | None:
    """Return sizes for the vocabularies of a tokenizer whose file is not here; None where they are known."""
    if not any(fault.code == "file" for fault in recipe.tokenizer_faults()):
        return None
    keys = [key for key in recipe.sources if feature_settings(recipe.data, key) is None]
    return dict.fromkeys([*keys, TARGET], STAND_IN_SIZE)


def _attempt(run: Callable[[], T]) -> tuple[T | None, list[Fault]]:
    """Return what a function returns, or with None why it refuses."""
    try:
        return run(), []
    except ComposerError as error:
        return None, error.faults


def budget_warnings(recipe: Recipe, epoch: EpochSize | None) -> Iterator[Fault]:
    """Yield a warning of each setting for which the budget is too small, whatever the training brings.

    Of a budget in minutes nothing is known; without the size of an epoch, how many steps it has is not known.
    """
    training = recipe.training
    steps, epochs = training.max_steps or math.inf, training.max_epochs or math.inf
    slack = 1 + ESTIMATE_ERROR + ESTIMATE_STEPS / epoch.steps if epoch and not epoch.is_exact else 1.0
    # an epoch of a curriculum has fewer pairs, and one step or more
    fewest = max(1.0, epoch.steps / slack) if epoch and not training.curriculum else 1.0
    most = epoch.steps * slack if epoch else math.inf
    for key, limit, end in (("max_steps", steps, epochs * most), ("max_epochs", epochs, steps / fewest)):
        if end < limit < math.inf:
            message, hint = "the other budget always ends the training first", f"remove `{key}`, or lower it"
            yield recipe.fault("budget", ("training", key), message, hint).as_warning()
    steps, epochs = min(steps, epochs * most), min(epochs, steps / fewest)
    every = training.validate_every
    validations = max(0.0, math.ceil(steps / every if every else epochs) - 1.0) if steps < math.inf else math.inf
    yield from draw_warnings(recipe)
    for path, message, hint in _unreached(recipe, steps, epochs, validations):
        yield recipe.fault("budget", ("training", *path), message, f"{hint}, or train longer").as_warning()
    curriculum = None if recipe.window else training.curriculum  # of windows the plan says that it changes nothing
    # a shortest length is known where all lengths are
    if curriculum and epoch and epoch.shortest and max(curriculum.start, epoch.shortest) >= epoch.longest:
        hint, which = "write a smaller `start`, or remove it", "no pair has more than"
        if epoch.shortest == epoch.longest:
            hint, which = "remove it, or choose by another side", "all pairs have"
        message = f"{which} {epoch.longest} tokens, so every epoch has all of them"
        yield unused(recipe, ("training", "curriculum"), message, hint)
    elif curriculum and epochs < math.inf:
        start, longest = curriculum.start, epoch.longest if epoch else curriculum.start + 1
        level = start + curriculum.step * (max(0, math.ceil(epochs) - 1) // 2)
        if level < longest and (epoch or level == start):
            message = f"{math.ceil(epochs):,} epochs at most raise its level to {level}: each level takes two or more"
            message += f"; the longest pairs have {longest} tokens" if epoch else ""
            hint = "write a larger `start` or `step`, or train longer"
            yield recipe.fault("budget", ("training", "curriculum"), message, hint).as_warning()


def describe_long_warmup(recipe: Recipe, steps: float) -> str:
    """Return what a warm-up does that takes a large part of so many steps; "" if it does not."""
    warmup = recipe.training.schedule.warmup_steps
    share = warmup / steps if warmup >= 1 else warmup
    if share > 1:
        return f"the learning rate never reaches its value: that takes {warmup:,.0f} steps, not {steps:,.0f}"
    return f"the learning rate rises during {share:.0%} of the training" if share > LONG_WARMUP else ""


def draw_warnings(recipe: Recipe) -> Iterator[Fault]:
    """Yield a warning of a task with so many pairs that drawing them takes minutes before the first step."""
    task = recipe.data.generate
    if task and (minutes := task.train * PAIR_SECONDS / 60) > 1:
        gib, times = task.train * PAIR_BYTES / 2**30, " in every epoch" if is_endless(recipe) else ""
        message = f"drawing so many pairs takes about {minutes:,.0f} minutes and {gib:,.1f} GiB of memory{times}"
        hint = "write fewer; with `endless`, every epoch has new ones"
        yield recipe.fault("budget", (*task.at, "train"), message, hint).as_warning()


def _unreached(recipe: Recipe, steps: float, epochs: float, validations: float) -> Iterator[tuple[KeyPath, str, str]]:
    """Yield what a training of at most this length never reaches: paths below `training`, messages and hints."""
    schedule, at_most = recipe.training.schedule, f"and there are {validations:.0f} at most"
    if message := describe_long_warmup(recipe, steps):
        yield ("schedule", schedule.word, "warmup_steps"), message, SHORTER_WARMUP
    if isinstance(schedule, Plateau) and schedule.patience >= validations:
        waits = f"{schedule.patience + 1} validations before the last one"
        message = f"the learning rate never falls: that takes {waits}, {at_most}"
        yield ("schedule", schedule.word, "patience"), message, "validate more often"
    if isinstance(schedule, EpochDecay) and schedule.after >= epochs:
        message = f"the learning rate never falls: there are {epochs:,.4g} epochs at most"
        yield ("schedule", schedule.word, "after"), message, "write a smaller number"
    if (asgd := recipe.training.asgd) and asgd.patience + 2 > validations:
        message = f"nothing is averaged: that takes {asgd.patience + 2} validations before the last one, {at_most}"
        yield ("asgd", "patience"), message, "lower it, validate more often"
    stopping, averaged = recipe.training.early_stopping, recipe.training.average_checkpoints
    if stopping and stopping.patience and stopping.patience >= validations:
        path: KeyPath = ("early_stopping", "patience")
        if stopping.goal is None or recipe.locate(("training", *path))[2]:
            waits = f"{stopping.patience + 1} validations before the last one"
            message = f"nothing is stopped early: that takes {waits}, {at_most}"
            yield path, message, "lower `patience`, validate more often"
    if averaged > validations + 1:
        message = f"no more than {validations + 1:.0f} checkpoints will be there to be averaged"
        yield ("average_checkpoints",), message, "write a smaller number, validate more often"


def machine_faults(source: DataSource, planned: Plan, sample: DryRun | None) -> list[Fault]:
    """Return why a recipe does not train on this machine: its cache, memory, devices, their precision, its packages."""
    recipe, faults = source.recipe, cache_faults(source) if sample else []
    faults += [*size_faults(memory_fault, recipe, planned, sample), *tokenizer_faults(recipe)]
    faults += [*process_faults(recipe), *int8_faults(recipe)]
    shown = ("enable_progress_bar", "enable_model_summary", "log_every_n_steps", "timeout_minutes")
    if {*recipe.explicit.get("trainer", {})} - {*shown} or recipe.training.precision == "16-mixed":
        from composer.training.setup import build_trainer, silence_lightning  # late: Lightning takes seconds to import

        try:
            with restored_process():
                silence_lightning()
                build_trainer(recipe)
        except RecipeError as error:
            faults += error.faults
    hint = "`check --any-machine` leaves this out"
    return [
        replace(fault, message=f"on this machine, {fault.message}", hint=f"{fault.hint}; {hint}") for fault in faults
    ]


def size_faults(
    find: Callable[[Recipe, int, int], Fault | None], recipe: Recipe, planned: Plan, sample: DryRun | None
) -> list[Fault]:
    """Return what `find` has against the number of parameters, which is certain only with a sample."""
    fault = find(recipe, planned.parameters, planned.frozen)
    if fault and sample:  # planned with bounds of the vocabularies, which are smaller; a sample's are not larger
        planned = plan(recipe, sample.data.tokenizers.sizes)
        fault = find(recipe, planned.parameters, planned.frozen)
    return [fault] if fault and sample else []


def quota_fault(recipe: Recipe, parameters: int, frozen: int) -> Fault | None:
    """Return the fault of a quota into which the checkpoints that a training needs at once do not fit."""
    gib, average = recipe.training.checkpoints_gib, recipe.training.average_checkpoints
    count = max(2, average + 1) + 1  # the best and the last ones, while another is written
    size = checkpoint_bytes(recipe, parameters, frozen) / 2**30
    if gib is None or count * size <= gib:
        return None
    message = f"a training needs room for {count} checkpoints, and each takes about {1.1 * size:.3g} GiB"
    hint = f"write {1.1 * count * size:.3g} or more, or remove it"
    return recipe.fault("quota", ("training", "checkpoints_gib"), message, hint)


def memory_fault(recipe: Recipe, parameters: int, frozen: int) -> Fault | None:
    """Return the fault of so many parameters, if they and what training computes of each do not fit into memory."""
    needed = weight_bytes(recipe, parameters, frozen)
    on_gpu = training_device(recipe) == "cuda"
    memory = torch.cuda.get_device_properties(0).total_memory if on_gpu else available_memory()
    if needed <= memory or recipe.trainer.strategy == "fsdp" or recipe.trainer.accelerator in ("mps", "tpu"):
        return None
    message = f"{parameters:,} parameters with gradients and optimizer take {needed / 2**30:,.3g} GiB, and there are "
    hint = "make the model smaller: fewer or narrower blocks, a smaller vocabulary"
    return recipe.fault("memory", ("model", "width"), f"{message}{memory / 2**30:.3g} GiB of memory", hint)


LATER_PAIRS = 2_000
"""Pairs of a later epoch that are drawn of an endless task."""


@dataclass(frozen=True)
class DryRun:
    """The data, encoded, or a part of them if not `is_all`. `train_pairs`: how many there are in all.

    beginnings: as of `Sample`. The vocabulary of a part's tokenizer is a lower bound.
    """

    data: Data
    is_all: bool
    beginnings: Mapping[str, int]
    train_pairs: int
    later: Encoded | None = None  # pairs of a later epoch of an endless task
    share: float | None = None  # of the training text that is in the sample; None of pairs
    weight: float = 1.0  # of the training files, their mean
    unfiltered: Data | None = None  # the data before pairs that the model could not write are left out

    def describe_beginnings(self, noun: str) -> str:
        """Return which lines were read, in words; "" where all were."""
        parts = [f"{count:,} {noun}s of {split}" for split, count in self.beginnings.items()]
        return f" of the first {' and '.join(parts)}" if parts else ""

    def steps_per_epoch(self, tokens_per_batch: int) -> float:
        """Return the updates of an epoch; an estimate where the sample is not all."""
        assert self.data.train is not None
        if self.share is not None:  # of a text, whose documents are of any length, or rows of one
            return self.weight * float(self.data.train.target.positions().sum()) / self.share / tokens_per_batch
        batches = TrainBatchSampler(self.data.train, tokens_per_batch=tokens_per_batch, seed=0)
        return self.weight * len(batches) * self.train_pairs / len(self.data.pairs["train"])


def dry_run(source: DataSource, limits: AnswerLimits | None = None, data_use: DataUse = "required") -> DryRun | None:
    """Encode the data as a training does, of large ones a part; None for a data set to be downloaded, and where no
    files are here or to be read.

    Raises DataError with what training would refuse. A fault of a part is none yet: where it has one, everything is
    read. limits: Of the model's plan.
    """
    recipe, limits = source.recipe, limits or AnswerLimits()
    if data_use == "none" and (not recipe.data.generate or stand_in_sizes(recipe)):
        return None
    if data_use == "if_here" and any(fault.code == "file" for fault in source.faults):
        return None
    if source.faults:
        raise DataError(source.faults)
    if recipe.data.hub and not find_hub_folder(recipe, source.folders):
        return None
    sample = read_sample(source, depends_on_sizes(recipe))
    is_all, beginnings = sample.is_all, sample.beginnings
    part, few = sample.source, sample.few
    if is_all and cache_faults(source):  # which are faults of this machine alone
        part = few = in_memory(source)
    try:
        unfiltered = _encode(part, few)
        data = _answerable(recipe, unfiltered, limits)
    except DataError:
        if is_all:
            raise
        unfiltered, is_all, beginnings = _encode(source, source), True, {}
        data = _answerable(recipe, unfiltered, limits)
    if task := recipe.data.generate:  # whose other pairs nobody needs to draw
        later = _later_pairs(source, data) if task.endless else None
        return DryRun(data, is_all, beginnings, task.train, later, unfiltered=unfiltered)
    train, share = source.pairs("train"), None
    if isinstance(documents := train.sides[TARGET], Documents):
        read, total = data.pairs["train"].sides[TARGET], sum(file.characters for file in documents.facts)
        share = 1.0 if read is documents else sum(map(len, read)) / total
    weight = 1.0 if train.weights is None else float(train.weights.mean())
    return DryRun(data, is_all, beginnings, len(documents), share=share, weight=weight, unfiltered=unfiltered)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(Plan):
    """Plan with the largest batch of the training, and what a trial of it on this machine showed, if there was one."""

    recipe: Recipe = field(repr=False)
    batch: BatchSize
    trial: TrialRun | None

    @cached_property
    def memory(self) -> MemoryEstimate:
        """What the training takes of memory; it is counted when it is first asked for, which takes seconds."""
        return estimate_memory(self.recipe, self.vocabularies, self.batch, self.trial and self.trial.spelled)

    def as_json(self) -> dict[str, Any]:
        """Return the plan as plain data, with `training`, its memory, and `trial`."""
        blocks = Plan(**{field.name: getattr(self, field.name) for field in fields(Plan)}).as_json()
        trial = {} if self.trial is None else {"trial": self.trial.as_json()}
        return {**blocks, "training": self.memory.as_json(), **trial}


def plan_training(recipe: Recipe, time: bool = False) -> TrainingPlan:
    """Return the plan of a recipe and of its training; with `time`, after a trial on its data. Raises ComposerError.

    Without a trial no data need be there. After one the sizes of vocabularies are known; else they are upper bounds.
    """
    planned, sample = check_and_sample(recipe, True, "required" if time else "if_here")
    if not time:
        return TrainingPlan(**vars(planned), recipe=recipe, batch=largest_batch_of(recipe, sample), trial=None)
    from composer.training.trial_run import time_training  # late: Lightning takes seconds to import

    trial = time_training(recipe)
    planned = at_sizes(planned, recipe, trial.vocabularies)
    return TrainingPlan(**vars(planned), recipe=recipe, batch=trial.batch, trial=trial)


def plan_run(run: RunDir, data: str | Path | None = None, time: bool = False) -> TrainingPlan:
    """Return the plan of a run: of its recipe, with its vocabularies, and its data if they are where they were.

    Raises ComposerError.
    """
    sizes = run.read().vocabularies
    planned = plan_training(load(run.recipe, (), data or recorded_data(run.path)), time)
    if not sizes:
        return planned
    known = at_sizes(planned, planned.recipe, sizes)
    blocks = {field.name: getattr(known, field.name) for field in fields(Plan)}
    return TrainingPlan(**blocks, recipe=planned.recipe, batch=planned.batch, trial=planned.trial)


def largest_batch_of(recipe: Recipe, sample: DryRun | None) -> BatchSize:
    """Return the size of the largest batch of the data in a sample, or of any data without one."""
    if sample is None or sample.data.train is None:
        return largest_batch(recipe)
    share = len(sample.data.pairs["train"]) / sample.train_pairs if sample.share is None else sample.share
    return largest_batch(recipe, sample.data.train, share)


def _encode(source: DataSource, few: DataSource) -> Data:
    """Encode data with the tokenizers of a few of them, or, where those are the data, with those of a training."""
    return encode_data(source, cached_tokenizers(source) if few is source else train_source_tokenizers(few))


def _answerable(recipe: Recipe, data: Data, limits: AnswerLimits) -> Data:
    """Return data with those training pairs that a model can learn to write. Raises DataError if none is left."""
    assert data.train is not None
    train = data.train.keep(answerable_rows(recipe, data.train, limits, data.notes))
    return replace(data, splits={**data.splits, "train": train})


def _later_pairs(source: DataSource, data: Data) -> Encoded:
    """Return pairs that an endless task draws later. Raises DataError if they do not suit the tokenizer or output."""
    pairs = generate_pairs(source.recipe, "train", epoch=1, train=LATER_PAIRS)
    encoded = encode_trainable(source.recipe, pairs, data.tokenizers)
    if faults := split_faults(source.recipe, "train", encoded, pairs):
        raise DataError(faults)
    return encoded
