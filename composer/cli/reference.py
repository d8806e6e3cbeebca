"""Commands `blocks` and `schema`: look up the recipe language."""

from __future__ import annotations

from typing import Annotated

import typer

from composer.cli.options import examples

commands = typer.Typer()


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
    from composer.sweeps import spec_schema

    rules = recipe_schema.generate()
    texts = {
        recipe_schema.schema_path(): recipe_schema.to_json(rules),
        python_classes.classes_path(): python_classes.generate(rules),
        spec_schema.schema_file(): recipe_schema.to_json(spec_schema.generate_schema()),
    }
    for file, text in texts.items():
        file.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {file}")
