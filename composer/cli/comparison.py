"""Command `diff`: compare two recipes or runs."""

from __future__ import annotations

from typing import Annotated

import typer

from composer.cli.options import AsJson, DataDir, examples, print_json

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
