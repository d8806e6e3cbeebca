"""BLEU by source length, several runs side by side: a Markdown table, and a chart.

    python -m benchmarks.by_length RUN [RUN ...] [--data DIR] [--edges 7 10 13 16 20] [--tokenised]
    [--chart F.html]

Every run translates its test set with its recipe's decoding settings; all runs must have the same
test sources. Scores are given ± half of the 95 % bootstrap interval, which is wide for buckets of
few lines.
"""

from __future__ import annotations

import argparse
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

EDGES = (7, 10, 13, 16, 20)
"""Upper ends of the buckets in words; the last bucket is open."""
RESAMPLES = 200
"""Bootstrap samples per bucket."""


class Translated(NamedTuple):
    """The test set of a run with its translations."""

    name: str
    sources: list[str]
    hypotheses: list[str]
    references: list[str]


class Bucket(NamedTuple):
    """Sources of similar length ("8-10" words): lines, BLEU, half of its 95 % interval."""

    words: str
    lines: int
    bleu: float
    spread: float


def translate_test_set(run: Path, data: Path | None, overrides: Sequence[str] = ()) -> Translated:
    """Translate a run's test set."""
    from composer.data.encoding import load_data
    from composer.data.pairs import TARGET
    from composer.inference.run import open_run

    opened = open_run(run, overrides)
    pairs = load_data(opened.recipe, opened.folders(data), opened.tokenizers, ["test"]).pairs[
        "test"
    ]
    lines = list(pairs.sides[opened.recipe.sources[0]])
    return Translated(run.name, lines, opened.translate(lines), list(pairs.sides[TARGET]))


def bleu_metric(tokenised: bool) -> Any:
    """Return sacreBLEU's BLEU, for plain text or for lines of space-separated tokens."""
    from sacrebleu.metrics import BLEU

    return BLEU(tokenize="none" if tokenised else "13a", force=True)


def by_length(translated: Translated, metric: Any, edges: Sequence[int] = EDGES) -> list[Bucket]:
    """Return the non-empty buckets, shortest first."""
    buckets = [bisect_left(edges, len(source.split())) for source in translated.sources]
    return [
        score_bucket(
            translated,
            [row for row, bucket in enumerate(buckets) if bucket == index],
            words,
            metric,
        )
        for index, words in enumerate(bucket_labels(edges))
        if index in buckets
    ]


def bucket_labels(edges: Sequence[int]) -> list[str]:
    """Return the labels of buckets: 0-7, 8-10, ..., 21+."""
    begins = [0, *(edge + 1 for edge in edges)]
    return [
        *(f"{begin}-{end}" for begin, end in zip(begins, edges, strict=False)),
        f"{begins[-1]}+",
    ]


def score_bucket(translated: Translated, rows: Sequence[int], words: str, metric: Any) -> Bucket:
    def bleu(sample: Sequence[int]) -> float:
        return float(
            metric.corpus_score(
                [translated.hypotheses[row] for row in sample],
                [[translated.references[row] for row in sample]],
            ).score
        )

    draws = np.random.default_rng(1).choice(rows, (RESAMPLES, len(rows)))
    low, high = np.quantile([bleu(draw) for draw in draws], [0.025, 0.975])
    return Bucket(words, len(rows), bleu(rows), float(high - low) / 2)


def require_same_sources(translations: Sequence[Translated]) -> None:
    """Exit if the runs have different test sources."""
    for other in translations[1:]:
        if other.sources != translations[0].sources:
            raise SystemExit(
                f"{other.name} and {translations[0].name} were tested on different source lines"
            )


Rows = Sequence[tuple[str, list[Bucket]]]


def table(rows: Rows) -> str:
    """Return a table with a line for each run."""
    first = rows[0][1]
    titles = [f"{bucket.words} ({bucket.lines} lines)" for bucket in first]
    lines = ["| BLEU at source words | " + " | ".join(titles) + " |"]
    lines.append("|---" * (len(first) + 1) + "|")
    for name, buckets in rows:
        scores = [f"{bucket.bleu:.1f} ± {bucket.spread:.1f}" for bucket in buckets]
        lines.append(f"| {name} | " + " | ".join(scores) + " |")
    return "\n".join(lines)


def draw(rows: Rows, path: Path) -> None:
    """Write an HTML page with a line for each run and its intervals."""
    from plotly.graph_objects import Figure

    figure = Figure()
    buckets = [f"{bucket.words}<br>{bucket.lines} lines" for bucket in rows[0][1]]
    for shift, (name, results) in enumerate(rows):
        x = np.arange(len(results)) + 0.06 * (shift - (len(rows) - 1) / 2)
        scores = [result.bleu for result in results]
        figure.add_scatter(
            x=x, y=scores, error_y={"array": [result.spread for result in results]}, name=name
        )
    figure.update_xaxes(
        title="words of the source", tickvals=list(range(len(buckets))), ticktext=buckets
    )
    figure.update_yaxes(title="BLEU", rangemode="tozero")
    figure.write_html(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--edges", type=int, nargs="+", default=EDGES)
    parser.add_argument("--tokenised", action="store_true", help="lines are space-separated tokens")
    parser.add_argument("--chart", type=Path, help="write the chart to this HTML file")
    options = parser.parse_args()
    translations = [translate_test_set(run, options.data) for run in options.runs]
    require_same_sources(translations)
    metric = bleu_metric(options.tokenised)
    rows = [
        (translated.name, by_length(translated, metric, sorted(options.edges)))
        for translated in translations
    ]
    print(table(rows))
    print(f"\nBLEU {metric.get_signature()}")
    if options.chart:
        draw(rows, options.chart)


if __name__ == "__main__":
    main()
