"""The dialect task: the loss of trained models beside the least that each of them can have.

    python benchmarks/dialect.py RUN [RUN ...]

How much a model can know of an answer's dialect depends on what it reads of its own answer: nothing, the word before,
or all words before. `composer.data.tasks.sequences.dialect_optimum` computes the least loss of each on
the lines of the test.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from composer.data.tasks import TASKS
from composer.data.tasks.sequences import Reads, dialect_optimum
from composer.inference.run import open_untrained
from composer.model.encoder_decoder import EncoderDecoder, has_state
from composer.recipe.recipe import load
from composer.run_dir import RunDir

KNOWN: dict[Reads, str] = {"nothing": "nothing", "last": "the word before", "all": "all words before"}


class Row(NamedTuple):
    """A run: its name, what its model reads of its own answer, its loss, and the least that it could be."""

    name: str
    reads: Reads
    loss: float
    least: float


def row(run: Path) -> Row:
    """What a finished run of the dialect task came to. Ends the program where it is none."""
    record, recipe = RunDir(run).read(), load(RunDir(run).recipe)
    settings = (recipe.dataset.get("generate") or {}).get("dialect")
    if settings is None or "test/loss" not in record.get("scores", {}):
        raise SystemExit(f"{run} is no finished run of the task `dialect`")
    reads = reads_of(open_untrained(run).model)
    lines = TASKS["dialect"]("test", **settings)
    least = dialect_optimum(lines.source, settings["dialects"], settings["every"], reads)
    return Row(run.name, reads, record["scores"]["test/loss"], least)


def reads_of(model: EncoderDecoder) -> Reads:
    """What a model reads of its own answer when it writes a word."""
    if model.embedding is None:
        return "nothing"
    return "all" if has_state(model) else "last"


def table(rows: Sequence[Row]) -> str:
    """One line for each run, the largest least loss first."""
    lines = ["| run | reads of its answer | nats per token | the least possible | ratio |", "|---|---|---|---|---|"]
    for name, reads, loss, least in sorted(rows, key=lambda each: -each.least):
        lines.append(f"| {name} | {KNOWN[reads]} | {loss:.4f} | {least:.4f} | {loss / least:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    print(table([row(run) for run in parser.parse_args().runs]))


if __name__ == "__main__":
    main()
