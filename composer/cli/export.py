"""The command `export`: a model for those who do not have this project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import Overrides, examples, require_recipe_file

commands = typer.Typer()


@commands.command(
    short_help="Writes a model as one plain PyTorch file, or for CTranslate2.",
    epilog=examples(
        "seqcomposer export runs/mine --script mine.py",
        "python mine.py --weights runs/mine/model.safetensors --tokenizer runs/mine/tokenizer.json < test.en",
        "seqcomposer export recipes/papers/bahdanau2015.yaml --script bahdanau.py model.width=256",
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
            "--script", metavar="F.py", help="Where the Python file goes; nothing is written over.", show_default=False
        ),
    ] = None,
    ctranslate2: Annotated[
        Path | None,
        typer.Option(
            "--ctranslate2",
            metavar="DIR",
            help="Where a folder of CTranslate2 goes; of a run that is a standard Transformer.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Writes the model as one Python file that needs PyTorch alone, and runs where this project is not installed.

    It holds the classes of the blocks that the recipe uses, and gives the same outputs: it loads a run's
    model.safetensors, translates as the recipe decodes, and can be trained from the same initial values. Of a run only
    what starts with `decoding` can be set. CTranslate2 translates with standard Transformers, faster than PyTorch does;
    what it does not know is refused.
    """
    if script is None and ctranslate2 is None:
        raise typer.BadParameter("say where the file goes: `--script F.py`", param_hint="--script")
    if ctranslate2 is not None and overrides:
        raise typer.BadParameter("CTranslate2 is told how to search when it is called", param_hint="key=value")
    require_recipe_file(source)
    if script is not None:
        from composer.exporters.script import export_script

        file = export_script(source, script, overrides or ())
        typer.echo(f"wrote {file} ({file.stat().st_size / 1024:,.0f} KiB); python {file} --help tells what it does")
    if ctranslate2 is not None:
        from composer.exporters.ctranslate2 import export_ctranslate2

        typer.echo(f"wrote {export_ctranslate2(source, ctranslate2)}")
