"""The mix-and-match matrix, every encoder with every decoder, as Markdown, and what it says of three published claims.

    python benchmarks/matrix.py FOLDER

FOLDER holds run folders called ENCODER_to_DECODER-SEED, such as `rnn_to_self_attention-1`, of `recipes/mixes/`. A cell
is the mean over its finished seeds, with each seed behind it. The claims are those of the abstract of Domhan 2018.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

SELF = "self_attention"
ENCODERS = (SELF, "rnn", "cnn")
DECODERS = (SELF, "rnn", "cnn", "none", "combined")
NAME = re.compile(rf"({'|'.join(ENCODERS)})_to_({'|'.join(DECODERS)})-(\d+)")
BLEU, PERPLEXITY = "test/bleu", "test/perplexity"

Cell = tuple[str, str]
BEST: Cell = (SELF, SELF)
OTHERS = ("rnn", "cnn")


class Result(NamedTuple):
    """One run: its scores are None where it is half-run."""

    seed: int
    bleu: float | None
    perplexity: float | None


Matrix = Mapping[Cell, Sequence[Result]]


def read(folder: Path) -> Matrix:
    """Every cell's runs by seed. Folders with other names are passed over."""
    found: dict[Cell, list[Result]] = {}
    for file in folder.glob("*/run.json"):
        if name := NAME.fullmatch(file.parent.name):
            found.setdefault((name[1], name[2]), []).append(result(int(name[3]), file))
    return {cell: sorted(results) for cell, results in found.items()}


def result(seed: int, file: Path) -> Result:
    run = json.loads(file.read_text(encoding="utf-8"))
    scores = run.get("scores", {}) if run["status"] == "finished" else {}
    return Result(seed, scores.get(BLEU), scores.get(PERPLEXITY))


def bleus(results: Iterable[Result]) -> list[float]:
    return [each.bleu for each in results if each.bleu is not None]


# ------------------------------------------------------------------------------------------- tables


def table(title: str, matrix: Matrix, place: int) -> str:
    """Encoders down, decoders across. place: which field of a result."""
    lines = [f"| {title}: encoder, decoder | " + " | ".join(map(words, DECODERS)) + " |"]
    lines.append("|---" * (len(DECODERS) + 1) + "|")
    for encoder in ENCODERS:
        cells = [shown([each[place] for each in matrix.get((encoder, decoder), ())]) for decoder in DECODERS]
        lines.append(f"| {words(encoder)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shown(values: Sequence[float | None]) -> str:
    """The mean of what is there, and each seed where there are several."""
    there = [value for value in values if value is not None]
    if not there:
        return "half-run" if values else "not run"
    if len(values) == 1:
        return number(there[0])
    seeds = ", ".join("half-run" if value is None else number(value) for value in values)
    return f"{number(fmean(there))} ({seeds})"


def number(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def words(name: str) -> str:
    return {SELF: "self-attention", "rnn": "RNN", "cnn": "CNN"}.get(name, name)


# ------------------------------------------------------------------------------------------- claims


def claims(matrix: Matrix) -> str:
    """The differences in BLEU that the three claims speak of, beside what seeds alone do."""
    spread = spread_of(matrix)
    blocks = {
        "RNN and CNN with the Transformer's other parts come close to it:": [
            against_best(matrix, ("rnn", "rnn"), spread),
            against_best(matrix, ("cnn", "cnn"), spread),
        ],
        "Self-attention matters more in the encoder than in the decoder:": [
            *(against_best(matrix, (kind, SELF), spread) for kind in OTHERS),
            *(against_best(matrix, (SELF, kind), spread) for kind in OTHERS),
            dearer_side(matrix),
        ],
        "A decoder without self-attention works well:": [against_best(matrix, (SELF, "none"), spread)],
    }
    lines = [seeds_alone(matrix, spread)]
    for at, (claim, found) in enumerate(blocks.items(), start=1):
        lines += ["", f"{at}. {claim}", *(f"   - {each}" for each in found)]
    return "\n".join(lines)


def against_best(matrix: Matrix, cell: Cell, spread: float | None) -> str:
    """A cell's BLEU less that of self-attention on both sides, in words."""
    value = less(matrix, cell, BEST)
    said = f"{words(cell[0])} to {words(cell[1])}, less self-attention to self-attention: "
    if value is None:
        return said + "not known, a cell is not finished"
    count = f"seeds: {len(bleus(matrix[cell]))} and {len(bleus(matrix[BEST]))}"
    judged = "" if spread is None else "; within" if abs(value) <= spread else "; beyond"
    return f"{said}{value:+.1f} BLEU ({count}{judged and judged + ' what seeds do'})"


def dearer_side(matrix: Matrix) -> str:
    """What replacing self-attention costs in the encoder, less what it costs in the decoder, by the same blocks."""
    pairs = [(less(matrix, BEST, (kind, SELF)), less(matrix, BEST, (SELF, kind))) for kind in OTHERS]
    known = [(one, two) for one, two in pairs if one is not None and two is not None]
    said = "cost of replacing it in the encoder, less its cost in the decoder: "
    if not known:
        return said + "not known, cells are not finished"
    encoder, decoder = (fmean(side) for side in zip(*known, strict=True))
    return f"{said}{encoder - decoder:+.1f} BLEU ({encoder:.1f} and {decoder:.1f}, means over {len(known)} of 2 blocks)"


def less(matrix: Matrix, cell: Cell, other: Cell) -> float | None:
    """The difference of two cells' means; nothing where one has no finished run."""
    one, two = bleus(matrix.get(cell, ())), bleus(matrix.get(other, ()))
    return fmean(one) - fmean(two) if one and two else None


def spread_of(matrix: Matrix) -> float | None:
    """The largest range of any cell with several finished seeds."""
    found = [bleus(each) for each in matrix.values()]
    return max((max(each) - min(each) for each in found if len(each) > 1), default=None)


def seeds_alone(matrix: Matrix, spread: float | None) -> str:
    count = sum(len(bleus(each)) > 1 for each in matrix.values())
    if spread is None:
        return "No cell has two finished seeds: what seeds alone do is not known."
    cells = f"{count} cell{'' if count == 1 else 's'}"
    return f"Seeds alone make up to {spread:.1f} BLEU of difference: the largest range within a cell, over {cells}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    matrix = read(parser.parse_args().folder)
    print(table("test BLEU", matrix, 1), table("test perplexity", matrix, 2), claims(matrix), sep="\n\n")


if __name__ == "__main__":
    main()
