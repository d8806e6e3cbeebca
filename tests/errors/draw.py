"""Draw the cases of mutated.yaml anew: `python -m tests.errors.draw`. Needed only where recipes or
their language move.

Small recipes of `recipes/`, resolved, are changed at random as `verify.fuzz` does. A case is
kept if one of its faults has a code and a wording, names and numbers aside, that no other case has
more than once.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

import composer
from composer.errors import ComposerError
from tests.errors.snapshots import Case, Fault, faults_of, write
from verify.mutations import mutate

FILE = Path(__file__).with_name("mutated.yaml")
RECIPES = Path(__file__).parents[2] / "recipes"
SEED = 1
TRIES = 500
LARGEST = 900
"""Bytes of a recipe, so that a case can be read."""
MOST_FAULTS = 4


def main() -> None:
    random, seen, kept = Random(SEED), Counter[str](), list[Case]()
    recipes = small_recipes()
    for _ in range(TRIES):
        data = mutate(random.choice(recipes), random, random.choice(recipes))
        with tempfile.TemporaryDirectory() as folder:
            faults = faults_of(data, Path(folder)) if len(data) <= LARGEST else []
        if not 0 < len(faults) <= MOST_FAULTS or all(seen[kind] > 1 for kind in kinds(faults)):
            continue
        seen.update(kinds(faults))
        kept.append({"recipe": as_text(data), "faults": faults})
    write(FILE, kept)
    print(f"{len(kept)} of {TRIES} cases are kept")


def small_recipes() -> list[bytes]:
    """Return recipes without `extends` and variables that are small enough to be read."""
    texts = []
    for file in sorted(RECIPES.rglob("*.yaml")):
        try:
            texts.append(composer.load(file).dump().encode())
        except ComposerError:  # a part of recipes, or a sweep
            continue
    return [text for text in texts if len(text) <= LARGEST]


def kinds(faults: list[Fault]) -> set[str]:
    """Return what kind of fault each is: its code and its words without names and numbers."""
    return {re.sub(r"`[^`]*`|\d+", "_", f"{fault['code']}: {fault['message']}") for fault in faults}


def as_text(data: bytes) -> str | bytes:
    """Return bytes as text, if that is what they are and a snapshot can have it."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data
    return text if text.encode() == data and "\r" not in text and "\0" not in text else data


if __name__ == "__main__":
    main()
