"""What is true of every recipe on several devices: they compute the gradient that one would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer.recipe.registry import blocks
from composer.testing import PLACES, Case
from composer.testing.harness import COLUMNS
from tests.laws.test_blocks import VARIANTS
from tests.laws.test_recipes import RECIPES, name

HERE = Path(__file__).parent
TOLERANCE = 1e-10
"""The numbers have 64 bits."""
LONGER = {"dialect/extended": "what saturation costs is a mean over steps, of which a batch with a longer row has more"}
"""Recipes with a cost that depends on what else is in the batch; small beside the loss."""
SMALL = 1e-4


def compare_on_two_processes(place: Path) -> dict[str, dict[str, Any]]:
    """What two processes say of every recipe; they meet at `place`."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), str(HERE)]),
    }
    both = [
        subprocess.Popen(
            [sys.executable, str(HERE / "on_two_devices.py"), str(rank), str(place)],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        lines, errors = both[0].communicate(timeout=900)
        assert both[0].returncode == 0, errors + both[1].communicate(timeout=100)[1]
    finally:
        for process in both:
            process.kill()
            process.communicate()
    return {comparison["recipe"]: comparison for comparison in map(json.loads, lines.splitlines())}


@pytest.mark.slow
def test_every_recipe_has_one_gradient_on_one_device_on_two_and_sharded(tmp_path: Path) -> None:
    comparisons = compare_on_two_processes(tmp_path / "place")
    assert comparisons.keys() == {name(path) for path in RECIPES}
    for recipe, comparison in comparisons.items():
        assert comparison["one and two"] < (SMALL if recipe in LONGER else TOLERANCE), recipe
        assert comparison["whole and sharded"] < TOLERANCE, recipe
    assert comparisons["multi30k/transformer"]["units"] > 3, "a large model is gathered layer by layer"


@pytest.mark.parametrize("word", sorted(VARIANTS))
def test_no_parameter_is_a_single_number_which_could_not_be_sharded(word: str) -> None:
    everywhere = [
        Case(blocks()[word], settings, place, columns=columns)
        for settings in VARIANTS[word]
        for place in PLACES
        for columns in (0, COLUMNS)
    ]
    built = [case.build() for case in everywhere if case.refusal() is None]
    assert built
    assert not [key for block in built for key, parameter in block.named_parameters() if parameter.ndim == 0]
