"""Training throughput on 1, 2, 4 ... devices, with the same global batch and with one that grows
with the devices.

    python -m benchmarks.devices RECIPE [key=value ...] --devices 1 2 4 8 [--strategy ddp fsdp]
    [--accelerator gpu]
                                 [--data DIR] [--steps 200] [--rounds 3]

Each figure is a `seqcomposer train` of its own; the cases alternate. Prints target tokens per
second without padding (the median after the first quarter of the steps), the throughput per device
relative to a single device, and the last training loss, which with the same global batch does not
depend on the number of devices. On several machines use `recipes/launch/slurm.sh` or
`recipes/launch/torchrun.sh` and read `train/tokens_per_second` in metrics.jsonl.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from composer.recipe.recipe import Recipe, load
from composer.run_dir import read_metrics


class Case(NamedTuple):
    """Some devices; with `grows` the batch per device is constant, so the global batch grows."""

    devices: int
    strategy: str
    grows: bool

    def settings(self, recipe: Recipe, steps: int, accelerator: str) -> list[str]:
        tokens = recipe.training.tokens_per_batch * (self.devices if self.grows else 1)
        strategy = "auto" if self.devices == 1 else self.strategy
        return [
            f"training.tokens_per_batch={tokens}",
            f"training.max_steps={steps}",
            "training.max_epochs=null",
            "training.max_minutes=null",
            "training.validate_every=1000000",
            "logging.wandb=false",
            (
                f"trainer={{accelerator: {accelerator}, devices: {self.devices}, strategy:"
                f" {strategy}}}"
            ),
        ]

    def label(self) -> str:
        batch = "batch grows" if self.grows else "same batch "
        return f"{self.devices} x {self.strategy if self.devices > 1 else 'alone':5} {batch}"


class Measurement(NamedTuple):
    speed: float
    loss: float


def measure(case: Case, options: argparse.Namespace, recipe: Recipe) -> Measurement:
    """Train in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        settings = [*options.overrides, *case.settings(recipe, options.steps, options.accelerator)]
        arguments = ["train", str(options.recipe), *settings, "--run", str(run)]
        arguments += ["--data", str(options.data)] if options.data else []
        command = [sys.executable, "-m", "composer.cli.main", *arguments]
        root = str(Path(__file__).resolve().parent.parent)
        process = subprocess.run(
            command, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True
        )
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}\n{process.stderr}")
        rows = [row for row in read_metrics(run / "metrics.jsonl") if "train/loss" in row]
    steady = [row["train/tokens_per_second"] for row in rows if row["step"] > options.steps / 4]
    return Measurement(statistics.median(steady), rows[-1]["train/loss"])


def cases(devices: Sequence[int], strategies: Sequence[str]) -> list[Case]:
    """Return one device once, and several with every strategy and batch."""
    several = itertools.product(
        (count for count in devices if count > 1), strategies, (False, True)
    )
    return [
        *(Case(1, "auto", False) for count in devices if count == 1),
        *itertools.starmap(Case, several),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--strategy", nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_intermixed_args()
    recipe = load(options.recipe, options.overrides, options.data)
    measurements: dict[Case, list[Measurement]] = {
        case: [] for case in cases(options.devices, options.strategy)
    }
    for number, case in itertools.product(range(options.rounds), measurements):
        measurements[case].append(measure(case, options, recipe))
        speed, loss = measurements[case][-1]
        print(
            f"round {number + 1}: {case.label()}  {speed:10,.0f} tokens/s  loss {loss:.5f}",
            flush=True,
        )
    alone = next(
        (
            statistics.median(measurement.speed for measurement in measurements[case])
            for case in measurements
            if case.devices == 1
        ),
        None,
    )
    for case, results in measurements.items():
        speed = statistics.median(measurement.speed for measurement in results)
        share = (
            f"  {speed / case.devices / alone:.2f} of a single device's speed per device"
            if alone
            else ""
        )
        print(
            f"median of {options.rounds}: {case.label()}  {speed:10,.0f} tokens/s{share}",
            flush=True,
        )


if __name__ == "__main__":
    main()
