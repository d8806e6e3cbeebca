"""The commands that look things up: `blocks`, `schema`."""

from __future__ import annotations

from typing import Annotated

import typer

from composer.cli.options import examples

commands = typer.Typer()


@commands.command(
    short_help="Lists the blocks, or tells all about one.",
    epilog=examples("seqcomposer blocks", "seqcomposer blocks self_attention"),
)
def blocks(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A block.", show_default=False)] = None,
) -> None:
    """Lists the blocks that a recipe can use, or tells all about one."""
    from composer.cli.output import print_block, print_blocks

    print_blocks() if name is None else print_block(name)


@commands.command(
    short_help="Prints the JSON Schema of a recipe, for editors.",
    epilog=examples("seqcomposer schema > recipe.schema.json"),
)
def schema(
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Makes it anew, and that of a sweep and `composer.recipe.classes`, and writes them."
        ),
    ] = False,
) -> None:
    """Prints the JSON Schema of a recipe, for editors: completion, hover texts, faults while typing."""
    from composer.recipe import schema as described

    if not write:
        typer.echo(described.to_json(described.load()), nl=False)
        return
    from composer.recipe import python_classes
    from composer.sweeps import spec_schema as of_sweeps

    rules = described.generate()
    made = {
        described.schema_path(): described.to_json(rules),
        python_classes.classes_path(): python_classes.generate(rules),
    }
    made[of_sweeps.schema_file()] = described.to_json(of_sweeps.generate_schema())
    for file, text in made.items():
        file.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {file}")
