"""A recipe with several seeds: the sweep of its base alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from composer.errors import RunError, error_at
from composer.recipe.recipe import default_name
from composer.recipe.yaml_reader import read, to_data

MAX_SEEDS = 1000
"""Seeds of a sweep at most; a larger number is refused, since it is meant as a seed itself."""


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of `--seeds`: `3` means 1 to 3, `1,5` means these. Raises RunError."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        numbers = list(range(1, min(numbers[0], MAX_SEEDS + 1) + 1))
    if not 0 < len(numbers) <= MAX_SEEDS or len(set(numbers)) < len(numbers):
        hint = "write how many, `--seeds 3`, or different ones, `--seeds 1,2,5`"
        raise RunError.of(f"`--seeds {text}` is not a list of seeds", hint)
    return numbers


def seeds_sweep(file: Path, seeds: Sequence[int]) -> str:
    """Return the YAML of the sweep that trains a recipe with several seeds.

    Raises RecipeError if the file is a sweep, or is no recipe.
    """
    recipe = read(file, str(file))
    if "sweep" in recipe.value:
        message = "a sweep has its seeds in its file, and `--seeds` is for a recipe"
        hint = "write `seeds: [" + ", ".join(map(str, seeds)) + "]` in it"
        raise error_at(recipe.value["sweep"].place, "seeds", "sweep", message, hint)
    name = to_data(recipe)["name"] if "name" in recipe.value else default_name(file)
    sweep: dict[str, object] = {"sweep": 1, "name": name, "base": file.name}
    return json.dumps({**sweep, "axes": {}, "seeds": [*seeds]}, ensure_ascii=False)
