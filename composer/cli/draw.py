"""Command `draw`: a diagram of an architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import Overrides, examples, require_recipe_file

commands = typer.Typer()


@commands.command(
    short_help="Draw the architecture of a recipe or a run.",
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
            help="New file that ends with .svg, .mmd (Mermaid), .md (Markdown) or .html.  [default: Mermaid to stdout]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Draw the architecture of a recipe or a run: encoders and decoder, block by block, and which block reads which.

    Every block is shown with its main settings, its width and its parameters; every name and memory that is read is an
    arrow, dashed where the value is that of the position before. A run is drawn with its own vocabulary sizes, a recipe
    with the largest that it allows.
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
