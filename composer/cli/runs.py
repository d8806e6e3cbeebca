"""The commands `translate`, `generate`, `score`, `evaluate`, `average`, `report`, `export`, `pack`
and `pull`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from composer import api
from composer.cli import options
from composer.cli.options import argument, complete_run, option
from composer.errors import RunError
from composer.formatting import count_noun, to_json
from composer.hub.remotes import DEFAULT_MAX_GIB
from composer.recipe.metrics import METRICS_BY_LENGTH
from composer.recipe.score_meanings import score_entry
from composer.run_dir import find_run

if TYPE_CHECKING:
    from rich.table import Table

BETWEEN_TEXTS = "---------------"

Runs = Annotated[
    list[str],
    argument("RUN|key=value", "Runs (several: an ensemble), then overrides.", complete_run),
]

commands = typer.Typer()
command = partial(options.with_examples, commands)


@command(
    "echo 'a man sleeps' | seqcomposer translate runs/mine",
    "seqcomposer translate runs/mine --input test.en --output test.de --beam 8",
    "seqcomposer translate runs/a runs/b < test.en     # an ensemble",
    "ls pictures/*.png | seqcomposer translate runs/captions",
    "seqcomposer translate runs/mine decoding=greedy --draft runs/small < test.en",
    "seqcomposer translate runs/mine --checkpoint best < test.en     # while it trains, or after an"
    " interruption",
)
def translate(
    runs: Runs,
    beam: Annotated[int | None, option("--beam N", "Beam size.", min=1)] = None,
    n_best: Annotated[
        int,
        option(
            "--n-best N",
            "Hypotheses per source line: always N lines out for each, the best first.",
            min=1,
        ),
    ] = 1,
    scores: Annotated[
        bool, option("--scores", "Print the score and a tab before each hypothesis.")
    ] = False,
    prefix: Annotated[
        Path | None, option("--prefix F", "A file with a forced target prefix for each line.")
    ] = None,
    draft: options.Draft = None,
    checkpoint: options.Checkpoint = None,
    source: Annotated[
        Path | None, option("--input F", "The lines to translate.  [default: stdin]")
    ] = None,
    output: Annotated[
        Path | None, option("--output F", "The file to write.  [default: stdout]")
    ] = None,
) -> None:
    """Translate stdin to stdout, line by line.

    One line out for each line in, in order; with `--n-best N`, N lines whose texts differ, the last
    ones empty where there are fewer. An empty line stays empty. stderr says which answers were cut
    at their maximum length. With several encoders a line has a text for each, in the order in which
    the recipe names them, with tabs between. For a model of images or sounds a line names a file;
    the name begins where the command runs. A language model continues each line, as `generate` does
    a prompt.

    With a draft the model reads several proposed tokens in one step, and keeps those that it would
    have written. This is for `decoding=greedy` and `sample`, one line after the other; stderr says
    how many tokens were accepted.
    """
    folders, overrides = split_runs(runs)
    if text := next((folder for folder in folders[1:] if not os.path.exists(folder)), None):
        command = (
            f"printf '%s\\n' {shlex.quote(str(text))} | seqcomposer translate"
            f" {shlex.quote(str(folders[0]))}"
        )
        raise RunError.of(f"there is no run `{text}`", f"if that is text to translate: `{command}`")
    with options.show_loading():
        from composer.inference.translate import translate as translate_text
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
        list[str] | None, option("--prompt TEXT", "How a text begins; repeatable.")
    ] = None,
    samples: Annotated[int, option("--samples N", "Texts of each prompt.", min=1)] = 1,
    temperature: Annotated[
        float | None, option("--temperature T", "Divide the logits by T.  [x>0]")
    ] = None,
    top_k: Annotated[
        int | None, option("--top-k K", "Draw among the K most probable tokens.", min=1)
    ] = None,
    top_p: Annotated[
        float | None,
        option("--top-p P", "Draw among the fewest tokens with probability P.  [0<x<=1]"),
    ] = None,
    min_p: Annotated[
        float | None,
        option("--min-p P", "Draw among tokens with P of the highest probability.  [0<x<=1]"),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        option("--repetition-penalty R", "Divide logits of tokens that it repeats by R.  [x>=1]"),
    ] = None,
    seed: Annotated[int | None, option("--seed N", "Seed of what is drawn.")] = None,
    beam: Annotated[
        int | None, option("--beam N", "Beam size, in place of drawing.", min=1)
    ] = None,
    max_length: Annotated[
        int | None, option("--max-length N", "Tokens after the prompt at most.", min=1)
    ] = None,
    draft: options.Draft = None,
    checkpoint: options.Checkpoint = None,
    as_json: Annotated[bool, option("--json", "Print one JSON object a text.")] = False,
) -> None:
    """Write text with a language model.

    The text continues the prompt, or begins as the model likes. It is decoded as the recipe says; a
    setting of sampling, or several samples, replaces that by sampling. On a terminal the words are
    shown as they come.

    With a draft the model reads several proposed tokens in one step, and keeps those that it would
    have written, or that it may draw: the same greedy text, or one drawn by the same probabilities.
    stderr says how many were accepted.
    """
    with options.show_loading():
        from composer.inference.generate import generate as generate_texts
        from composer.inference.generate import unknown_prompts
        from composer.inference.run import open_run
    drawing = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
    }
    more = {"repetition_penalty": repetition_penalty, "beam": beam, "max_length": max_length}
    beginnings, shown, drafts = prompts or [], list[int](), list[object]()

    def show(number: int, piece: str) -> None:
        if number not in shown:
            options.echo(f"\n{BETWEEN_TEXTS}\n" if shown else "", nl=False)
            shown.append(number)
        options.echo(piece, nl=False)

    is_watched = sys.stdout.isatty() and not as_json
    settings: dict[str, Any] = {
        **drawing,
        **more,
        "scores": True,
        "on_text": show if is_watched else None,
    }
    settings |= {"draft": draft, "on_draft": drafts.append}
    opened = open_run(run, overrides or (), checkpoint)
    for prompt in unknown_prompts(opened, beginnings):
        options.echo(
            f"note: the tokenizer of this run does not know all of the prompt `{prompt}`", err=True
        )
    results = generate_texts(opened, prompts or None, samples=samples, **settings)
    texts = [text for row in results for text in row] if samples > 1 else results
    if is_watched:
        options.echo("")
    elif as_json:
        for at, text in enumerate(texts):
            row = {"prompt": beginnings[at // samples] if beginnings else "", "text": text.text}
            row |= {"log_probability": text.score, "ended": text.ended}
            typer.echo(to_json(row, indent=None))
    else:
        typer.echo(f"\n{BETWEEN_TEXTS}\n".join(text.text for text in texts))
    for made in drafts:
        options.echo(str(made), err=True)


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
        option("--source F", "Sources; a file per encoder, in the recipe's order."),
    ] = None,
    target: Annotated[Path | None, option("--target F", "Their targets.")] = None,
    minimal_pairs: Annotated[
        bool, option("--minimal-pairs", "JSON lines with sentence_good and sentence_bad.")
    ] = False,
    checkpoint: options.Checkpoint = None,
    as_json: Annotated[bool, option("--json", "Print one JSON object a line.")] = False,
) -> None:
    """Print how probable given lines are.

    One row for each line: the log-probability in nats, the tokens (eos counts), the perplexity per
    token and the text, with tabs between; then one of all lines. A line is a text of a language
    model, or a source, a tab and a target;
    with several encoders it has the sources in the order in which the recipe names them.
    Minimal pairs, as BLiMP has them, give the share in which the good sentence is the more
    probable; ties are wrong.
    """
    with options.show_loading():
        from composer.inference.run import open_run
        from composer.inference.score import minimal_pairs as compare_pairs
        from composer.inference.score import read_pairs, score_files
    if minimal_pairs:
        if sources or target:
            raise typer.BadParameter(
                "pairs are in FILE, without --source and --target", param_hint="--minimal-pairs"
            )
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
        str | None, option("--split NAME", "test, val, train or a test set.  [default: test]")
    ] = None,
    sources: Annotated[
        list[Path] | None,
        option("--source F", "Text in place of a split; a file per encoder, in order."),
    ] = None,
    targets: Annotated[
        list[Path] | None, option("--target F", "References; again for further ones per line.")
    ] = None,
    name: Annotated[
        str | None, option("--name NAME", "Name of these files.  [default: the target's]")
    ] = None,
    hypotheses: Annotated[
        Path | None, option("--hypotheses F", "Write the outputs as JSON lines, for COMET.")
    ] = None,
    checkpoint: options.Checkpoint = None,
    data: options.DataDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Evaluate a run: BLEU, chrF, perplexity and more.

    Prints the metrics that suited the references of val (or the recipe's `evaluation.metrics`),
    sacreBLEU's signatures, loss and perplexity, and scores by source length. Overrides may set
    `decoding...` (the search), `evaluation...` (the metrics) and `data.generate...` (other data of
    the same task, such as longer inputs than in training); for stories `data.babi.tasks` and
    `data.babi.folder`.

    Several runs are an ensemble, as `translate` has it: they vote by the mean of their
    probabilities, in the search and in loss and perplexity. Data, metrics and overrides are those
    of the first.
    """
    folders, overrides = split_runs(runs)
    with options.show_loading():
        from composer.evaluation import evaluate as evaluate_run
    files = (sources or (), targets or (), name)
    more: dict[str, Any] = {
        "hypotheses": hypotheses,
        "checkpoint": checkpoint,
        "say": partial(options.echo, err=True),
    }
    result = evaluate_run(folders, split, data, overrides, *files, **more)
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
    last: Annotated[int, option("--last N", "Checkpoints of the last N validations.", min=2)],
    output: Annotated[
        Path | None, option("--output DIR", "The new run folder.  [default: RUN-average-N]")
    ] = None,
) -> None:
    """Average the last checkpoints of a finished run.

    Writes a new run folder, with the mean of their weights and the run's recipe, tokenizer and
    metrics; the run stays as it is. A run keeps the checkpoints of the last two validations, as
    many as `training.average_checkpoints` says, or what `training.checkpoints_gib` has room for;
    more than are kept are refused. `evaluate` scores the new weights.
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
        str | None, option("--split NAME", "Split to report on.  [default: test, or else val]")
    ] = None,
    checkpoint: options.Checkpoint = None,
    data: options.DataDir = None,
    sentences: Annotated[
        list[str] | None, option("--sentence TEXT", "Sentence of attention maps; repeatable.")
    ] = None,
    output: Annotated[
        Path | None, option("--output F", "File to write.  [default: RUN/report.html]")
    ] = None,
    figures: Annotated[
        Path | None, option("--figures DIR", "New folder for its figures: SVG, PNG, PDF.")
    ] = None,
) -> None:
    """Write an HTML report: curves, translations, attention.

    Shows learning curves, translations, attention maps and BLEU by source length. The page opens
    offline. The run need not have finished: its last checkpoint is used then. `--figures` writes
    the architecture, the learning curves and the alignments for papers and slides, too; it needs
    the extra `figures`.
    """
    with options.show_loading():
        from composer.viz.report import report as write_report
    file = write_report(
        run,
        split,
        data,
        sentences or (),
        output,
        lambda text: options.echo(text, err=True),
        checkpoint,
        figures,
    )
    options.echo(
        f"wrote {file} ({file.stat().st_size / 1024:,.0f} KiB); it opens in a browser, offline"
    )


@command(
    "seqcomposer export runs/mine --ctranslate2 mine-ct2",
)
def export(
    run: options.Run,
    ctranslate2: Annotated[
        Path, option("--ctranslate2 DIR", "New folder, as CTranslate2 reads it.")
    ],
) -> None:
    """Export a trained Transformer to CTranslate2.

    CTranslate2 runs it where this project is not installed, faster than PyTorch. It knows standard
    Transformers; other models are refused. Settings of the search are given to CTranslate2, each
    time that it is called.
    """
    options.echo(f"wrote {api.export(run, ctranslate2)}")


@command(
    "seqcomposer pack runs/mine",
    "seqcomposer pack runs/mine --output mine.tar.gz --license mit",
    "seqcomposer pack runs/mine --output packs/mine       # a folder, for git or the Hugging"
    " Face hub",
)
def pack(
    run: options.Run,
    output: Annotated[
        Path | None, option("--output F|DIR", ".tar.gz file or folder.  [default: NAME.tar.gz]")
    ] = None,
    license: Annotated[
        str, option("--license ID", "License identifier of the hub: mit, cc-by-4.0.")
    ] = "",
) -> None:
    """Pack a finished run into one archive or folder.

    The pack holds recipe, weights, tokenizer, metrics, run.json and a model card. pack.json lists
    the SHA-256 of every file; its own SHA-256 is the pack's fingerprint and is printed. run.json is
    packed without local paths. A README.md in the run folder is used as the model card; otherwise
    one is written for the Hugging Face hub. Packing the same run again gives the same bytes.
    """
    from composer.hub.pack import fingerprint
    from composer.hub.pack import pack as pack_run
    from composer.hub.pack_format import local_paths_in
    from composer.recipe.recipe import load

    path = pack_run(run, output, license)
    options.echo(f"wrote {path}")
    options.echo(f"sha256 {fingerprint(path)}")
    for local_path in local_paths_in(load(run / "recipe.yaml").canonical["data"]):
        note = (
            f"note: recipe.yaml names {local_path}, which others do not have; use a path inside the"
            " recipe's folder"
        )
        options.echo(note, err=True)


@command(
    "seqcomposer pull mine.tar.gz",
    "seqcomposer pull 'git+https://example.org/ann/models@v1#packs/mine' --sha256 4aae...b9d3",
    "seqcomposer pull hub:ann/mine --output runs/ann",
    "seqcomposer pull wandb:ann/seqcomposer/recipe-1d52ecce:v0",
)
def pull(
    ref: Annotated[
        str,
        argument(
            "REF",
            "Path, git+URL[@REVISION][#PATH], hub:OWNER/NAME[@REVISION][#PATH] or"
            " wandb:[ENTITY/]PROJECT/NAME:VERSION.",
        ),
    ],
    output: Annotated[
        Path | None, option("--output DIR", "Folder or recipe.  [default: runs/NAME, or cache]")
    ] = None,
    sha256: Annotated[
        str | None, option("--sha256 HEX", "Expected SHA-256 of the download; fail on mismatch.")
    ] = None,
    max_gib: Annotated[
        float, option("--max-gib N", "Refuse downloads above N GiB.", min=0.001)
    ] = DEFAULT_MAX_GIB,
) -> None:
    """Download a packed run or a recipe.

    From a path, git, Weights & Biases or the Hugging Face hub; also a run folder that is not
    packed. Every hash is verified before anything is put in place, and no code is run: a pack is
    text and weights, and a pack with anything else is refused. The result is a run folder for
    `translate`, `evaluate`, `report` and `train --from`. Its recipe, or the recipe that was pulled,
    is cached, so that other recipes can extend it: the lines to copy are printed.
    """
    from composer.hub.pull import pull_reference

    pulled = pull_reference(ref, output, sha256, max_gib)
    options.echo(pulled.text(), err=True)
    options.echo(pulled.extends())


def split_runs(words: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Return the folders of the runs among words, and the `key=value` settings. Raises BadParameter
    without a run.
    """
    names, overrides = options.split_overrides(words)
    if not names:
        raise typer.BadParameter("name a run folder", param_hint="RUN")
    return [*map(find_run, names)], overrides


def print_minimal_pairs(result: Mapping[str, Any], as_json: bool) -> None:
    """Print the accuracy in minimal pairs, of all and of each paradigm."""
    if as_json:
        options.print_json(result)
        return
    table = options.make_table(["minimal pairs", "pairs", "accuracy"], right=2)
    groups = [value for key, value in result.items() if key.startswith("by_")]
    for name, share in [("all", result), *(row for group in groups for row in group.items())]:
        table.add_row(name, f"{share['pairs']:,}", f"{share['accuracy']:.1%}")
    options.table_console().print(table)


def length_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of scores by source length."""
    metrics = {
        name: metric
        for name, metric in METRICS_BY_LENGTH.items()
        if any(name in row for row in rows)
    }
    heads = ["words", "lines", *(metric.label for metric in metrics.values())]
    table = options.make_table(heads, right=len(heads))
    for row in rows:
        scores = (metric.format(row[name]) for name, metric in metrics.items())
        table.add_row(str(row["words"]), f"{row['lines']:,}", *scores)
    return table


def print_evaluation(scores: Mapping[str, object]) -> None:
    """Print the scores of a run, tables by length, and the signatures that make scores comparable."""
    figures = options.make_table(["metric", "value"], right=1)
    figures.add_column("meaning")
    for name, value in scores.items():
        if isinstance(value, float):
            entry = score_entry(name)
            figures.add_row(
                name,
                entry.format(value) if entry else f"{value:.4g}",
                entry.meaning if entry else "",
            )
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
