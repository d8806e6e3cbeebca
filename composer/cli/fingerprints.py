"""Command `fingerprints`: SHA-256 fingerprints of model, data and run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import AsJson, DataDir, examples, print_json, require_recipe_file

commands = typer.Typer()


@commands.command(
    short_help="Print SHA-256 fingerprints of model, data and run.",
    epilog=examples(
        "seqcomposer fingerprints recipes/quickstart.yaml",
        "seqcomposer fingerprints runs/mine --json | jq -r .run",
    ),
)
def fingerprints(
    path: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe, or a run folder.", show_default=False)],
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print SHA-256 fingerprints of a recipe or a run: of its model, its data, and all that decides a training.

    They do not depend on how the recipe is written: comments, the order of keys, spelt-out defaults, `vars` and
    `extends`. Data are hashed by content, wherever the files are, so these must be there; `recipe` is the fingerprint
    of the recipe alone, in which a file is its name. Of a run the recorded ones are printed, and that of its weights;
    a recipe or weights that were changed since are refused.
    """
    require_recipe_file(path)
    from composer.fingerprint import fingerprints as fingerprints_of

    prints = fingerprints_of(path, data)
    if as_json:
        print_json(prints)
    else:
        for name, value in prints.items():
            typer.echo(f"{name:8}{value}")
