"""The commands `new`, `check`, `plan` and `train`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from composer import api
from composer.cli import options
from composer.cli.options import argument, complete_recipe, option
from composer.errors import ComposerError, Fault
from composer.formatting import format_bound, format_bytes, si
from composer.run_dir import find_run

if TYPE_CHECKING:
    from composer.checks.planner import Plan, PlanRow
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
        option("--source F", "Source text, one sentence per line; with --table, a column."),
    ] = None,
    target: Annotated[
        list[str],
        option("--target F", "Target text; with --table, a column. Repeatable without --source."),
    ],
    table: Annotated[
        Path | None, option("--table F", "Table with names of image, audio or vector files.")
    ] = None,
    column: Annotated[
        str | None,
        option("--column C", "JSON key or Parquet column of the text.  [default: text]"),
    ] = None,
    output: Annotated[
        Path | None, option("--output F", "File to write.  [default: named after the texts]")
    ] = None,
) -> None:
    """Write a commented recipe for your own text, images, sounds or vectors.

    Choose tokenizer, `max_length`, model size and BLEU tokenization by the text, and print the
    reasons. Hold out some pairs for validation and test. Text must be UTF-8, with or without a BOM,
    with LF or CRLF. Never overwrite a file.

    With --table (TSV, CSV, JSON lines, Parquet or a Kaldi data folder), --source is the column of
    file names of images, sounds or vectors, and --target the column of text.

    Without --source, write a recipe for a language model. Targets are text files, compressed or
    not, JSON lines, Parquet, patterns such as 'texts/*.txt', and folders.
    """
    from composer.cli.new import write_new

    options.echo("\n".join(write_new(source, target, output, table, column)[1]))


@command(
    "seqcomposer check recipes/quickstart.yaml",
    "seqcomposer check mine.yaml model.width=512",
    "seqcomposer check --json mine/*.yaml",
    "seqcomposer check --without-data --any-machine recipes/*.yaml     # in a clone without data",
    "seqcomposer check recipes/sweeps/attention_scores.yaml            # every point of a sweep",
)
def check(
    recipes: Annotated[
        list[str],
        argument("RECIPE... [key=value]...", "Recipes or sweeps, and settings.", complete_recipe),
    ],
    data: options.DataDir = None,
    without_data: Annotated[bool, option("--without-data", "Do not read data files.")] = False,
    any_machine: Annotated[
        bool, option("--any-machine", "Ignore this machine's devices and memory.")
    ] = False,
    strict: Annotated[bool, option("--strict", "Treat warnings as errors.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Report every error of recipes and their data.

    Each error has file, line, column and a fix. Validate the recipe, build the model without
    allocating it, read the data files and encode them as training does; of a split larger than 16
    MB, encode the beginning and 1,000 lines of the rest, and say so in the last line. A recipe that
    passes can be trained, decoded and resumed. Write nothing but the cache.

    With --json, an error that a program can fix has an `edit`: `{file, path, start, end,
    replacement}`, the text to replace from start to end, each [line, column] counted from 1.

    For a sweep, check every point that no condition excludes, or the one selected by `axis=value`.
    For a fragment (a file in a folder `fragments`, or one that the other files extend and that is
    no recipe by itself), check YAML, keys and types.

    Exit status: 2 if there is an error, or a warning with --strict; else 0.
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
        bool, option("--time", "Train ten steps in memory on the data and measure the time.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the cost of a recipe, block by block.

    Print width, parameters, FLOPs and decoding state of every block, for one pair of 32 source and
    32 target tokens. The model is built by the same code as for training, without allocating it.
    Also print the peak memory of training: weights, gradients, optimizer and activations of the
    largest batch, taken from the data if they exist, else from `max_length`. Python and PyTorch
    need another 0.5 GiB.

    With --time, train ten steps in memory, without writing a run, and estimate the time of an epoch
    and of the whole training on this machine.
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
    """Print the measured speed, with estimates for an epoch and for the budget."""
    device = "the GPU" if trial.device == "cuda" else "this CPU"
    if trial.devices > 1:
        device += f", one of {trial.devices} devices, without communication between them"
    options.echo(
        f"Measured: {format_bytes(trial.peak_bytes)} of tensors at the peak.\n"
        f"Time: {trial.steps_per_second:,.3g} steps and {trial.tokens_per_second:,.0f} target"
        f" tokens a second, from {trial.steps} steps on {device}.\n"
        f"An epoch has {trial.steps_per_epoch:,} steps and takes"
        f" {time_text(trial.minutes_per_epoch)}, the whole budget"
        f" {time_text(trial.budget_minutes)}, without validation and test."
    )


def time_text(minutes: float) -> str:
    """Format a time in seconds if it is below a minute, else in minutes."""
    return f"{60 * minutes:.3g} seconds" if minutes < 1 else f"{minutes:,.3g} minutes"


@command(
    "seqcomposer train recipes/quickstart.yaml",
    "seqcomposer train mine.yaml training.max_minutes=60 model.encoder.1.repeat.times=6 --run"
    " runs/deep",
    "seqcomposer train mine.yaml --run runs/deep --resume",
    "seqcomposer train mine.yaml --run runs/deep --resume training.max_minutes=90     # train"
    " further",
    "seqcomposer train runs/mine/recipe.yaml   # reproduce it and compare the weights",
    "seqcomposer train recipes/sweeps/attention_scores.yaml score=dot     # one point of a sweep",
)
def train(
    recipe: options.RecipeOrRun,
    overrides: options.Overrides = None,
    data: options.DataDir = None,
    run: Annotated[
        Path | None, option("--run DIR", "Run folder to write.  [default: runs/NAME]")
    ] = None,
    resume: Annotated[
        bool, option("--resume", "Resume an interrupted run from its last checkpoint, or start it.")
    ] = False,
    finish: Annotated[
        bool, option("--finish", "Finish an interrupted run now, with its best weights.")
    ] = False,
    from_run: Annotated[
        Path | None,
        option("--from RUN", "Start from the matching weights of a run.", parser=find_run),
    ] = None,
) -> None:
    """Train a recipe and write a run folder.

    The run folder holds the resolved recipe, tokenizer, metrics, checkpoints and final weights:
    everything that `translate`, `evaluate` and a colleague need. It must be empty, except with
    --resume, which continues a run with its own budget. To train a finished run further, resume it
    with a larger `training.max_steps`, `max_epochs` or `max_minutes`, on the command line or in its
    recipe.

    Training the recipe of a run folder reproduces that run. For a sweep, train the point selected
    by `axis=value`. `seqcomposer sweep RECIPE --seeds 3` trains a recipe with several seeds.
    """
    from composer.recipe.recipe import load
    from composer.recipe.yaml_reader import read
    from composer.sweeps.point_arguments import point_from_args, recipe_file

    recipe = recipe_file(recipe)
    root = read(recipe, str(recipe))
    if "sweep" in root.value:
        loaded, folder = point_from_args(recipe, overrides or (), data)
        run = run or folder
    else:
        loaded = load(recipe, overrides or (), data, root)
    with options.show_loading():
        from composer.training.train import train as train_recipe
    train_recipe(loaded, run=run, data=data, resume=resume, start_from=from_run, finish=finish)


def print_plan(plan: Plan) -> None:
    """Print a plan as a table of nested blocks."""
    columns = ["block", "width", "parameters", "FLOPs", "state"]
    table = options.make_table(columns, right=4, footer=True)
    if has_loops := any(row.loops for row in plan.rows):
        table.add_column("runs position by position because it")
    for depth, label, row in _nested(plan.rows):
        if row.block == "repeat":
            label += f" x {row.times}"
        elif row.at_most:
            label += ", at most"
        if row.tied_to:
            label += ", tied"
        cells = ["  " * depth + label, str(row.width), f"{row.parameters:,}", si(row.flops)]
        cells += [format_bytes(row.state_bytes)]
        table.add_row(*cells, *([row.loops] if has_loops else []))
    total = "all, at most" if plan.at_most else "all"
    sums = (f"{plan.parameters:,}", si(plan.flops), format_bytes(plan.state_bytes))
    for column, footer in zip(table.columns, (total, "", *sums), strict=False):
        column.footer = footer
    options.table_console().print(table)
    options.echo("\n".join(_plan_notes(plan)))


def _plan_notes(plan: Plan) -> Iterator[str]:
    """Yield the sentences below the table of a plan."""
    yield f"FLOPs and state: {plan.example}, forward."
    sizes = ", ".join(f"{key} {size:,}" for key, size in plan.vocabularies.items())
    yield f"Vocabularies: {format_bound(sizes, plan.at_most)}."
    if plan.at_most:
        yield "At most: the tokenizer is not trained yet, and may learn fewer tokens."
    if any(row.times != 1 for row in plan.rows):
        yield "Rows in a repeat count all of its iterations."
    if tied := dict.fromkeys(row.tied_to for row in plan.rows if row.tied_to):
        yield f"Tied: the parameters are those of {' and '.join(tied)}, counted once in the sum."
    if plan.decaying:
        yield f"Weight decay applies to {plan.decaying:,} of {plan.parameters:,} parameters."
    if plan.adapters:
        from composer.model.adapters import describe_sizes  # imports torch, as the plan has

        yield "\n".join(describe_sizes(plan.adapters))
    elif plan.frozen:
        yield f"Frozen by `training.parameter_groups`: {plan.frozen:,} parameters, including tied."


def _nested(rows: Iterable[PlanRow]) -> Iterator[tuple[int, str, PlanRow]]:
    """Yield each row with its depth and its path relative to the block that contains it."""
    above: list[str] = []
    for row in rows:
        while above and not _is_within(row.path, above[-1]):
            above.pop()
        outer = above[-1] if above else ""
        label = row.path.removeprefix(outer).lstrip(".")
        # a block that is written as a bare name ends in its number
        if not label.endswith(row.block):
            label = f"{label} {row.block}".strip()
        yield len(above), label, row
        if row.path != outer:
            above.append(row.path)


def _is_within(path: str, outer: str) -> bool:
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))
