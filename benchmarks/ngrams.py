"""Dynamic N-grams: bits per test line of trained models, relative to the optimum.

    python -m benchmarks.ngrams RUN [RUN ...]

`ngrams_optimum` is the best predictor that does not know the tables (Graves et al. 2014,
eq. 10), on the same lines. In the paper, on its own lines of 200 bits, the curves end at about
133.5 and 134 bits per line (Neural Turing Machines with LSTM and feed-forward controllers) and 136
(LSTM), where the optimum is 133.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from composer.data.tasks.sequences import DynamicNgrams
from composer.recipe.recipe import load
from composer.run_dir import RunDir


class Row(NamedTuple):
    """A run: its name, bits per line, and the optimum."""

    name: str
    bits: float
    least: float


def read_run(run: Path) -> Row:
    """Return a finished run of the task. Exit for any other."""
    record, recipe = RunDir(run).read(), load(RunDir(run).recipe)
    task = recipe.data.generate
    if not isinstance(task, DynamicNgrams) or "test/bits_per_sequence" not in record.scores:
        raise SystemExit(
            f"{run} is no finished run of the task `dynamic_ngrams` with `output: {{kind:"
            " sigmoid}`"
        )
    lines = task.generate("test").target
    return Row(
        run.name, record.scores["test/bits_per_sequence"], ngrams_optimum(lines, task.context)
    )


def ngrams_optimum(lines: Sequence[str], context: int) -> float:
    """Return the cost of the best predictor on these lines of dynamic_ngrams, in bits a line; eos
    costs nothing.

    Of a bit after a context c that had n_0 zeros and n_1 ones after it before, p(1) = (n_1 + 1/2) /
    (n_0 + n_1 + 1) (Graves et al. 2014, eq. 10): the mean of the table's entry, given all that was
    seen. Bits without a context cost 1.
    """
    cost = 0.0
    for bits in (line.split() for line in lines):
        seen: Counter[tuple[str, ...]] = Counter()
        line_cost = float(min(context, len(bits)))
        for at in range(context, len(bits)):
            before = tuple(bits[at - context : at])
            line_cost -= math.log2(
                (seen[*before, bits[at]] + 0.5) / (seen[*before, "0"] + seen[*before, "1"] + 1)
            )
            seen[*before, bits[at]] += 1
        cost += line_cost
    return cost / len(lines)


def table(rows: Sequence[Row]) -> str:
    """Return a table with a line for each run, the best first."""
    lines = ["| run | bits per line | optimum | above the optimum |", "|---|---|---|---|"]
    for name, bits, least in sorted(rows, key=lambda row: row.bits - row.least):
        lines.append(f"| {name} | {bits:.2f} | {least:.2f} | {bits - least:.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    print(table([read_run(run) for run in parser.parse_args().runs]))


if __name__ == "__main__":
    main()
