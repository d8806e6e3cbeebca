"""The commands. Each reads its arguments, calls one function, and says what came out.

Nothing heavy is imported before a command needs it: `--help`, `blocks` and a typo in a recipe answer without torch.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from composer import cli_sweeps
from composer.arguments import (
    DONE,
    FAILED,
    INTERRUPTED,
    REFUSED,
    TERMINATED,
    AsJson,
    DataDir,
    Overrides,
    Recipe,
    Run,
    examples,
    print_json,
)
from composer.errors import ComposerError, Fault
from composer.training.signals import EARLY

app = typer.Typer(
    name="seqcomposer",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

# ------------------------------------------------------------------------------------------- recipes


@app.command(
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
    if as_json:
        print_json([fault.as_dict() for fault in sorted(set(faults))])
        raise typer.Exit(REFUSED if faults else DONE)
    if faults:
        raise ComposerError(faults)


def _faults_of(path: Path, data: Path | None, quiet: bool) -> list[Fault]:
    from composer.check import check as check_recipe

    try:
        cli_sweeps.must_be_recipe(path)
        _, plan = check_recipe(path, (), data)
    except ComposerError as error:
        return error.faults
    if not quiet:
        typer.echo(f"{path}: no faults; at most {plan.parameters:,} parameters")
    return []


@app.command(
    short_help="Tells what a recipe will cost, block by block.",
    epilog=examples("seqcomposer plan recipes/quickstart.yaml", "seqcomposer plan --json mine.yaml | jq .parameters"),
)
def plan(recipe: Recipe, as_json: AsJson = False) -> None:
    """Tells what a recipe will cost: width, parameters, FLOPs and decoding state of every block.

    The model is built by the same code as for training, without memory for its numbers. FLOPs and state are those of
    one pair of 32 source and 32 target tokens.
    """
    from composer.recipe import load

    cli_sweeps.must_be_recipe(recipe)
    loaded = load(recipe)
    from composer.plan import plan as plan_recipe

    planned = plan_recipe(loaded)
    if as_json:
        print_json(planned.as_json())
    else:
        from composer.show import print_plan

        print_plan(planned)


@app.command(
    short_help="Trains a recipe and writes a run folder.",
    epilog=examples(
        "seqcomposer train recipes/quickstart.yaml",
        "seqcomposer train mine.yaml training.max_minutes=60 model.encoder.1.repeat.times=6 --run runs/deep",
        "seqcomposer train mine.yaml --run runs/deep --resume",
        "seqcomposer train mine.yaml --seeds 3     # runs/mine/seed-1, seed-2, seed-3",
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
    resume: Annotated[bool, typer.Option("--resume", help="Goes on where a killed run stopped; else starts.")] = False,
    from_run: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Starts from the weights of another run.")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", metavar="N|A,B,...", help="Trains with so many seeds, or with these, one after another;"
                     " each is a run RUN/seed-N, and RUN/seeds.json tells of all.", show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Trains a recipe and writes a run folder.

    The run folder holds the resolved recipe, the tokenizer, the metrics, checkpoints and the final weights: all that
    `translate`, `evaluate` and a colleague need. A folder that is not empty is refused without --resume. Of a sweep it
    trains one point, which `axis=value` chooses.
    """
    from composer.recipe import load
    from composer.sweep.reading import is_sweep

    if is_sweep(recipe):
        from composer.sweep.choice import chosen

        if seeds is not None:
            raise typer.BadParameter("a point of a sweep is trained with `training.seed=N`", param_hint="--seeds")
        point = chosen(recipe, overrides or (), data)
        loaded, run = point.recipe, run or point.folder
    else:
        loaded = load(recipe, overrides or (), data)
    if seeds is not None:
        from composer.show import print_seeds
        from composer.training.restarts import Asked, restart

        folder = run or Path("runs") / loaded.name
        found, status = restart(Asked(recipe, overrides or (), data, folder, resume, from_run), seeds, typer.echo)
        print_seeds(found, folder)
        raise typer.Exit(status)
    from composer.training.train import train as train_recipe

    train_recipe(loaded, run=run, data=data, resume=resume, start_from=from_run)


# ------------------------------------------------------------------------------------------- runs


@app.command(
    short_help="Translates stdin to stdout, line by line.",
    epilog=examples(
        "echo 'a man sleeps' | seqcomposer translate runs/mine",
        "seqcomposer translate runs/mine --input test.en --output test.de --beam 8",
        "seqcomposer translate runs/a runs/b < test.en     # an ensemble",
    ),
)
def translate(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN|key=value", help="Run folders, several for an ensemble; then overrides.",
                       show_default=False),
    ],
    beam: Annotated[int | None, typer.Option("--beam", min=1, metavar="N", help="Hypotheses of the beam.")] = None,
    n_best: Annotated[int, typer.Option("--n_best", min=1, metavar="N", help="Lines out for each line in.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Puts the score and a tab before each line.")] = False,
    prefix: Annotated[
        Path | None, typer.Option("--prefix", metavar="F", help="A file with the forced beginning of each translation.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--input", metavar="F", help="The text to translate; stdin without it.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="F", help="Where the translations go; stdout without it.")
    ] = None,
) -> None:  # fmt: skip
    """Translates stdin to stdout: one line out for each line in, in order; an empty line stays empty."""
    folders = [Path(each) for each in runs if not _is_override(each)]
    overrides = [each for each in runs if _is_override(each)]
    if not folders:
        raise typer.BadParameter("name a run folder", param_hint="RUN")
    from composer.translate import translate as translate_text

    translate_text(
        folders, overrides, beam=beam, n_best=n_best, scores=scores, prefix=prefix, source=source, output=output
    )


def _is_override(argument: str) -> bool:
    return "=" in argument and not Path(argument).is_dir()


@app.command(
    short_help="Measures a run: BLEU, chrF, perplexity and more.",
    epilog=examples(
        "seqcomposer evaluate runs/mine",
        "seqcomposer evaluate runs/mine --split val --json",
        "seqcomposer evaluate runs/copy 'data.generate.copy.test_lengths=[100,400]'",
    ),
)
def evaluate(
    run: Run,
    overrides: Overrides = None,
    split: Annotated[
        str, typer.Option("--split", metavar="NAME", help="Which part of the data: test, val, train.")
    ] = "test",
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Measures a run: loss, perplexity, accuracies, BLEU and chrF with their signatures, BLEU by source length.

    Of generated data also the accuracy at each length of the source. What starts with `decoding` or `data.generate` can
    be set: how answers are searched, and other data of the run's task, longer ones than it was trained on. Of stories
    `data.babi.tasks` and `data.babi.folder` can be.
    """
    from composer.evaluate import evaluate as evaluate_run

    result = evaluate_run(run, split=split, data=data, overrides=overrides or ())
    if as_json:
        print_json(result)
    else:
        from composer.show import print_evaluation

        print_evaluation(result)


@app.command(
    short_help="Writes one page of a run: curves, translations, alignments.",
    epilog=examples(
        "seqcomposer report runs/mine",
        "seqcomposer report runs/mine --split val --sentence 'a man sleeps' --output mine.html",
    ),
)
def report(
    run: Run,
    split: Annotated[
        str | None,
        typer.Option("--split", metavar="NAME", help="Which part of the data: test, val, train.  [default: test, or "
                     "val where there is no test]", show_default=False),
    ] = None,
    data: DataDir = None,
    sentences: Annotated[
        list[str] | None,
        typer.Option("--sentence", metavar="TEXT", help="Whose alignments are drawn; may be given several times.",
                     show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="F", help="The page's file.  [default: RUN/report.html]", show_default=False),
    ] = None,
) -> None:  # fmt: skip
    """Writes one HTML page of a run that opens anywhere: curves, translations, alignments, BLEU by source length.

    The run need not have finished: its last checkpoint translates then.
    """
    from composer.report.report import report as write_report

    file = write_report(run, split, data, sentences or (), output, lambda text: typer.echo(text, err=True))
    typer.echo(f"wrote {file} ({file.stat().st_size / 1024:,.0f} KiB)")


cli_sweeps.add_to(app)


# ------------------------------------------------------------------------------------------- looking up


@app.command(
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
        Path | None, typer.Option("--output", metavar="F", help="The recipe's file.", show_default=False)
    ] = None,
) -> None:
    """Writes a commented recipe for your own text, with sizes that suit its length. Never overwrites a file."""
    from composer.scaffold import write

    written = write(source, target, output)
    typer.echo(f"wrote {written}\nnext: seqcomposer check {written} && seqcomposer train {written}")


@app.command(
    short_help="Lists the blocks, or tells all about one.",
    epilog=examples("seqcomposer blocks", "seqcomposer blocks self_attention"),
)
def blocks(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A block.", show_default=False)] = None,
) -> None:
    """Lists the blocks that a recipe can use, or tells all about one."""
    from composer.show import print_block, print_blocks

    print_blocks() if name is None else print_block(name)


@app.command(
    short_help="Prints the JSON Schema of a recipe, for editors.",
    epilog=examples("seqcomposer schema > recipe.schema.json"),
)
def schema(
    write: Annotated[
        bool, typer.Option("--write", help="Makes it, and that of a sweep, anew and writes them into schemas/.")
    ] = False,
) -> None:
    """Prints the JSON Schema of a recipe, for editors: completion, hover texts, faults while typing."""
    from composer.language import schema as described

    if not write:
        typer.echo(described.text(described.load()), nl=False)
        return
    from composer.sweep import schema as of_sweeps

    for each in (described, of_sweeps):
        each.home().write_text(described.text(each.generate()), encoding="utf-8")
        typer.echo(f"wrote {each.home()}")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"seqcomposer {version('seqcomposer')}")
        raise typer.Exit


@app.callback(
    epilog=examples(
        "seqcomposer check recipes/quickstart.yaml",
        "seqcomposer train recipes/quickstart.yaml",
        "echo 'four hundred and twenty-one' | seqcomposer translate runs/quickstart",
    )
)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Prints the version.")
    ] = False,
) -> None:
    """Trains sequence models that are described by YAML recipes, as stacks of blocks.

    Exit status: 0 done, 1 failed, 2 refused (a fault in what you gave), 130 interrupted, 143 terminated.
    """


# ------------------------------------------------------------------------------------------- running


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command and leaves the process with its exit status."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app(args=arguments, prog_name="seqcomposer")
    except ComposerError as error:
        sys.stdout.flush()
        typer.echo(error.render(), err=True)
        sys.exit(error.status)
    except BrokenPipeError:
        # whoever read our output has left; the interpreter must not try to flush into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(DONE)


def _terminate(number: int, _: Any) -> NoReturn:
    EARLY.append(number)
    sys.exit(TERMINATED)


if __name__ == "__main__":
    main()
