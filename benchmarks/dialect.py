"""The dialect task: the loss of trained models relative to the optimum for their architecture.

    python -m benchmarks.dialect RUN [RUN ...]

How well a model can predict the dialect of its output depends on what it reads of its own output:
nothing, the previous word, or all previous words. `dialect_optimum` computes the optimal loss of
each on the test lines.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from composer.data.tasks.sequences import Dialect
from composer.inference.run import open_untrained
from composer.model.encoder_decoder import EncoderDecoder, has_state
from composer.recipe.recipe import load
from composer.run_dir import RunDir

Reads = Literal["nothing", "last", "all"]
"""What a model reads of its own answer when it writes a word: nothing, the word before, or all
words before.
"""
READS_LABEL: dict[Reads, str] = {
    "nothing": "nothing",
    "last": "the previous word",
    "all": "all previous words",
}


class Row(NamedTuple):
    """A run: its name, what its model reads of its own output, its loss, and the optimal loss."""

    name: str
    reads: Reads
    loss: float
    least: float


def read_run(run: Path) -> Row:
    """Return a finished run of the dialect task with its loss. Exit for any other."""
    record, recipe = RunDir(run).read(), load(RunDir(run).recipe)
    task = recipe.data.generate
    if not isinstance(task, Dialect) or "test/loss" not in record.scores:
        raise SystemExit(f"{run} is no finished run of the task `dialect`")
    reads = model_reads(open_untrained(run).model)
    least = dialect_optimum(task.generate("test").source, task.dialects, task.every, reads)
    return Row(run.name, reads, record.scores["test/loss"], least)


def model_reads(model: EncoderDecoder) -> Reads:
    """Return what a model reads of its own output when it predicts a token."""
    if model.embedding is None:
        return "nothing"
    return "all" if has_state(model) else "last"


def dialect_optimum(sources: Sequence[str], dialects: int, every: int, reads: Reads) -> float:
    """Return the least loss on these lines that a model can have, in nats per target token, eos
    counted.

    Of m marked words, a model that reads nothing of its answer must guess all: m log(dialects)
    nats. One that reads all words before guesses the first alone: log(dialects), if m > 0. The word
    before tells the dialect only where each word is marked (`every: 1`); else a model that reads it
    alone guesses as if it read nothing.
    """
    lengths = [len(source.split()) for source in sources]
    once = reads == "all" or (reads == "last" and every == 1)
    guesses = sum(min(length // every, 1) if once else length // every for length in lengths)
    return guesses * math.log(dialects) / sum(length + 1 for length in lengths)


def table(rows: Sequence[Row]) -> str:
    """Return a table with a line for each run, sorted by optimal loss."""
    lines = [
        "| run | reads of its own output | nats per token | optimum | ratio |",
        "|---|---|---|---|---|",
    ]
    for name, reads, loss, least in sorted(rows, key=lambda row: -row.least):
        lines.append(
            f"| {name} | {READS_LABEL[reads]} | {loss:.4f} | {least:.4f} | {loss / least:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    print(table([read_run(run) for run in parser.parse_args().runs]))


if __name__ == "__main__":
    main()
