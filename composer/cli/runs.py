"""The commands about a run: `translate`, `evaluate`, `report`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from composer.cli.options import (
    AsJson,
    DataDir,
    Overrides,
    Run,
    examples,
    print_json,
    require_directory,
    show_interruptible,
)
from composer.errors import RunError

commands = typer.Typer()


@commands.command(
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
        typer.Argument(
            metavar="RUN|key=value", help="Run folders, several for an ensemble; then overrides.", show_default=False
        ),
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
) -> None:
    """Translates stdin to stdout: one line out for each line in, in order; an empty line stays empty."""
    folders = [Path(each) for each in runs if not _is_override(each)]
    overrides = [each for each in runs if _is_override(each)]
    if not folders:
        raise typer.BadParameter("name a run folder", param_hint="RUN")
    if text := next((each for at, each in enumerate(folders) if at and not each.exists()), None):
        said = f"printf '%s\\n' {shlex.quote(str(text))} | seqcomposer translate {shlex.quote(str(folders[0]))}"
        raise RunError.of(f"there is no run `{text}`", f"if that is text to translate: `{said}`")
    runs_given = [require_directory(each) for each in folders]
    with show_interruptible():
        from composer.inference.translate import translate as translate_text
    translate_text(
        runs_given, overrides, beam=beam, n_best=n_best, scores=scores, prefix=prefix, source=source, output=output
    )


def _is_override(argument: str) -> bool:
    return "=" in argument and not Path(argument).is_dir()


@commands.command(
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
    require_directory(run)
    with show_interruptible():
        from composer.evaluation.evaluate import evaluate as evaluate_run
    result = evaluate_run(run, split=split, data=data, overrides=overrides or ())
    if as_json:
        print_json(result)
    else:
        from composer.cli.output import print_evaluation

        print_evaluation(result)


@commands.command(
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
        typer.Option(
            "--split",
            metavar="NAME",
            help="Which part of the data: test, val, train.  [default: test, or val where there is no test]",
            show_default=False,
        ),
    ] = None,
    data: DataDir = None,
    sentences: Annotated[
        list[str] | None,
        typer.Option(
            "--sentence",
            metavar="TEXT",
            help="Whose alignments are drawn; may be given several times.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="F", help="The page's file.  [default: RUN/report.html]", show_default=False),
    ] = None,
) -> None:
    """Writes one HTML page of a run that opens anywhere: curves, translations, alignments, BLEU by source length.

    The run need not have finished: its last checkpoint translates then.
    """
    require_directory(run)
    with show_interruptible():
        from composer.viz.report import report as write_report
    file = write_report(run, split, data, sentences or (), output, lambda text: typer.echo(text, err=True))
    typer.echo(f"wrote {file} ({file.stat().st_size / 1024:,.0f} KiB); a browser opens it, with no network")
