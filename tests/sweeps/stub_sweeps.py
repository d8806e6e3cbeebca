"""Sweeps over a tiny recipe with a stub in place of training; as a script, a sweep that can be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from composer.sweeps import workers
from composer.sweeps.scheduler import run_sweep
from composer.sweeps.spec import read_sweep
from composer.sweeps.trial import Trial, read_trials
from composer.sweeps.workers import train_command

BASE = """
recipe: 1
data:
  generate: {reverse: {symbols: 6, min_length: 2, max_length: 6, train: 90, val: 12, test: 8}}
  tokenizer: {char: {joint: true}}
model:
  width: 8
  encoder: [{rnn: {cell: gru}}]
  decoder: [{rnn: {cell: gru}}, {residual: [{cross_attention: {heads: 2}}]}, norm]
training: {optimizer: {adam: {learning_rate: 0.5}}, max_steps: 4, validate_every: 2, tokens_per_batch: 100}
logging: {wandb: false}
"""
RATE = "set: training.optimizer.adam.learning_rate"
STUB = Path(__file__).with_name("stub_train.py")


def write_sweep(folder: Path, axes: str, rest: str = "") -> Path:
    """A sweep's file beside its base."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    file = folder / "sweep.yaml"
    file.write_text(f"sweep: 1\nname: tried\nbase: base.yaml\naxes:\n  {axes}\n{rest}\n", encoding="utf-8")
    return file


def rates(*values: float) -> str:
    return f"rate: {{{RATE}, values: {list(values)}}}"


def plan(folder: Path, **told: dict[str, float]) -> None:
    """What the stub does at which rate."""
    (folder / "plan.json").write_text(json.dumps(told), encoding="utf-8")


def stub(recipe: Path, run: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command of a worker, with the stub in place of `composer.cli.main`."""
    command = train_command(recipe, run, arguments)
    at = command.index("-m")
    return [*command[:at], str(STUB), *command[at + 2 :]]


def starts(folder: Path) -> list[tuple[float, int]]:
    """Which rate was begun with which seed, in order."""
    lines = (folder / "starts").read_text(encoding="utf-8").splitlines() if (folder / "starts").exists() else []
    return [(float(line.split()[0]), int(line.split()[1])) for line in lines]


def trials_by_rate(folder: Path) -> dict[float, Trial]:
    return {float(trial.point["rate"]): trial for trial in read_trials(folder)}


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.05)


def parent(file: Path, run: Path, *more: str) -> subprocess.Popen[bytes]:
    """A sweep in a process of its own."""
    command = [sys.executable, __file__, str(file), str(run), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ))


def main() -> int:
    if "real" not in sys.argv:
        workers.train_command = stub
    address = next((item.removeprefix("ray=") for item in sys.argv if item.startswith("ray=")), None)
    sweep, run, joins = read_sweep(Path(sys.argv[1])), Path(sys.argv[2]), "worker" in sys.argv
    return run_sweep(sweep, run, workers=1 if joins else 2, ray=address, joins=joins)


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
