"""The public Multi30k ladder, German to English, beside the notebooks of github.com/bentrevett/pytorch-seq2seq.

    python benchmarks/ladder.py prepare --data DATA --to FOLDER
    seqcomposer train recipes/ladder/NAME.yaml --data FOLDER
    python benchmarks/ladder.py score RUN [RUN ...] [--data FOLDER]

`prepare` reads DATA/multi30k and writes FOLDER/multi30k_tokens: spaCy's German and English tokens, in lower case, with
spaces between, as the notebooks have them; it needs `pip install -c constraints.txt spacy`. `score` translates the test
set of finished runs greedily and prints Markdown.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from by_length import Translated, bleu_metric, by_length, same_sources, table, translated

SPLITS = {"train": "train", "val": "val", "test": "test_2016_flickr"}
VOCABULARIES = {"de": 7853, "en": 5893}
"""Of the notebooks: tokens seen twice or more in the training part, and four special ones."""


class Published(NamedTuple):
    """A row of the notebooks: test BLEU, test perplexity, parameters."""

    model: str
    bleu: float
    perplexity: float
    parameters: str
    given: bool = True  # whether each token's probability was computed after the true tokens before it


LADDER = {
    "ladder-lstm": Published("2-layer LSTM, source reversed", 13.76, 43.8, "13.9 M", given=False),
    "ladder-lstm-straight": None,
    "ladder-gru": Published("GRU, context in every step", 20.61, 37.5, "14.2 M", given=False),
    "ladder-gru-attention": Published("GRU, additive attention", 28.3, 25.6, "20.5 M", given=False),
    "ladder-convolutional": Published("convolutional", 34.14, 6.26, "37.4 M"),
    "ladder-transformer": Published("Transformer", 36.52, 5.32, "9.0 M"),
}
"""What the notebooks print for the model of each recipe; None where they have no such model."""

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
Published: bentrevett/pytorch-seq2seq, 256 wide embeddings, recurrent and convolutional layers 512 wide, 10 epochs.
The first three read their own words half of the time in training. BLEU is of lower-case spaCy tokens, greedy, with
`⟨unk⟩` as an ordinary, wrong token; 13a tokenises the same lines again. Perplexities marked * were computed while the
model read its own words in place of the true ones, and are not comparable with the others."""


# ------------------------------------------------------------------------------------------- prepare


def prepare(data: Path, to: Path) -> None:
    """Writes the tokens of every split, and says whether the vocabularies are those of the notebooks."""
    folder = to / "multi30k_tokens"
    folder.mkdir(parents=True, exist_ok=True)
    for language, published in VOCABULARIES.items():
        tokens_of = tokenizer(language)
        seen: Counter[str] = Counter()
        for split, name in SPLITS.items():
            rows = [tokens_of(line) for line in lines_of(data / "multi30k" / f"{name}.{language}")]
            seen.update(token for row in rows for token in row if split == "train")
            text = "".join(" ".join(row).strip() + "\n" for row in map(without_blanks, rows))
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8", newline="\n")
        size = sum(count >= 2 for count in seen.values()) + 4
        print(f"{language}: {size:,} ids, {published:,} published")
    print(f"written to {folder}; train with `--data {to}`")


def tokenizer(language: str) -> Callable[[str], list[str]]:
    """Splits a line as spaCy's rules for a language do, in lower case. No trained pipeline is needed for that."""
    try:
        import spacy
    except ModuleNotFoundError:
        raise SystemExit("spaCy is not here: `pip install -c constraints.txt spacy`") from None
    rules = spacy.blank(language).tokenizer
    return lambda line: [token.text.lower() for token in rules(line)]


def lines_of(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SystemExit(f"no file {path}: `--data` is the folder that holds multi30k") from None
    return iter(text.removesuffix("\n").split("\n"))


def without_blanks(tokens: Sequence[str]) -> list[str]:
    """A second space in a row is a token to spaCy, and cannot stand between spaces."""
    return [token for token in tokens if token.strip()]


# ------------------------------------------------------------------------------------------- score


def score(runs: Sequence[Path], data: Path | None) -> None:
    """Prints the ladder, BLEU by source length, and what was measured."""
    records = {run: record_of(run) for run in runs}
    finished = [run for run, record in records.items() if record["status"] == "finished"]
    found = {run: translated(run, data, ["decoding=greedy"]) for run in finished}
    same_sources(list(found.values()))
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name, published in LADDER.items():
        there = [run for run, record in records.items() if record["name"] == name]
        for run in there or [None]:
            print(row(name, published, measured(run, records[run], found.get(run), data) if run else ["not run"] * 6))
    tokens, text = bleu_metric(tokenised=True), bleu_metric(tokenised=False)
    print(NOTES)
    print(f"BLEU {signature(tokens)}; sacreBLEU 13a {signature(text)}\n")
    if found:
        print(table([(each.name, by_length(each, tokens)) for each in found.values()]))


def record_of(run: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except OSError:
        raise SystemExit(f"{run} is no run folder") from None
    return told


def measured(run: Path, record: dict[str, Any], found: Translated | None, data: Path | None) -> list[str]:
    """BLEU, BLEU 13a, perplexity, parameters, minutes, epochs of one run, as they are shown."""
    size = f"{record['parameters'] / 1e6:.1f} M" if "parameters" in record else "half-run"
    if found is None:
        return ["half-run"] * 3 + [size] + ["half-run"] * 2
    bleu = [bleu_metric(kind).corpus_score(found.hypotheses, [found.references]).score for kind in (True, False)]
    return [
        f"{bleu[0]:.2f}",
        f"{bleu[1]:.2f}",
        f"{perplexity(run, data):.2f}",
        size,
        f"{record['minutes']:.1f}",
        f"{record['epochs']:.1f}",
    ]


def perplexity(run: Path, data: Path | None) -> float:
    """On the test set, a token, each given the true tokens before it."""
    from composer.data.encoding import load_data
    from composer.evaluation.evaluate import teacher_forced
    from composer.inference.run import open_run

    opened = open_run(run)
    encoded = load_data(opened.recipe, opened.folders(data), opened.tokenizers, ["test"]).split("test")
    return teacher_forced(opened.model, encoded)[0]["perplexity"]


def row(name: str, published: Published | None, ours: Sequence[str]) -> str:
    """A line of the table: what was published beside what was measured."""
    bleu, bleu_13a, surprise, size, minutes, epochs = ours
    if published is None:
        theirs = ["none"] * 3
    else:
        mark = "" if published.given else "*"
        theirs = [f"{published.bleu:.2f}", f"{published.perplexity}{mark}", published.parameters]
    cells = [name, theirs[0], bleu, bleu_13a, theirs[1], surprise, theirs[2], size, minutes, epochs]
    return "| " + " | ".join(cells) + " |"


def signature(metric: Any) -> str:
    """sacreBLEU's, which knows the number of references only after a score."""
    metric.corpus_score(["a"], [["a"]])
    return f"`{metric.get_signature()}`"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    first = commands.add_parser("prepare", help="tokenise Multi30k")
    first.add_argument("--data", type=Path, required=True, help="the folder that holds multi30k")
    first.add_argument("--to", type=Path, required=True, help="where multi30k_tokens is written")
    second = commands.add_parser("score", help="put runs beside the published numbers")
    second.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    second.add_argument("--data", type=Path, help="the folder that holds multi30k_tokens")
    asked = parser.parse_args()
    if asked.command == "prepare":
        prepare(asked.data, asked.to)
    else:
        score(asked.runs, asked.data)


if __name__ == "__main__":
    main()
