"""The commands `pack` and `pull`: a run is handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import Run, examples
from composer.hub.urls import MOST_GIB

commands = typer.Typer()


@commands.command(
    short_help="Makes one archive or folder of a run, to hand on.",
    epilog=examples(
        "seqcomposer pack runs/mine",
        "seqcomposer pack runs/mine --output mine.tar.gz --license mit",
        "seqcomposer pack runs/mine --output packs/mine       # a folder, as git and the hub take it",
    ),
)
def pack(
    run: Run,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="F|DIR",
            help="A new file that ends in .tar.gz, or a new folder.  [default: NAME.tar.gz, with the recipe's name]",
            show_default=False,
        ),
    ] = None,
    license: Annotated[
        str, typer.Option("--license", metavar="WORD", help="The license, as the hub writes it: mit, cc-by-4.0.")
    ] = "",
) -> None:
    """Makes one archive or folder of a finished run: recipe, weights, tokenizer, metrics, run.json and a model card.

    pack.json has the hash of every file; its own is the pack's fingerprint, which is printed. run.json goes without the
    folders of this machine. A README.md in the run folder is taken as the model card; else one is written, in the form
    of the Hugging Face hub. The same run gives the same bytes.
    """
    from composer.hub.pack import fingerprint, local_paths
    from composer.hub.pack import pack as pack_run

    path = pack_run(run, output, license)
    typer.echo(f"wrote {path}")
    typer.echo(f"sha256 {fingerprint(path)}")
    for place in local_paths(run):
        typer.echo(
            f"note: recipe.yaml names {place}, which others do not have; a path inside the recipe's folder would do",
            err=True,
        )


@commands.command(
    short_help="Brings a run or a recipe of somebody else.",
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
            help="The new folder of a run; the new file of a recipe.  [default: "
            "runs/NAME; a recipe goes into the store only]",
            show_default=False,
        ),
    ] = None,
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="HEX", help="The fingerprint of what must come.")
    ] = None,
    max_gib: Annotated[
        float, typer.Option("--max_gib", metavar="N", min=0.001, help="What is larger is refused, in GiB.")
    ] = MOST_GIB,
) -> None:
    """Brings a pack, a run folder or a recipe from a path, git, Weights & Biases or the Hugging Face hub.

    Every hash is verified before anything is put in place, and nothing that comes is run: a pack is text and weights,
    and what else is in it is refused. What is left is a run folder, which `translate`, `evaluate`, `report` and
    `train --from` take. Its recipe, or the recipe that was pulled, is kept in the store, so that others can extend it:
    the lines to copy are printed.
    """
    from composer.hub.pull import pull_reference

    found = pull_reference(ref, output, sha256, max_gib)
    typer.echo(found.told(), err=True)
    typer.echo(found.extends())
