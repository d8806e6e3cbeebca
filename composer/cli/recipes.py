"""The commands about a recipe: `new`, `check`, `plan`, `train`."""

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
    show_interruptible,
)
from composer.errors import ComposerError, Fault

commands = typer.Typer()


@commands.command(
    short_help="Writes a commented recipe for your own text.",
    epilog=examples(
        "seqcomposer new --source train.en --target train.de",
        "seqcomposer new --source a.txt --target b.txt --output ab.yaml",
    ),
)
def new(
    source: Annotated[
        Path, typer.Option("--source", metavar="F", help="Source text, one sentence a line.", show_default=False)
    ],
    target: Annotated[
        Path, typer.Option("--target", metavar="F", help="Its translation, line by line.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="F",
            help="The recipe's file.  [default: from the names of the texts]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Writes a commented recipe for your own text, with sizes that suit its length. Never overwrites a file.

    Some of the pairs are held out, to watch the training and to measure with. UTF-8, with or without a BOM; LF or CRLF.
    """
    from composer.cli.new_recipe import next_steps, write_new_recipe

    written = write_new_recipe(source, target, output)
    typer.echo("\n".join(next_steps(source, target, written)))


@commands.command(
    short_help="Tells every fault of recipes.",
    epilog=examples("seqcomposer check recipes/quickstart.yaml", "seqcomposer check --json mine/*.yaml"),
)
def check(
    recipes: Annotated[list[Path], typer.Argument(metavar="RECIPE", help="Recipes: YAML files.", show_default=False)],
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Tells every fault of recipes, with its place and what to write instead.

    Reads and validates the text, builds the model without memory, and looks at the data files. What `check` accepts
    trains, decodes and resumes. Writes nothing. Exit status 2 where there is a fault.
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
    from composer.checking import check_file as check_recipe

    try:
        require_recipe_file(path)
        with show_interruptible():
            recipe, plan = check_recipe(path, (), data)
    except ComposerError as error:
        return error.faults
    if not quiet:
        typer.echo(f"{path}: no faults; at most {plan.parameters:,} parameters; {_budget(recipe.training)}")
    return []


def _budget(training: Mapping[str, Any]) -> str:
    """For how long a recipe trains."""
    limits = {unit: training[f"max_{unit}"] for unit in ("steps", "epochs", "minutes")}
    told = [
        f"{limit:,.10g} {unit.removesuffix('s') if limit == 1 else unit}" for unit, limit in limits.items() if limit
    ]
    return f"trains for {' or '.join(told)}{', what ends first' if len(told) > 1 else ''}"


@commands.command(
    short_help="Tells what a recipe will cost, block by block.",
    epilog=examples("seqcomposer plan recipes/quickstart.yaml", "seqcomposer plan --json mine.yaml | jq .parameters"),
)
def plan(recipe: Recipe, as_json: AsJson = False) -> None:
    """Tells what a recipe will cost: width, parameters, FLOPs and decoding state of every block.

    The model is built by the same code as for training, without memory for its numbers. FLOPs and state are those of
    one pair of 32 source and 32 target tokens.
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
    short_help="Trains a recipe and writes a run folder.",
    epilog=examples(
        "seqcomposer train recipes/quickstart.yaml",
        "seqcomposer train mine.yaml training.max_minutes=60 model.encoder.1.repeat.times=6 --run runs/deep",
        "seqcomposer train mine.yaml --run runs/deep --resume",
        "seqcomposer train mine.yaml --seeds 3     # runs/mine/seed-1, seed-2, seed-3",
        "seqcomposer train runs/mine/recipe.yaml   # the same again, in runs/mine-repeat; says whether it came out so",
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
        bool, typer.Option("--resume", help="Goes on where a run was stopped or killed; else starts.")
    ] = False,
    from_run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Starts from the weights of another run.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            "--seeds",
            metavar="N|A,B,...",
            help="Trains with so many seeds, or with these, one after another;"
            " each is a run RUN/seed-N, and RUN/seeds.json tells of all.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Trains a recipe and writes a run folder.

    The run folder holds the resolved recipe, the tokenizer, the metrics, checkpoints and the final weights: all that
    `translate`, `evaluate` and a colleague need. A folder that is not empty is refused without --resume. The
    recipe of a run folder repeats that run. Of a sweep it trains one point, which `axis=value` chooses.
    """
    from composer.recipe.recipe import load
    from composer.sweeps.spec import is_sweep

    if is_sweep(recipe):
        from composer.sweeps.point import point_recipe

        if seeds is not None:
            raise typer.BadParameter("a point of a sweep is trained with `training.seed=N`", param_hint="--seeds")
        point = point_recipe(recipe, overrides or (), data)
        loaded, run = point.recipe, run or point.folder
    else:
        loaded = load(recipe, overrides or (), data)
    if seeds is not None:
        from composer.cli.output import print_seeds
        from composer.run_dir import RUNS
        from composer.training.multi_seed import SeedRequest, train_seeds

        folder = run or RUNS / loaded.name
        found, status = train_seeds(
            SeedRequest(recipe, overrides or (), data, folder, resume, from_run), seeds, typer.echo
        )
        print_seeds(found, folder)
        raise typer.Exit(status)
    with show_interruptible():
        from composer.training.train import train as train_recipe
    train_recipe(loaded, run=run, data=data, resume=resume, start_from=from_run)
