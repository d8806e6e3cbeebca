"""Trainings that are killed at random moments and continued: each must end as the one that nobody killed.

    python -m benchmarks.kills --rounds 20 [--workers 2] [--devices 2] [--kills 4] [--seed 1] [--folder DIR]

A round is one training: up to `--kills` times it gets SIGKILL, at a moment drawn from the wall time that a whole one
takes (with `--devices`, one of its processes drawn by chance), and then `--resume`. What must be equal to the last
bit: the final weights, every row of metrics but for clocks, and what run.json says of the end. Exit status 1 where one
is not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

RECIPE = """
recipe: 1
name: killed
data:
  generate: {reverse: {symbols: 8, min_length: 2, max_length: 8, train: 300, val: 40, test: 20}}
  tokenizer: {char: {joint: true}}
model:
  width: 16
  dropout: 0.2
  encoder: [dropout, {rnn: {cell: gru}}]
  decoder: [{rnn: {cell: gru}}, {residual: [{cross_attention: {heads: 2}}]}, norm]
training:
  optimizer: {adam: {learning_rate: 1e-2}}
  tokens_per_batch: 200
  max_steps: 200
  validate_every: 10
  average_checkpoints: 3
logging: {wandb: false}
"""
CLOCKS = {"minutes", "train/tokens_per_second"}
ENDING = ("status", "steps", "epochs", "kept", "scores", "by_length")
PATIENCE = 300.0
"""Seconds after which a training has hung."""


def command(recipe: Path, run: Path, workers: int, devices: int) -> list[str]:
    several = [f"trainer={{accelerator: cpu, devices: {devices}, strategy: ddp}}"] if devices > 1 else []
    words = [f"training.workers={workers}", *several, "--run", str(run), "--resume"]
    return [sys.executable, "-m", "composer.cli", "train", str(recipe), *words]


def started(words: list[str], said: Path) -> subprocess.Popen[bytes]:
    """A training, as the leader of a session of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    with said.open("ab") as file:
        return subprocess.Popen(words, env=environment, stdout=file, stderr=file, start_new_session=True)


def members(process: int) -> list[int]:
    """The trainings of a session: its leader, and what that has started by the same command."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        children = []
    return [process, *(int(each) for each in children if b"composer" in cmdline(int(each)))]


def cmdline(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def end(process: subprocess.Popen[bytes]) -> int:
    """Waits for a training, and ends what it has left behind."""
    try:
        return process.wait(PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def killed(words: list[str], said: Path, after: float, chance: random.Random, several: bool) -> bool:
    """Whether a training came to be killed; False where it had ended before."""
    process = started(words, said)
    with suppress(subprocess.TimeoutExpired):
        process.wait(after)
    if process.poll() is not None:
        return False
    victim = chance.choice(members(process.pid)) if several else process.pid
    os.kill(victim, signal.SIGKILL)
    if several:
        end(process)
    process.wait()
    return True


def left(run: Path) -> dict[str, Any]:
    """What a training has come to, without what a clock has told."""
    record = json.loads((run / "run.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest(),
        "rows": [{key: row[key] for key in row if key not in CLOCKS} for row in rows],
        "ending": {key: record[key] for key in ENDING},
        "files": sorted(str(path.relative_to(run)) for path in run.rglob("*")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 5), ("kills", 4), ("workers", 0), ("devices", 1), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", type=Path, help="where the runs are kept; else a temporary one")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    sys.exit(rounds(asked, folder))


def rounds(asked: argparse.Namespace, folder: Path) -> int:
    """All rounds, told one by one; 1 where a training did not end as it should have."""
    recipe, chance = folder / "killed.yaml", random.Random(asked.seed)
    recipe.write_text(RECIPE, encoding="utf-8")
    began = time.monotonic()
    words = command(recipe, folder / "whole", asked.workers, asked.devices)
    if end(started(words, folder / "whole.said")):
        raise SystemExit((folder / "whole.said").read_text())
    whole, seconds = left(folder / "whole"), time.monotonic() - began
    print(f"a whole training takes {seconds:.1f} s")
    wrong = 0
    for number in range(asked.rounds):
        run, said = folder / f"round-{number}", folder / f"round-{number}.said"
        words = command(recipe, run, asked.workers, asked.devices)
        moments = [chance.uniform(0, seconds) for _ in range(chance.randint(1, asked.kills))]
        count = sum(killed(words, said, moment, chance, asked.devices > 1) for moment in moments)
        status = end(started(words, said))
        found = left(run) if status == 0 else {}
        differing = [name for name in whole if found.get(name) != whole[name]]
        told = f"differs in {', '.join(differing)}; status {status}, see {said}" if differing else "the same"
        print(
            f"round {number}: killed {count} times, after {' '.join(f'{m:.1f}' for m in moments)} s: {told}", flush=True
        )
        wrong += bool(differing)
        if not differing:
            shutil.rmtree(run)
    print(f"{asked.rounds - wrong} of {asked.rounds} ended as the training that nobody killed")
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
