"""The commands `translate`, `evaluate` and `report`."""

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
    show_loading,
)
from composer.errors import RunError

commands = typer.Typer()


@commands.command(
    short_help="Translate stdin to stdout, line by line.",
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
            metavar="RUN|key=value",
            help="Run folders (several: an ensemble), then overrides.",
            show_default=False,
        ),
    ],
    beam: Annotated[int | None, typer.Option("--beam", min=1, metavar="N", help="Beam size.")] = None,
    n_best: Annotated[int, typer.Option("--n-best", min=1, metavar="N", help="Hypotheses per source line.")] = 1,
    scores: Annotated[bool, typer.Option("--scores", help="Print the score and a tab before each hypothesis.")] = False,
    prefix: Annotated[
        Path | None, typer.Option("--prefix", metavar="F", help="A file with a forced target prefix for each line.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--input", metavar="F", help="The text to translate.  [default: stdin]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="F", help="The file to write.  [default: stdout]")
    ] = None,
) -> None:
    """Translate stdin to stdout: one line out for each line in, in order. An empty line stays empty."""
    folders = [Path(argument) for argument in runs if not _is_override(argument)]
    overrides = [argument for argument in runs if _is_override(argument)]
    if not folders:
        raise typer.BadParameter("name a run folder", param_hint="RUN")
    if text := next((folder for folder in folders[1:] if not folder.exists()), None):
        command = f"printf '%s\\n' {shlex.quote(str(text))} | seqcomposer translate {shlex.quote(str(folders[0]))}"
        raise RunError.of(f"there is no run `{text}`", f"if that is text to translate: `{command}`")
    ensemble = [require_directory(folder) for folder in folders]
    with show_loading():
        from composer.inference.translate import translate as translate_text
    translate_text(
        ensemble, overrides, beam=beam, n_best=n_best, scores=scores, prefix=prefix, source=source, output=output
    )


def _is_override(argument: str) -> bool:
    return "=" in argument and not Path(argument).is_dir()


@commands.command(
    short_help="Evaluate a run: BLEU, chrF, perplexity and more.",
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
        str, typer.Option("--split", metavar="NAME", help="The split to evaluate on: test, val or train.")
    ] = "test",
    data: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a run: loss, perplexity, accuracies, BLEU and chrF with their signatures, BLEU by source length.

    For generated data also the accuracy at each source length. Overrides may set `decoding...` (the search) and
    `data.generate...` (other data of the same task, such as longer inputs than in training); for stories
    `data.babi.tasks` and `data.babi.folder`.
    """
    require_directory(run)
    with show_loading():
        from composer.evaluation.evaluate import evaluate as evaluate_run
    result = evaluate_run(run, split=split, data=data, overrides=overrides or ())
    if as_json:
        print_json(result)
    else:
        from composer.cli.output import print_evaluation

        print_evaluation(result)


@commands.command(
    short_help="Write an HTML report: curves, translations, attention.",
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
            help="The split to report on: test, val or train.  [default: test, or val if there is no test]",
            show_default=False,
        ),
    ] = None,
    data: DataDir = None,
    sentences: Annotated[
        list[str] | None,
        typer.Option(
            "--sentence",
            metavar="TEXT",
            help="A sentence to draw attention maps of; may be repeated.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="F", help="File to write.  [default: RUN/report.html]", show_default=False),
    ] = None,
) -> None:
    """Write a self-contained HTML report of a run: curves, translations, attention maps, BLEU by source length.

    The page opens offline. The run need not have finished: its last checkpoint is used then.
    """
    require_directory(run)
    with show_loading():
        from composer.viz.report import report as write_report
    file = write_report(run, split, data, sentences or (), output, lambda text: typer.echo(text, err=True))
    typer.echo(f"wrote {file} ({file.stat().st_size / 1024:,.0f} KiB); it opens in a browser, offline")
