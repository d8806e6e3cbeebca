"""Startup: `check`, `train` until its first step, and a line translated, from the command to the
result.

    OMP_NUM_THREADS=1 python -m benchmarks.startup [--data DATA] [--rounds 9]

Every round starts each of them as a process, and the interpreter that imports torch alone; `train`,
with an empty cache of tokenizers and with the one that it left, stands beside Lightning around a
model by hand. Medians over the rounds: seconds, those above `import torch` of the same round, and
the ratio to Lightning of the same round; of wall time and of processor time, which is less noisy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

RECIPES = Path(__file__).parent.parent / "recipes"
QUICKSTART = RECIPES / "quickstart.yaml"
STORE = "SEQCOMPOSER_STORE"
PYTHON = [sys.executable, "-c"]
COMMAND = [sys.executable, "-m", "composer.cli.main"]
LIGHTNING = [sys.executable, "-m", "benchmarks.bare_lightning"]
TORCH, BARE = "import torch", "Lightning by hand, first step"
TRAIN, TRAIN_AGAIN = (
    "train the quick start, first step",
    "train the quick start again, its tokenizer cached",
)


class Seconds(NamedTuple):
    """What a process took: wall time and processor time."""

    wall: float
    cpu: float


def seconds(
    command: list[str],
    status: int = 0,
    stdin: str = "",
    until: Path | None = None,
    store: Path | None = None,
) -> Seconds:
    """Return what a process takes until it ends, or until this file is not empty; its caches are in
    `store`.
    """
    start, environment = time.perf_counter(), os.environ | ({STORE: str(store)} if store else {})
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, text=True, env=environment, **streams)
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    while until and process.poll() is None and not (until.exists() and until.stat().st_size):
        time.sleep(0.01)
    if until:
        process.kill()
    _, code, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    if not until and process.returncode != status:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Seconds(time.perf_counter() - start, used.ru_utime + used.ru_stime)


def time_check_of_typo(folder: Path) -> Seconds:
    recipe = folder / "typo.yaml"
    text = QUICKSTART.read_text(encoding="utf-8")
    recipe.write_text(text.replace("self_attention", "self_atention"), encoding="utf-8")
    return seconds([*COMMAND, "check", str(recipe)], status=2)


def time_first_step(folder: Path, store: Path | None = None) -> Seconds:
    settings = ["logging.wandb=false", "trainer.log_every_n_steps=1"]
    command = [*COMMAND, "train", str(QUICKSTART), "--run", str(folder / "run"), *settings]
    return seconds(command, until=folder / "run" / "metrics.jsonl", store=store)


def train_run(run: Path) -> None:
    """Train the run that translates, whose tokenizer is then cached."""
    settings = ["logging.wandb=false", "training.max_steps=20"]
    subprocess.run(
        [*COMMAND, "train", str(QUICKSTART), "--run", str(run), *settings],
        capture_output=True,
        check=True,
    )


def measurements(run: Path, data: Path | None) -> dict[str, Callable[[Path], Seconds]]:
    """Return all that is measured, in the order of a round."""
    transformer = ["check", str(RECIPES / "multi30k" / "transformer.yaml"), "--data", str(data)]
    measured: dict[str, Callable[[Path], Seconds]] = {
        TORCH: lambda _: seconds([*PYTHON, "import torch"]),
        "check a recipe with a typo": time_check_of_typo,
        "check the quick start": lambda _: seconds([*COMMAND, "check", str(QUICKSTART)]),
        "check the Transformer of Multi30k": lambda _: seconds([*COMMAND, *transformer]),
        "translate a line": lambda _: seconds([*COMMAND, "translate", str(run)], stdin="seven\n"),
        "import pytorch_lightning": lambda _: seconds([*PYTHON, "import pytorch_lightning"]),
        BARE: lambda _: seconds(LIGHTNING),
        TRAIN: lambda folder: time_first_step(folder, folder / "store"),
        TRAIN_AGAIN: time_first_step,
    }
    return {name: measure for name, measure in measured.items() if data or "Multi30k" not in name}


def print_medians(rounds: list[Mapping[str, Seconds]]) -> None:
    """Print a line for each measurement: its medians of wall and of processor time."""
    for name in rounds[0]:
        texts = []
        for kind in Seconds._fields:
            times, above, ratios = (
                sorted(relate(getattr(measured[name], kind), measured, kind) for measured in rounds)
                for relate in RELATIONS
            )
            ratio = f", x {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            ratio = ratio if name in (TRAIN, TRAIN_AGAIN) else ""
            spread = f"{statistics.median(above):+.2f} ({above[0]:+.2f} to {above[-1]:+.2f})"
            texts.append(f"{kind} {statistics.median(times):.2f}, {spread}{ratio}")
        print(f"{name}: {'; '.join(texts)}", flush=True)


RELATIONS: tuple[Callable[[float, Mapping[str, Seconds], str], float], ...] = (
    lambda value, _, kind: value,
    lambda value, times, kind: value - getattr(times[TORCH], kind),
    lambda value, times, kind: value / getattr(times[BARE], kind),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="the folder with multi30k/, for the check of its Transformer"
    )
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rounds: list[Mapping[str, Seconds]] = []
    with tempfile.TemporaryDirectory() as folder:
        run, os.environ[STORE] = Path(folder) / "trained", str(Path(folder) / "store")
        train_run(run)
        measured = measurements(run, options.data)
        for number in range(options.rounds):
            places = {name: Path(folder, f"{number}-{at}") for at, name in enumerate(measured)}
            for place in places.values():
                place.mkdir()
            rounds.append({name: measure(places[name]) for name, measure in measured.items()})
    print(
        f"Seconds, and those above `{TORCH}` of the same round, {options.rounds} rounds; x: to"
        f" {BARE}"
    )
    print_medians(rounds)


if __name__ == "__main__":
    main()
