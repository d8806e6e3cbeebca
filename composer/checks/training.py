"""Rules of `training`: curriculum, averages of weights, schedule, metric of early stopping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blocks.core.fixes import Fix, Set, remove, write
from composer.checks.problem import Problem, Problems
from composer.metrics.choice import SUITABLE
from composer.metrics.table import (
    METRICS,
    SAMPLE,
    decodes_all,
    metric_name,
    metric_of,
    text_metrics,
)
from composer.recipe.schema_reader import quote_all
from composer.suggest import did_you_mean

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

METRIC_PATH = ("training", "early_stopping", "metric")
SCHEDULE = ("training", "schedule")


def curriculum(recipe: Recipe) -> Problems:
    """The curriculum's side exists, and no worker prefetches batches that are not chosen yet."""
    if (settings := recipe.training.curriculum) is None:
        return
    side, allowed = settings.by, [*recipe.sources, "target"]
    if side is not None and side not in allowed:
        message = f"a pair has no side called `{side}`{did_you_mean(side, allowed)}"
        hint = f"its sides are {quote_all(allowed)}"
        yield Problem("unknown", (*settings.at, "by"), message, hint)
    if recipe.training.workers:
        message = "workers prefetch batches, and a curriculum chooses the next ones later"
        path = ("training", "workers")
        yield Problem("conflict", path, message, remove(path))


def averages(recipe: Recipe) -> Problems:
    """Weights are averaged in one way."""
    training = recipe.training
    used = {
        training.optimizer.word: training.optimizer.averages,
        "ema": training.ema,
        "asgd": training.asgd,
        "average_checkpoints": training.average_checkpoints > 1,
    }
    first, *others = [key for key, is_used in used.items() if is_used] or [""]
    for key in others:
        path, message = ("training", key), f"`{first}` averages the weights already"
        yield Problem("conflict", path, message, remove(path, f", or `{first}`"))


def schedule_free(recipe: Recipe) -> Problems:
    """An optimizer that averages its weights has no decaying schedule, and weights of 32 bits."""
    training = recipe.training
    optimizer, schedule = training.optimizer, training.schedule
    if not optimizer.takes_schedule and schedule.word != "constant":
        message = f"`{optimizer.word}` averages its weights in place of a decaying learning rate"
        fix = Fix(
            "write `schedule: constant`, which may have `warmup_steps`", Set(SCHEDULE, "constant")
        )
        yield Problem("conflict", SCHEDULE, message, fix)
    if optimizer.averages and training.precision == "bf16-true":
        message = f"the average of `{optimizer.word}` moves by less than 16 bits can tell apart"
        path = ("training", "precision")
        yield Problem("conflict", path, message, write(path, "bf16-mixed", ", or `32`"))


def early_stopping(recipe: Recipe) -> Problems:
    """Early stopping watches a metric that is measured, and a goal that is possible."""
    if (stopping := recipe.training.early_stopping) is None:
        return
    watched, goal = stopping.metric, stopping.goal
    if (unavailable := unavailable_metric(recipe, watched)) is not None:
        reason, fix = unavailable
        yield Problem("metric", METRIC_PATH, f"`{watched}` is never measured: {reason}", fix)
    highest = METRICS[metric_name(watched)].highest
    if goal is not None and highest is not None and goal > highest:
        message = f"`{watched}` is never above {highest:g}, and the goal is {goal:g}"
        yield Problem("value", (*stopping.at, "goal"), message, f"write a number up to {highest:g}")


def unavailable_metric(recipe: Recipe, key: str) -> tuple[str, Fix] | None:
    """Say why no run has a metric such as `val/bleu`, and what to do; None if one has."""
    name, metric, training = metric_name(key), metric_of(key), recipe.training
    needs, head = metric.needs if metric else "tokens", recipe.model.output.kind
    if needs == "translations" and not recipe.sources:
        return "a model without encoders translates nothing", _loss_or("give the model an encoder")
    if needs == "bits" and not head.is_of_bits:
        fix = _loss_or("`model: {output: {kind: sigmoid}}`")
        return "the answers are of words, not of bits", fix
    if needs == "logits" and head.evaluates_on_cost:
        return f"`{head.word}` measures the target alone", _loss_or("another `model.output.kind`")
    if needs == "texts" and not recipe.reads_text:
        return "only texts without a source have it", _loss_or("give `data: {text: ...}`")
    share = recipe.trainer.limit_val_batches
    is_partial = type(share) is int or share != 1.0
    if needs == "texts" and key.startswith("val/") and is_partial:
        fix = _loss_or("remove `limit_val_batches`")
        return "`limit_val_batches` leaves out words that it counts", fix
    watched = training.early_stopping.metric if training.early_stopping else ""
    decodes_none = training.validation_sample.lines == 0 and not decodes_all(watched)
    if key.startswith(SAMPLE) and decodes_none:
        fix = _loss_or("`training: {validation_sample: {lines: 200}}`")
        return "no validation lines are decoded", fix
    measured = (*(recipe.evaluation.metrics or SUITABLE), metric_name(watched))
    if name in text_metrics() and name not in measured:
        return "it is not among the metrics", Fix(f"write `evaluation: {{metrics: [{name}, ...]}}`")
    return None


def _loss_or(other: str) -> Fix:
    return Fix(f"write `val/loss`, or {other}", Set(METRIC_PATH, "val/loss"))


def adapters(recipe: Recipe) -> Problems:
    """Adapters are trained on devices that have the whole model."""
    if recipe.training.adapters and recipe.trainer.strategy == "fsdp":
        path = ("trainer", "strategy")
        message = "`fsdp` shards matrices, and `training.adapters` reads whole ones"
        yield Problem("conflict", path, message, Fix("write `ddp`", Set(path, "ddp")))


def distillation(recipe: Recipe) -> Problems:
    """The student has logits of all tokens, and the training has one model and a whole teacher."""
    training, output = recipe.training, recipe.model.output
    if training.distillation is None:
        return
    head, path = output.kind, training.distillation.at
    if head.trains_on_cost or head.evaluates_on_cost:
        message = f"`{head.word}` trains without the logits of all tokens, which a teacher needs"
        yield Problem("output", path, message, "write `model: {output: {kind: linear}}`")
    if output.ctc is not None:
        message = "`ctc` adds up all ways through a row, and a teacher gives each token its own"
        yield Problem("output", path, message, remove(("model", "output", "ctc")))
    if training.carry:
        message = "`training.carry` hands on one state, and the teacher would have another"
        yield Problem("conflict", path, message, remove(("training", "carry")))
    if training.compile and training.distillation.hidden:
        message = "a compiled model does not show its hidden outputs"
        yield Problem("conflict", (*path, "hidden"), message, remove(("training", "compile")))
    if recipe.trainer.strategy == "fsdp":
        strategy = ("trainer", "strategy")
        message = "`fsdp` shards the model, and the teacher is whole on each device"
        yield Problem("conflict", strategy, message, Fix("write `ddp`", Set(strategy, "ddp")))


RULES: Sequence[Callable[[Recipe], Problems]] = (
    curriculum,
    averages,
    schedule_free,
    early_stopping,
    adapters,
    distillation,
)
