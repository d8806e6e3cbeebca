"""Early stopping: the validations have stalled, or a goal is met."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from composer.metrics.table import as_maximised
from composer.recipe.training_sections import EarlyStopping


def should_stop(rule: EarlyStopping, history: Sequence[Mapping[str, float]]) -> bool:
    """True if the scores of all validations so far, in order, end the training."""
    measured = [scores for scores in history if rule.metric in scores]
    values = [as_maximised(rule.metric, scores) for scores in measured]
    if rule.goal is not None:
        goal = as_maximised(rule.metric, {rule.metric: rule.goal})
        if any(value >= goal for value in values):
            return True
    if rule.patience is None:
        return False
    best, waited = -math.inf, 0
    for value in values:
        if value > best + rule.min_delta:
            best, waited = value, 0
        else:
            waited += 1
    return waited >= rule.patience


def has_stalled(losses: Sequence[float], patience: int) -> bool:
    """True if the last validation is worse than the best one more than `patience` before it.

    The trigger of NT-ASGD (Merity et al. 2018, algorithm 1).
    """
    return len(losses) > patience + 1 and losses[-1] > min(losses[: -patience - 1])
