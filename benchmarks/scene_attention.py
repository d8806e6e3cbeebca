"""Where a captioner of digit scenes looks when it names a digit: the share of attention on the
digit's own cell.

    python -m benchmarks.scene_attention RUN --table DIR/test.tsv [--lines 1000] [--checkpoint best]
    [--json]

RUN is a run of a recipe that reads scenes of `prepare_data/digit_scenes.py`, with one attention
whose annotations are a square grid of 3 x 3 cells, or of 6 x 6 parts of cells, and so on. Each
caption of the table is read with teacher forcing, and the weights with which a digit's name is
predicted are summed over the annotations of its cell.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from math import isqrt
from pathlib import Path

import numpy as np

from composer.inference.run import open_run
from prepare_data.digit_scenes import CELLS, NAMES


def cell_shares(weights: np.ndarray) -> np.ndarray:
    """Return the attention on each cell, row by row. weights: (T, S), S the square of a multiple of
    3 -> (T, 9)
    """
    side = isqrt(weights.shape[1])
    if side * side != weights.shape[1] or side % CELLS:
        raise SystemExit(f"{weights.shape[1]} annotations are no grid of {CELLS} x {CELLS} cells")
    part = side // CELLS
    return weights.reshape(-1, CELLS, part, CELLS, part).sum((2, 4)).reshape(-1, CELLS * CELLS)


def digit_shares(words: Sequence[str], weights: np.ndarray, cells: Sequence[int]) -> list[float]:
    """Return the attention on its own cell for each word that names a digit; `cells` are in the
    caption's order.

    weights: (T, S), a row for each word
    """
    named = [at for at, word in enumerate(words) if word in NAMES]
    shares = cell_shares(weights)
    return [float(shares[at, cell]) for at, cell in zip(named, cells, strict=True)]


def measure(run: str, table: Path, lines: int, checkpoint: str | None = None) -> dict[str, float]:
    """Return the mean share over all digits named in a table's first lines, and how it spreads."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))[:lines]
    opened = open_run(run, checkpoint=checkpoint)
    shares: list[float] = []
    images, captions = ([row[name] for row in rows] for name in ("image", "caption"))
    alignments = opened.alignments([str(table.parent / image) for image in images], captions)
    for row, alignment in zip(rows, alignments, strict=True):
        (attention,) = (one for one in alignment.attentions if one.word == "cross_attention")
        shares += digit_shares(attention.rows, attention.weights.mean(0), json.loads(row["cells"]))
    return {
        "scenes": len(rows),
        "digits": len(shares),
        "mean": float(np.mean(shares)),
        "lowest tenth": float(np.quantile(shares, 0.1)),
        "above 0.8": float(np.mean(np.array(shares) > 0.8)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=1_000)
    parser.add_argument("--checkpoint", help="of a run that has not finished")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    measured = measure(options.run, options.table, options.lines, options.checkpoint)
    if options.json:
        print(json.dumps(measured))
        return
    for name, value in measured.items():
        print(f"{name:14}{value:.3f}" if isinstance(value, float) else f"{name:14}{value:,}")


if __name__ == "__main__":
    main()
