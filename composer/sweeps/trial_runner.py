"""The training of one trial: a process for each seed, what its rows say of the trial, and what is done when it ends."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from subprocess import DEVNULL, STDOUT, Popen
from typing import Any

from composer.recipe.metrics import logged_key
from composer.run_dir import RunDir, is_locked
from composer.sweeps.sweep import Goal
from composer.sweeps.trial import (
    MAX_KILLS,
    Retry,
    Status,
    Trial,
    failures,
    final_score,
    killed_by,
    kills_in_place,
    read_log,
    read_run_records,
    retry_record,
    write_trial,
)

PR_SET_PDEATHSIG = 1
PATIENCE = 300.0
"""Seconds that a training has to write its checkpoint after SIGTERM."""


def train_command(recipe: Path, run: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command that trains a recipe into a run folder, resuming a run that was killed."""
    command = [sys.executable, "-m", "composer.cli.main", "train", str(recipe), "--run", str(run), "--resume"]
    return [*command, *arguments]


def ends_with_parent() -> Callable[[], object] | None:
    """Return what a child does before it starts so that it gets SIGTERM when its parent dies, be it by SIGKILL.

    On Linux alone. Elsewhere a training that outlives its sweep is waited for, by the lock on its run folder.
    """
    return partial(ctypes.CDLL(None).prctl, PR_SET_PDEATHSIG, signal.SIGTERM) if sys.platform == "linux" else None


class TrainingProcess:
    """A process of this machine, which leads a process group of its own; its output is appended to `log`."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None, folder: str) -> None:
        with log.open("ab") as file:
            options: dict[str, Any] = {"env": env, "cwd": folder, "process_group": 0, "preexec_fn": ends_with_parent()}
            self.process = Popen(command, stdin=DEVNULL, stdout=file, stderr=STDOUT, **options)

    def poll(self) -> int | None:
        """Return the exit status, negative if a signal ended the process, or None while it runs."""
        return self.process.poll()

    def stop(self, number: int) -> None:
        """Send a signal; SIGKILL ends all processes that this one started."""
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.process.poll() is None:
                self.process.send_signal(number)


@dataclass(frozen=True)
class TrialTask:
    """What trains a trial, on whichever machine.

    Attributes:
        commands: The command that trains each seed; the first seed's scores are reported.
        budget: The recipe's `training`, with its limits.
        goal: The metric that is reported, and whose mean over seeds is the trial's value.
        retries: How often a training that has failed is tried again.
    """

    commands: Mapping[int, Sequence[str]]
    budget: Mapping[str, Any]
    goal: Goal
    retries: int


@dataclass
class TrialRunner:
    """Trains one trial, seed after seed.

    `start` starts a command, whose output is appended to a file. `report` takes the scores of the first seed by step,
    and returns the step at which the trial is to be pruned, if it is.
    """

    task: TrialTask
    trial: Trial
    start: Callable[[Sequence[str], Path], TrainingProcess]
    report: Callable[[Mapping[int, float]], int | None]
    process: TrainingProcess | None = None
    metrics_size: int = -1
    log_start: int = 0
    stop_time: float = math.inf

    def __post_init__(self) -> None:
        self.seeds = tuple(self.task.commands)
        self.seed = next((seed for seed in self.seeds if seed not in self.trial.finished_seeds), self.seeds[-1])

    def poll(self) -> Trial:
        """Check on the training once, do what is to be done next, and return the trial as it is now."""
        if self.process is None:
            self.start_next_seed()
            return self.trial
        status = self.process.poll()
        if status is None:
            self.prune_if_bad(self.process)
        else:
            self.process = None
            self.handle_exit(status)
        return self.trial

    def start_next_seed(self) -> None:
        """Start the next seed, unless the worker of a sweep that was killed still trains it."""
        self.trial = replace(self.trial, seeds=read_run_records(self.trial.folder))
        left = [seed for seed in self.seeds if seed not in self.trial.finished_seeds]
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif not left:
            self.finish()
        elif not is_locked(RunDir(self.trial.run(left[0]))):
            self.seed = left[0]
            log = self.trial.log(self.seed)
            self.log_start = log.stat().st_size if log.exists() else 0
            self.process = self.start(self.task.commands[self.seed], log)

    def prune_if_bad(self, process: TrainingProcess) -> None:
        """Report the first seed's progress to the study, and stop the training if the study prunes it."""
        if self.trial.pruned_at is not None:
            if time.monotonic() - self.stop_time > PATIENCE:
                process.stop(signal.SIGKILL)
        elif (step := self.report_scores()) is not None and self.prune(step):
            self.stop_time = time.monotonic()
            process.stop(signal.SIGTERM)

    def prune(self, step: int) -> bool:
        """Write down that the trial is pruned, before the training hears of it; return whether it is."""
        if len(self.seeds) == 1 and budget_spent(read_log(self.trial, self.seed), self.task.budget) == 1.0:
            return False  # to stop it saves nothing, and loses its scores
        self.trial = replace(self.trial, pruned_at=step)
        write_trial(self.trial)
        return True

    def report_scores(self) -> int | None:
        """Report new scores of the first seed, and return the step at which the trial is to be pruned, if it is."""
        file = RunDir(self.trial.run(self.seed)).metrics
        size = file.stat().st_size if self.seed == self.seeds[0] and file.exists() else -1
        if size == self.metrics_size:
            return None
        self.metrics_size = size
        rows = read_log(self.trial, self.seed)
        metric = logged_key(rows, self.task.goal.metric)
        # a metric that is null in a row was NaN or infinite
        scores = {row["step"]: math.nan if row[metric] is None else float(row[metric]) for row in rows if metric in row}
        return self.report(scores)

    def handle_exit(self, status: int) -> None:
        """Go on after a training ended: with the next seed, the same one again, or the end of the trial."""
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif status == 0:
            self.report_scores()  # the last rows; it is too late to prune
            self.start_next_seed()
        elif name := killed_by(status):
            kill = retry_record("killed", name, RunDir(self.trial.run(self.seed)), self.seed)
            count = kills_in_place([*self.trial.retries, kill])
            if count < MAX_KILLS:
                self.retry(kill)
            else:
                self.fail(f"its training was killed {count} times without a new checkpoint, the last time by {name}")
        else:
            self.fail(error_excerpt(self.trial.log(self.seed), status, self.log_start))

    def fail(self, error: str) -> None:
        """Try a failed training again, or end the trial if the sweep's retries are used up."""
        if failures(self.trial.retries) < self.task.retries:
            self.retry(retry_record("failed", error, RunDir(self.trial.run(self.seed)), self.seed))
        else:
            self.end("failed", error=error)

    def retry(self, retry: Retry) -> None:
        """Write down that the same seed is started again, which the next poll does."""
        self.trial = replace(self.trial, retries=(*self.trial.retries, retry))
        write_trial(self.trial)

    def finish(self) -> None:
        """End a trial whose seeds have all finished."""
        scores = {seed: final_score(self.trial, seed, self.task.goal.metric) for seed in self.seeds}
        values = [value for value in scores.values() if value is not None]
        if len(values) == len(scores):
            self.end("finished", value=fmean(values))
            return
        missing = ", ".join(str(seed) for seed, value in scores.items() if value is None)
        logged = sorted({name for record in self.trial.seeds.values() for name in record.get("scores", {})})
        error = f"no `{self.task.goal.metric}` was logged with seed {missing}; logged were: {', '.join(logged)}"
        self.end("failed", error=error)

    def end(self, status: Status, value: float | None = None, error: str | None = None) -> None:
        """Write how the trial ended."""
        seeds = read_run_records(self.trial.folder)
        self.trial = replace(self.trial, status=status, value=value, error=error, seeds=seeds)
        write_trial(self.trial)

    def stop(self, number: int) -> None:
        """Send a signal to the training, if there is one."""
        if self.process is not None:
            self.process.stop(number)

    def has_stopped(self) -> bool:
        """Return whether no training of this trial runs any more."""
        return self.process is None or self.process.poll() is not None


def budget_spent(rows: Sequence[Mapping[str, Any]], budget: Mapping[str, Any]) -> float:
    """Return the share of a seed's budget that is spent, by the rows of its metrics."""
    last: dict[str, Any] = {"step": 0, "epoch": 0.0, "budget_spent": [0.0]}
    for row in rows:  # those of a test have neither an epoch nor a budget
        last |= row
    limits = (last["step"], budget["max_steps"]), (last["epoch"], budget["max_epochs"])
    shares = (spent / limit for spent, limit in limits if limit)
    return min(1.0, max([*shares, *last["budget_spent"]], default=0.0))


def error_excerpt(log: Path, status: int, start: int = 0) -> str:
    """Return the last lines that a training printed before it failed, at most 12, the error first.

    start: The bytes of the log that earlier trainings have written.
    """
    text = log.read_bytes()[start:].decode("utf-8", errors="replace") if log.exists() else ""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-12:]
    if not lines:
        return f"its training ended with exit status {status} and printed nothing"
    first = next((number for number, line in enumerate(lines) if "error[" in line), None)
    return "\n".join(lines[first:] if first is not None else [lines[-1], *lines[:-1]])
