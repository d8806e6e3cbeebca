"""The commands `new`, `check`, `plan` and `train`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from composer.cli.options import (
    DONE,
    REFUSED,
    AsJson,
    DataDir,
    Overrides,
    Recipe,
    examples,
    print_json,
    require_recipe_file,
    show_loading,
)
from composer.errors import ComposerError, Fault

commands = typer.Typer()


@commands.command(
    short_help="Write a commented recipe for your own text.",
    epilog=examples(
        "seqcomposer new --source train.en --target train.de",
        "seqcomposer new --source a.txt --target b.txt --output ab.yaml",
    ),
)
def new(
    source: Annotated[
        Path, typer.Option("--source", metavar="F", help="Source text, one sentence per line.", show_default=False)
    ],
    target: Annotated[
        Path,
        typer.Option("--target", metavar="F", help="Target text, line by line.", show_default=False),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="F",
            help="The file to write.  [default: from the names of the texts]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a commented recipe for your own text, with a model size that suits the amount of it.

    Some of the pairs are held out for validation and test. Text is UTF-8, with or without a BOM; LF or CRLF. Never
    overwrites a file.
    """
    from composer.cli.new_recipe import next_steps, write_new_recipe

    path = write_new_recipe(source, target, output)
    typer.echo("\n".join(next_steps(source, target, path)))


@commands.command(
    short_help="Report every error of recipes and their data.",
    epilog=examples("seqcomposer check recipes/quickstart.yaml", "seqcomposer check --json mine/*.yaml"),
)
def check(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE", help="Recipes (YAML files).", show_default=False)],
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Report every error of recipes, each with file, line, column and a fix.

    Validates the text, builds the model without allocating it, and inspects the data files. A recipe that `check`
    accepts trains, decodes and resumes. Writes nothing. Exit status 2 if there is an error.
    """
    faults = [fault for recipe in recipes for fault in _faults_of(recipe, data, quiet=as_json)]
    if not (faults or as_json) and len(recipes) == 1:
        folder = ["--data", str(data)] if data else []
        typer.echo(f"next: {shlex.join(['seqcomposer', 'train', str(recipes[0]), *folder])}")
    if as_json:
        print_json([fault.as_dict() for fault in sorted(set(faults))])
        raise typer.Exit(REFUSED if faults else DONE)
    if faults:
        raise ComposerError(faults)


def _faults_of(path: Path, data: Path | None, quiet: bool) -> list[Fault]:
    from composer.checking import check_file

    try:
        require_recipe_file(path)
        with show_loading():
            recipe, plan = check_file(path, (), data)
    except ComposerError as error:
        return error.faults
    if not quiet:
        typer.echo(f"{path}: no faults; at most {plan.parameters:,} parameters; {_budget(recipe.training)}")
    return []


def _budget(training: Mapping[str, Any]) -> str:
    """Return for how long a recipe trains, in words."""
    limits = {unit: training[f"max_{unit}"] for unit in ("steps", "epochs", "minutes")}
    parts = [
        f"{limit:,.10g} {unit.removesuffix('s') if limit == 1 else unit}" for unit, limit in limits.items() if limit
    ]
    return f"trains for {' or '.join(parts)}{', whichever ends first' if len(parts) > 1 else ''}"


@commands.command(
    short_help="Show what a recipe costs, block by block.",
    epilog=examples("seqcomposer plan recipes/quickstart.yaml", "seqcomposer plan --json mine.yaml | jq .parameters"),
)
def plan(recipe: Recipe, as_json: AsJson = False) -> None:
    """Show what a recipe costs: width, parameters, FLOPs and decoding state of every block.

    The model is built by the same code as for training, without allocating it. FLOPs and state are those of one pair
    of 32 source and 32 target tokens.
    """
    from composer.recipe.recipe import load

    require_recipe_file(recipe)
    loaded = load(recipe)
    from composer.model.planner import plan as plan_recipe

    planned = plan_recipe(loaded)
    if as_json:
        print_json(planned.as_json())
    else:
        from composer.cli.output import print_plan

        print_plan(planned)


@commands.command(
    short_help="Train a recipe and write a run folder.",
    epilog=examples(
        "seqcomposer train recipes/quickstart.yaml",
        "seqcomposer train mine.yaml training.max_minutes=60 model.encoder.1.repeat.times=6 --run runs/deep",
        "seqcomposer train mine.yaml --run runs/deep --resume",
        "seqcomposer train mine.yaml --seeds 3     # runs/mine/seed-1, seed-2, seed-3",
        "seqcomposer train runs/mine/recipe.yaml   # reproduces it in runs/mine-repeat and compares the weights",
        "seqcomposer train recipes/sweeps/attention_scores.yaml score=dot     # one point of a sweep",
    ),
)
def train(
    recipe: Recipe,
    overrides: Overrides = None,
    data: DataDir = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="The run folder.  [default: runs/NAME]", show_default=False),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped or killed; start it if there is none.")
    ] = False,
    from_run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Initialize the weights from another run.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="N|A,B,...",
            help="Train N seeds, or these, one after another, each as a run RUN/seed-N;"
            " RUN/seeds.json summarizes them.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Train a recipe and write a run folder.

    The run folder holds the resolved recipe, tokenizer, metrics, checkpoints and final weights: all that `translate`,
    `evaluate` and a colleague need. A folder that is not empty is refused without --resume. The recipe of a run folder
    reproduces that run. Given a sweep, train the one point that `axis=value` selects.
    """
    from composer.recipe.recipe import load
    from composer.sweeps.spec import is_sweep

    if is_sweep(recipe):
        from composer.sweeps.points import point_from_args

        if seeds is not None:
            raise typer.BadParameter("train a point of a sweep with `training.seed=N`", param_hint="--seeds")
        point = point_from_args(recipe, overrides or (), data)
        loaded, run = point.recipe, run or point.folder
    else:
        loaded = load(recipe, overrides or (), data)
    if seeds is not None:
        from composer.cli.output import print_seeds
        from composer.run_dir import RUNS
        from composer.training.multi_seed import SeedRequest, train_seeds

        folder = run or RUNS / loaded.name
        request = SeedRequest(recipe, overrides or (), data, folder, resume, from_run)
        seed_runs, status = train_seeds(request, seeds, typer.echo)
        print_seeds(seed_runs, folder)
        raise typer.Exit(status)
    with show_loading():
        from composer.training.train import train as train_recipe
    train_recipe(loaded, run=run, data=data, resume=resume, start_from=from_run)
