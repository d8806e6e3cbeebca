"""The commands about sweeps: many recipes out of one short file, run, and put in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from composer.cli.options import AsJson, DataDir, Overrides, examples, print_json
from composer.errors import RunError

if TYPE_CHECKING:
    from composer.sweeps.axes import Sweep

File = Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep: a YAML file.", show_default=False)]

commands = typer.Typer()


@commands.command(
    short_help="Trains every combination that a sweep names.",
    epilog=examples(
        "seqcomposer sweep recipes/sweeps/attention_scores.yaml --dry-run",
        "seqcomposer sweep mine.yaml --workers 2",
        "seqcomposer sweep mine.yaml training.max_minutes=8 --run runs/longer",
        "seqcomposer sweep mine.yaml --wandb wandb.yaml     # then: wandb sweep wandb.yaml",
    ),
)
def sweep(
    file: File,
    overrides: Overrides = None,
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Trials at the same time.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Lists the points, and trains nothing.")] = False,
    data: DataDir = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="The sweep's folder.  [default: runs/NAME]", show_default=False),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray", metavar="ADDRESS", help="Trains on a Ray cluster: auto, local, or its address.", show_default=False
        ),
    ] = None,
    wandb: Annotated[
        Path | None,
        typer.Option(
            "--wandb",
            metavar="F",
            help="Writes a sweep file of Weights & Biases, and trains nothing.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Trains the points of a sweep: every combination of its axes, or those that a search chooses.

    Every point is checked before the first one trains. Each is an ordinary run folder, RUN/trials/FINGERPRINT/seed-N;
    the same command goes on where a sweep was stopped, and trains nothing twice.
    """
    from composer.sweeps.spec import read_sweep

    read = read_sweep(file, overrides or (), data)
    if wandb is not None:
        _export(read, overrides or (), data, wandb)
    if dry_run:
        _list(read, as_json)
    if wandb is not None or dry_run:
        return
    try:
        from composer.sweeps.scheduler import run_sweep
    except ModuleNotFoundError as error:
        message = f"the package `{error.name}` is not installed, and sweeps need it"
        raise RunError.of(message, f"pip install {error.name}", str(file)) from None
    from composer.run_dir import RUNS

    raise typer.Exit(run_sweep(read, run or RUNS / read.name, workers, data, ray))


def _export(sweep: Sweep, overrides: Sequence[str], data: Path | None, output: Path) -> None:
    from composer.sweeps import wandb_sweep

    for lost in wandb_sweep.write_wandb_sweep(output, sweep, overrides, data):
        typer.echo(f"note: {lost}", err=True)
    typer.echo(f"wrote {output}\nnext: wandb sweep {output}", err=True)


def _list(sweep: Sweep, as_json: bool) -> None:
    from composer.sweeps.tables import list_points

    found = list_points(sweep)
    if as_json:
        print_json(found.as_json())
    else:
        typer.echo(found.text())


@commands.command(
    short_help="Puts the trials of a sweep in order.",
    epilog=examples(
        "seqcomposer leaderboard runs/mix-and-match",
        "seqcomposer leaderboard mine.yaml --output mine.html",
        "seqcomposer leaderboard runs/mix-and-match --compare 1 2",
    ),
)
def leaderboard(
    sweep: Annotated[Path, typer.Argument(metavar="SWEEP", help="A sweep's folder, or its file.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="F", help="The page's file.  [default: FOLDER/leaderboard.html]", show_default=False
        ),
    ] = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--compare",
            metavar="A B",
            help="Two runs, by rank, by fingerprint or by folder: is their difference in BLEU more than chance?",
            show_default=False,
        ),
    ] = None,
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Puts the trials of a sweep in order, as a table and as one HTML page that opens anywhere.

    Mean and spread over seeds, what each trial costs, and what each axis contributes. The sweep need not have ended.
    """
    from composer.sweeps.leaderboard import open_leaderboard

    board = open_leaderboard(sweep)
    if compare is not None:
        from composer.sweeps.significance import compare_trials as compare_runs
        from composer.sweeps.significance import comparison_text, find_run

        one, other = (find_run(board, word) for word in compare)
        typer.echo(comparison_text(compare_runs(one, other, data)))
        return
    if as_json:
        from composer.sweeps.leaderboard import leaderboard_json as plain

        print_json(plain(board))
        return
    from composer.sweeps.leaderboard_html import write_leaderboard
    from composer.sweeps.tables import leaderboard_text, terminal_width

    typer.echo(leaderboard_text(board, terminal_width()))
    typer.echo(f"wrote {write_leaderboard(board, output)}")
