"""The commands `new`, `check`, `plan` and `train`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from composer import api
from composer.cli import options
from composer.cli.options import argument, complete_recipe, option
from composer.errors import ComposerError, Fault
from composer.formatting import format_bound, format_bytes, si
from composer.recipe.metrics import format_score
from composer.run_dir import find_run

if TYPE_CHECKING:
    from composer.checks.planner import Plan, PlanRow
    from composer.training.multi_seed import SeedRuns
    from composer.training.trial_run import TrialRun

commands = typer.Typer()
command = partial(options.with_examples, commands)


@command(
    "seqcomposer new --source train.en --target train.de",
    "seqcomposer new --source a.txt --target b.txt --output ab.yaml",
    "seqcomposer new --table train.tsv --source picture --target caption",
    "seqcomposer new --target corpus.txt      # a language model",
    "seqcomposer new --target 'texts/*.txt' --target mails.jsonl --column body",
)
def new(
    *,
    source: Annotated[
        str | None,
        option("--source F", "Source text, one sentence per line; of a table, a column."),
    ] = None,
    target: Annotated[
        list[str],
        option(
            "--target F",
            "Target text, line by line; of a table, a column. May be repeated for a text.",
        ),
    ],
    table: Annotated[
        Path | None, option("--table F", "A table that names images, sounds or vectors.")
    ] = None,
    column: Annotated[
        str | None,
        option(
            "--column C", "Key of JSON lines, or column of Parquet, with a text.  [default: text]"
        ),
    ] = None,
    output: Annotated[
        Path | None, option("--output F", "The file to write.  [default: named after the texts]")
    ] = None,
) -> None:
    """Write a commented recipe for your own text, images, sounds or vectors.

    It looks at the text, and says what it saw: tokenizer, `max_length`, model size and how BLEU
    reads words suit it. Some of the pairs are held out for validation and test. Text is UTF-8, with
    or without a BOM; LF or CRLF. Never overwrites a file.

    Of a table (TSV, CSV, JSON lines, Parquet, or a data folder of Kaldi) `--source` is the column
    that names images, sounds or vectors, and `--target` the one with their text.

    Without `--source` the recipe is of a language model, and the targets are any text: files,
    packed or not, JSON lines or Parquet, patterns such as 'texts/*.txt', and folders.
    """
    from composer.cli.new import write_new

    options.echo("\n".join(write_new(source, target, output, table, column)[1]))


@command(
    "seqcomposer check recipes/quickstart.yaml",
    "seqcomposer check mine.yaml model.width=512",
    "seqcomposer check --json mine/*.yaml",
    "seqcomposer check --without-data --any-machine recipes/*.yaml     # in a clone without the"
    " data",
    "seqcomposer check recipes/sweeps/attention_scores.yaml            # every point; score=dot:"
    " that one",
)
def check(
    recipes: Annotated[
        list[str],
        argument("RECIPE... [key=value]...", "Recipes or sweeps, and settings.", complete_recipe),
    ],
    data: options.DataDir = None,
    without_data: Annotated[
        bool, option("--without-data", "Read no data files, even where they are.")
    ] = False,
    any_machine: Annotated[
        bool, option("--any-machine", "Ignore limits of this machine: devices, memory.")
    ] = False,
    strict: Annotated[
        bool, option("--strict", "Exit with status 2 if there is a warning, too.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Report every error of recipes and their data.

    Each has file, line, column and a fix; `--json` adds an `edit` where a program can make the fix,
    `{file, path, start, end, replacement}`: the text between two places, as [line, column] from 1,
    is to be replaced. Validates the text, builds the model without allocating it, inspects the data
    files, and encodes the data as training does; of a split of more than 16 MB its beginning and
    1,000 lines spread over the rest, and the last line says so. A recipe that `check` accepts
    trains, decodes and resumes. Writes nothing but its cache. Exit status 2 if there is an error,
    with `--strict` also if there is a warning; else 0.

    Of a sweep it checks every point that no condition excludes, or the one that `axis=value`
    selects. Of a part of recipes, which is a file in a folder `fragments` or one that others of the
    files extend and that is no recipe by itself, it checks YAML, keys and types.
    """
    files, overrides = options.split_overrides(recipes)
    if not files:
        raise typer.BadParameter("name a recipe")
    from composer.recipe.fragments import extended_files
    from composer.sweeps.check import CheckScope, check_file

    scope = CheckScope(any_machine, "none" if without_data else "required")
    extended = extended_files(map(Path, files)) if len(files) > 1 else ()
    faults: list[Fault] = []
    next_command = ""
    for file in files:
        try:
            with options.show_loading():
                checked = check_file(file, overrides, data, scope, extended)
        except ComposerError as error:
            faults += error.faults
            continue
        faults += checked.warnings
        next_command = checked.next_command
        if not as_json:
            print_warnings(checked.warnings)
            for note in checked.notes:
                options.echo(note, err=True)
            options.echo(f"{file}: {checked.text}")
    errors = [fault for fault in faults if fault.severity == "error"]
    is_refused = bool(faults if strict else errors)
    if as_json:
        options.print_json([fault.as_dict() for fault in sorted(set(faults))])
        raise typer.Exit(options.REFUSED if is_refused else options.DONE)
    if errors:
        raise ComposerError(errors)
    if is_refused:
        raise typer.Exit(options.REFUSED)
    if len(files) == 1 and next_command:
        folder = ["--data", str(data)] if data else []
        options.echo(f"next: {shlex.join(['seqcomposer', next_command, *recipes, *folder])}")


def print_warnings(warnings: Iterable[Fault]) -> None:
    """Print warnings to stderr."""
    for warning in warnings:
        options.echo(warning.render(), err=True)


@command(
    "seqcomposer plan recipes/quickstart.yaml",
    "seqcomposer plan mine.yaml model.width=512",
    "seqcomposer plan mine.yaml --data DATA --time     # trains ten steps in memory",
    "seqcomposer plan --json mine.yaml | jq .parameters",
    "seqcomposer plan recipes/sweeps/attention_scores.yaml score=dot     # one point of a sweep",
)
def plan(
    recipe: options.RecipeOrRun,
    overrides: options.Overrides = None,
    data: options.DataDir = None,
    time: Annotated[
        bool, option("--time", "Train ten steps in memory on the data, and tell the time.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show what a recipe costs, block by block.

    Those are width, parameters, FLOPs and decoding state of every block. The model is built by the
    same code as for training, without allocating it. FLOPs and state are those of one pair of 32
    source and 32 target tokens. Also shows how much memory the tensors of a training take at their
    peak: weights, gradients, optimizer, and the largest batch, which is that of the data where they
    are, and else as long as `max_length` allows. Python and PyTorch take half a GiB besides.

    With --time it trains ten steps in memory, writes no run, and tells what an epoch and the whole
    training take here.
    """
    with options.show_loading():
        planned = api.plan(recipe, overrides or (), data, time)
    print_warnings(planned.warnings)
    if as_json:
        options.print_json(planned.as_json())
        return
    print_plan(planned)
    optimizer, memory = planned.recipe.training.optimizer.word, planned.memory
    bound = "at most" if planned.at_most or memory.at_most else "about"
    options.echo(
        f"Training: {bound} {format_bytes(memory.bytes)} at its peak:"
        f" {format_bytes(memory.weight_bytes)} for weights, gradients and {optimizer},"
        f" {format_bytes(memory.activation_bytes)} for a batch of {memory.batch.describe()}; Python"
        " and PyTorch come on top."
    )
    if planned.trial is not None:
        print_trial(planned.trial)


def print_trial(trial: TrialRun) -> None:
    """Print what some steps of a training took, and what follows for an epoch and for the budget."""
    where = "the GPU" if trial.device == "cuda" else "this CPU"
    of = (
        f", one of {trial.devices} devices, without the exchange between them"
        if trial.devices > 1
        else ""
    )
    options.echo(
        f"Measured: {format_bytes(trial.peak_bytes)} of tensors at the peak.\nTime:"
        f" {trial.steps_per_second:,.3g} steps and {trial.tokens_per_second:,.0f} target tokens a"
        f" second, of {trial.steps} steps on {where}{of}.\nAn epoch has {trial.steps_per_epoch:,}"
        f" steps and takes {time_text(trial.minutes_per_epoch)}, the whole budget"
        f" {time_text(trial.budget_minutes)}, without validation and test."
    )


def time_text(minutes: float) -> str:
    """Return a time in seconds if it is below a minute, else in minutes."""
    return f"{60 * minutes:.3g} seconds" if minutes < 1 else f"{minutes:,.3g} minutes"


@command(
    "seqcomposer train recipes/quickstart.yaml",
    "seqcomposer train mine.yaml training.max_minutes=60 model.encoder.1.repeat.times=6 --run"
    " runs/deep",
    "seqcomposer train mine.yaml --run runs/deep --resume",
    "seqcomposer train mine.yaml --run runs/deep --resume training.max_minutes=90     # go on with"
    " a larger budget",
    "seqcomposer train mine.yaml --seeds 3     # runs/mine/seed-1, seed-2, seed-3",
    "seqcomposer train runs/mine/recipe.yaml   # reproduces it in runs/mine-reproduction and"
    " compares the weights",
    "seqcomposer train recipes/sweeps/attention_scores.yaml score=dot     # one point of a sweep",
)
def train(
    recipe: options.RecipeOrRun,
    overrides: options.Overrides = None,
    data: options.DataDir = None,
    run: Annotated[
        Path | None, option("--run DIR", "The run folder.  [default: runs/NAME]")
    ] = None,
    resume: Annotated[
        bool, option("--resume", "Continue a run that was stopped or killed, or start it.")
    ] = False,
    finish: Annotated[
        bool, option("--finish", "End a run that was stopped or killed with its best weights.")
    ] = False,
    from_run: Annotated[
        Path | None,
        option("--from RUN", "Take the weights of another run that fit.", parser=find_run),
    ] = None,
    seeds: Annotated[
        str | None, option("--seeds N|A,B,...", "Train N seeds, or these; see RUN/seeds.json.")
    ] = None,
) -> None:
    """Train a recipe and write a run folder.

    The run folder holds the resolved recipe, tokenizer, metrics, checkpoints and final weights: all
    that `translate`, `evaluate` and a colleague need. A folder that is not empty is refused without
    --resume, which continues a run with its own budget, also a finished one with a larger
    `training.max_steps`, `max_epochs` or `max_minutes` on the command line or in the edited recipe.
    The recipe of a run folder reproduces that run, or with --resume continues it. Given a sweep,
    train the one point that `axis=value` selects.
    """
    from composer.recipe.recipe import load
    from composer.recipe.yaml_reader import read
    from composer.sweeps.points import point_from_args, recipe_file

    recipe = recipe_file(recipe)
    root = read(recipe, str(recipe))
    if "sweep" in root.value:
        if seeds is not None:
            raise typer.BadParameter(
                "train a point of a sweep with `training.seed=N`", param_hint="--seeds"
            )
        loaded, folder = point_from_args(recipe, overrides or (), data)
        run = run or folder
    else:
        loaded = load(recipe, overrides or (), data, root)
    if seeds is not None and finish:
        raise typer.BadParameter(
            "finish one seed: `--finish --run RUN/seed-N`", param_hint="--seeds"
        )
    if seeds is not None:
        from composer.run_dir import RUNS
        from composer.training.multi_seed import train_seeds

        folder = run or RUNS / loaded.name
        seed_runs, status = train_seeds(
            recipe, seeds, folder, options.echo, overrides or (), data, resume, from_run
        )
        print_seeds(seed_runs, folder)
        raise typer.Exit(status)
    with options.show_loading():
        from composer.training.train import train as train_recipe
    train_recipe(loaded, run=run, data=data, resume=resume, start_from=from_run, finish=finish)


def print_plan(plan: Plan) -> None:
    """Print a plan as a table of nested blocks."""
    table = options.make_table(
        ["block", "width", "parameters", "FLOPs", "state"], right=4, footer=True
    )
    bounds = ", at most" if plan.at_most else ""
    if loops := any(row.loops for row in plan.rows):
        table.add_column("runs position by position because it")
    for depth, label, row in _nested(plan.rows):
        numbers = (
            str(row.width),
            f"{row.parameters:,}",
            si(row.flops),
            format_bytes(row.state_bytes),
        )
        label += f" x {row.times}" if row.block == "repeat" else bounds if row.at_most else ""
        label += ", tied" if row.tied_to else ""
        table.add_row("  " * depth + label, *numbers, *([row.loops] if loops else []))
    totals = (f"{plan.parameters:,}", si(plan.flops), format_bytes(plan.state_bytes))
    for column, total in zip(table.columns, (f"all{bounds}", "", *totals), strict=False):
        column.footer = total
    options.table_console().print(table)
    sizes = ", ".join(f"{key} {size:,}" for key, size in plan.vocabularies.items())
    notes = [f"FLOPs and state: one pair of {plan.tokens} + {plan.tokens} tokens, forward."]
    notes += [f"Vocabularies: {format_bound(sizes, plan.at_most)}."]
    if plan.at_most:
        notes += [
            "At most: `train` trains the tokenizer, which learns fewer tokens from little text."
        ]
    if any(row.times != 1 for row in plan.rows):
        notes += ["Rows in a repeat are of all its times together."]
    if tied := dict.fromkeys(row.tied_to for row in plan.rows if row.tied_to):
        notes += [
            f"Tied: the parameters are those of {' and '.join(tied)}, and count once in the sum."
        ]
    if plan.decaying:
        notes += [f"Weight decay falls on {plan.decaying:,} of {plan.parameters:,} parameters."]
    if plan.frozen:
        notes += [
            (
                f"Frozen by `training.parameter_groups`: {plan.frozen:,} parameters, tied ones"
                " among them."
            )
        ]
    options.echo("\n".join(notes))


def _nested(rows: Iterable[PlanRow]) -> Iterable[tuple[int, str, PlanRow]]:
    """Yield each row with its depth and its path relative to the block that contains it."""
    above: list[str] = []
    for row in rows:
        while (
            above
            and row.path != above[-1]
            and not row.path.startswith((f"{above[-1]}.", f"{above[-1]}["))
        ):
            above.pop()
        outer = above[-1] if above else ""
        label = row.path.removeprefix(outer).lstrip(".")
        # a block that is written as a bare name ends in its number
        yield (
            len(above),
            label if label.endswith(row.block) else f"{label} {row.block}".strip(),
            row,
        )
        if row.path != outer:
            above.append(row.path)


def print_seeds(runs: SeedRuns, folder: Path) -> None:
    """Print the result of every seed, and which is the best by the metric that the run selects by."""
    if not runs.seeds:
        return
    wanted = dict.fromkeys(
        (runs.metric, runs.metric.replace("val/", "test/"), "val/loss", "test/loss")
    )
    names = [name for name in wanted if any(name in seed.scores for seed in runs.seeds)]
    table = options.make_table(["seed", "status", "steps", "minutes", *names], right=2 + len(names))
    for seed in runs.seeds:
        scores = [
            "-" if (score := seed.scores.get(name)) is None else format_score(name, score)
            for name in names
        ]
        table.add_row(
            str(seed.seed), seed.status, f"{seed.steps:,}", f"{seed.minutes:.1f}", *scores
        )
    console = options.table_console()
    console.print(table)
    best = f"The best by {runs.metric}: seed {runs.best}."
    none = f"No seed has finished with a {runs.metric}, so none is the best."
    console.print(none if runs.best is None else best)
    console.print(f"All scores are in {folder / 'seeds.json'}.")
