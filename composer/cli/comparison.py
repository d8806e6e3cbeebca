"""The command `diff`: what two recipes or runs have different."""

from __future__ import annotations

from typing import Annotated

import typer

from composer.cli.options import AsJson, DataDir, examples, print_json

commands = typer.Typer()


@commands.command(
    short_help="Tells what two recipes or runs have different.",
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
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    data: DataDir = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leaves out what two runs translate, and so whether chance explains it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tells what to change in A to get B: blocks, settings, data, training; what that costs, and what it brings.

    Blocks are inserted, removed, moved, replaced, or wrapped in others; what the same setting of many blocks does is
    told once. Comments, the order of keys, `vars` and spelt-out defaults are no difference. Two runs are compared by
    their scores too, with p from paired tests on what both translate of the test part. The exit status is 0 whether or
    not they differ, and 2 where one of them is refused.
    """
    from composer.comparison.diff import diff as difference

    found = difference(a, b, data, quick, lambda line: typer.echo(line, err=True))
    if as_json:
        print_json(found.as_json())
    else:
        typer.echo(found.text())
