"""The commands `diff`, `draw`, `fingerprints`, `blocks` and `schema`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from composer import api
from composer.cli import options
from composer.cli.options import argument, complete_any, complete_block, complete_key, option

commands = typer.Typer()
command = partial(options.with_examples, commands)


@command(
    "seqcomposer diff recipes/ladder/gru.yaml recipes/ladder/gru_attention.yaml",
    "seqcomposer diff recipes/quickstart.yaml runs/quickstart",
    "seqcomposer diff mine.yaml model.width=512 training.seed=2     # with and without these"
    " settings",
    "seqcomposer diff runs/one runs/other",
    "seqcomposer diff runs/mix-and-match#1 runs/mix-and-match#2     # trials of a sweep, by rank",
    "seqcomposer diff 'mine.yaml#score=dot,heads=4' 'mine.yaml#score=dot,heads=8'     # points of a"
    " sweep",
)
def diff(
    a: Annotated[str, argument("A", "A recipe, a run folder, or SWEEP#WHICH.", complete_any)],
    b: Annotated[str | None, argument("B", "The other one.  [default: A]", complete_any)] = None,
    overrides: Annotated[
        list[str] | None, argument("key=value", "Override a setting of B.", complete_key)
    ] = None,
    data: options.DataDir = None,
    quick: Annotated[bool, option("--quick", "Skip the significance test.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare two recipes or runs.

    Prints what to change in A to get B: blocks, settings, data, training; with costs and scores.
    Blocks are inserted, removed, moved, replaced, or wrapped in others; a change that many blocks
    share is printed once. Comments, the order of keys, `vars` and spelt-out defaults make no
    difference. Two runs are also compared by their scores, with p-values of paired tests on their
    translations of the test set. The exit status is 0 whether or not they differ, and 2 if one of
    them is refused.
    """
    others, settings = options.split_overrides(
        [word for word in (b, *(overrides or ())) if word is not None]
    )
    if len(others) > 1 or not (others or settings):
        raise typer.BadParameter("name two recipes or runs, or one and `key=value` settings")
    log = partial(options.echo, err=True)
    difference = api.diff(a, others[0] if others else None, data, quick, settings, log)
    if as_json:
        options.print_json(difference.as_json())
    else:
        options.echo(difference.text())


@command(
    "seqcomposer draw recipes/quickstart.yaml --output quickstart.svg",
    "seqcomposer draw recipes/papers/rnmt_plus.yaml model.width=512 --output rnmt.html",
    "seqcomposer draw runs/mine --output mine.md     # Mermaid in Markdown, as GitHub shows it",
)
def draw(
    recipe: options.RecipeOrRun,
    overrides: options.Overrides = None,
    output: Annotated[
        Path | None,
        option("--output F", ".svg, .png, .pdf, .mmd, .md or .html.  [default: Mermaid]"),
    ] = None,
) -> None:
    """Draw the architecture of a recipe or a run.

    Shows encoders and decoder, block by block, and which block reads which. Every block is shown
    with its main settings, its width and its parameters; every name and memory that is read is an
    arrow, dashed where the value is that of the position before. A run is drawn with its own
    vocabulary sizes, a recipe with the largest that it allows. Colours are the families of blocks;
    a page has repeats that fold at a click.
    """
    from composer.viz.architecture import check_output

    if output is not None:
        check_output(output)
    drawing = api.draw(recipe, overrides or ())
    if output is None:
        options.echo(drawing.mermaid(), nl=False)
    else:
        options.echo(f"wrote {drawing.save(output)}")


@command(
    "seqcomposer fingerprints recipes/quickstart.yaml",
    "seqcomposer fingerprints runs/mine --json | jq -r .run",
)
def fingerprints(
    path: options.RecipeOrRun,
    overrides: options.Overrides = None,
    data: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Print SHA-256 fingerprints of model, data and run.

    They are of the model, the data, and all that decides a training. They do not depend on how the
    recipe is written: comments, the order of keys, spelt-out defaults, `vars` and `extends`. Data
    are hashed by content, wherever the files are, so these must be there; `recipe` is the
    fingerprint of the recipe alone, in which a file is its name. Of a run the recorded ones are
    printed, and that of its weights; a recipe or weights that were changed since are refused.
    """
    prints = api.fingerprints(path, data, overrides or ())
    if as_json:
        options.print_json(prints)
    else:
        for name, value in prints.items():
            options.echo(f"{name:8}{value}")


@command("seqcomposer blocks", "seqcomposer blocks self_attention")
def blocks(
    name: Annotated[str | None, argument("NAME", "A block.", complete_block)] = None,
) -> None:
    """List the blocks by family, or describe one with its settings."""
    from rich.text import Text

    if name is not None:
        print_block(name, api.blocks(name))
        return
    table = options.make_table(["block", "description"])
    families: dict[str, list[tuple[str, str]]] = {}
    for key, block in api.blocks().items():
        families.setdefault(block["x-family"], []).append((key, block["description"]))
    for family, members in sorted(families.items()):
        table.add_row(Text(f"\n{family}", style="bold"))
        for member in members:
            table.add_row(*member)
    options.table_console().print(table)


@command("seqcomposer schema > recipe.schema.json")
def schema(
    write: Annotated[bool, option("--write", "Regenerate the schema file.")] = False,
) -> None:
    """Print the JSON Schema of a recipe, for editors.

    Editors offer completion, hover texts and errors while typing with it.
    """
    from composer.recipe.schema_file import schema_path, schema_text
    from composer.recipe.schema_generator import generate

    if not write:
        options.echo(schema_text(api.schema()), nl=False)
        return
    schema_path().write_text(schema_text(generate()), encoding="utf-8")
    options.echo(f"wrote {schema_path()}")


def print_block(name: str, block: Mapping[str, Any]) -> None:
    """Print one block and its settings, as the JSON Schema describes them."""
    from composer.recipe.schema_reader import describe, scalar_text

    table = options.make_table(["setting", "value", "default", "meaning"])
    for key, setting in block["properties"].items():
        reference = setting.get("$ref", "").rpartition("/")[2]
        value = f"a {reference}" if reference else describe(setting).replace("`", "")
        optional = "-" if setting.get("default") is None else scalar_text(setting["default"])
        default = "required" if key in block["required"] else optional
        table.add_row(key, value, default, setting.get("description", ""))
    console = options.table_console()
    console.print(f"{name}: {block['description']}")
    if first := block.get("x-first"):
        console.print(f"`- {name}: VALUE` sets `{first}`.")
    console.print(table)
