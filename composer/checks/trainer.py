"""Rules of `trainer`: devices exist; accelerator and strategy suit precision and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from blocks.core.fixes import Fix, Set, remove
from composer.checks.problem import Problem, Problems
from composer.recipe.registry import CPU_REFUSES_16

if TYPE_CHECKING:
    from composer.recipe.recipe import Recipe

STRATEGY, DEVICES, PRECISION = (
    ("trainer", "strategy"),
    ("trainer", "devices"),
    ("training", "precision"),
)


def devices(recipe: Recipe) -> Problems:
    """Numbered devices need an accelerator that numbers them, and a strategy several devices."""
    trainer = recipe.trainer
    if isinstance(trainer.devices, tuple) and (trainer.accelerator == "cpu" or not trainer.devices):
        message = "CPUs have no numbers" if trainer.devices else "`devices` is an empty list"
        yield Problem("value", DEVICES, message, "write how many there are, or `auto`")
    if trainer.accelerator == "mps" and trainer.strategy != "auto":
        message = f"mps has one device, and `{trainer.strategy}` is for several"
        yield Problem("conflict", STRATEGY, message, remove(STRATEGY))


def precision(recipe: Recipe) -> Problems:
    """Accelerator and strategy train in the precision."""
    trainer, number = recipe.trainer, recipe.training.precision
    if trainer.accelerator == "cpu" and number == "16-mixed":
        yield Problem("conflict", PRECISION, *CPU_REFUSES_16)
    if trainer.strategy == "fsdp" and number in (64, "16-mixed"):
        message = f"`fsdp` does not train in `precision: {number}`"
        yield Problem(
            "conflict",
            STRATEGY,
            message,
            Fix("write `ddp`, or `precision: 32`", Set(STRATEGY, "ddp")),
        )


def sharding(recipe: Recipe) -> Problems:
    """The optimizer works where each process has a part of the model."""
    optimizer = recipe.training.optimizer
    if recipe.trainer.strategy == "fsdp" and not optimizer.shards:
        message = f"`{optimizer.word}` does not train a model of which each process has a part"
        fix = Fix("write `ddp`, or another optimizer", Set(STRATEGY, "ddp"))
        yield Problem("conflict", STRATEGY, message, fix)


RULES: Sequence[Callable[[Recipe], Problems]] = (devices, precision, sharding)
