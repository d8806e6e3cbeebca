"""What a sweep has done so far, read from its directory: `sweep --status`. Starts nothing and
builds no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer.formatting import count_each
from composer.run_dir import RunDir, is_locked, seed_dirs
from composer.sweeps.directory import find_sweep
from composer.sweeps.leases import is_claimed
from composer.sweeps.sweep import read_sweep_record
from composer.sweeps.trial import Trial, describe_point, missing_weights, read_log, read_trials

NOT_ENDED = ("running", "stopped")
"""States of a trial that has neither finished nor failed nor been pruned: a process trains it, or
none does.
"""


@dataclass(frozen=True)
class SweepStatus:
    """The trials of a sweep that were started, of `num_trials`, as plain data; whether any process
    runs it.

    The `status` of a trial is `stopped` if no process trains it; its `step` is that of the last row
    of its metrics. `lost` says which finished seeds have no weights any more.
    """

    name: str
    folder: Path
    is_running: bool
    num_trials: int
    trials: list[dict[str, Any]]
    lost: list[str]

    @property
    def counts(self) -> dict[str, int]:
        """How many trials are in each state; `left` are those that were not started."""
        states = Counter(trial["status"] for trial in self.trials)
        left = max(0, self.num_trials - len(self.trials))
        return {state: states[state] for state in ("finished", *NOT_ENDED, "pruned", "failed")} | {
            "left": left
        }

    def as_json(self) -> dict[str, Any]:
        head = {"name": self.name, "folder": str(self.folder), "is_running": self.is_running}
        return {
            **head,
            "num_trials": self.num_trials,
            "counts": self.counts,
            "trials": self.trials,
            "lost": self.lost,
        }

    def text(self) -> str:
        """Return how many trials are in each state, and a line for each that has not finished or
        was tried again.
        """
        state = "it is running" if self.is_running else "it is not running"
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        lines = [f"{self.name} in {self.folder}: {state}", f"{self.num_trials} trials: {counts}"]
        shown = [
            trial
            for trial in self.trials
            if trial["status"] not in ("finished", "pruned") or trial["retries"]
        ]
        lines += map(_trial_line, sorted(shown, key=lambda trial: str(trial["status"])))
        lines += self.lost
        if self.counts["failed"]:
            lines.append("`--retry` tries again what has failed")
        if not self.is_running and (self.counts["stopped"] or self.counts["left"]):
            lines.append("the same command without `--status` goes on")
        return "\n".join(lines)


def _trial_line(trial: Mapping[str, Any]) -> str:
    words = [f"{trial['status']}: trial {trial['fingerprint']}: {describe_point(trial['point'])}"]
    words += (
        [f"at step {trial['step']:,}"]
        if trial["step"] is not None and trial["status"] in NOT_ENDED
        else []
    )
    causes = count_each(retry["cause"] for retry in trial["retries"])
    words += [f"tried again ({causes})"] if causes else []
    return "; ".join([*words, *(trial["error"] or "").splitlines()[:1]])


def sweep_status(path: str | Path, run: str | Path | None = None) -> SweepStatus:
    """Return what a sweep has done, by its directory or by its file, which is run in `run` or in
    runs/NAME.

    Raises RunError if no sweep has been started there or a trial cannot be read, RecipeError if the
    file cannot be.
    """
    home = find_sweep(Path(path), None if run is None else Path(run))
    record = read_sweep_record(home)
    known = read_trials(home.path)
    trials = [trial_status(trial) for trial in known]
    is_running = bool(is_locked(RunDir(home.path))) or any(
        trial["status"] == "running" for trial in trials
    )
    num_trials = int(record.get("num_trials", len(trials)))
    return SweepStatus(
        record["name"], home.path, is_running, num_trials, trials, missing_weights(known)
    )


def trial_status(trial: Trial) -> dict[str, Any]:
    """Return what is said of a trial."""
    seeds = [seed for seed in seed_dirs(trial.folder) if seed not in trial.finished_seeds]
    rows = read_log(trial, seeds[0]) if seeds else []
    # the training of a sweep that was killed may go on for a while
    is_trained = is_claimed(trial.folder) or any(
        is_locked(RunDir(trial.run(seed))) for seed in seeds
    )
    state = "stopped" if trial.status == "running" and not is_trained else trial.status
    plain = {
        key: getattr(trial, key) for key in ("number", "point", "fingerprint", "value", "error")
    }
    step = int(rows[-1]["step"]) if rows else None
    return {**plain, "status": state, "step": step, "retries": [*trial.retries]}
