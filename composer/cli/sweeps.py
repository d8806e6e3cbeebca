"""The commands `sweep` and `leaderboard`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from composer import api
from composer.cli import options
from composer.cli.options import argument, complete_recipe, option

commands = typer.Typer()
command = partial(options.with_examples, commands)

MODES = ({"--status"}, {"--slurm"}, {"--dry-run"}, {"--ray", "--worker", "--retry"})
"""Flags of `sweep` that go together: they look, submit, list or run."""


@command(
    "seqcomposer sweep recipes/sweeps/attention_scores.yaml --dry-run",
    "seqcomposer sweep mine.yaml --workers 2",
    "seqcomposer sweep mine.yaml --worker               # on any number of machines that share the"
    " folder",
    "seqcomposer sweep mine.yaml training.max_minutes=8 --run runs/longer",
    "seqcomposer sweep mine.yaml --slurm --workers 16",
    "seqcomposer sweep mine.yaml --status               # what is done, running, failed, pruned,"
    " left",
    "seqcomposer sweep mine.yaml --retry                # go on, and try again what has failed",
)
def sweep(
    file: Annotated[Path, argument("SWEEP", "A sweep: a YAML file.", complete_recipe)],
    overrides: options.Overrides = None,
    workers: Annotated[int, option("--workers N", "Trials trained in parallel.", min=1)] = 1,
    worker: Annotated[
        bool, option("--worker", "Share the sweep with other such processes.")
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", "List the points and their costs only.")] = False,
    data: options.DataDir = None,
    run: Annotated[
        Path | None, option("--run DIR", "Directory of the sweep.  [default: runs/NAME]")
    ] = None,
    ray: Annotated[
        str | None, option("--ray ADDRESS", "Train on a Ray cluster: auto, local or its address.")
    ] = None,
    slurm: Annotated[
        bool, option("--slurm", "Submit the workers to Slurm as a job array.")
    ] = False,
    retry: Annotated[bool, option("--retry", "Try those trials again that have failed.")] = False,
    status: Annotated[
        bool, option("--status", "Print what is done and what is left; start nothing.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a sweep over architectures and settings.

    Its points are every combination of its axes, or those that a search suggests. All points are
    checked before the first one trains. Each is an ordinary run folder,
    RUN/trials/FINGERPRINT/seed-N. The same command resumes a sweep that was stopped, and trains
    nothing twice. With `--worker` it may be started any number of times, on this machine and on
    others: each takes the next point, and the points of one that has died.

    A training that was killed goes on from its last checkpoint, unless it was killed five times in
    a row without a new one: then it has failed. A trial that failed is tried again as often as
    `retries` in the sweep's file says, 0 by default. `--retry` gives every trial that has failed
    all these chances again.

    Exit status: 0 where all trials have ended and none has failed, 1 where one has failed or none
    has finished. With `--dry-run` 2 where a point is impossible that no condition excludes; a sweep
    trains the others.
    """
    flags = {"--status": status, "--slurm": slurm, "--dry-run": dry_run, "--ray": ray}
    refuse_mixed(
        {flag for flag, value in (flags | {"--worker": worker, "--retry": retry}).items() if value}
    )
    if as_json and not (status or dry_run):
        raise typer.BadParameter("only `--status` and `--dry-run` print JSON", param_hint="--json")
    if status:
        from composer.sweeps.status import sweep_status

        state = sweep_status(file, run)
        options.print_json(state.as_json()) if as_json else options.echo(state.text())
        return
    if slurm:
        job, folder = api.submit_sweep(file, overrides or (), workers, data, run)
        options.echo(
            f"submitted job {job} with {workers} workers, which log to {folder / 'slurm'}", err=True
        )
        options.echo(
            f"next: squeue --job {job}; seqcomposer sweep {file} --run {folder} --status", err=True
        )
        raise typer.Exit(options.DONE)
    if not dry_run:
        board = api.sweep(file, overrides or (), workers, data, run, ray, worker, retry)
        from composer.sweeps.trial import exit_status

        raise typer.Exit(exit_status(result.trial.status for result in board.results))
    from composer.sweeps.points import dry_run_json, dry_run_text, list_points
    from composer.sweeps.spec import read_sweep

    spec = read_sweep(file, overrides or (), data)
    points = list_points(spec)
    (
        options.print_json(dry_run_json(spec, points))
        if as_json
        else options.echo(dry_run_text(spec, points))
    )
    impossible = any(point.status == "impossible" for point in points)
    raise typer.Exit(options.REFUSED if impossible else options.DONE)


def refuse_mixed(flags: set[str]) -> None:
    """Raise BadParameter for flags of several modes."""
    mode = next((mode for mode in MODES if mode & flags), set())
    if others := sorted(flags - mode):
        one = min(mode & flags)
        raise typer.BadParameter(
            f"`{one}` goes without {', '.join(f'`{flag}`' for flag in others)}"
        )


@command(
    "seqcomposer leaderboard runs/mix-and-match",
    "seqcomposer leaderboard mine.yaml --output mine.html",
    "seqcomposer leaderboard runs/mix-and-match runs/more-mixes      # one leaderboard of both",
)
def leaderboard(
    sweeps: Annotated[
        list[Path], argument("SWEEP", "Sweeps: their directories, or files.", complete_recipe)
    ],
    output: Annotated[
        Path | None, option("--output F", "HTML page.  [default: FOLDER/leaderboard.html]")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Rank the trials of sweeps.

    Prints a table and writes one HTML page that opens offline. It has means and standard deviations
    over seeds, which trials cannot be told from the best, costs, and what each axis contributes,
    with intervals. The sweeps may still be running. The page of several sweeps is leaderboard.html
    in this folder.
    """
    board = api.leaderboard(*sweeps)
    if as_json:
        options.print_json(board.as_json())
    else:
        from composer.sweeps.leaderboard_html import write_leaderboard

        options.echo(board.text(options.terminal_width()))
        options.echo(f"wrote {write_leaderboard(board, output)}")
