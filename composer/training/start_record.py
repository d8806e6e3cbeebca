"""run.json of a training that begins or resumes."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import replace

from composer.fingerprint import (
    has_current_fingerprints,
    initial_weights,
    known_changes,
    lines_sha256,
    make_fingerprints,
)
from composer.model.trained_parameters import optimizer_parts
from composer.recipe.earlier_versions import TRAINING_CHANGES, changes_since
from composer.recipe.fingerprints import FINGERPRINT_VERSION
from composer.recipe.recipe import Recipe
from composer.run_dir import RunDir, utc_now
from composer.runs.record import (
    ChosenMetrics,
    FingerprintParts,
    Fingerprints,
    RecordedData,
    RunRecord,
)
from composer.training.budget import file_budget
from composer.training.reproduce import environment_differences, with_environment
from composer.training.setup import TrainingSetup


def start_record(training: TrainingSetup) -> RunRecord:
    """Return run.json for a training that begins or resumes, perhaps on another machine."""
    before = training.run.record
    if before is None or not training.run_dir.tokenizer.exists():
        return fresh_record(training)
    return resumed_record(training, before)


def fresh_record(training: TrainingSetup) -> RunRecord:
    """Return run.json for a training that begins."""
    recipe, tokenizers = training.recipe, training.data.tokenizers
    initial_run, transfer = training.run.initial_run, training.start.transfer
    record = RunRecord(
        name=recipe.name,
        status="running",
        canonical=recipe.canonical,
        budgets=training.start.budgets,
        recipe_budget=file_budget(recipe),
        seed=recipe.training.seed,
        started_at=utc_now(),
        start_from=str(initial_run) if initial_run else None,
        initial_weights=initial_weights(RunDir(initial_run)) if initial_run else None,
        transferred=transfer.record() if transfer else None,
        teacher=training.teacher,
        data=data_record(training),
        metrics=chosen_metrics(training),
        recipe_sha256=recipe_sha256(recipe),
        tokenizer_sha256=tokenizers.sha256,
        vocabularies=tokenizers.sizes,
        parameters=training.module.num_parameters,
        optimizer_parts=optimizer_parts(recipe, training.module.model),
        wandb_id=secrets.token_hex(4),
    )
    record = with_environment(record, recipe, training.trainer)
    record = with_fingerprints(record, training, TRAINING_CHANGES)
    if training.run.original is None:
        return record
    reproduces = training.run.original.comparison_record(recipe, training.data.data, record)
    return replace(record, reproduces=reproduces)


def data_record(training: TrainingSetup) -> RecordedData:
    """Return `data` of run.json for a training that begins."""
    data = training.data.data
    train, val = data.train, data.val
    return RecordedData(
        folders=data_folders(training),
        pairs={split: len(rows) for split, rows in data.pairs.items()},
        train_pairs_used=len(training.data.train),
        sha256=train.sha256 if train else None,
        val_sha256=val.sha256 if val else None,
        val_unknown=round(val.unknown_share(), 4) if val else None,
    )


def chosen_metrics(training: TrainingSetup) -> ChosenMetrics | None:
    """Return the metrics that suit the data; None if the recipe names them, or none is needed."""
    metrics = training.metrics
    if metrics is None or training.recipe.evaluation.metrics is not None:
        return None
    return ChosenMetrics(metrics.names, metrics.bleu_tokenizer, metrics.left_out)


def resumed_record(training: TrainingSetup, before: RunRecord) -> RunRecord:
    """Return run.json for a training that resumes: with its new budget and all changes."""
    recipe, budgets, known = training.recipe, training.start.budgets, known_changes(before)
    record = replace(
        with_environment(before, recipe, training.trainer),
        status="running",
        ended_at=None,
        finished_early=False,
        canonical=recipe.canonical,
        recipe_sha256=recipe_sha256(recipe),
        data=replace(before.data, folders=data_folders(training)),  # the data may have moved
    )
    since = [f"other code: {change}" for change in changes_since(recipe.canonical, known)]
    changes = [*before.resumed_with, *since, *environment_differences(before, record)]
    record = replace(record, resumed_with=tuple(dict.fromkeys(changes)))
    if recipe.file.resolve() != training.run_dir.recipe.resolve():  # that has the run's own budget
        record = replace(record, recipe_budget=file_budget(recipe))
    has_same_budgets = not before.budgets or budgets == before.budgets
    if has_same_budgets and has_current_fingerprints(before):
        return record
    reproduces = record.reproduces if has_same_budgets else None
    record = replace(record, budgets=budgets, reproduces=reproduces)
    return with_fingerprints(record, training, known)


def with_fingerprints(
    record: RunRecord, training: TrainingSetup, changes: Iterable[str]
) -> RunRecord:
    """Return run.json with the fingerprints of a training.

    changes: The TRAINING_CHANGES with which it began.
    """
    recipe, plan = training.recipe, training.plan
    lines = lines_sha256(recipe, training.data.data.pairs)
    draws = plan is not None and plan.draws_random_numbers
    processes = training.trainer.world_size if draws else 1
    parts = FingerprintParts(lines, processes, tuple(changes))
    prints = make_fingerprints(recipe, parts, record)
    fingerprints = Fingerprints(
        model=prints["model"],
        data=prints["data"],
        run=prints["run"],
        recipe=prints["recipe"],
        version=FINGERPRINT_VERSION,
    )
    return replace(record, fingerprints=fingerprints, fingerprint_parts=parts)


def recipe_sha256(recipe: Recipe) -> str:
    """Return the SHA-256 of a run's recipe.yaml."""
    return hashlib.sha256(recipe.dump().encode()).hexdigest()


def data_folders(training: TrainingSetup) -> tuple[str, ...]:
    """Return the folders in which the data of a training are looked up."""
    return tuple(str(folder) for folder in training.source.folders)
