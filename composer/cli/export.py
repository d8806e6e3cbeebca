"""Command `export`: a model for those who do not have this project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import Overrides, examples, require_recipe_file

commands = typer.Typer()


@commands.command(
    short_help="Export a model to PyTorch alone, or to CTranslate2.",
    epilog=examples(
        "seqcomposer export runs/mine --script mine",
        "python mine 'a man sleeps'",
        "python mine < test.en > test.de",
        "seqcomposer export recipes/papers/bahdanau2015.yaml --script bahdanau model.width=256",
        "seqcomposer export runs/mine --ctranslate2 mine-ct2",
    ),
)
def export(
    source: Annotated[
        Path, typer.Argument(metavar="RUN|RECIPE", help="A run folder, or a recipe: a YAML file.", show_default=False)
    ],
    overrides: Overrides = None,
    script: Annotated[
        Path | None,
        typer.Option(
            "--script", metavar="DIR", help="New folder of Python modules that need PyTorch alone.", show_default=False
        ),
    ] = None,
    ctranslate2: Annotated[
        Path | None,
        typer.Option(
            "--ctranslate2",
            metavar="DIR",
            help="New folder of a CTranslate2 model, of a run that is a standard Transformer.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Export the model to run where this project is not installed.

    `--script` writes a folder with the modules of this project that the model needs, unchanged, its weights and its
    tokenizer. It needs PyTorch alone, translates as the recipe decodes (`python DIR "a sentence"`), and gives the same
    outputs. Of a run only settings of `decoding` can be changed; a recipe is exported with random weights.
    `--ctranslate2` is faster than PyTorch, for standard Transformers; other models are refused.
    """
    if script is None and ctranslate2 is None:
        raise typer.BadParameter("name the new folder: `--script DIR`", param_hint="--script")
    if ctranslate2 is not None and overrides:
        message = "decoding options of CTranslate2 are given when it is called"
        raise typer.BadParameter(message, param_hint="key=value")
    require_recipe_file(source)
    if script is not None:
        from composer.exporters.script import export_script

        typer.echo(f"wrote {export_script(source, script, overrides or ())}; try it: python {script} --help")
    if ctranslate2 is not None:
        from composer.exporters.ctranslate2 import export_ctranslate2

        typer.echo(f"wrote {export_ctranslate2(source, ctranslate2)}")
