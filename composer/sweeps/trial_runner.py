"""One trial: its seeds one after another, begun again where they were killed, and its end decided once."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from composer.run_dir import RunDir
from composer.sweeps.study import Study, Suggestion
from composer.sweeps.trial_dir import Status, Trial, records, score, write_trial
from composer.sweeps.workers import Job, WorkerPool, is_held, training
from composer.training.metrics_logger import read_rows

RETRIES = 2
"""How often one trial's worker is started again after it was killed."""
KILLED = (130, 137, 143)
"""Exit statuses of a training that somebody else has ended; a negative one says the same."""
PATIENCE = 300.0
"""Seconds that a training has to write its checkpoint when it is told to end."""
TAIL = 12
"""Lines that are kept of what a failed training has printed."""


class Runner:
    """Trains one trial in one slot. `settings` are laid over its recipe, beside the seed."""

    def __init__(
        self,
        study: Study,
        crew: WorkerPool,
        asked: Suggestion,
        trial: Trial,
        slot: int,
        settings: Sequence[str],
        data: Path,
    ) -> None:
        self.study, self.crew, self.asked, self.slot = study, crew, asked, slot
        self.settings, self.data = settings, data
        self.trial = trial
        self.seeds, self.goal = study.sweep.seeds, study.sweep.rank[0]
        self.seed = self.seeds[0]
        self.job: Job | None = None
        self.kills, self.read, self.told = 0, -1, math.inf

    def look(self) -> Trial:
        """Looks once at what goes on, does what is to be done next, and returns the trial as it now is."""
        if self.job is None:
            self.begin()
            return self.trial
        status = self.job.poll()
        if status is None:
            self.watch(self.job)
        else:
            self.job = None
            self.over(status)
        return self.trial

    def begin(self) -> None:
        """Starts the next seed; waits where the worker of a sweep that was killed has not ended yet."""
        self.trial = replace(self.trial, seeds=records(self.trial.folder))
        left = [seed for seed in self.seeds if self.trial.seeds.get(seed, {}).get("status") != "finished"]
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif not left:
            self.conclude()
        elif not is_held(self.trial.run(left[0])):
            self.seed = left[0]
            told = [f"training.seed={self.seed}", *self.settings]
            command = training(self.trial.recipe, self.trial.run(self.seed), told, self.data)
            self.job = self.crew.start(command, self.trial.log(self.seed), self.slot)

    def watch(self, job: Job) -> None:
        """Tells the study how the first seed does, and the training to end if the study says so."""
        if self.trial.pruned_at is not None:
            if time.monotonic() - self.told > PATIENCE:
                job.stop(signal.SIGKILL)
        elif (step := self.report()) is not None:
            self.trial = replace(self.trial, pruned_at=step)
            write_trial(self.trial)  # before anybody hears of it: what is decided stays so
            self.told = time.monotonic()
            job.stop(signal.SIGTERM)

    def report(self) -> int | None:
        """Tells new scores of the first seed to the study; the step at which the trial shall end, if it shall."""
        file = RunDir(self.trial.run(self.seed)).metrics
        size = file.stat().st_size if self.seed == self.seeds[0] and file.exists() else -1
        if size == self.read:
            return None
        self.read = size
        return self.study.report(self.asked, scores_by_step(file, self.goal.metric))

    def over(self, status: int) -> None:
        """What comes after a training that ended."""
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif status == 0:
            self.report()  # the last rows; it is too late to end it
            self.kills = 0
            self.begin()
        elif status < 0 or status in KILLED:
            self.kills += 1
            if self.kills > RETRIES:
                self.end(
                    "failed", error=f"its training was killed {self.kills} times, the last time by {named(status)}"
                )
        else:
            self.end("failed", error=last_words(self.trial.log(self.seed), status))

    def conclude(self) -> None:
        """All seeds have finished."""
        found = {seed: score(self.trial, seed, self.goal.metric) for seed in self.seeds}
        values = [value for value in found.values() if value is not None and math.isfinite(value)]
        if len(values) == len(found):
            self.end("finished", value=fmean(values))
            return
        missing = [str(seed) for seed, value in found.items() if value is None or not math.isfinite(value)]
        there = sorted({name for record in self.trial.seeds.values() for name in record.get("scores", {})})
        self.end(
            "failed",
            error=f"no `{self.goal.metric}` was logged with seed {', '.join(missing)}; what was: {', '.join(there)}",
        )

    def end(self, status: Status, value: float | None = None, error: str | None = None) -> None:
        """Writes how the trial ended, and then tells the study: a kill in between is made good from what is written."""
        self.trial = replace(self.trial, status=status, value=value, error=error, seeds=records(self.trial.folder))
        write_trial(self.trial)
        self.study.tell(self.asked.number, self.trial)

    def stop(self, number: int) -> None:
        """Sends a signal to the training, if there is one."""
        if self.job is not None:
            self.job.stop(number)

    def has_stopped(self) -> bool:
        """Whether no training of this trial runs any more."""
        return self.job is None or self.job.poll() is not None


def scores_by_step(file: Path, metric: str) -> Mapping[int, float]:
    """The validations in a metrics.jsonl by their step; what is no number there is none here."""
    rows = read_rows(file) if file.exists() else []
    return {row["step"]: math.nan if row[metric] is None else float(row[metric]) for row in rows if metric in row}


def named(status: int) -> str:
    """The signal that ended a process."""
    number = -status if status < 0 else status - 128
    return signal.Signals(number).name if number in list(signal.Signals) else f"exit status {status}"


def last_words(log: Path, status: int) -> str:
    """What a training said before it failed, the most telling line first."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-TAIL:]
    if not lines:
        return f"its training ended with exit status {status} and said nothing"
    first = next((number for number, line in enumerate(lines) if "error[" in line), None)
    return "\n".join(lines[first:] if first is not None else [lines[-1], *lines[:-1]])
