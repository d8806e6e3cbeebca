"""seqcomposer: a recipe describes a sequence model as stacks of blocks; one command trains it.

Python says the same.

    import composer

    recipe = composer.load("recipes/quickstart.yaml")         # or `recipe.sections.Recipe(...)`
    composer.check(recipe), composer.plan(recipe).parameters  # every fault; what it will cost
    composer.draw(recipe).svg()                               # its architecture
    composer.train(recipe, run="runs/quickstart")             # writes a run folder
    run = composer.open_run("runs/quickstart")
    run.translate(["four hundred and twenty-one"]), run.evaluate()["test/exact_match"], run.report()
    print(composer.diff("recipes/a.yaml", "recipes/b.yaml").text())
    composer.pull(composer.pack("runs/quickstart"))           # to share it; or `push` it
    composer.build(recipe)                                    # the torch module

A user's mistake is a ComposerError, whose text says where it is and what to write instead.
Importing this package is cheap: torch is imported by the first call that needs a model.
"""

from __future__ import annotations

import importlib
from itertools import chain
from typing import Any

_HOMES = {
    "composer.api": (
        *(
            "blocks",
            "build",
            "check",
            "data_loader",
            "diff",
            "draw",
            "export",
            "fingerprints",
            "leaderboard",
            "plan",
            "push",
        ),
        *("schema", "serve", "sweep", "sweep_points", "train", "translate"),
    ),
    "composer.cli.new": ("new",),
    "composer.errors": ("ComposerError", "DataError", "Fault", "RecipeError", "RunError"),
    "composer.evaluation.scores": ("evaluate",),
    "composer.hub.pack": ("pack",),
    "composer.hub.pull": ("pull",),
    "composer.importers.import_run": ("import_model",),
    "composer.inference.generate": ("generate",),
    "composer.inference.run": ("Run", "open_run"),
    "composer.inference.score": ("score",),
    "composer.recipe.recipe": ("Recipe", "load"),
    "composer.recipe.words": ("block", "choose"),
    "composer.sweeps.status": ("sweep_status",),
    "composer.testing": ("check_block",),
    "composer.training.average": ("average",),
    "composer.viz.report": ("report",),
}
"""The public names by their modules; type checkers read them in `__init__.pyi`."""
__all__ = sorted(chain.from_iterable(_HOMES.values()))


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'composer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
