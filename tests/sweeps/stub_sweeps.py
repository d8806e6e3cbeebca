"""Sweeps over a tiny recipe with a stub in place of training, also in a process of its own that can
be killed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from composer.sweeps import coordinator, trial_course
from composer.sweeps.coordinator import run_sweep
from composer.sweeps.executors.engine import LOCAL, Engine
from composer.sweeps.spec import read_sweep
from composer.sweeps.trial import Trial, read_trials
from composer.sweeps.trial_course import train_command

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
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.sweeps.planned_once"])


def write_sweep(folder: Path, axes: str, rest: str = "") -> Path:
    """A sweep's file beside its base."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    file = folder / "sweep.yaml"
    file.write_text(
        f"sweep: 1\nname: tried\nbase: base.yaml\naxes:\n  {axes}\n{rest}\n", encoding="utf-8"
    )
    return file


def rates(*values: float) -> str:
    return f"rate: {{{RATE}, values: {list(values)}}}"


def plan(folder: Path, **told: dict[str, float]) -> None:
    """What the stub does at which rate."""
    (folder / "plan.json").write_text(json.dumps(told), encoding="utf-8")


def stub(recipe: Path, run: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command of a training, with the stub in place of `composer.cli.main`."""
    command = train_command(recipe, run, arguments)
    at = command.index("-m")
    return (*command[:at], str(STUB), *command[at + 2 :])


def starts(folder: Path) -> list[tuple[float, int]]:
    """Which rate was begun with which seed, in order."""
    lines = (
        (folder / "starts").read_text(encoding="utf-8").splitlines()
        if (folder / "starts").exists()
        else []
    )
    return [(float(line.split()[0]), int(line.split()[1])) for line in lines]


def trials_by_rate(folder: Path) -> dict[float, Trial]:
    return {float(trial.point["rate"]): trial for trial in read_trials(folder)}


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "nothing happened"
        time.sleep(0.05)


def train_by_stub(home: Path, patch: pytest.MonkeyPatch) -> None:
    """Let sweeps of this process train by the stub, by the plan in `home`, and look around as often
    as that ends.
    """
    patch.setenv("STUB", str(home))
    patch.setattr(trial_course, "train_command", stub)
    hurry(patch.setattr)


def hurry(set_value: Callable[[object, str, float], None]) -> None:
    """Let a sweep look around often."""
    set_value(coordinator, "POLL_SECONDS", 0.02)


def parent(file: Path, run: Path, *more: str) -> ForkServerProcess:
    """A sweep in a process of its own, with two trainings at once, or `workers=N`; see `printed`."""
    process = FORKS.Process(target=run_apart, args=(dict(os.environ), file, run, more), daemon=True)
    process.start()
    return process


def printed(process: ForkServerProcess, run: Path) -> str:
    """What a sweep in a process of its own has printed."""
    file = run.with_name(f"printed-{process.pid}")
    return file.read_text(encoding="utf-8") if file.exists() else ""


def run_apart(environment: dict[str, str], file: Path, run: Path, more: Sequence[str]) -> None:
    """Run a sweep as the command does, and exit with its status."""
    os.environ.update(environment)
    log = os.open(run.with_name(f"printed-{os.getpid()}"), os.O_WRONLY | os.O_CREAT)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    hurry(setattr)
    if "real" not in more:
        trial_course.train_command = stub
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    given = dict(item.split("=", 1) for item in more if "=" in item)
    engine = Engine("ray", given["ray"]) if "ray" in given else LOCAL
    if "slurm" in more:
        engine = Engine("slurm")
    try:
        sys.exit(run_sweep(read_sweep(file), run, int(given.get("workers", 2)), engine))
    except KeyboardInterrupt:
        sys.exit(130)
