"""Trainings that are killed at random moments and continued: each must end as the one that nobody killed.

    python -m benchmarks.kills --rounds 20 [--workers 2] [--devices 2] [--strategy fsdp] [--signals SIGKILL SIGTERM]
                               [--kills 4] [--seed 1] [--folder DIR]

A round is one training: up to `--kills` times it gets a signal, one of `--signals` by chance, at a moment drawn from
the wall time that a whole one takes (with `--devices`, one of its processes drawn by chance), and then `--resume`. What
must be equal to the last bit: the final weights, every row of metrics but for clocks, and what run.json says of the
end. All that was started must end by itself, and nothing may end in a traceback. Exit status 1 where one is not so.
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
ENDING = ("status", "steps", "epochs", "checkpoints_used", "scores", "by_length")
PATIENCE = 300.0
"""Seconds after which a training has hung."""
GONE_WITHIN = 30.0
"""Seconds in which the other processes of a training have ended by themselves."""


def command(recipe: Path, run: Path, asked: argparse.Namespace) -> list[str]:
    machine = f"trainer={{accelerator: cpu, devices: {asked.devices}, strategy: {asked.strategy}}}"
    several = [machine] if asked.devices > 1 else []
    words = [f"training.workers={asked.workers}", *several, "--run", str(run), "--resume"]
    return [sys.executable, "-m", "composer.cli.main", "train", str(recipe), *words]


def started(words: list[str], said: Path) -> subprocess.Popen[bytes]:
    """A training, as the leader of a session of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    with said.open("ab") as file:
        return subprocess.Popen(words, env=environment, stdout=file, stderr=file, start_new_session=True)


def group(leader: int) -> list[int]:
    """The processes of a training that are still alive, from the one that leads them on."""
    found = subprocess.run(["ps", "-e", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True)
    rows = [line.split() for line in found.stdout.splitlines()]
    return sorted(int(row[0]) for row in rows if int(row[1]) == leader and not row[2].startswith("Z"))


def members(process: int) -> list[int]:
    """The processes of a training: the first, and the others with those that prepare their batches."""
    return [process, *(each for each in group(process) if b"LOCAL_RANK=" in environment(each))]


def environment(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""


def end(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """Waits for a training; its status, and whether it has left processes behind, which this ends."""
    try:
        status = process.wait(PATIENCE)
        until = time.monotonic() + GONE_WITHIN
        while (there := group(process.pid)) and time.monotonic() < until:
            time.sleep(0.2)
        return status, bool(there)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def disturbed(words: list[str], said: Path, after: float, how: str, chance: random.Random) -> str:
    """What a training that gets a signal ends with, and what is wrong with that; empty where it had ended before."""
    process = started(words, said)
    with suppress(subprocess.TimeoutExpired):
        process.wait(after)
    if process.poll() is not None:
        return ""
    victim = chance.choice(members(process.pid))
    with suppress(ProcessLookupError):
        os.kill(victim, signal.Signals[how])
    status, orphans = end(process)
    which = "the first" if victim == process.pid else "another"
    return f"{how} to {which} after {after:.1f} s: {status}{', ORPHANS' * orphans}"


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
    parser.add_argument("--strategy", choices=("ddp", "fsdp"), default="ddp", help="of several devices")
    parser.add_argument("--signals", nargs="+", choices=("SIGKILL", "SIGTERM", "SIGINT"), default=["SIGKILL"])
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
    status, _ = end(started(command(recipe, folder / "whole", asked), folder / "whole.said"))
    if status:
        raise SystemExit((folder / "whole.said").read_text())
    whole, seconds = left(folder / "whole"), time.monotonic() - began
    print(f"a whole training takes {seconds:.1f} s")
    good = 0
    for number in range(asked.rounds):
        run, said = folder / f"round-{number}", folder / f"round-{number}.said"
        words = command(recipe, run, asked)
        moments = [chance.uniform(0, seconds) for _ in range(chance.randint(1, asked.kills))]
        signals = [chance.choice(asked.signals) for _ in moments]
        met = [disturbed(words, said, at, how, chance) for at, how in zip(moments, signals, strict=True)]
        told = difference(run, said, whole, *end(started(words, said)))
        orphans = ", orphans" * any("ORPHANS" in each for each in met)
        print(f"round {number}: {'; '.join(filter(None, met))}: {told or 'the same'}{orphans}", flush=True)
        if not told and not orphans:
            good += 1
            shutil.rmtree(run)
    print(f"{good} of {asked.rounds} ended as the training that nobody disturbed")
    return 0 if good == asked.rounds else 1


def difference(run: Path, said: Path, whole: dict[str, Any], status: int, orphans: bool) -> str:
    """What is not as it should be at the end of a round; empty where all is."""
    if status or orphans:
        return f"STATUS {status}{', ORPHANS' * orphans}, see {said}"
    found = left(run)
    differing = [name for name in whole if found[name] != whole[name]]
    if differing:
        return f"DIFFERS in {', '.join(differing)}, see {said}"
    return f"TRACEBACK, see {said}" if "Traceback" in said.read_text(errors="replace") else ""


if __name__ == "__main__":
    main()
