"""The course of one trial: its seeds are trained, retried, pruned or given up, until it ends."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from composer.errors import FolderLocked, RunError
from composer.metrics.table import logged_key
from composer.processes.python import seqcomposer_command
from composer.run_dir import RunDir, is_locked
from composer.runs.record import Budget
from composer.sweeps.executors.training import PATIENCE, Executor, TrainingCommand
from composer.sweeps.study import Study, Suggestion
from composer.sweeps.trial import (
    MAX_KILLS,
    Cause,
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


def train_command(recipe: Path, run: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command that trains a recipe into a run folder, resuming a run that was killed."""
    words = ("train", str(recipe), "--run", str(run), "--resume", *arguments)
    return tuple(seqcomposer_command(*words))


@dataclass
class Job:
    """A training that an executor has started."""

    name: str
    log_start: int
    """The size of the log before it."""
    deadline: float = math.inf
    """When a cancelled training is killed."""


@dataclass
class LockedRun:
    """A run folder that another process has locked, and when its metrics were written last."""

    since: float
    size: int


@dataclass
class TrialCourse:
    """An open trial, its jobs by seed, and the `arguments` of its trainings.

    With a pruner, the first seed is trained before the others.
    """

    study: Study
    executor: Executor
    suggestion: Suggestion
    trial: Trial
    arguments: Sequence[str]
    budget: Budget
    jobs: dict[int, Job] = field(default_factory=dict)
    locked: dict[int, LockedRun] = field(default_factory=dict)
    metrics_size: int = -1
    error: str | None = None
    """Why the trial fails, when its other trainings have ended."""

    def __post_init__(self) -> None:
        self.sweep = self.study.sweep
        self.seeds, self.goal = self.sweep.seeds_of(self.trial), self.sweep.rank[0]
        self.refresh()
        self.report()  # of an earlier process, which has not pruned it

    def refresh(self) -> None:
        """Read the run.json of each seed; one that cannot be read now may be so the next time."""
        with suppress(RunError):
            self.trial = replace(self.trial, records=read_run_records(self.trial.folder))

    @property
    def is_open(self) -> bool:
        return self.trial.status == "running"

    @property
    def is_ending(self) -> bool:
        return self.trial.pruned_at is not None or self.error is not None

    @property
    def seeds_left(self) -> list[int]:
        """The seeds that have not finished, those that are trained among them."""
        return [seed for seed in self.seeds if seed not in self.trial.finished_seeds]

    @property
    def num_busy(self) -> int:
        """The number of trainings that run, or wait for one that another process began."""
        return len(self.jobs) + len(self.locked)

    def next_seed(self) -> int | None:
        """Return a seed whose training can start now, or None."""
        if not self.is_open or self.is_ending:
            return None
        for seed in self.seeds_left:
            if seed not in self.jobs and seed not in self.locked:
                return seed
            if self.sweep.pruner is not None and seed == self.seeds[0]:
                return None  # it may be pruned yet
        return None

    def submit(self, seed: int) -> None:
        """Start the training of a seed, or find the job that still runs it."""
        folder = RunDir(self.trial.run(seed))
        if not (folder.is_empty() or folder.record.exists() or is_locked(folder)):
            cure = f"put it back, or remove {folder.path}, and run the sweep with `--retry`"
            self.error = f"{folder.path} has no run.json: {cure}"
            return
        run, log = self.trial.run(seed), self.trial.log(seed)
        arguments = [f"training.seed={seed}", *self.arguments]
        training = TrainingCommand(
            name=f"{self.trial.fingerprint}-{seed}",
            command=train_command(self.trial.recipe, run, arguments),
            run=run,
            log=log.absolute(),
            directory=os.getcwd(),
        )
        size = log.stat().st_size if log.exists() else 0
        self.jobs[seed] = Job(self.executor.submit(training), size)

    def poll(self) -> None:
        """Look once at each training, and end the trial when nothing is left to do."""
        for seed, job in list(self.jobs.items()):
            status = self.executor.state(job.name)
            if status is not None:
                del self.jobs[seed]
                self.refresh()
                self.handle_exit(seed, status, job.log_start)
        for seed, locked in list(self.locked.items()):
            self.wait_for_lock(seed, locked)
        self.prune_if_bad()
        if self.is_ending:
            self.cancel()
        if not self.jobs and (self.is_ending or not self.seeds_left):
            self.finish()

    def wait_for_lock(self, seed: int, locked: LockedRun) -> None:
        """Go on with a seed when the process that trains it has ended, or writes no more."""
        size = self.size_of_metrics(seed)
        if not is_locked(RunDir(self.trial.run(seed))):
            del self.locked[seed]
            self.refresh()
        elif size != locked.size:
            self.locked[seed] = LockedRun(time.monotonic(), size)
        elif time.monotonic() - locked.since > PATIENCE:
            del self.locked[seed]
            self.restart(seed, "lost", "another process trains it")

    def size_of_metrics(self, seed: int) -> int:
        """Return the size of a seed's metrics.jsonl, -1 before it has started."""
        file = RunDir(self.trial.run(seed)).metrics
        return file.stat().st_size if file.exists() else -1

    def prune_if_bad(self) -> None:
        """Report the first seed's progress to the study, which may prune the trial."""
        seed = self.seeds[0]
        if seed not in self.jobs or self.is_ending or (step := self.report()) is None:
            return
        if len(self.seeds) == 1 and self.budget_spent(read_log(self.trial, seed)) == 1.0:
            return  # stopping it would save nothing, and lose its scores
        self.trial = replace(self.trial, pruned_at=step)
        # before the signal, so that the decision survives a kill of the sweep
        write_trial(self.trial)

    def budget_spent(self, rows: Sequence[Mapping[str, object]]) -> float:
        """Return the spent share of a seed's budget, by the rows of its metrics."""
        last: dict[str, Any] = {"step": 0, "epoch": 0.0, "minutes": 0.0}
        for row in rows:  # rows of a test have neither an epoch nor minutes
            last |= row
        return self.budget.spent(last["step"], last["epoch"], last["minutes"])

    def report(self) -> int | None:
        """Report new scores of the first seed; return the step at which to prune, or None."""
        size = self.size_of_metrics(self.seeds[0])
        if size == self.metrics_size:
            return None
        self.metrics_size = size
        rows = read_log(self.trial, self.seeds[0])
        metric = logged_key(rows, self.goal.metric)
        scores = {}
        for row in rows:
            if metric in row:  # null is NaN or infinity
                scores[row["step"]] = math.nan if row[metric] is None else float(row[metric])
        return self.study.report(self.suggestion, scores)

    def handle_exit(self, seed: int, status: int, log_start: int) -> None:
        """Handle the end of a training: it has finished, is started again, or fails the trial."""
        run = RunDir(self.trial.run(seed))
        if self.is_ending:
            return
        if seed in self.trial.finished_seeds:
            if seed == self.seeds[0]:
                self.report()  # the last rows; it is too late to prune
        elif name := killed_by(status):
            self.restart(seed, "killed", name)
        else:
            error = error_excerpt(self.trial.log(seed), status, log_start)
            if f"error[{FolderLocked.code}]" in error:
                self.locked[seed] = LockedRun(time.monotonic(), self.size_of_metrics(seed))
            else:
                self.fail(run, seed, error)

    def fail(self, run: RunDir, seed: int, error: str) -> None:
        """Start a failed training again, or end the trial if the sweep's retries are used up."""
        if failures(self.trial.retries) < self.sweep.retries:
            self.retry(retry_record("failed", error, run, seed))
        else:
            self.error = error

    def restart(self, seed: int, cause: Cause, reason: str) -> None:
        """Start a training again that was killed or lost, or give it up after too many times."""
        record = retry_record(cause, reason, RunDir(self.trial.run(seed)), seed)
        count = kills_in_place([*self.trial.retries, record], seed)
        if count < MAX_KILLS:
            self.retry(record)
        else:
            self.error = f"its training was {cause} {count} times without a new checkpoint, "
            self.error += f"the last time by {reason}" if cause == "killed" else reason

    def retry(self, record: Retry) -> None:
        """Record a retry, after which its seed is started again."""
        self.trial = replace(self.trial, retries=(*self.trial.retries, record))
        write_trial(self.trial)

    def cancel(self) -> None:
        """Ask all trainings to end, and kill those that have not after a while."""
        now = time.monotonic()
        for job in self.jobs.values():
            if math.isinf(job.deadline) or now > job.deadline:
                job.deadline = now + PATIENCE
                self.executor.cancel(job.name)

    def has_jobs(self) -> bool:
        """True if a training of this trial has not ended yet."""
        return any(self.executor.state(job.name) is None for job in self.jobs.values())

    def kill(self) -> None:
        """End at once what runs still."""
        for job in self.jobs.values():
            if self.executor.state(job.name) is None:
                self.executor.cancel(job.name)

    def finish(self) -> None:
        """End the trial: pruned, failed, or scored by all of the sweep's seeds that it has."""
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif self.error is not None:
            self.end("failed", error=self.error)
        else:
            self.score()

    def score(self) -> None:
        """End a trial whose seeds have all finished, scored by their mean."""
        seeds = [seed for seed in self.sweep.seeds if seed in self.trial.finished_seeds]
        scores = {seed: final_score(self.trial, seed, self.goal.metric) for seed in seeds}
        values = [value for value in scores.values() if value is not None]
        if len(values) == len(scores):
            self.end("finished", value=fmean(values))
            return
        missing = ", ".join(str(seed) for seed, value in scores.items() if value is None)
        scored = [record.scores for record in self.trial.records.values()]
        logged = ", ".join(sorted(set[str]().union(*scored)))
        error = f"no `{self.goal.metric}` was logged with seed {missing}; logged were: {logged}"
        self.end("failed", error=error)

    def end(self, status: Status, value: float | None = None, error: str | None = None) -> None:
        """Write the result of the trial, then tell the study, whose truth is the former."""
        self.refresh()
        self.trial = replace(self.trial, status=status, value=value, error=error)
        write_trial(self.trial)
        self.study.tell(self.suggestion, self.trial)

    def progress(self) -> tuple[float, str]:
        """Return the share of its budgets that is spent, and the last step and loss in words."""
        share, words = float(len(self.seeds) - len(self.seeds_left)), ""
        for seed in self.jobs:
            rows = read_log(self.trial, seed)
            share += self.budget_spent(rows)
            words = next(losses(rows), words)
        if words:
            words = f"trial {self.trial.fingerprint} at {words}"
        return min(1.0, share / len(self.seeds)), words


def losses(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield step and loss of each row that has them, the last one first."""
    for row in reversed(rows):
        if row.get("train/loss") is not None:
            yield f"step {row['step']:,}, loss {row['train/loss']:.4g}"


def error_excerpt(log: Path, status: int, start: int = 0) -> str:
    """Return the last lines of a failed training's log, at most 12, the error first.

    start: The size of the log before this training.
    """
    text = log.read_bytes()[start:].decode("utf-8", errors="replace") if log.exists() else ""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-12:]
    if not lines:
        return f"its training ended with exit status {status} and printed nothing"
    first = next((number for number, line in enumerate(lines) if "error[" in line), None)
    return "\n".join(lines[first:] if first is not None else [lines[-1], *lines[:-1]])
