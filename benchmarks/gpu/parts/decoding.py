"""Decoding of the same Transformer beside loops by hand with cached keys and values, from ids to
ids.
"""

from __future__ import annotations

import torch

from benchmarks.gpu import Outcome, Row, Settings
from benchmarks.gpu.searches import (
    by_hand,
    compare,
    ours,
    random_run,
    same_answers,
    task_names,
    task_of,
)


def cases(settings: Settings) -> list[str]:
    return task_names(settings)


def run(case: str, settings: Settings) -> Outcome:
    task = task_of(case, settings)
    outcome = compare(task, {"ours": ours, "by hand": by_hand}, {"by hand": 1.0})
    if task.dtype is not torch.float32:
        return outcome
    share = same_answers(task, random_run(task))
    return outcome._replace(
        rows=(*outcome.rows, Row(f"{task}: the same answers", f"{100 * share:.0f} %"))
    )
