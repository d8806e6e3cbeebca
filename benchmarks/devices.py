"""How a training scales: the same recipe on 1, 2, 4 ... devices, with the same global batch and with one that grows.

    python benchmarks/devices.py RECIPE [key=value ...] --devices 1 2 4 8 [--strategy ddp fsdp] [--accelerator gpu]
                                 [--data DIR] [--steps 200] [--rounds 3]

Each figure is a `seqcomposer train` of its own, the sides in turn. Prints real target tokens per second (the median of
the rows after the first quarter), what one device's share of that is of a single device's, and the last training loss:
with the same global batch it is the same on any number of devices. On several machines start
`recipes/launch/slurm.sh` or `recipes/launch/torchrun.sh` instead and read `train/tokens_per_second` of metrics.jsonl.
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
    """Some devices; `grows`: each keeps the share that one had alone, so that the global batch grows with them."""

    devices: int
    strategy: str
    grows: bool

    def settings(self, recipe: Recipe, steps: int, accelerator: str) -> list[str]:
        tokens = recipe.training["tokens_per_batch"] * (self.devices if self.grows else 1)
        strategy = "auto" if self.devices == 1 else self.strategy
        return [
            f"training.tokens_per_batch={tokens}",
            f"training.max_steps={steps}",
            "training.max_epochs=null",
            "training.max_minutes=null",
            "training.validate_every=1000000",
            "logging.wandb=false",
            f"trainer={{accelerator: {accelerator}, devices: {self.devices}, strategy: {strategy}}}",
        ]

    def told(self) -> str:
        batch = "batch grows" if self.grows else "same batch "
        return f"{self.devices} x {self.strategy if self.devices > 1 else 'alone':5} {batch}"


class Measured(NamedTuple):
    speed: float
    loss: float


def measure(case: Case, given: argparse.Namespace, recipe: Recipe) -> Measured:
    """Trains in a folder that is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        settings = [*given.overrides, *case.settings(recipe, given.steps, given.accelerator)]
        command = [sys.executable, "-m", "composer.cli.main", "train", str(given.recipe), *settings, "--run", str(run)]
        command += ["--data", str(given.data)] if given.data else []
        root = str(Path(__file__).resolve().parent.parent)
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": root}, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
        rows = [row for row in read_metrics(run / "metrics.jsonl") if "train/loss" in row]
    steady = [row["train/tokens_per_second"] for row in rows if row["step"] > given.steps / 4]
    return Measured(statistics.median(steady), rows[-1]["train/loss"])


def cases(devices: Sequence[int], strategies: Sequence[str]) -> list[Case]:
    """Alone once; several devices in every way."""
    several = itertools.product((count for count in devices if count > 1), strategies, (False, True))
    return [*(Case(1, "auto", False) for count in devices if count == 1), *itertools.starmap(Case, several)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--strategy", nargs="+", default=["ddp", "fsdp"])
    parser.add_argument("--accelerator", default="auto")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_intermixed_args()
    recipe = load(given.recipe, given.overrides, given.data)
    found: dict[Case, list[Measured]] = {case: [] for case in cases(given.devices, given.strategy)}
    for number, case in itertools.product(range(given.rounds), found):
        found[case].append(measure(case, given, recipe))
        speed, loss = found[case][-1]
        print(f"round {number + 1}: {case.told()}  {speed:10,.0f} tokens/s  loss {loss:.5f}", flush=True)
    alone = next((statistics.median(each.speed for each in found[case]) for case in found if case.devices == 1), None)
    for case, measured in found.items():
        speed = statistics.median(each.speed for each in measured)
        share = f"  {speed / case.devices / alone:.2f} of one device's speed each" if alone else ""
        print(f"median of {given.rounds}: {case.told()}  {speed:10,.0f} tokens/s{share}", flush=True)


if __name__ == "__main__":
    main()
