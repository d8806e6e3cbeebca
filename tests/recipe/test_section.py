"""Sections as objects: what the canonical data say, whatever it is, and where it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from composer.recipe.choices import Decoder, Optimizer
from composer.recipe.data_sections import TableColumn
from composer.recipe.recipe import Recipe, load, load_text
from composer.recipe.section import Section

ROOT = Path(__file__).parents[2]
RECIPES = sorted(
    file
    for file in (ROOT / "recipes").rglob("*.yaml")
    if not {"fragments", "sweeps"} & set(file.parts)
)
PROBE = """
import sys
from composer.recipe.recipe import load

recipe = load(sys.argv[1])
recipe.training.optimizer.learning_rate, recipe.decoding.max_length, recipe.model.width, recipe.data.tokenizer.word
sys.exit(bool({"torch", "numpy"} & set(sys.modules)))
"""


def assert_same(ours: Any, canonical: Any, at: tuple[Any, ...]) -> None:
    """Ours may have more keys: those that mean nothing here, at their defaults; a bare name is one
    without settings.
    """
    if isinstance(canonical, dict):
        for key, value in canonical.items():
            assert_same(ours[key], value, (*at, key))
    elif isinstance(canonical, list):
        assert len(ours) == len(canonical), at
        for index, (one, other) in enumerate(zip(ours, canonical, strict=True)):
            assert_same(one, other, (*at, index))
    elif isinstance(canonical, str) and ours == {canonical: {}}:
        return
    else:
        assert (ours, type(ours)) == (canonical, type(canonical)), at


def sections_of(recipe: Recipe) -> dict[str, Section]:
    names = ("data", "model", "training", "decoding", "evaluation", "trainer", "logging")
    return {name: getattr(recipe, name) for name in names}


@pytest.mark.parametrize("path", RECIPES[::7], ids=lambda path: path.stem)
def test_a_section_says_what_the_canonical_recipe_says(path: Path) -> None:
    recipe = load(path)
    for name, section in sections_of(recipe).items():
        data = (
            {section.word: section.as_data()} if isinstance(section, Decoder) else section.as_data()
        )
        assert_same(data, recipe.canonical[name], (name,))


def test_a_section_knows_its_place() -> None:
    recipe = load(ROOT / "recipes" / "quickstart.yaml")
    assert recipe.training.optimizer.at == ("training", "optimizer", recipe.training.optimizer.word)
    assert recipe.training.validation_sample.at == ("training", "validation_sample")
    assert recipe.model.output.kind.at == ("model", "output", "kind", recipe.model.output.kind.word)


def test_several_encoders_have_a_key_each() -> None:
    columns = "picture: {column: p, kind: image, size: [8, 9]}, words: w, target: t"
    stacks = "encoders: {picture: [flatten, rnn], words: [rnn]}, decoder: [rnn]"
    recipe = load_text(
        f"recipe: 1\ndata: {{table: {{train: a.tsv, {columns}}}}}\nmodel: {{width: 4, {stacks}}}\n"
    )
    table = recipe.data.table
    assert table is not None
    picture = table.of_side("picture")
    assert isinstance(picture, TableColumn)
    assert (picture.size, picture.at) == ((8, 9), ("data", "table", "picture"))
    assert (table.of_side("words"), table.of_side("target"), table.of_side("source")) == (
        "w",
        "t",
        None,
    )


def test_reading_sections_imports_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, "recipes/quickstart.yaml"], cwd=ROOT, check=False
    )
    assert done.returncode == 0


def test_a_choice_that_lacks_what_it_must_do_is_refused_when_it_is_made() -> None:
    """Else it would do nothing, or decay by None."""

    class Lazy(Optimizer):
        word = "lazy"

    with pytest.raises(TypeError, match="abstract"):
        Lazy()  # type: ignore[abstract]
