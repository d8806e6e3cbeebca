"""The commands as functions. What takes a recipe takes its file, and objects of `composer.recipe.classes`, too.

Torch is imported by the first call that needs a model.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from composer.errors import ComposerError, Fault
from composer.recipe.recipe import Recipe, load
from composer.recipe.serialization import RecipeObjectRoot

RECIPES = "a recipe's file, a composer.Recipe, or objects of composer.recipe.classes"

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from composer.comparison.diff import Difference
    from composer.inference.run import Run
    from composer.model.encoder_decoder import EncoderDecoder
    from composer.model.planner import Plan
    from composer.training.finalize import TrainingResult
    from composer.viz.architecture.drawing import Drawing

    AnyRecipe = Recipe | RecipeObjectRoot | str | Path
    """A recipe, the objects of one, or its file."""
    AnyRun = Run | str | Path
    """A run that was opened, or its folder."""


def check(recipe: AnyRecipe, overrides: Sequence[str] = (), data: str | Path | None = None) -> list[Fault]:
    """Every fault of a recipe, of its model and of its data files; none where it trains. Writes nothing.

    recipe: a file, a loaded recipe, or recipe objects. overrides: `key=value` settings laid over it, not
    over one that is loaded. data: where data files are looked up first. Printing a fault's `render()` shows its line.
    """
    from composer.checking import check_recipe

    try:
        check_recipe(opened(recipe, overrides, data))
    except ComposerError as error:
        return error.faults
    return []


def plan(recipe: AnyRecipe, overrides: Sequence[str] = ()) -> Plan:
    """What a recipe will cost, block by block: parameters, FLOPs, state. Raises RecipeError with every fault.

    The model is built by the same code as for training, without memory for its numbers.
    """
    return opened(recipe, overrides).plan()


def build(
    recipe: AnyRecipe, overrides: Sequence[str] = (), vocabularies: Mapping[str, int] | None = None
) -> EncoderDecoder:
    """The model of a recipe, a torch module with fresh weights. Raises RecipeError with every fault.

    vocabularies: how many tokens each side has, `{"source": 8000, "target": 8000}`; the tokenizer's bounds without it.
    """
    found = opened(recipe, overrides)
    if vocabularies is None:
        return found.build()
    from composer.model.builder import build as build_model

    return build_model(found, vocabularies)


def train(
    recipe: AnyRecipe,
    run: str | Path | None = None,
    data: str | Path | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> TrainingResult:
    """Trains a recipe and writes the run folder `run` (`runs/NAME`), which `open_run` opens.

    overrides: `key=value` settings laid over it. data: where data files are looked up first. resume: whether it goes on
    where a killed run stopped. start_from: a run whose weights it begins with. A folder that is not empty is refused
    without `resume`. Raises RecipeError, DataError and RunError, with nothing written; RunFailed.
    """
    found = opened(recipe, overrides, data)
    from composer.training.train import train as train_recipe

    return train_recipe(found, run=run, data=data, resume=resume, start_from=start_from)


def translate(
    runs: AnyRun | Sequence[AnyRun], lines: Sequence[str], overrides: Sequence[str] = (), beam: int | None = None
) -> list[str]:
    """The best translation of each line by a run, or by several that vote; a blank line stays empty.

    With several encoders a line has their texts with tabs between. overrides: `decoding...=value`. beam: the size of
    its search. Raises RunError, RecipeError and DataError.
    """
    from composer.inference.run import Run, decoding_of, open_run, translations

    listed = [runs] if isinstance(runs, (Run, str, Path)) else [*runs] if isinstance(runs, Sequence) else []
    if not listed or not all(isinstance(each, (Run, str, Path)) for each in listed):
        raise TypeError(f"this takes a run's folder, a run that was opened, or several; not {runs!r:.80}")
    found = [
        each if isinstance(each, Run) else open_run(each, () if at else several(overrides))
        for at, each in enumerate(listed)
    ]
    answers = translations(found, lines, decoding_of(found[0].recipe, beam))
    return [best.text for best, *_ in answers]


def draw(what: AnyRecipe | AnyRun, overrides: Sequence[str] = ()) -> Drawing:
    """The architecture of a recipe or a run as a picture: `.svg()`, `.mermaid()`, `.save()`; a notebook shows it.

    overrides: `key=value` settings laid over it. Raises RecipeError with every fault, and RunError.
    """
    from composer.viz.architecture.drawing import draw as draw_recipe

    if isinstance(what, (Recipe, RecipeObjectRoot)):
        return draw_recipe(opened(what, overrides))
    return draw_recipe(named(what), several(overrides))


def diff(
    a: AnyRecipe | AnyRun, b: AnyRecipe | AnyRun, data: str | Path | None = None, quick: bool = False
) -> Difference:
    """What recipes or runs have different, in the language of blocks: `.text()`, `.as_json()`.

    data: where data files are looked up first. quick: whether what two runs translate is left out, and so whether
    chance explains their scores. Raises RecipeError with every fault, and RunError.
    """
    from composer.comparison.diff import diff as compare

    return compare(named(a), named(b), data, quick)


def fingerprints(what: AnyRecipe | AnyRun, data: str | Path | None = None) -> dict[str, str]:
    """What a recipe or a run is, in SHA-256: its `model`, its `data`, and `run`, all that decides what is trained.

    data: where data files are looked up first; they count by what is read from them. `says` is of the recipe alone.
    Raises RecipeError, DataError and RunError.
    """
    from composer.fingerprint import fingerprints as find

    return find(named(what), data)


def export(what: AnyRecipe | AnyRun, path: str | Path) -> Path:
    """Writes the model of a recipe or a run as one plain PyTorch file, which runs without this project.

    Raises RecipeError with every fault, and RunError where the file cannot be written.
    """
    from composer.exporters.script import export_script

    return export_script(named(what), path)


def named(what: AnyRecipe | AnyRun) -> Recipe | str | Path:
    """A recipe or a run as all functions take it: objects as the recipe that they are, an open run by its folder.

    Raises RecipeError.
    """
    if isinstance(what, RecipeObjectRoot):
        return what.recipe()
    if is_run(what):
        return what.folder.path
    if not isinstance(what, (Recipe, str, Path)):
        raise TypeError(f"this takes {RECIPES}; a run's folder, or a run that was opened; not a {type(what).__name__}")
    return what


def is_run(what: object) -> TypeIs[Run]:
    """Whether a run was opened; asks without importing torch, which nobody has a run without."""
    runs = sys.modules.get("composer.inference.run")
    return runs is not None and isinstance(what, runs.Run)


def several(overrides: Sequence[str]) -> Sequence[str]:
    """Settings to be laid over; a text alone is one of them, and no row of letters."""
    return [overrides] if isinstance(overrides, str) else overrides


def opened(recipe: AnyRecipe, overrides: Sequence[str] = (), data: str | Path | None = None) -> Recipe:
    """The recipe that is meant. Raises RecipeError, and TypeError for settings laid over what has been loaded."""
    overrides = several(overrides)
    if isinstance(recipe, RecipeObjectRoot):
        return recipe.recipe(overrides=overrides, data_dir=data)
    if not isinstance(recipe, Recipe):
        if not isinstance(recipe, (str, os.PathLike)) or is_run(recipe):
            raise TypeError(f"a recipe is {RECIPES}; this is a {type(recipe).__name__}")
        return load(recipe, overrides, data)
    if overrides:
        raise TypeError(
            "overrides are laid over a file or over objects; this recipe has been loaded: load it with them"
        )
    return recipe if data is None else dataclasses.replace(recipe, data_dir=Path(data))
