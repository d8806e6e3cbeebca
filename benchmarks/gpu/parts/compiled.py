"""`training.compile: true` against the model as it is, loss and gradients in float32, for a sample
of the recipes.
"""

from __future__ import annotations

import copy
import time
from contextlib import nullcontext
from functools import partial
from unittest import mock

import torch

from benchmarks.gpu import FAILED, OK, Outcome, Settings
from benchmarks.gpu.compare import relative_error, without_chance
from benchmarks.gpu.parts.recipes import ROWS, numbers
from tests.laws.on_two_devices import module_of, pairs_of, share_of
from tests.laws.test_compiled import SAMPLE
from tests.laws.test_recipes import HOME

TOLERANCE = 1e-4


def cases(settings: Settings) -> list[str]:
    recipes = ["quickstart", *SAMPLE, "multi30k/transformer", "papers/bahdanau2015"]
    return recipes[:1] if settings.small else recipes


def run(recipe: str, settings: Settings) -> Outcome:
    module = without_chance(module_of(HOME / f"{recipe}.yaml")).to(settings.device)
    batch = share_of(pairs_of(module), ROWS, 0, 1)
    expected = numbers(copy.deepcopy(module), batch, settings.device)
    notes: list[str] = []
    torch.compiler.reset()
    start = time.monotonic()
    # a small run traces the model, and generates no code, which would take a minute
    quick = mock.patch("torch.compile", partial(torch.compile, backend="aot_eager"))
    with quick if settings.small else nullcontext():
        module.compile_model(notes.append)
        actual = numbers(module, batch, settings.device)
    errors = {name: relative_error(actual[name], expected[name]) for name in expected}
    text = ", ".join(f"{name} {error:.2g}" for name, error in errors.items())
    word = OK if max(errors.values()) <= TOLERANCE and not notes else FAILED
    return Outcome(
        word,
        f"{text}; {time.monotonic() - start:.0f} s to compile and run; {' '.join(notes)}".rstrip(
            "; "
        ),
    )
