"""seqcomposer: a recipe describes a sequence model as stacks of blocks; one command trains it. Python says the same.

    import composer

    recipe = composer.load("recipes/quickstart.yaml")         # or objects: `from composer.recipe.classes import Recipe`
    composer.check(recipe), composer.plan(recipe).parameters  # every fault; what it will cost
    composer.draw(recipe).svg()                               # its architecture
    composer.train(recipe, run="runs/quickstart")             # writes a run folder
    run = composer.open_run("runs/quickstart")
    run.translate(["four hundred and twenty-one"]), run.evaluate()["test/exact_match"], run.report()
    print(composer.diff("recipes/a.yaml", "recipes/b.yaml").text())
    composer.pull(composer.pack("runs/quickstart"))           # to share it
    composer.build(recipe)                                    # the torch module

A user's mistake is a ComposerError, whose text says where it is and what to write instead. Importing this package is
cheap: torch is imported by the first call that needs a model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer.api import (
        blocks,
        build,
        check,
        data_loader,
        diff,
        draw,
        export,
        fingerprints,
        leaderboard,
        plan,
        schema,
        sweep,
        sweep_points,
        train,
        translate,
    )
    from composer.cli.new_recipe import new
    from composer.errors import ComposerError, DataError, Fault, RecipeError, RunError
    from composer.evaluation import evaluate
    from composer.hub.pack import pack
    from composer.hub.pull import pull
    from composer.inference.run import Run, open_run
    from composer.recipe.own_blocks import block
    from composer.recipe.recipe import Recipe, load
    from composer.testing import check_block
    from composer.viz.report import report

__all__ = [
    "ComposerError",
    "DataError",
    "Fault",
    "Recipe",
    "RecipeError",
    "Run",
    "RunError",
    "block",
    "blocks",
    "build",
    "check",
    "check_block",
    "data_loader",
    "diff",
    "draw",
    "evaluate",
    "export",
    "fingerprints",
    "leaderboard",
    "load",
    "new",
    "open_run",
    "pack",
    "plan",
    "pull",
    "report",
    "schema",
    "sweep",
    "sweep_points",
    "train",
    "translate",
]

_HOMES = {
    **dict.fromkeys(("ComposerError", "DataError", "Fault", "RecipeError", "RunError"), "composer.errors"),
    **dict.fromkeys(("Recipe", "load"), "composer.recipe.recipe"),
    **dict.fromkeys(("Run", "open_run"), "composer.inference.run"),
    "block": "composer.recipe.own_blocks",
    "check_block": "composer.testing",
    "evaluate": "composer.evaluation",
    "report": "composer.viz.report",
    "new": "composer.cli.new_recipe",
    "pack": "composer.hub.pack",
    "pull": "composer.hub.pull",
}
"""The modules of public names; any other is in `composer.api`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'composer' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES.get(name, "composer.api")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
