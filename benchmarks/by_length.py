"""BLEU by the length of the source, several runs side by side: a Markdown table, and a chart.

    python benchmarks/by_length.py RUN [RUN ...] [--data DIR] [--edges 7 10 13 16 20] [--tokenised] [--chart F.html]

Every run translates the test lines as its recipe decodes. All runs must have been tested on the same source lines. What
stands behind a score is half the width of its 95 % interval over resampled lines: a bucket of few lines says little.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

EDGES = (7, 10, 13, 16, 20)
"""Where the buckets end, in words; the last bucket has no end."""
RESAMPLED = 200
"""How often the lines of a bucket are drawn anew."""


class Translated(NamedTuple):
    """The test lines of a run, and what it made of them."""

    name: str
    sources: list[str]
    hypotheses: list[str]
    references: list[str]


class Bucket(NamedTuple):
    """Sources of similar length: "8-10", how many lines, their BLEU, half the width of its 95 % interval."""

    words: str
    lines: int
    bleu: float
    spread: float


def translated(run: Path, data: Path | None, overrides: Sequence[str] = ()) -> Translated:
    """The test set as a run translates it."""
    from composer.data.encoding import load_data
    from composer.data.sources import TARGET, source_names
    from composer.inference.run import open_run

    opened = open_run(run, overrides)
    pairs = load_data(opened.recipe, opened.folders(data), opened.tokenizers, ["test"]).pairs["test"]
    lines = list(pairs.sides[source_names(opened.recipe)[0]])
    return Translated(run.name, lines, opened.translate(lines), list(pairs.sides[TARGET]))


def bleu_metric(tokenised: bool) -> Any:
    """sacreBLEU's BLEU: of texts, or of lines whose tokens stand between spaces."""
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize="none" if tokenised else "13a", force=True)


def by_length(found: Translated, metric: Any, edges: Sequence[int] = EDGES) -> list[Bucket]:
    """The buckets that have lines, shortest first."""
    places = [bisect_left(edges, len(source.split())) for source in found.sources]
    return [
        bucket(found, [row for row, each in enumerate(places) if each == place], words, metric)
        for place, words in enumerate(labels(edges))
        if place in places
    ]


def labels(edges: Sequence[int]) -> list[str]:
    """0-7, 8-10, ..., 21+."""
    begins = [0, *(edge + 1 for edge in edges)]
    return [*(f"{begin}-{end}" for begin, end in zip(begins, edges, strict=False)), f"{begins[-1]}+"]


def bucket(found: Translated, rows: Sequence[int], words: str, metric: Any) -> Bucket:
    def bleu(chosen: Sequence[int]) -> float:
        return float(
            metric.corpus_score(
                [found.hypotheses[row] for row in chosen], [[found.references[row] for row in chosen]]
            ).score
        )

    draws = np.random.default_rng(1).choice(rows, (RESAMPLED, len(rows)))
    low, high = np.quantile([bleu(draw) for draw in draws], [0.025, 0.975])
    return Bucket(words, len(rows), bleu(rows), float(high - low) / 2)


def same_sources(found: Sequence[Translated]) -> None:
    """Ends the program where runs were tested on different lines."""
    for other in found[1:]:
        if other.sources != found[0].sources:
            raise SystemExit(f"{other.name} and {found[0].name} were tested on different source lines")


Rows = Sequence[tuple[str, list[Bucket]]]


def table(rows: Rows) -> str:
    """One line for each run."""
    first = rows[0][1]
    lines = ["| BLEU at source words | " + " | ".join(f"{each.words} ({each.lines} lines)" for each in first) + " |"]
    lines.append("|---" * (len(first) + 1) + "|")
    for name, buckets in rows:
        lines.append(f"| {name} | " + " | ".join(f"{each.bleu:.1f} ± {each.spread:.1f}" for each in buckets) + " |")
    return "\n".join(lines)


def draw(rows: Rows, path: Path) -> None:
    """Write an HTML page: one line for each run, with its intervals."""
    from plotly.graph_objects import Figure

    figure = Figure()
    buckets = [f"{bucket.words}<br>{bucket.lines} lines" for bucket in rows[0][1]]
    for shift, (name, results) in enumerate(rows):
        where = np.arange(len(results)) + 0.06 * (shift - (len(rows) - 1) / 2)
        scores = [result.bleu for result in results]
        figure.add_scatter(x=where, y=scores, error_y={"array": [result.spread for result in results]}, name=name)
    figure.update_xaxes(title="words of the source", tickvals=list(range(len(buckets))), ticktext=buckets)
    figure.update_yaxes(title="BLEU", rangemode="tozero")
    figure.write_html(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--edges", type=int, nargs="+", default=EDGES)
    parser.add_argument("--tokenised", action="store_true", help="the lines are tokens between spaces")
    parser.add_argument("--chart", type=Path, help="write the chart to this HTML file")
    asked = parser.parse_args()
    found = [translated(run, asked.data) for run in asked.runs]
    same_sources(found)
    metric = bleu_metric(asked.tokenised)
    rows = [(each.name, by_length(each, metric, sorted(asked.edges))) for each in found]
    print(table(rows))
    print(f"\nBLEU {metric.get_signature()}")
    if asked.chart:
        draw(rows, asked.chart)


if __name__ == "__main__":
    main()
