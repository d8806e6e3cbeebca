"""The command that says what a recipe or a run is, in three numbers: `fingerprints`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import AsJson, DataDir, examples, print_json, require_recipe_file

commands = typer.Typer()


@commands.command(
    short_help="Says in three numbers what a recipe or a run is.",
    epilog=examples(
        "seqcomposer fingerprints recipes/quickstart.yaml",
        "seqcomposer fingerprints runs/mine --json | jq -r .run",
    ),
)
def fingerprints(
    place: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe, or a run folder.", show_default=False)],
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Says in three numbers, SHA-256 each, what a recipe or a run is: its model, its data, and all that decides a run.

    They stay the same however the recipe is written: comments, the order of keys, defaults that are spelt out, `vars`
    and `extends`. The data count by what is read from them, wherever they lie, so their files must be there; `says` is
    the number of the recipe alone, in which a file is its name. Of a run they are those it was begun with, with that of
    its weights; a recipe or weights that are no longer the run's own are refused.
    """
    require_recipe_file(place)
    from composer.fingerprint import fingerprints as fingerprints_of

    found = fingerprints_of(place, data)
    if as_json:
        print_json(found)
    else:
        for name, value in found.items():
            typer.echo(f"{name:8}{value}")
