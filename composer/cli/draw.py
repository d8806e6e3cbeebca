"""The command `draw`: an architecture as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import Overrides, examples, require_recipe_file

commands = typer.Typer()


@commands.command(
    short_help="Draws the architecture of a recipe or of a run.",
    epilog=examples(
        "seqcomposer draw recipes/quickstart.yaml --output quickstart.svg",
        "seqcomposer draw recipes/papers/rnmt_plus.yaml vars.width=512 --output rnmt.html",
        "seqcomposer draw runs/mine --output mine.md     # Mermaid in Markdown, as GitHub shows it",
    ),
)
def draw(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe, or a run folder.", show_default=False)
    ],
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="F",
            help="A file that ends with .svg, .mmd (Mermaid), .md (Markdown) or .html.  [default: Mermaid to stdout]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Draws the architecture of a recipe or of a run: encoders and decoder, block by block, and who reads what.

    Every block is there with what matters of its settings, its width and its parameters, and every name and memory that
    is read is an arrow: dashed where it is what was made one position before. A run is drawn with the vocabularies that
    it has found, a recipe with their upper bounds.
    """
    require_recipe_file(recipe)
    from composer.viz.architecture import check_can_overwrite, check_suffix
    from composer.viz.architecture import draw as draw_recipe

    if output is not None:
        check_suffix(output)
        check_can_overwrite(output)
    drawing = draw_recipe(recipe, overrides or ())
    if output is None:
        typer.echo(drawing.mermaid(), nl=False)
    else:
        typer.echo(f"wrote {drawing.save(output)}")
