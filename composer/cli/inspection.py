"""The commands `diff`, `draw`, `fingerprints`, `blocks` and `schema`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import AsJson, DataDir, Overrides, examples, print_json, require_recipe_file

commands = typer.Typer()


@commands.command(
    short_help="Compare two recipes or runs.",
    epilog=examples(
        "seqcomposer diff recipes/ladder/gru.yaml recipes/ladder/gru_attention.yaml",
        "seqcomposer diff recipes/quickstart.yaml runs/quickstart",
        "seqcomposer diff runs/one runs/other",
        "seqcomposer diff runs/mix-and-match#1 runs/mix-and-match#2     # trials of a sweep, by rank",
        "seqcomposer diff 'mine.yaml#score=dot,heads=4' 'mine.yaml#score=dot,heads=8'     # points of a sweep",
    ),
)
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="A recipe, a run folder, or SWEEP#WHICH.", show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.", show_default=False)],
    data: DataDir = None,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the significance test.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print what to change in A to get B: blocks, settings, data, training; with costs and scores.

    Blocks are inserted, removed, moved, replaced, or wrapped in others; a change that many blocks share is printed
    once. Comments, the order of keys, `vars` and spelt-out defaults make no difference. Two runs are also compared by
    their scores, with p-values of paired tests on their translations of the test set. The exit status is 0 whether or
    not they differ, and 2 if one of them is refused.
    """
    from composer.comparison.diff import diff as compare

    difference = compare(a, b, data, quick, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(difference.as_json())
    else:
        typer.echo(difference.text())


@commands.command(
    short_help="Draw the architecture of a recipe or a run.",
    epilog=examples(
        "seqcomposer draw recipes/quickstart.yaml --output quickstart.svg",
        "seqcomposer draw recipes/papers/rnmt_plus.yaml model.width=512 --output rnmt.html",
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
    from composer.viz.architecture import check_output
    from composer.viz.architecture import draw as draw_recipe

    if output is not None:
        check_output(output)
    drawing = draw_recipe(recipe, overrides or ())
    if output is None:
        typer.echo(drawing.mermaid(), nl=False)
    else:
        typer.echo(f"wrote {drawing.save(output)}")


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


@commands.command(
    short_help="List the blocks, or describe one with its settings.",
    epilog=examples("seqcomposer blocks", "seqcomposer blocks self_attention"),
)
def blocks(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A block.", show_default=False)] = None,
) -> None:
    """List the blocks that a recipe can use, or describe one with its settings."""
    from composer.cli.output import print_block, print_blocks

    print_blocks() if name is None else print_block(name)


@commands.command(
    short_help="Print the JSON Schema of a recipe, for editors.",
    epilog=examples("seqcomposer schema > recipe.schema.json"),
)
def schema(
    write: Annotated[
        bool,
        typer.Option("--write", help="Regenerate the schemas and `composer.recipe.classes`, and write their files."),
    ] = False,
) -> None:
    """Print the JSON Schema of a recipe, for editors: completion, hover texts, errors while typing."""
    from composer.recipe import schema as recipe_schema

    if not write:
        typer.echo(recipe_schema.to_json(recipe_schema.load()), nl=False)
        return
    from composer.recipe import python_classes
    from composer.sweeps import spec, spec_schema

    rules = recipe_schema.generate()
    texts = {
        recipe_schema.schema_path(): recipe_schema.to_json(rules),
        python_classes.classes_path(): python_classes.generate(rules),
        spec.schema_path(): recipe_schema.to_json(spec_schema.generate_schema()),
    }
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {file}")
