"""Startup time: of `check` on a recipe with a typo, and of `train` until its tenth step.

    python benchmarks/startup.py [--rounds 5]

Whole processes, from the command to the result; for comparison, importing torch and Lightning alone.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUICKSTART = Path(__file__).parent.parent / "recipes" / "quickstart.yaml"
PYTHON = [sys.executable, "-c"]
COMMAND = [sys.executable, "-m", "composer.cli.main"]


def seconds(command: list[str], status: int = 0) -> float:
    """Return the duration of a process from start to end."""
    start = time.perf_counter()
    returncode = subprocess.run(command, capture_output=True, check=False).returncode
    if returncode != status:
        raise SystemExit(f"{' '.join(command)} ended with {returncode}")
    return time.perf_counter() - start


def time_check_of_typo(folder: Path) -> float:
    recipe = folder / "typo.yaml"
    recipe.write_text(
        QUICKSTART.read_text(encoding="utf-8").replace("self_attention", "self_atention"), encoding="utf-8"
    )
    return seconds([*COMMAND, "check", str(recipe)], status=2)


def time_first_ten_steps(folder: Path) -> float:
    run = folder / "run"
    command = [*COMMAND, "train", str(QUICKSTART), "--run", str(run), "logging.wandb=false"]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        rows = run / "metrics.jsonl"
        while process.poll() is None and not (rows.exists() and rows.stat().st_size):
            time.sleep(0.02)
        durations = time.perf_counter() - start
        process.kill()
    return durations


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    measurements = {
        "import torch": lambda folder: seconds([*PYTHON, "import torch"]),
        "import pytorch_lightning": lambda folder: seconds([*PYTHON, "import pytorch_lightning"]),
        "check a recipe with a typo": time_check_of_typo,
        "train until the tenth step": time_first_ten_steps,
    }
    durations: dict[str, list[float]] = {name: [] for name in measurements}
    for _ in range(rounds):
        for name, measure in measurements.items():
            with tempfile.TemporaryDirectory() as folder:
                durations[name].append(measure(Path(folder)))
    for name, times in durations.items():
        print(f"{name}: {statistics.median(times):.2f} s (from {min(times):.2f} to {max(times):.2f}, {rounds} rounds)")


if __name__ == "__main__":
    main()
