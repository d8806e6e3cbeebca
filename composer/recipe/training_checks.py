"""Checks of a recipe's training beside its data, its metrics and the machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from composer.errors import Fault
from composer.recipe.metrics import METRICS, SAMPLE, SUITABLE, decodes_all, metric_name, metric_of, text_metrics
from composer.recipe.registry import CPU_REFUSES_16
from composer.recipe.schema_reader import quote_all
from composer.suggest import did_you_mean

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe


def training_faults(recipe: Recipe) -> Iterator[Fault]:
    """Yield the faults of `training` and `trainer`."""
    for check in (_curriculum, _averages, _early_stopping, _machine):
        yield from check(recipe)


def _curriculum(recipe: Recipe) -> Iterator[Fault]:
    curriculum, allowed = recipe.training.curriculum, [*recipe.sources, "target"]
    if curriculum is None:
        return
    by = curriculum.by
    if by is not None and by not in allowed:
        message = f"a pair has no side called `{by}`{did_you_mean(by, allowed)}"
        yield recipe.fault("unknown", ("training", "curriculum", "by"), message, f"its sides are {quote_all(allowed)}")
    if recipe.training.workers:
        message = "workers prefetch batches, and a curriculum chooses the next ones later"
        yield recipe.fault("conflict", ("training", "workers"), message, "remove `workers`")


def _averages(recipe: Recipe) -> Iterator[Fault]:
    training = recipe.training
    used = {"ema": training.ema, "asgd": training.asgd, "average_checkpoints": training.average_checkpoints > 1}
    averages = [key for key, is_used in used.items() if is_used]
    for key in averages[1:]:
        message, hint = f"`{averages[0]}` averages the weights already", f"remove `{key}`, or `{averages[0]}`"
        yield recipe.fault("conflict", ("training", key), message, hint)


def _early_stopping(recipe: Recipe) -> Iterator[Fault]:
    """Check that early stopping watches a metric that is measured and a goal that is possible."""
    if (stopping := recipe.training.early_stopping) is None:
        return
    path, watched, goal = ("training", "early_stopping"), stopping.metric, stopping.goal
    if (reason := unavailable_metric(recipe, watched)) is not None:
        message = f"`{watched}` is never measured: {reason[0]}"
        yield recipe.fault("metric", (*path, "metric"), message, reason[1])
    highest = METRICS[metric_name(watched)].highest
    if goal is not None and highest is not None and goal > highest:
        message = f"`{watched}` is never above {highest:g}, and the goal is {goal:g}"
        yield recipe.fault("value", (*path, "goal"), message, f"write a number up to {highest:g}")


def unavailable_metric(recipe: Recipe, key: str) -> tuple[str, str] | None:
    """Return why no run has a metric such as `val/bleu` or `val_sample/bleu`, and what to write; None if one has."""
    name, metric, training = metric_name(key), metric_of(key), recipe.training
    needs, reads_source = metric.needs if metric else "tokens", bool(recipe.sources)
    watched = training.early_stopping.metric if training.early_stopping else ""
    if needs == "translations" and not reads_source:
        return "a model without encoders translates nothing", "write `val/loss`, or give the model an encoder"
    head = recipe.model.output.kind
    if needs == "bits" and not head.is_of_bits:
        return "the answers are of words, not of bits", "write `val/loss`, or `model: {output: {kind: sigmoid}}`"
    if needs == "logits" and head.evaluates_on_cost:
        return f"`{head.word}` measures the target alone", "write `val/loss`, or another `model.output.kind`"
    if needs == "texts" and not recipe.reads_text:
        return "it is measured of texts without a source", "write `val/loss`, or give `data: {text: ...}`"
    share = recipe.trainer.limit_val_batches
    if needs == "texts" and key.startswith("val/") and (type(share) is int or share != 1.0):
        return "`limit_val_batches` leaves out words that it counts", "write `val/loss`, or remove `limit_val_batches`"
    if key.startswith(SAMPLE) and training.validation_sample.lines == 0 and not decodes_all(watched):
        return "no validation lines are decoded", "write `val/loss`, or `training: {validation_sample: {lines: 200}}`"
    if name in text_metrics() and name not in (*(recipe.evaluation.metrics or SUITABLE), metric_name(watched)):
        return "it is not among the metrics", f"write `evaluation: {{metrics: [{name}, ...]}}`"
    return None


def _machine(recipe: Recipe) -> Iterator[Fault]:
    """Check that the devices exist, and that accelerator and strategy train in the precision."""
    accelerator, strategy = recipe.trainer.accelerator, recipe.trainer.strategy
    devices = recipe.trainer.devices
    precision, strategy_path = recipe.training.precision, ("trainer", "strategy")
    if isinstance(devices, tuple) and (accelerator == "cpu" or not devices):
        message = "CPUs have no numbers" if devices else "`devices` is an empty list"
        yield recipe.fault("value", ("trainer", "devices"), message, "write how many there are, or `auto`")
    if accelerator == "mps" and strategy != "auto":
        message = f"mps has one device, and `{strategy}` is for several"
        yield recipe.fault("conflict", strategy_path, message, "remove `strategy`")
    if accelerator == "cpu" and precision == "16-mixed":
        yield recipe.fault("conflict", ("training", "precision"), *CPU_REFUSES_16)
    if strategy == "fsdp" and precision in (64, "16-mixed"):
        message = f"`fsdp` does not train in `precision: {precision}`"
        yield recipe.fault("conflict", strategy_path, message, "write `ddp`, or `precision: 32`")
