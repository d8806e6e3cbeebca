"""What a sweep has done so far, read from its directory: `sweep --status`. Starts nothing and builds no model."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.formatting import count_each
from composer.run_dir import RunDir, is_locked, seed_dirs
from composer.sweeps.directory import find_sweep
from composer.sweeps.leases import is_claimed
from composer.sweeps.sweep import read_sweep_record
from composer.sweeps.trial import Trial, describe_point, read_log, read_trials

NOT_ENDED = ("running", "stopped")
"""States of a trial that has neither finished nor failed nor been pruned: a process trains it, or none does."""


@dataclass(frozen=True)
class TrialStatus:
    """A trial that was started.

    `state` is its status, or `stopped` if no process trains it; `step` is that of the last row of its metrics.
    """

    trial: Trial
    state: str
    step: int | None

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        plain = {key: getattr(self.trial, key) for key in ("number", "point", "fingerprint", "value", "error")}
        return {**plain, "status": self.state, "step": self.step, "retries": list(self.trial.retries)}

    def text(self) -> str:
        """Return it on one line."""
        words = [f"{self.state}: trial {self.trial.number}: {describe_point(self.trial)}"]
        words += [f"at step {self.step:,}"] if self.step is not None and self.state in NOT_ENDED else []
        causes = count_each(retry["cause"] for retry in self.trial.retries)
        words += [f"tried again ({causes})"] if causes else []
        words += (self.trial.error or "").splitlines()[:1]
        return "; ".join(words)


@dataclass(frozen=True)
class SweepStatus:
    """The trials of a sweep that were started, of `num_trials`; whether any process runs it."""

    name: str
    folder: Path
    is_running: bool
    num_trials: int
    trials: list[TrialStatus]

    @property
    def counts(self) -> dict[str, int]:
        """How many trials are in each state; `left` are those that were not started."""
        states = Counter(trial.state for trial in self.trials)
        left = max(0, self.num_trials - len(self.trials))
        return {state: states[state] for state in ("finished", *NOT_ENDED, "pruned", "failed")} | {"left": left}

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        head = {"name": self.name, "folder": str(self.folder), "is_running": self.is_running}
        trials = [trial.as_json() for trial in self.trials]
        return {**head, "num_trials": self.num_trials, "counts": self.counts, "trials": trials}

    def text(self) -> str:
        """Return how many trials are in each state, and a line for each that has not finished or was tried again."""
        state = "it is running" if self.is_running else "it is not running"
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        lines = [f"{self.name} in {self.folder}: {state}", f"{self.num_trials} trials: {counts}"]
        shown = [trial for trial in self.trials if trial.state not in ("finished", "pruned") or trial.trial.retries]
        lines += [trial.text() for trial in sorted(shown, key=lambda trial: trial.state)]
        if self.counts["failed"]:
            lines.append("`--retry` tries again what has failed")
        if not self.is_running and (self.counts["stopped"] or self.counts["left"]):
            lines.append("the same command without `--status` goes on")
        return "\n".join(lines)


def sweep_status(path: str | Path, run: str | Path | None = None) -> SweepStatus:
    """Return what a sweep has done, by its directory or by its file, which is run in `run` or in runs/NAME.

    Raises RunError if no sweep has been started there or a trial cannot be read, RecipeError if the file cannot be.
    """
    home = find_sweep(Path(path), None if run is None else Path(run))
    record = read_sweep_record(home)
    trials = [trial_status(trial) for trial in read_trials(home.path)]
    is_running = bool(is_locked(RunDir(home.path))) or any(trial.state == "running" for trial in trials)
    return SweepStatus(record["name"], home.path, is_running, int(record.get("num_trials", len(trials))), trials)


def trial_status(trial: Trial) -> TrialStatus:
    """Return the state of a trial."""
    seeds = [seed for seed in seed_dirs(trial.folder) if seed not in trial.finished_seeds]
    rows = read_log(trial, seeds[0]) if seeds else []
    # the training of a sweep that was killed may go on for a while
    is_trained = is_claimed(trial.folder) or any(is_locked(RunDir(trial.run(seed))) for seed in seeds)
    state = "stopped" if trial.status == "running" and not is_trained else trial.status
    return TrialStatus(trial, state, int(rows[-1]["step"]) if rows else None)
