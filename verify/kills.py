"""Kill and resume trainings at random moments: each must end exactly like an uninterrupted one.

    python -m verify.kills --rounds 20 [--workers 2] [--devices 2] [--strategy fsdp] [--signals
    SIGKILL SIGTERM]
                               [--kills 4] [--seed 1] [--folder DIR]

A round is one training that gets up to `--kills` signals, chosen from `--signals`, at random
moments within the wall time of an uninterrupted run (with `--devices`, sent to a random one of its
processes), and then `--resume`. Compared bit for bit are the final weights, every row of metrics
except timings, and the end of run.json. All processes must end by themselves and without a
traceback. Exit status 1 if a round differs.
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
TIMINGS = {"minutes", "train/tokens_per_second"}
ENDING = ("status", "steps", "epochs", "checkpoints_used", "scores", "by_length")
HANG_SECONDS = 300.0
"""Seconds after which a training counts as hanging."""
EXIT_SECONDS = 30.0
"""Seconds within which the other processes of a training must end by themselves."""


def command(recipe: Path, run: Path, options: argparse.Namespace) -> list[str]:
    machine = (
        f"trainer={{accelerator: cpu, devices: {options.devices}, strategy: {options.strategy}}}"
    )
    several = [machine] if options.devices > 1 else []
    words = [f"training.workers={options.workers}", *several, "--run", str(run), "--resume"]
    return [sys.executable, "-m", "composer.cli.main", "train", str(recipe), *words]


def start_training(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a training as the leader of a new session."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}
    with log.open("ab") as file:
        return subprocess.Popen(
            words, env=environment, stdout=file, stderr=file, start_new_session=True
        )


def live_processes(leader: int) -> list[int]:
    """Return the live processes of a training, its leader first."""
    processes = subprocess.run(
        ["ps", "-e", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in processes.stdout.splitlines()]
    return sorted(
        int(row[0]) for row in rows if int(row[1]) == leader and not row[2].startswith("Z")
    )


def training_processes(process: int) -> list[int]:
    """Return the processes of a training: leader, ranks and their data workers."""
    return [
        process,
        *(pid for pid in live_processes(process) if b"spawn_main" in command_line(pid)),
    ]


def command_line(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for_end(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """Wait for a training; return its status, and True if it left processes (killed now)."""
    try:
        status = process.wait(HANG_SECONDS)
        deadline = time.monotonic() + EXIT_SECONDS
        while (remaining := live_processes(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return status, bool(remaining)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def interrupt(
    words: list[str], log: Path, after: float, signal_name: str, random_source: random.Random
) -> str:
    """Send a signal to a training; describe how it ended, "" if it had already ended."""
    process = start_training(words, log)
    with suppress(subprocess.TimeoutExpired):
        process.wait(after)
    if process.poll() is not None:
        return ""
    victim = random_source.choice(training_processes(process.pid))
    with suppress(ProcessLookupError):
        os.kill(victim, signal.Signals[signal_name])
    status, orphans = wait_for_end(process)
    target = "the first" if victim == process.pid else "another"
    return f"{signal_name} to {target} after {after:.1f} s: {status}{', ORPHANS' * orphans}"


def read_results(run: Path) -> dict[str, Any]:
    """Return the results of a training, without timings."""
    record = json.loads((run / "run.json").read_text())
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest(),
        "rows": [{key: row[key] for key in row if key not in TIMINGS} for row in rows],
        "ending": {key: record[key] for key in ENDING},
        "files": sorted(str(path.relative_to(run)) for path in run.rglob("*")),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("rounds", 5), ("kills", 4), ("workers", 0), ("devices", 1), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument(
        "--strategy", choices=("ddp", "fsdp"), default="ddp", help="strategy of several devices"
    )
    parser.add_argument(
        "--signals", nargs="+", choices=("SIGKILL", "SIGTERM", "SIGINT"), default=["SIGKILL"]
    )
    parser.add_argument(
        "--folder", type=Path, help="folder of the runs; by default a temporary one"
    )
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    sys.exit(run_rounds(options, folder))


def run_rounds(options: argparse.Namespace, folder: Path) -> int:
    """Run all rounds, printing each; return 1 if one differs."""
    recipe, random_source = folder / "killed.yaml", random.Random(options.seed)
    recipe.write_text(RECIPE, encoding="utf-8")
    start = time.monotonic()
    status, _ = wait_for_end(
        start_training(command(recipe, folder / "whole", options), folder / "whole.log")
    )
    if status:
        raise SystemExit((folder / "whole.log").read_text())
    expected, seconds = read_results(folder / "whole"), time.monotonic() - start
    print(f"an uninterrupted training takes {seconds:.1f} s")
    passed = 0
    for number in range(options.rounds):
        run, log = folder / f"round-{number}", folder / f"round-{number}.log"
        words = command(recipe, run, options)
        moments = [
            random_source.uniform(0, seconds)
            for _ in range(random_source.randint(1, options.kills))
        ]
        signals = [random_source.choice(options.signals) for _ in moments]
        interruptions = [
            interrupt(words, log, at, signal_name, random_source)
            for at, signal_name in zip(moments, signals, strict=True)
        ]
        problem = describe_difference(run, log, expected, *wait_for_end(start_training(words, log)))
        orphans = ", orphans" * any("ORPHANS" in interruption for interruption in interruptions)
        print(
            f"round {number}: {'; '.join(filter(None, interruptions))}:"
            f" {problem or 'identical'}{orphans}",
            flush=True,
        )
        if not problem and not orphans:
            passed += 1
            shutil.rmtree(run)
    print(f"{passed} of {options.rounds} ended like the uninterrupted training")
    return 0 if passed == options.rounds else 1


def describe_difference(
    run: Path, log: Path, expected: dict[str, Any], status: int, orphans: bool
) -> str:
    """Describe how a round differs from the expected results, "" if it does not."""
    if status or orphans:
        return f"STATUS {status}{', ORPHANS' * orphans}, see {log}"
    results = read_results(run)
    differing = [name for name in expected if results[name] != expected[name]]
    if differing:
        return f"DIFFERS in {', '.join(differing)}, see {log}"
    return f"TRACEBACK, see {log}" if "Traceback" in log.read_text(errors="replace") else ""


if __name__ == "__main__":
    main()
