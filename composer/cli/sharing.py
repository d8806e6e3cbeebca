"""Commands that bring models in and out: `import`, `pack`, `push`, `pull`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from composer import api
from composer.cli import options
from composer.cli.options import argument, option
from composer.hub.listing import DEFAULT_MAX_GIB

REF_HELP = (
    "Path, FOLDER/NAME[@ALIAS] of a shelf, hub:OWNER/NAME[@REV],"
    " wandb:[ENTITY/]PROJECT/NAME[:ALIAS] or git+URL[@REV]; #PATH after a repository."
)

commands = typer.Typer()
command = partial(options.with_examples, commands)


@command(
    "seqcomposer import hub:HuggingFaceTB/SmolLM2-135M",
    "seqcomposer import downloads/opus-mt-en-de --output runs/en-de",
    name="import",
)
def import_(
    ref: Annotated[str, argument("REF", "A folder, or hub:OWNER/NAME[@REV].")],
    output: Annotated[
        Path | None, option("--output RUN", "New run folder.  [default: runs/NAME]")
    ] = None,
    max_gib: Annotated[
        float, option("--max-gib N", "Refuse downloads above N GiB.", min=0.001)
    ] = DEFAULT_MAX_GIB,
) -> None:
    """Import a published model as a run.

    Read config.json, safetensors and the tokenizer; write a recipe of this project's blocks with
    the same weights, for `translate`, `generate`, `train --from` and recipes that extend it. Models
    of the kinds Llama, Mistral, Qwen 2, GPT-2, BART, Marian, T5, Whisper; of BERT, an encoder. No
    code of the model is run, and no pickle is read.
    """
    with options.show_loading():
        from composer.importers.import_run import import_model
    options.echo(f"wrote {import_model(ref, output, max_gib)}")


@command(
    "seqcomposer pack runs/mine",
    "seqcomposer pack runs/mine --output mine.tar --license mit",
    "seqcomposer pack runs/mine --output packs/mine       # a folder, for git or the Hugging"
    " Face hub",
)
def pack(
    run: options.Run,
    output: Annotated[
        Path | None, option("--output F|DIR", ".tar file or folder.  [default: NAME.tar]")
    ] = None,
    license: Annotated[
        str, option("--license ID", "License identifier of the hub: mit, cc-by-4.0.")
    ] = "",
) -> None:
    """Pack a finished run into one archive or folder.

    The pack holds recipe, weights, tokenizer, metrics, run.json without local paths, and a model
    card: the run folder's README.md, or else one for the Hugging Face hub. pack.json lists the
    SHA-256 of every file; the SHA-256 of pack.json is the pack's fingerprint, which is printed.
    Packing the same run again gives the same bytes.
    """
    from composer.hub.pack import pack_with_hash
    from composer.hub.pack_format import local_paths_in
    from composer.recipe.recipe import load

    path, sha256 = pack_with_hash(run, output, license)
    options.echo(f"wrote {path}")
    options.echo(f"sha256 {sha256}")
    for local_path in local_paths_in(load(run / "recipe.yaml").canonical["data"]):
        note = f"note: recipe.yaml names {local_path}, which others do not have"
        options.echo(f"{note}; use a path inside the recipe's folder", err=True)


@command(
    "seqcomposer push runs/mine hub:ann/mine --license mit",
    "seqcomposer push runs/mine wandb:ann/seqcomposer/mine:best",
    "seqcomposer push runs/mine /srv/shelf --as mine@best",
)
def push(
    run: options.Run,
    ref: Annotated[str, argument("REF", REF_HELP)],
    name: Annotated[
        str, option("--as NAME[@ALIAS]", "Name and alias on the shelf REF, a folder.")
    ] = "",
    license: Annotated[
        str, option("--license ID", "License identifier of the hub: mit, cc-by-4.0.")
    ] = "",
) -> None:
    """Pack a finished run and upload it.

    Print the reference that `pull` takes. Nothing is overwritten: the hub, Weights & Biases, git
    and a shelf keep the earlier versions, and an existing folder is refused. Needs an account where
    it uploads to: `hf auth login`, `wandb login` or git's own credentials.
    """
    pushed = api.push(run, ref, name, license)
    options.echo(pushed.ref)
    options.echo(f"sha256 {pushed.sha256}", err=True)
    if pushed.note:
        options.echo(f"note: {pushed.note}", err=True)


@command(
    "seqcomposer pull mine.tar",
    "seqcomposer pull 'git+https://example.org/ann/models@v1#packs/mine' --sha256 4aae...b9d3",
    "seqcomposer pull hub:ann/mine --output runs/ann",
    "seqcomposer pull wandb:ann/seqcomposer/recipe-1d52ecce:v0",
)
def pull(
    ref: Annotated[
        str,
        argument("REF", REF_HELP),
    ],
    output: Annotated[
        Path | None, option("--output DIR", "Folder or recipe.  [default: runs/NAME, or cache]")
    ] = None,
    sha256: Annotated[
        str | None, option("--sha256 HEX", "Expected SHA-256 of the download; fail on mismatch.")
    ] = None,
    max_gib: Annotated[
        float, option("--max-gib N", "Refuse downloads above N GiB.", min=0.001)
    ] = DEFAULT_MAX_GIB,
) -> None:
    """Download a packed run or a recipe.

    Download from a path, git, Weights & Biases or the Hugging Face hub; a run folder need not be
    packed. Verify every hash before installing anything. Never run code: a pack with anything but
    text and weights is refused. The result is a run folder for `translate`, `evaluate`, `report`
    and `train --from`. Its recipe is cached for other recipes to extend; print the lines to copy.
    """
    from composer.hub.pull import pull_reference

    pulled = pull_reference(ref, output, sha256, max_gib)
    options.echo(pulled.text(), err=True)
    options.echo(pulled.extends())
