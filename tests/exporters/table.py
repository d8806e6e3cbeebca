"""Export every recipe at a small size and compare its programs with the model at seven sizes.

    python -m tests.exporters.table [RECIPE ...] [--output F.md]

Prints a row for each recipe: the largest difference of outputs and states, relative to 1 or to
their size, and the seconds of the export, or the block that refuses it and why. Writes the table
with `--output`. Exits with 1 if a program differs by more than 1e-4.
"""

# ruff: noqa: T201
from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from onnxruntime import InferenceSession

from composer.model.builder import build
from composer.programs.files import programs_of
from composer.programs.graphs import NotExportable
from composer.programs.parts import Example, Program, Tensors
from tests.exporters.sizes import SIZES, TOLERANCE, to_session
from tests.laws.test_recipes import RECIPES, name, small, vocabularies

HEAD = "| recipe | largest difference | seconds |\n|---|---|---|\n"


@dataclass(frozen=True)
class Row:
    """What came of a recipe. reason: Why it has no programs; "" if it has."""

    recipe: str
    difference: float
    seconds: float
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"| {self.recipe} | refused: {self.reason} | |"
        return f"| {self.recipe} | {self.difference:.1e} | {self.seconds:.0f} |"


def try_recipe(path: Path) -> Row:
    """Export a recipe and compare its programs."""
    recipe = small(path)
    torch.manual_seed(0)
    model = build(recipe, vocabularies(recipe)).eval()
    begin = time.perf_counter()
    try:
        exported = programs_of(model)
    except NotExportable as problem:
        place = ".".join(map(str, problem.path))
        return Row(name(path), 0.0, 0.0, f"`{place}`: {problem}"[:200].replace("|", "/"))
    seconds = time.perf_counter() - begin
    worst = 0.0
    for program, graph in exported:
        session = to_session(graph)
        for sizes in SIZES:
            inputs = Example.of(model, sizes, seed=1).tensors()
            worst = max(worst, largest_difference(program, session, inputs))
    return Row(name(path), worst, seconds)


def largest_difference(program: Program, session: InferenceSession, inputs: Tensors) -> float:
    """Return the largest difference of any output, relative where it is above 1."""
    read = {node.name: inputs[node.name].numpy() for node in session.get_inputs()}
    outputs = session.run(list(program.signature.outputs), read)
    with torch.no_grad():
        expected = program(*(inputs[name] for name in program.signature.inputs))
    worst = 0.0
    for one, other in zip(outputs, map(torch.Tensor.numpy, expected), strict=True):
        if one.shape != other.shape:
            return float("inf")
        if one.size:
            size = np.maximum(1.0, np.abs(other.astype(np.float64)))
            worst = max(worst, float((np.abs(one.astype(np.float64) - other) / size).max()))
    return worst


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(words)
    rows = []
    for path in RECIPES:
        if not options.recipes or name(path) in options.recipes:
            rows.append(try_recipe(path))
            print(rows[-1], flush=True)
    refused = [row for row in rows if row.reason]
    wrong = [row for row in rows if row.difference > TOLERANCE]
    exported = len(rows) - len(refused)
    summary = f"{exported} of {len(rows)} recipes are exported, {len(refused)} refused."
    print(f"{summary} {len(wrong)} differ.")
    if options.output:
        options.output.write_text(
            f"{HEAD}{''.join(f'{row}{chr(10)}' for row in rows)}\n{summary}\n"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
