"""The Multi30k ladder, German to English, compared with the notebooks of
github.com/bentrevett/pytorch-seq2seq.

    python -m benchmarks.ladder prepare --data DATA --to FOLDER
    seqcomposer train recipes/ladder/NAME.yaml --data FOLDER
    python -m benchmarks.ladder score RUN [RUN ...] [--data FOLDER]

`prepare` reads DATA/multi30k and writes FOLDER/multi30k_tokens: spaCy's German and English tokens,
lower-cased and separated by spaces, as in the notebooks; it needs `pip install -c constraints.txt
spacy`. `score` translates the test set of finished runs greedily and prints Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.by_length import (
    Translated,
    bleu_metric,
    by_length,
    require_same_sources,
    table,
    translate_test_set,
)

SPLITS = {"train": "train", "val": "val", "test": "test_2016_flickr"}
VOCABULARIES = {"de": 7853, "en": 5893}
"""Vocabulary sizes of the notebooks: tokens seen at least twice in the training split, and four
special ones.
"""


class Published(NamedTuple):
    """Published test BLEU, test perplexity and parameters of a notebook's model."""

    model: str
    bleu: float
    perplexity: float
    parameters: str
    teacher_forced: bool = True  # whether the perplexity was computed with teacher forcing


LADDER = {
    "ladder-lstm": Published(
        "2-layer LSTM, source reversed", 13.76, 43.8, "13.9 M", teacher_forced=False
    ),
    "ladder-lstm-straight": None,
    "ladder-gru": Published(
        "GRU, context in every step", 20.61, 37.5, "14.2 M", teacher_forced=False
    ),
    "ladder-gru-attention": Published(
        "GRU, additive attention", 28.3, 25.6, "20.5 M", teacher_forced=False
    ),
    "ladder-convolutional": Published("convolutional", 34.14, 6.26, "37.4 M"),
    "ladder-transformer": Published("Transformer", 36.52, 5.32, "9.0 M"),
}
"""Published scores for each recipe; None where the notebooks have no such model."""

COLUMNS = (
    "recipe",
    "published BLEU",
    "BLEU",
    "sacreBLEU 13a",
    "published perplexity",
    "perplexity",
    "published parameters",
    "parameters",
    "minutes",
    "epochs",
)
NOTES = """
Published: bentrevett/pytorch-seq2seq, 256 wide embeddings, recurrent and convolutional layers 512
wide, 10 epochs; the first three trained with teacher forcing half of the time. BLEU is of
lower-case spaCy tokens, greedy, with `⟨unk⟩` as an ordinary, wrong token; 13a tokenises the same
lines again. Perplexities marked * were computed without teacher forcing and are not comparable with
the others."""


# -------------------------------------------------------------------------------------------
# prepare


def prepare(data: Path, to: Path) -> None:
    """Write the tokens of every split, and compare the vocabulary sizes with the notebooks'."""
    folder = to / "multi30k_tokens"
    folder.mkdir(parents=True, exist_ok=True)
    for language, published in VOCABULARIES.items():
        tokens_of = tokenizer(language)
        counts: Counter[str] = Counter()
        for split, name in SPLITS.items():
            rows = [
                tokens_of(line) for line in read_lines(data / "multi30k" / f"{name}.{language}")
            ]
            counts.update(token for row in rows for token in row if split == "train")
            text = "".join(" ".join(row).strip() + "\n" for row in map(drop_blank_tokens, rows))
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8", newline="\n")
        size = sum(count >= 2 for count in counts.values()) + 4
        print(f"{language}: {size:,} ids, {published:,} published")
    print(f"written to {folder}; train with `--data {to}`")


def tokenizer(language: str) -> Callable[[str], list[str]]:
    """Return a function that splits a line by spaCy's rules and lower-cases it; it needs no trained
    pipeline.
    """
    try:
        import spacy
    except ModuleNotFoundError:
        raise SystemExit("spaCy is not installed: `pip install -c constraints.txt spacy`") from None
    rules = spacy.blank(language).tokenizer
    return lambda line: [token.text.lower() for token in rules(line)]


def read_lines(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SystemExit(f"no file {path}: `--data` is the folder that holds multi30k") from None
    return iter(text.removesuffix("\n").split("\n"))


def drop_blank_tokens(tokens: Sequence[str]) -> list[str]:
    """Drop blank tokens, which spaCy makes of repeated spaces."""
    return [token for token in tokens if token.strip()]


# ------------------------------------------------------------------------------------------- score


def score(runs: Sequence[Path], data: Path | None) -> None:
    """Print the ladder, and BLEU by source length."""
    records = {run: read_record(run) for run in runs}
    finished = [run for run, record in records.items() if record["status"] == "finished"]
    translations = {run: translate_test_set(run, data, ["decoding=greedy"]) for run in finished}
    require_same_sources(list(translations.values()))
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name, published in LADDER.items():
        runs_of_recipe = [run for run, record in records.items() if record["name"] == name]
        for run in runs_of_recipe or [None]:
            print(
                format_row(
                    name,
                    published,
                    (
                        score_cells(run, records[run], translations.get(run), data)
                        if run
                        else ["not run"] * 6
                    ),
                )
            )
    tokens, text = bleu_metric(tokenised=True), bleu_metric(tokenised=False)
    print(NOTES)
    print(f"BLEU {bleu_signature(tokens)}; sacreBLEU 13a {bleu_signature(text)}\n")
    if translations:
        print(
            table(
                [
                    (translated.name, by_length(translated, tokens))
                    for translated in translations.values()
                ]
            )
        )


def read_record(run: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except OSError:
        raise SystemExit(f"{run} is no run folder") from None
    return record


def score_cells(
    run: Path, record: dict[str, Any], translated: Translated | None, data: Path | None
) -> list[str]:
    """Return BLEU, BLEU 13a, perplexity, parameters, minutes and epochs of a run as text."""
    size = f"{record['parameters'] / 1e6:.1f} M" if record.get("parameters") else "unfinished"
    if translated is None:
        return ["unfinished"] * 3 + [size] + ["unfinished"] * 2
    metrics = [bleu_metric(tokenised) for tokenised in (True, False)]
    bleu = [
        metric.corpus_score(translated.hypotheses, [translated.references]).score
        for metric in metrics
    ]
    return [
        f"{bleu[0]:.2f}",
        f"{bleu[1]:.2f}",
        f"{perplexity(run, data):.2f}",
        size,
        f"{record['minutes']:.1f}",
        f"{record['epochs']:.1f}",
    ]


def perplexity(run: Path, data: Path | None) -> float:
    """Return the perplexity per token on the test set, with teacher forcing."""
    from composer.data.encoding import load_data
    from composer.inference.perplexity import teacher_forced
    from composer.inference.run import open_run

    opened = open_run(run)
    encoded = load_data(opened.recipe, opened.folders(data), opened.tokenizers, ["test"]).splits[
        "test"
    ]
    return teacher_forced(opened.recipe, [opened.model], encoded)[0]["perplexity"]


def format_row(name: str, published: Published | None, scores: Sequence[str]) -> str:
    """Return a line of the table: published and measured scores."""
    bleu, bleu_13a, perplexity, size, minutes, epochs = scores
    if published is None:
        theirs = ["none"] * 3
    else:
        mark = "" if published.teacher_forced else "*"
        theirs = [f"{published.bleu:.2f}", f"{published.perplexity}{mark}", published.parameters]
    cells = [
        name,
        theirs[0],
        bleu,
        bleu_13a,
        theirs[1],
        perplexity,
        theirs[2],
        size,
        minutes,
        epochs,
    ]
    return "| " + " | ".join(cells) + " |"


def bleu_signature(metric: Any) -> str:
    """Return sacreBLEU's signature; it knows the number of references only after a score."""
    metric.corpus_score(["a"], [["a"]])
    return f"`{metric.get_signature()}`"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare", help="tokenise Multi30k")
    first.add_argument("--data", type=Path, required=True, help="the folder that holds multi30k")
    first.add_argument(
        "--to", type=Path, required=True, help="folder to write multi30k_tokens into"
    )
    second = commands.add_parser("score", help="compare runs with the published scores")
    second.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    second.add_argument("--data", type=Path, help="the folder that holds multi30k_tokens")
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.data, options.to)
    else:
        score(options.runs, options.data)


if __name__ == "__main__":
    main()
