"""Helpers of the launch tests: the command with a fault injected, and stubs of cluster commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "recipes" / "launch"
FAULT_INJECTION = Path(__file__).with_name("fault_injection.py")
SHORT = ("training.max_steps=12", "training.validate_every=4", "training.optimizer=sgd")
CPU = "trainer={accelerator: cpu, timeout_minutes: 2}"
TWO = "trainer={accelerator: cpu, devices: 2, strategy: ddp, timeout_minutes: 2}"

SRUN = f"""#!{sys.executable}
import itertools, os, subprocess, sys

words = list(itertools.dropwhile(lambda word: word.startswith("--"), sys.argv[1:]))
told = os.environ | {{"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "1", "SLURM_NODEID": "0"}}
tasks = [subprocess.Popen(words, env=told | {{"SLURM_PROCID": rank, "SLURM_LOCALID": rank}}) for rank in "01"]
sys.exit(max(task.wait() % 256 for task in tasks))
"""
"""Starts two tasks on one machine with what srun tells them, and ends with the highest status."""


def stubs(folder: Path, **programs: str) -> dict[str, str]:
    """An environment in which these programs are found first, and `seqcomposer` obeys FAULT."""
    folder.mkdir()
    command = f'#!/bin/sh\nexec {sys.executable} {FAULT_INJECTION} "$@"\n'
    for name, text in {"seqcomposer": command, **programs}.items():
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
    path = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    return environment(folder) | {"PATH": path}


def environment(folder: Path) -> dict[str, str]:
    """The environment of a command of its own."""
    once = {"FAULT_ONCE": str(folder / "once"), "PYTHONPATH": str(ROOT)}
    return os.environ | once | {"OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled"}


def start(folder: Path, words: list[str], fault: str = "") -> subprocess.Popen[str]:
    """The command, with a fault in one of its processes; it is the head of a group of processes."""
    output = environment(folder) | ({"FAULT": fault} if fault else {})
    return subprocess.Popen(
        [sys.executable, str(FAULT_INJECTION), *words],
        env=output,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def group(pid: int) -> list[int]:
    """The processes of a group that are still alive."""
    result = subprocess.run(
        ["ps", "-e", "-o", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
    )
    rows = [line.split() for line in result.stdout.splitlines()]
    return [int(row[0]) for row in rows if int(row[1]) == pid and not row[2].startswith("Z")]
