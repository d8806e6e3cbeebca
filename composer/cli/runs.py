"""Commands on runs: `translate`, `generate`, `score`, `evaluate`, `average`, `report`, `export`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from composer import api
from composer.cli import options
from composer.cli.options import argument, complete_run, option
from composer.errors import RunError
from composer.formatting import count_noun, to_json
from composer.metrics.table import METRICS_BY_LENGTH, score_entry
from composer.recipe.choices import Engine
from composer.run_dir import find_run

if TYPE_CHECKING:
    from rich.table import Table

BETWEEN_TEXTS = "---------------"
Runs = Annotated[
    list[str],
    argument("RUN|key=value", "Runs (several: an ensemble), then overrides.", complete_run),
]


def engine_overrides(run: Path, overrides: Sequence[str], engine: Engine | None) -> list[str]:
    """Return the override that lets a run decode on an engine, if one is chosen."""
    if engine is None:
        return []
    from composer.inference.engine import engine_override

    return [engine_override(run, overrides, engine)]


commands = typer.Typer()
command = partial(options.with_examples, commands)


@command(
    "echo 'a man sleeps' | seqcomposer translate runs/mine",
    "seqcomposer translate runs/mine --input test.en --output test.de --beam 8",
    "seqcomposer translate runs/a runs/b < test.en     # an ensemble",
    "ls pictures/*.png | seqcomposer translate runs/captions",
    "seqcomposer translate runs/mine decoding=greedy --draft runs/small < test.en",
    "seqcomposer translate runs/mine --checkpoint best < test.en   # of an unfinished run",
)
def translate(
    runs: Runs,
    beam: Annotated[int | None, option("--beam N", "Beam size.", min=1)] = None,
    n_best: Annotated[
        int,
        option("--n-best N", "Hypotheses per source line, best first.", min=1),
    ] = 1,
    scores: Annotated[
        bool, option("--scores", "Print a score and a tab before each hypothesis.")
    ] = False,
    prefix: Annotated[
        Path | None, option("--prefix F", "File with a forced target prefix for each line.")
    ] = None,
    draft: options.Draft = None,
    engine: options.EngineOption = None,
    checkpoint: options.Checkpoint = None,
    source: Annotated[
        Path | None, option("--input F", "Lines to translate.  [default: stdin]")
    ] = None,
    output: Annotated[
        Path | None, option("--output F", "File to write.  [default: stdout]")
    ] = None,
) -> None:
    """Translate stdin to stdout, line by line.

    Write one line for each input line, in order; an empty line stays empty. With --n-best N, write
    N different hypotheses, and empty lines if there are fewer. stderr lists the outputs that were
    cut at their maximum length. For a model with several encoders, a line has one text for each, in
    the recipe's order, separated by tabs. For images or sounds, a line is the path of a file. A
    language model continues each line, as `generate` continues a prompt.

    With --draft, decode speculatively: the model scores several proposed tokens in one step and
    keeps those that it would have generated itself. Needs `decoding=greedy` or `sample`, and
    decodes one line at a time; stderr reports the number of accepted tokens.
    """
    folders, overrides = split_runs(runs)
    missing = [folder for folder in folders[1:] if not os.path.exists(folder)]
    if missing:
        text, run = shlex.quote(str(missing[0])), shlex.quote(str(folders[0]))
        command = f"printf '%s\\n' {text} | seqcomposer translate {run}"
        message = f"there is no run `{missing[0]}`"
        raise RunError.of(message, f"if that is text to translate: `{command}`")
    with options.show_loading():
        from composer.inference.translate import translate as translate_text
    overrides += engine_overrides(folders[0], overrides, engine)
    files = {"prefix": prefix, "source": source, "output": output, "draft": draft}
    translate_text(
        folders, overrides, beam=beam, n_best=n_best, scores=scores, checkpoint=checkpoint, **files
    )


@command(
    "seqcomposer generate runs/shakespeare --prompt 'ROMEO:' --temperature 0.8 --top-k 200",
    "seqcomposer generate runs/shakespeare --samples 5 --min-p 0.1 --seed 2 --json",
    "seqcomposer generate runs/shakespeare --draft runs/shakespeare-tiny --temperature 0.8",
    "seqcomposer generate runs/shakespeare --prompt 'To be' --prompt 'Not to be' --beam 4"
    " --max-length 50",
)
def generate(
    run: options.Run,
    overrides: options.Overrides = None,
    prompts: Annotated[
        list[str] | None, option("--prompt TEXT", "Beginning of a text. Repeatable.")
    ] = None,
    samples: Annotated[int, option("--samples N", "Texts per prompt.", min=1)] = 1,
    temperature: Annotated[
        float | None, option("--temperature T", "Divide the logits by T.  [x>0]")
    ] = None,
    top_k: Annotated[
        int | None, option("--top-k K", "Sample from the K most probable tokens.", min=1)
    ] = None,
    top_p: Annotated[
        float | None,
        option("--top-p P", "Sample from the fewest tokens with total probability P.  [0<x<=1]"),
    ] = None,
    min_p: Annotated[
        float | None,
        option("--min-p P", "Sample from tokens above P times the maximum.  [0<x<=1]"),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        option("--repetition-penalty R", "Divide the logits of repeated tokens by R.  [x>=1]"),
    ] = None,
    seed: Annotated[int | None, option("--seed N", "Random seed.")] = None,
    beam: Annotated[
        int | None, option("--beam N", "Beam search of size N instead of sampling.", min=1)
    ] = None,
    max_length: Annotated[
        int | None, option("--max-length N", "Maximum number of new tokens.", min=1)
    ] = None,
    draft: options.Draft = None,
    engine: options.EngineOption = None,
    checkpoint: options.Checkpoint = None,
    as_json: Annotated[bool, option("--json", "Print one JSON object per text.")] = False,
) -> None:
    """Generate text with a language model.

    Continue each prompt, or start from nothing. Use the recipe's `decoding`; any sampling option,
    or several samples, selects sampling instead. On a terminal, print words as they are generated.

    With --draft, decode speculatively: the model scores several proposed tokens in one step and
    keeps those that it accepts. Greedy text stays the same, and samples have the same distribution.
    stderr reports the number of accepted tokens.
    """
    with options.show_loading():
        from composer.inference.generate import generate as generate_texts
        from composer.inference.generate import unknown_prompts
        from composer.inference.run import open_run
    given_prompts, printed, drafts = prompts or [], set[int](), list[object]()

    def stream(number: int, piece: str) -> None:
        if number not in printed:
            options.echo(f"\n{BETWEEN_TEXTS}\n" if printed else "", nl=False)
            printed.add(number)
        options.echo(piece, nl=False)

    is_streamed = sys.stdout.isatty() and not as_json
    settings = list(overrides or ())
    opened = open_run(run, settings + engine_overrides(run, settings, engine), checkpoint)
    for prompt in unknown_prompts(opened, given_prompts):
        note = f"note: the tokenizer of this run does not know all of the prompt `{prompt}`"
        options.echo(note, err=True)
    results = generate_texts(
        opened,
        prompts or None,
        samples=samples,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        beam=beam,
        max_length=max_length,
        scores=True,
        on_text=stream if is_streamed else None,
        draft=draft,
        on_draft=drafts.append,
    )
    texts = list(chain.from_iterable(results)) if samples > 1 else results
    if is_streamed:
        options.echo("")
    elif as_json:
        for index, text in enumerate(texts):
            row = {"prompt": given_prompts[index // samples] if given_prompts else ""}
            row |= {"text": text.text, "log_probability": text.score, "ended": text.ended}
            typer.echo(to_json(row, indent=None))
    else:
        typer.echo(f"\n{BETWEEN_TEXTS}\n".join(text.text for text in texts))
    for used in drafts:
        options.echo(str(used), err=True)


@command(
    "seqcomposer score runs/shakespeare lines.txt",
    "seqcomposer score runs/mine --source test.en --target test.de --json",
    "printf 'a man sleeps\\tein Mann schläft\\n' | seqcomposer score runs/mine",
    "seqcomposer score runs/shakespeare --minimal-pairs blimp/*.jsonl",
)
def score(
    run: options.Run,
    files: Annotated[
        list[Path] | None, argument("FILE", "Lines of text, or pairs with tabs.  [default: stdin]")
    ] = None,
    sources: Annotated[
        list[Path] | None,
        option("--source F", "Source text. Repeat for each encoder, in the recipe's order."),
    ] = None,
    target: Annotated[Path | None, option("--target F", "Target text.")] = None,
    minimal_pairs: Annotated[
        bool, option("--minimal-pairs", "Compare sentence_good and sentence_bad of JSON lines.")
    ] = False,
    checkpoint: options.Checkpoint = None,
    as_json: Annotated[bool, option("--json", "Print one JSON object per line.")] = False,
) -> None:
    """Compute the log-probability of lines of text.

    Print a row for each line, separated by tabs: log-probability in nats, number of tokens
    including eos, perplexity per token, and the text; then a row for all lines. A line is text for
    a language model, or else a source, a tab and a target; several sources are in the order of the
    recipe's encoders.

    With --minimal-pairs, such as BLiMP, print the accuracy: the share of pairs in which the good
    sentence is more probable. Ties count as wrong.
    """
    with options.show_loading():
        from composer.inference.run import open_run
        from composer.inference.score import minimal_pairs as compare_pairs
        from composer.inference.score import read_pairs, score_files
    if minimal_pairs:
        if sources or target:
            message = "pairs are in FILE, without --source and --target"
            raise typer.BadParameter(message, param_hint="--minimal-pairs")
        result = compare_pairs(open_run(run, checkpoint=checkpoint), read_pairs(files or ()))
        print_minimal_pairs(result, as_json)
        return
    for row in score_files(run, files or (), sources or (), target, checkpoint):
        text = row["text"] if "text" in row else f"all {count_noun(row['lines'], 'line')}"
        figures = f"{row['log_probability']:.4f}\t{row['tokens']}\t{row['perplexity']:.4f}\t{text}"
        options.echo(to_json(row, indent=None) if as_json else figures)


@command(
    "seqcomposer evaluate runs/mine",
    "seqcomposer evaluate runs/mine --split val --json",
    "seqcomposer evaluate runs/mine --source news.en --target news.de --hypotheses news.jsonl",
    "seqcomposer evaluate runs/mine 'evaluation.metrics=[bleu,ter]'",
    "seqcomposer evaluate runs/copy 'data.generate.copy.test_lengths=[100,400]'",
    "seqcomposer evaluate runs/a runs/b                # an ensemble",
)
def evaluate(
    runs: Runs,
    split: Annotated[
        str | None,
        option("--split NAME", "Split: test, val, train or a test set.  [default: test]"),
    ] = None,
    sources: Annotated[
        list[Path] | None,
        option("--source F", "Source text instead of a split. Repeat for each encoder."),
    ] = None,
    targets: Annotated[
        list[Path] | None, option("--target F", "References. Repeat for several per line.")
    ] = None,
    name: Annotated[
        str | None, option("--name NAME", "Name of these files.  [default: that of the target]")
    ] = None,
    hypotheses: Annotated[
        Path | None, option("--hypotheses F", "Write the outputs as JSON lines, for COMET.")
    ] = None,
    engine: options.EngineOption = None,
    checkpoint: options.Checkpoint = None,
    data: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Evaluate a run: BLEU, chrF, perplexity and more.

    Print the recipe's `evaluation.metrics` (by default those that suit the references of val),
    sacreBLEU signatures, loss, perplexity, and scores by source length. Overrides may set
    `decoding...` (search), `evaluation...` (metrics), `data.generate...` (other data of the same
    task, such as longer inputs than in training), `data.babi.tasks` and `data.babi.folder`.

    Several runs are an ensemble: their probabilities are averaged, in search as well as in loss and
    perplexity. Data, metrics and overrides are those of the first run.
    """
    folders, overrides = split_runs(runs)
    with options.show_loading():
        from composer.evaluation.scores import evaluate as evaluate_run
    overrides += engine_overrides(folders[0], overrides, engine)
    result = evaluate_run(
        folders,
        split,
        data,
        overrides,
        sources or (),
        targets or (),
        name,
        hypotheses=hypotheses,
        checkpoint=checkpoint,
        say=partial(options.echo, err=True),
    )
    if as_json:
        options.print_json(result)
    else:
        print_evaluation(result)


@command(
    "seqcomposer average runs/mine --last 3      # writes runs/mine-average-3",
    "seqcomposer evaluate runs/mine-average-3",
)
def average(
    run: options.Run,
    last: Annotated[
        int, option("--last N", "Average the checkpoints of the last N validations.", min=2)
    ],
    output: Annotated[
        Path | None, option("--output DIR", "Run folder to write.  [default: RUN-average-N]")
    ] = None,
) -> None:
    """Average the last checkpoints of a finished run.

    Write a new run folder with the mean of their weights and the run's recipe, tokenizer and
    metrics; the run itself is unchanged. A run keeps the checkpoints of its last two validations,
    or more with `training.average_checkpoints` or `training.checkpoints_gib`. Score the new weights
    with `evaluate`.
    """
    with options.show_loading():
        from composer.training.average import average as average_run
    folder = average_run(run, last, output)
    options.echo(f"wrote {folder}\nnext: seqcomposer evaluate {shlex.quote(str(folder))}")


@command(
    "seqcomposer report runs/mine",
    "seqcomposer report runs/mine --split val --sentence 'a man sleeps' --output mine.html",
    "seqcomposer report runs/mine --figures figures",
)
def report(
    run: options.Run,
    split: Annotated[
        str | None, option("--split NAME", "Split to report on.  [default: test, else val]")
    ] = None,
    checkpoint: options.Checkpoint = None,
    data: options.DataDir = None,
    sentences: Annotated[
        list[str] | None, option("--sentence TEXT", "Sentence for attention maps. Repeatable.")
    ] = None,
    output: Annotated[
        Path | None, option("--output F", "File to write.  [default: RUN/report.html]")
    ] = None,
    figures: Annotated[
        Path | None, option("--figures DIR", "Write figures to a new folder: SVG, PNG, PDF.")
    ] = None,
) -> None:
    """Write an HTML report: curves, translations, attention.

    The page has learning curves, translations, attention maps and BLEU by source length, and opens
    offline. For a run that has not finished, use its last checkpoint. With --figures, also write
    architecture, learning curves and alignments for papers and slides; needs the extra `figures`.
    """
    with options.show_loading():
        from composer.viz.report import report as write_report
    say = partial(options.echo, err=True)
    file = write_report(run, split, data, sentences or (), output, say, checkpoint, figures)
    size = f"{file.stat().st_size / 1024:,.0f} KiB"
    options.echo(f"wrote {file} ({size}); it opens in a browser, offline")


@command(
    "seqcomposer export runs/mine --onnx mine-onnx       # then: python mine-onnx/run.py < F",
    "seqcomposer export runs/mine --web mine-page       # then: python -m http.server -d DIR",
    "seqcomposer export runs/mine --hf mine-hf          # for AutoModel of transformers",
    "seqcomposer export runs/mine --ctranslate2 mine-ct2",
)
def export(
    run: options.Run,
    onnx: Annotated[
        Path | None, option("--onnx DIR", "New folder for ONNX programs and their runner.")
    ] = None,
    web: Annotated[
        Path | None, option("--web DIR", "New folder for a page that runs the model.")
    ] = None,
    hf: Annotated[
        Path | None, option("--hf DIR", "New folder that AutoModel of transformers reads.")
    ] = None,
    ctranslate2: Annotated[
        Path | None, option("--ctranslate2 DIR", "New folder for a CTranslate2 model.")
    ] = None,
    int8: Annotated[
        bool, option("--int8", "With --onnx or --web: weights of 8 bits, a third of the size.")
    ] = False,
    runtime: Annotated[
        Path | None, option("--runtime DIR", "With --web: the folder of its packages of npm.")
    ] = None,
) -> None:
    """Export a trained model for machines without seqcomposer.

    --onnx exports any stack: encoder, start and step of the decoder with its states, and run.py,
    which translates with onnxruntime alone. --web adds a page for any web server, on which the
    model runs in the reader's browser. --hf writes models of the kinds that `import` reads, without
    code. CTranslate2 runs standard Transformers.
    """
    formats: list[tuple[api.ExportFormat, Path | None]] = [
        ("onnx", onnx),
        ("web", web),
        ("hf", hf),
        ("ctranslate2", ctranslate2),
    ]
    chosen = [(form, folder) for form, folder in formats if folder is not None]
    if len(chosen) != 1:
        fix = "write `--onnx DIR`, `--web DIR`, `--hf DIR` or `--ctranslate2 DIR`"
        raise RunError.of("an export has one format", fix)
    ((form, folder),) = chosen
    options.echo(f"wrote {api.export(run, folder, form, int8, runtime)}")


def split_runs(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Split words into run folders and `key=value` settings. Raises BadParameter without a run."""
    names, overrides = options.split_overrides(words)
    if not names:
        raise typer.BadParameter("name a run folder", param_hint="RUN")
    return [*map(find_run, names)], overrides


def print_minimal_pairs(result: Mapping[str, Any], as_json: bool) -> None:
    """Print the accuracy on minimal pairs, overall and by paradigm."""
    if as_json:
        options.print_json(result)
        return
    table = options.make_table(["minimal pairs", "pairs", "accuracy"], right=2)
    rows = [("all", result)]
    for key, group in result.items():
        if key.startswith("by_"):
            rows += group.items()
    for name, row in rows:
        table.add_row(name, f"{row['pairs']:,}", f"{row['accuracy']:.1%}")
    options.table_console().print(table)


def length_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of scores by source length."""
    measured = set[str]().union(*rows)
    metrics = {name: metric for name, metric in METRICS_BY_LENGTH.items() if name in measured}
    heads = ["words", "lines", *(metric.label for metric in metrics.values())]
    table = options.make_table(heads, right=len(heads))
    for row in rows:
        scores = (metric.format(row[name]) for name, metric in metrics.items())
        table.add_row(str(row["words"]), f"{row['lines']:,}", *scores)
    return table


def print_evaluation(scores: Mapping[str, object]) -> None:
    """Print the scores of a run, tables by length, and sacreBLEU signatures."""
    figures = options.make_table(["metric", "value"], right=1)
    figures.add_column("meaning")
    for name, value in scores.items():
        if isinstance(value, float):
            entry = score_entry(name)
            if entry is None:
                figures.add_row(name, f"{value:.4g}", "")
            else:
                figures.add_row(name, entry.format(value), entry.meaning)
    console = options.table_console()
    console.print(figures)
    for name, value in scores.items():
        if isinstance(value, list):
            console.print(f"{name}:")
            console.print(length_table(value))
        elif isinstance(value, str):
            console.print(f"{name}: {value}")
        elif isinstance(value, dict):
            digests = ", ".join(f"{side} {digest[:12]}" for side, digest in value["sha256"].items())
            console.print(f"{name}: {count_noun(value['lines'], 'line')}, SHA-256 {digests}")
