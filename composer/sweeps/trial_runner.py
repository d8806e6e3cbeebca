"""Training of one trial: its seeds one after another, resumed where they were killed, pruned by one decision."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from composer.run_dir import RunDir
from composer.sweeps import workers
from composer.sweeps.study import Study, Suggestion
from composer.sweeps.trial_dir import Status, Trial, final_score, read_log, read_run_records, write_trial
from composer.sweeps.workers import Job, WorkerPool, is_locked

RETRIES = 2
"""How often a trial's worker is started again after it was killed."""
KILLED = (130, 137, 143)
"""Exit statuses of a training that somebody else ended; a negative one says the same."""
PATIENCE = 300.0
"""Seconds that a training has to write its checkpoint after SIGTERM."""
LOG_LINES = 12
"""Lines of its log that the error of a failed training shows."""


class TrialRunner:
    """Trains one trial in one slot of a worker pool. `settings` are overrides of its recipe beside the seed."""

    def __init__(
        self,
        study: Study,
        pool: WorkerPool,
        suggestion: Suggestion,
        trial: Trial,
        slot: int,
        settings: Sequence[str],
        data: Path,
    ) -> None:
        self.study, self.pool, self.suggestion, self.slot = study, pool, suggestion, slot
        self.settings, self.data = settings, data
        self.trial = trial
        self.seeds, self.goal = study.sweep.seeds, study.sweep.rank[0]
        self.seed = self.seeds[0]
        self.job: Job | None = None
        self.kills = 0
        self.metrics_size = -1
        self.stop_time = math.inf

    def poll(self) -> Trial:
        """Check on the training once, do what is to be done next, and return the trial as it is now."""
        if self.job is None:
            self.start_next_seed()
            return self.trial
        status = self.job.poll()
        if status is None:
            self.prune_if_bad(self.job)
        else:
            self.job = None
            self.handle_exit(status)
        return self.trial

    def start_next_seed(self) -> None:
        """Start the next seed, unless the worker of a sweep that was killed still trains it."""
        self.trial = replace(self.trial, seeds=read_run_records(self.trial.folder))
        left = [seed for seed in self.seeds if self.trial.seeds.get(seed, {}).get("status") != "finished"]
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif not left:
            self.finish()
        elif not is_locked(self.trial.run(left[0])):
            self.seed = left[0]
            settings = [f"training.seed={self.seed}", *self.settings]
            command = workers.train_command(self.trial.recipe, self.trial.run(self.seed), settings, self.data)
            self.job = self.pool.start(command, self.trial.log(self.seed), self.slot)

    def prune_if_bad(self, job: Job) -> None:
        """Report the first seed's progress to the study, and stop the training if the study prunes it."""
        if self.trial.pruned_at is not None:
            if time.monotonic() - self.stop_time > PATIENCE:
                job.stop(signal.SIGKILL)
        elif (step := self.report()) is not None:
            self.trial = replace(self.trial, pruned_at=step)
            write_trial(self.trial)  # before the training hears of it: the decision survives a kill of the sweep
            self.stop_time = time.monotonic()
            job.stop(signal.SIGTERM)

    def report(self) -> int | None:
        """Report new scores of the first seed, and return the step at which the trial is to be pruned, if it is."""
        file = RunDir(self.trial.run(self.seed)).metrics
        size = file.stat().st_size if self.seed == self.seeds[0] and file.exists() else -1
        if size == self.metrics_size:
            return None
        self.metrics_size = size
        rows, metric = read_log(self.trial, self.seed), self.goal.metric
        # a metric that is null in a row was NaN or infinite
        scores = {row["step"]: math.nan if row[metric] is None else float(row[metric]) for row in rows if metric in row}
        return self.study.report(self.suggestion, scores)

    def handle_exit(self, status: int) -> None:
        """Go on after a training ended: with the next seed, the same one again, or the end of the trial."""
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif status == 0:
            self.report()  # the last rows; it is too late to prune
            self.kills = 0
            self.start_next_seed()
        elif status < 0 or status in KILLED:
            self.kills += 1
            if self.kills > RETRIES:
                times = f"{self.kills} times, the last time by {signal_name(status)}"
                self.end("failed", error=f"its training was killed {times}")
        else:
            self.end("failed", error=error_excerpt(self.trial.log(self.seed), status))

    def finish(self) -> None:
        """End a trial whose seeds have all finished."""
        scores = {seed: final_score(self.trial, seed, self.goal.metric) for seed in self.seeds}
        values = [value for value in scores.values() if value is not None and math.isfinite(value)]
        if len(values) == len(scores):
            self.end("finished", value=fmean(values))
            return
        missing = ", ".join(str(seed) for seed, value in scores.items() if value is None or not math.isfinite(value))
        logged = sorted({name for record in self.trial.seeds.values() for name in record.get("scores", {})})
        error = f"no `{self.goal.metric}` was logged with seed {missing}; what was: {', '.join(logged)}"
        self.end("failed", error=error)

    def end(self, status: Status, value: float | None = None, error: str | None = None) -> None:
        """Write how the trial ended, then tell the study: after a kill in between it is told from what was written."""
        seeds = read_run_records(self.trial.folder)
        self.trial = replace(self.trial, status=status, value=value, error=error, seeds=seeds)
        write_trial(self.trial)
        self.study.tell(self.suggestion.number, self.trial)

    def stop(self, number: int) -> None:
        """Send a signal to the training, if there is one."""
        if self.job is not None:
            self.job.stop(number)

    def has_stopped(self) -> bool:
        """Return whether no training of this trial runs any more."""
        return self.job is None or self.job.poll() is not None


def signal_name(status: int) -> str:
    """Return the name of the signal that ended a process."""
    number = -status if status < 0 else status - 128
    return signal.Signals(number).name if number in list(signal.Signals) else f"exit status {status}"


def error_excerpt(log: Path, status: int) -> str:
    """Return the last lines that a training printed before it failed, the error first."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-LOG_LINES:]
    if not lines:
        return f"its training ended with exit status {status} and printed nothing"
    first = next((number for number, line in enumerate(lines) if "error[" in line), None)
    return "\n".join(lines[first:] if first is not None else [lines[-1], *lines[:-1]])
