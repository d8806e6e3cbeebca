"""What is true of every recipe on several devices: they compute the gradient that one would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from composer.recipe.registry import blocks
from composer.testing import everywhere
from tests.laws.test_blocks import VARIANTS
from tests.laws.test_recipes import DIFFERENT, RECIPES, name

HERE = Path(__file__).parent
TOLERANCE = 1e-10
"""The numbers have 64 bits."""
LONGER = {
    "dialect/extended": (
        "what saturation costs is a mean over steps, of which a batch with a longer row has more"
    )
}
"""Recipes with a cost that depends on what else is in the batch; small beside the loss."""
SMALL = 1e-4
LAYERED = "multi30k/transformer"
SAMPLE = [path for path in RECIPES if path in DIFFERENT or name(path) in (LAYERED, *LONGER)]
STARTS = 4
"""How often two processes are begun that a signal ends."""


def compare_on_two_processes(place: Path, recipes: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """What two processes say of these recipes; they meet at `place`.

    Some runs on a loaded machine end by a crash within gloo of PyTorch, at another recipe each
    time. It is told, and what is left is begun anew.
    """
    comparisons: dict[str, dict[str, Any]] = {}
    for start in range(STARTS):
        left = [name(path) for path in recipes if name(path) not in comparisons]
        lines, codes, errors = run_two_processes(place.with_name(f"place-{start}"), left)
        comparisons |= {
            comparison["recipe"]: comparison for comparison in map(json.loads, lines.splitlines())
        }
        if codes == [0, 0]:
            return comparisons
        assert min(codes) < 0, errors  # no signal ended them
        warnings.warn(
            f"after {len(comparisons)} recipes the processes ended with {codes}: {errors}",
            stacklevel=2,
        )
    raise AssertionError(f"two processes were ended by signals {STARTS} times")


def run_two_processes(place: Path, recipes: list[str]) -> tuple[str, list[int], str]:
    """Return what the first of two processes prints of some recipes, the exit statuses and the
    errors of both.
    """
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]),
    }
    both = [
        subprocess.Popen(
            [sys.executable, str(HERE / "on_two_devices.py"), str(rank), str(place), *recipes],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=900) for process in both]
        return (
            printed[0][0],
            [process.returncode for process in both],
            printed[0][1] + printed[1][1],
        )
    finally:
        for process in both:
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    "recipes",
    [
        pytest.param(SAMPLE, marks=pytest.mark.slow),
        pytest.param(
            [path for path in RECIPES if path not in SAMPLE], marks=pytest.mark.exhaustive
        ),
    ],
    ids=["those that differ", "all others"],
)
def test_a_recipe_has_one_gradient_on_one_device_on_two_and_sharded(
    recipes: list[Path], tmp_path: Path
) -> None:
    comparisons = compare_on_two_processes(tmp_path / "place", recipes)
    assert comparisons.keys() == {name(path) for path in recipes}
    for recipe, comparison in comparisons.items():
        assert comparison["one and two"] < (SMALL if recipe in LONGER else TOLERANCE), recipe
        assert comparison["whole and sharded"] < TOLERANCE, recipe
    if LAYERED in comparisons:
        assert comparisons[LAYERED]["units"] > 3, "a large model is gathered layer by layer"


@pytest.mark.parametrize("word", sorted(VARIANTS))
def test_no_parameter_is_a_single_number_which_could_not_be_sharded(word: str) -> None:
    cases = everywhere(blocks()[word], *VARIANTS[word])
    built = [case.build() for case in cases if case.refusal() is None]
    assert built
    assert not [
        key for block in built for key, parameter in block.named_parameters() if parameter.ndim == 0
    ]
