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
    b: Annotated[str | None, argument("B", "A second one.  [default: A]", complete_any)] = None,
    overrides: Annotated[
        list[str] | None, argument("key=value", "Override a setting of B.", complete_key)
    ] = None,
    data: options.DataDir = None,
    quick: Annotated[bool, option("--quick", "Skip the significance test.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compare two recipes or runs.

    Print the changes from A to B: blocks, settings, data and training, with costs and scores.
    Blocks can be inserted, removed, moved, replaced or wrapped; a change that many blocks share is
    printed once. Comments, key order, `vars` and explicit defaults are ignored. For two runs, also
    compare scores, with p-values of paired tests on their translations of the test set.

    Exit status: 0 whether or not they differ, 2 if one is invalid.
    """
    words = [word for word in (b, *(overrides or ())) if word is not None]
    files, settings = options.split_overrides(words)
    if len(files) > 1 or not (files or settings):
        raise typer.BadParameter("name two recipes or runs, or one and `key=value` settings")
    log = partial(options.echo, err=True)
    difference = api.diff(a, files[0] if files else None, data, quick, settings, log)
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

    Show encoders and decoder block by block, each block with its main settings, width and
    parameters, coloured by family. Arrows show which outputs a block reads, dashed arrows outputs
    of the previous position. A run has its own vocabulary sizes, a recipe the upper bounds. In an
    HTML page, click a repeat to fold it.
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

    `run` covers everything that determines a training: model, data and settings. Comments, key
    order, explicit defaults, `vars` and `extends` do not change a fingerprint. Data files are
    hashed by content, so they must exist; `recipe` covers the recipe alone, with data files by
    name. For a run, print the recorded fingerprints and that of its weights; fail if the recipe or
    the weights have changed since.
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

    Editors use it for completion, hover texts and errors while typing.
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
