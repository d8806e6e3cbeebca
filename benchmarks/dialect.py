"""The dialect task: the loss of trained models relative to the optimum for their architecture.

    python benchmarks/dialect.py RUN [RUN ...]

How well a model can predict the dialect of its output depends on what it reads of its own output: nothing, the previous
word, or all previous words. `composer.data.tasks.sequences.dialect_optimum` computes the optimal loss of each on the
test lines.
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

READS_LABEL: dict[Reads, str] = {"nothing": "nothing", "last": "the previous word", "all": "all previous words"}


class Row(NamedTuple):
    """A run: its name, what its model reads of its own output, its loss, and the optimal loss."""

    name: str
    reads: Reads
    loss: float
    least: float


def read_run(run: Path) -> Row:
    """Return a finished run of the dialect task with its loss. Exit for any other."""
    record, recipe = RunDir(run).read(), load(RunDir(run).recipe)
    settings = (recipe.dataset.get("generate") or {}).get("dialect")
    if settings is None or "test/loss" not in record.get("scores", {}):
        raise SystemExit(f"{run} is no finished run of the task `dialect`")
    reads = model_reads(open_untrained(run).model)
    lines = TASKS["dialect"]("test", **settings)
    least = dialect_optimum(lines.source, settings["dialects"], settings["every"], reads)
    return Row(run.name, reads, record["scores"]["test/loss"], least)


def model_reads(model: EncoderDecoder) -> Reads:
    """Return what a model reads of its own output when it predicts a token."""
    if model.embedding is None:
        return "nothing"
    return "all" if has_state(model) else "last"


def table(rows: Sequence[Row]) -> str:
    """Return a table with a line for each run, sorted by optimal loss."""
    lines = ["| run | reads of its own output | nats per token | optimum | ratio |", "|---|---|---|---|---|"]
    for name, reads, loss, least in sorted(rows, key=lambda row: -row.least):
        lines.append(f"| {name} | {READS_LABEL[reads]} | {loss:.4f} | {least:.4f} | {loss / least:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    print(table([read_run(run) for run in parser.parse_args().runs]))


if __name__ == "__main__":
    main()
