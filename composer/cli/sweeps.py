"""The commands `sweep` and `leaderboard`."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from composer import api
from composer.cli import options
from composer.cli.options import argument, complete_recipe, option
from composer.errors import RunError

commands = typer.Typer()
command = partial(options.with_examples, commands)

MODES = (
    {"--status"},
    {"--dry-run", "--slurm"},
    {"--dry-run", "--ray"},
    {"--retry", "--slurm"},
    {"--retry", "--ray"},
)
"""Flags of `sweep` that go together: they look, list or run."""


@command(
    "seqcomposer sweep recipes/sweeps/attention_scores.yaml --dry-run",
    "seqcomposer sweep mine.yaml --workers 2",
    "seqcomposer sweep recipe.yaml --seeds 3            # one recipe, seeds 1, 2 and 3",
    "seqcomposer sweep mine.yaml training.max_minutes=8 --run runs/longer",
    "seqcomposer sweep mine.yaml --slurm --workers 16   # at most 16 jobs at once",
    "seqcomposer sweep mine.yaml --status               # done, running, failed, pruned, left",
    "seqcomposer sweep mine.yaml --retry                # resume, and retry failed trials",
)
def sweep(
    file: Annotated[
        Path, argument("SWEEP", "YAML file of a sweep; with --seeds, a recipe.", complete_recipe)
    ],
    overrides: options.Overrides = None,
    seeds: Annotated[
        str | None,
        option("--seeds N|A,B,...", "Train a recipe with N seeds, or with the given ones."),
    ] = None,
    workers: Annotated[int, option("--workers N", "Train N trials at once.", min=1)] = 1,
    dry_run: Annotated[
        bool, option("--dry-run", "List the points, their costs and the jobs; train nothing.")
    ] = False,
    data: options.DataDir = None,
    run: Annotated[
        Path | None, option("--run DIR", "Directory to write.  [default: runs/NAME]")
    ] = None,
    ray: Annotated[
        str | None, option("--ray ADDRESS", "Train on a Ray cluster: auto, local or an address.")
    ] = None,
    slurm: Annotated[bool, option("--slurm", "Train each trial as a job of Slurm.")] = False,
    retry: Annotated[bool, option("--retry", "Retry failed trials.")] = False,
    status: Annotated[bool, option("--status", "Show progress; start nothing.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Run a sweep over architectures and settings, or train a recipe with several seeds.

    Train every combination of the axes, or the points that a search suggests. Check all points
    before training the first. Each trial is an ordinary run folder, RUN/trials/FINGERPRINT/seed-N.
    Run the same command again to resume an interrupted sweep, on any machine that sees its folder;
    nothing is trained twice. With --ray or --slurm, this process hands trials to the cluster, and
    must keep running; if it is killed, jobs of Slurm run on, and the same command finds them.

    A killed training resumes from its last checkpoint; it has failed if it was killed five times in
    a row without a new checkpoint. A failed trial is retried as often as `retries` in the sweep's
    file says, by default never. --retry resets this count for all failed trials.

    Exit status: 0 if all trials have ended and none has failed, 1 if one has failed or none has
    finished. With --dry-run, 2 if a point is impossible that no condition excludes; a sweep skips
    it.
    """
    flags = {
        "--status": status,
        "--slurm": slurm,
        "--dry-run": dry_run,
        "--ray": ray,
        "--retry": retry,
    }
    refuse_mixed({flag for flag, value in flags.items() if value})
    if as_json and not (status or dry_run):
        raise typer.BadParameter("only `--status` and `--dry-run` print JSON", param_hint="--json")
    if status:
        from composer.sweeps.status import sweep_status

        state = sweep_status(file, run)
        options.print_json(state.as_json()) if as_json else options.echo(state.text())
        return
    if not dry_run:
        board = api.sweep(file, overrides or (), workers, data, run, ray, slurm, retry, seeds)
        from composer.sweeps.trial import exit_status

        if board.results:
            next_command = f"seqcomposer leaderboard {shlex.quote(str(board.folder))}"
            options.echo(f"next: {next_command}")
        raise typer.Exit(exit_status(result.trial.status for result in board.results))
    from composer.sweeps.dry_run import dry_run_json, dry_run_text
    from composer.sweeps.executors.engine import describe_request
    from composer.sweeps.measured_goals import check_goals
    from composer.sweeps.points import list_points, point_recipe
    from composer.sweeps.spec import read_sweep

    spec = read_sweep(file, overrides or (), data, seeds)
    points = list_points(spec)
    if point := next((point for point in points if point.status == "trained"), None):
        check_goals(spec, point_recipe(spec, point.point))
    engine, resources = api.engine_of(ray, slurm), spec.resources
    if engine.has_machines:
        from composer.sweeps.planned_memory import with_planned_memory

        trained = [point for point in points if point.status == "trained"]
        resources = with_planned_memory(spec, trained, partial(options.echo, err=True))
    try:
        request = describe_request(engine, spec.name, workers, resources)
    except RunError as error:  # the sweep may be meant for another machine
        request = f"{error.faults[0].message}: {error.faults[0].hint}"
    if as_json:
        options.print_json(dry_run_json(spec, points) | {"jobs": request})
    else:
        options.echo(dry_run_text(spec, points))
        options.echo(f"trainings: {request}")
    impossible = any(point.status == "impossible" for point in points)
    raise typer.Exit(options.REFUSED if impossible else options.DONE)


def refuse_mixed(flags: set[str]) -> None:
    """Raise BadParameter for flags that do not go together."""
    if not any(flags <= mode for mode in MODES):
        first, *others = (f"`{flag}`" for flag in sorted(flags))
        raise typer.BadParameter(f"{first} cannot be combined with {', '.join(others)}")


@command(
    "seqcomposer leaderboard runs/mix-and-match",
    "seqcomposer leaderboard mine.yaml --output mine.html",
    "seqcomposer leaderboard runs/mix-and-match runs/more-mixes      # one leaderboard of both",
)
def leaderboard(
    sweeps: Annotated[
        list[Path], argument("SWEEP", "Directories or files of sweeps.", complete_recipe)
    ],
    output: Annotated[
        Path | None, option("--output F", "HTML page to write.  [default: DIR/leaderboard.html]")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Rank the trials of sweeps.

    Print a table and write an HTML page that opens offline, with means and standard deviations over
    seeds, significance tests against the best trial, costs, and the effect of each axis with
    confidence intervals. The sweeps may still be running. The page of several sweeps is
    leaderboard.html in the current folder.
    """
    board = api.leaderboard(*sweeps)
    if as_json:
        options.print_json(board.as_json())
    else:
        from composer.sweeps.leaderboard.page import write_leaderboard

        options.echo(board.text(options.terminal_width()))
        options.echo(f"wrote {write_leaderboard(board, output)}")
