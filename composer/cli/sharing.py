"""Commands `pack` and `pull`: share a trained run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import Run, examples
from composer.hub.remotes import DEFAULT_MAX_GIB

commands = typer.Typer()


@commands.command(
    short_help="Pack a finished run into one archive or folder.",
    epilog=examples(
        "seqcomposer pack runs/mine",
        "seqcomposer pack runs/mine --output mine.tar.gz --license mit",
        "seqcomposer pack runs/mine --output packs/mine       # a folder, for git or the Hugging Face hub",
    ),
)
def pack(
    run: Run,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="F|DIR",
            help="New file that ends in .tar.gz, or new folder.  [default: NAME.tar.gz, with the recipe's name]",
            show_default=False,
        ),
    ] = None,
    license: Annotated[
        str, typer.Option("--license", metavar="ID", help="License identifier of the hub: mit, cc-by-4.0.")
    ] = "",
) -> None:
    """Pack a finished run into one archive or folder: recipe, weights, tokenizer, metrics, run.json and a model card.

    pack.json lists the SHA-256 of every file; its own SHA-256 is the pack's fingerprint and is printed. run.json is
    packed without local paths. A README.md in the run folder is used as the model card; otherwise one is written for
    the Hugging Face hub. Packing the same run again gives the same bytes.
    """
    from composer.hub.pack import fingerprint, local_paths
    from composer.hub.pack import pack as pack_run

    path = pack_run(run, output, license)
    typer.echo(f"wrote {path}")
    typer.echo(f"sha256 {fingerprint(path)}")
    for local_path in local_paths(run):
        note = f"note: recipe.yaml names {local_path}, which others do not have; use a path inside the recipe's folder"
        typer.echo(note, err=True)


@commands.command(
    short_help="Download a packed run or a recipe.",
    epilog=examples(
        "seqcomposer pull mine.tar.gz",
        "seqcomposer pull 'git+https://example.org/ann/models@v1#packs/mine' --sha256 4aae...b9d3",
        "seqcomposer pull hub:ann/mine --output runs/ann",
        "seqcomposer pull wandb:ann/seqcomposer/recipe-1d52ecce:v0",
    ),
)
def pull(
    ref: Annotated[
        str,
        typer.Argument(
            metavar="REF",
            help="A path, git+URL[@REVISION][#PATH], hub:OWNER/NAME[@REVISION][#PATH] or "
            "wandb:[ENTITY/]PROJECT/NAME:VERSION.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="DIR",
            help="New folder of a run, or new file of a recipe.  [default: runs/NAME; a recipe is only cached]",
            show_default=False,
        ),
    ] = None,
    sha256: Annotated[
        str | None,
        typer.Option("--sha256", metavar="HEX", help="Expected SHA-256 of the download; fail on mismatch."),
    ] = None,
    max_gib: Annotated[
        float, typer.Option("--max-gib", metavar="N", min=0.001, help="Refuse downloads larger than N GiB.")
    ] = DEFAULT_MAX_GIB,
) -> None:
    """Download a packed run, a run folder or a recipe: from a path, git, Weights & Biases or the Hugging Face hub.

    Every hash is verified before anything is put in place, and no code is run: a pack is text and weights, and a pack
    with anything else is refused. The result is a run folder for `translate`, `evaluate`, `report` and `train --from`.
    Its recipe, or the recipe that was pulled, is cached, so that other recipes can extend it: the lines to copy are
    printed.
    """
    from composer.hub.pull import pull_reference

    pulled = pull_reference(ref, output, sha256, max_gib)
    typer.echo(pulled.text(), err=True)
    typer.echo(pulled.extends())
