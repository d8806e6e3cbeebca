"""How long a person waits: for `check` to refuse a recipe with a typo, and for `train` to make its first ten steps.

    python benchmarks/startup.py [--rounds 5]

Whole processes, from the command to the answer; beside them, what importing torch and Lightning alone takes.
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
    """Of one process, from start to end."""
    began = time.perf_counter()
    ended = subprocess.run(command, capture_output=True, check=False).returncode
    if ended != status:
        raise SystemExit(f"{' '.join(command)} ended with {ended}")
    return time.perf_counter() - began


def check_of_a_typo(folder: Path) -> float:
    recipe = folder / "typo.yaml"
    recipe.write_text(
        QUICKSTART.read_text(encoding="utf-8").replace("self_attention", "self_atention"), encoding="utf-8"
    )
    return seconds([*COMMAND, "check", str(recipe)], status=2)


def first_ten_steps(folder: Path) -> float:
    run = folder / "run"
    command = [*COMMAND, "train", str(QUICKSTART), "--run", str(run), "logging.wandb=false"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        rows = run / "metrics.jsonl"
        while process.poll() is None and not (rows.exists() and rows.stat().st_size):
            time.sleep(0.02)
        taken = time.perf_counter() - began
        process.kill()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    waits = {
        "import torch": lambda folder: seconds([*PYTHON, "import torch"]),
        "import pytorch_lightning": lambda folder: seconds([*PYTHON, "import pytorch_lightning"]),
        "check of a recipe with a typo": check_of_a_typo,
        "train to its tenth step": first_ten_steps,
    }
    taken: dict[str, list[float]] = {name: [] for name in waits}
    for _ in range(rounds):
        for name, wait in waits.items():
            with tempfile.TemporaryDirectory() as folder:
                taken[name].append(wait(Path(folder)))
    for name, times in taken.items():
        print(f"{name}: {statistics.median(times):.2f} s (from {min(times):.2f} to {max(times):.2f}, {rounds} rounds)")


if __name__ == "__main__":
    main()
