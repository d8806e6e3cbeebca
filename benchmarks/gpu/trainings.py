"""Whole trainings of the quick start in processes of their own, killed and resumed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import Settings
from composer.run_dir import RunDir, read_metrics
from verify.kills import TIMINGS, read_results

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
STEPS, SMALL_STEPS = 200, 12
SMALL_SIZES = (
    "model.width=16",
    "model.feed_forward.hidden=32",
    "data.generate.number_words.maximum=999",
    "data.generate.number_words.train=200",
    "data.generate.number_words.val=20",
    "data.generate.number_words.test=20",
    "data.tokenizer.bpe.size=300",
    "training.tokens_per_batch=300",
    "decoding.greedy.max_length=20",
)
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""What cuBLAS needs to give the same bits twice."""


def command(
    run: Path, settings: Settings, strategy: str = "auto", more: Sequence[str] = ()
) -> list[str]:
    """Return the command that trains the quick start on one device, from the last checkpoint if
    there is one.
    """
    steps = SMALL_STEPS if settings.small else STEPS
    accelerator = "gpu" if settings.is_cuda else "cpu"
    overrides = [
        (
            f"trainer={{accelerator: {accelerator}, devices: 1, strategy: {strategy},"
            " deterministic: true}"
        ),
        f"training.max_steps={steps}",
        f"training.validate_every={steps // 4}",
        "logging.wandb=false",
        *(SMALL_SIZES if settings.small else ()),
        *more,
    ]
    return [
        sys.executable,
        "-m",
        "composer.cli.main",
        "train",
        str(RECIPE),
        *overrides,
        "--run",
        str(run),
        "--resume",
    ]


def train(words: Sequence[str], run: Path, kill_at: int | None = None) -> None:
    """Train until the end, or kill the process once it has logged step `kill_at`. Raises
    RuntimeError.
    """
    log = run.with_suffix(".log")
    with log.open("ab") as file:
        process = subprocess.Popen(words, env=os.environ | DETERMINISTIC, stdout=file, stderr=file)
    while kill_at is not None and process.poll() is None and last_step(run) < kill_at:
        time.sleep(0.02)
    if kill_at is not None and process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return
    if process.wait():
        text = log.read_text(errors="replace")
        if module := re.search(r"No module named '([\w.]+)'", text):
            raise ModuleNotFoundError(name=module[1])
        raise RuntimeError(f"`train` ended with {process.returncode}: {text[-3000:]}")
    if kill_at is not None:
        raise RuntimeError("the training ended before it could be killed")


def last_step(run: Path) -> int:
    """Return the step of the last checkpoint, 0 without any."""
    return max(
        (int(path.stem.partition("-")[2]) for path in (run / "checkpoints").glob("step-*.ckpt")),
        default=0,
    )


def differences(one: Path, other: Path) -> list[str]:
    """Return which results of two trainings differ in any bit, with the numbers where it is the
    rows of metrics.
    """
    mine, theirs = read_results(one), read_results(other)
    differing = [name for name in mine if mine[name] != theirs[name]]
    if "rows" in differing:
        pairs = zip(*(read_metrics(RunDir(run).metrics) for run in (one, other)), strict=False)
        first = next(
            (pair for pair in pairs if without_timings(pair[0]) != without_timings(pair[1])), None
        )
        differing.append(f"first row that differs: {first}" if first else "the number of rows")
    return differing


def without_timings(row: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in row.items() if key not in TIMINGS}
