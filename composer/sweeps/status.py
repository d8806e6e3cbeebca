"""`sweep --status`: progress of a sweep, read from its directory without starting anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from composer.formatting import count_each, count_noun
from composer.run_dir import RunDir, is_locked, seed_dirs
from composer.sweeps.changed_data import changed_data
from composer.sweeps.directory import find_sweep
from composer.sweeps.sweep import read_sweep_record
from composer.sweeps.trial import (
    Trial,
    describe_point,
    missing_records,
    missing_weights,
    read_log,
    read_trials,
    trial_state,
)

NOT_ENDED = ("running", "waiting", "stopped")
"""States of a trial that has not ended."""


@dataclass(frozen=True)
class SweepStatus:
    """The started trials of a sweep of `num_trials`, as plain data.

    Each trial has its state, and the `step` of its last metrics.
    `lost` has sentences on files that are missing, and on data that have changed.
    """

    name: str
    folder: Path
    is_running: bool
    num_trials: int
    trials: list[dict[str, Any]]
    lost: list[str]

    @property
    def counts(self) -> dict[str, int]:
        """The number of trials in each state; `left` have not been started."""
        states = Counter(trial["status"] for trial in self.trials)
        counts = {state: states[state] for state in ("finished", *NOT_ENDED, "pruned", "failed")}
        return counts | {"left": max(0, self.num_trials - len(self.trials))}

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "folder": str(self.folder),
            "is_running": self.is_running,
            "num_trials": self.num_trials,
            "counts": self.counts,
            "trials": self.trials,
            "lost": self.lost,
        }

    def text(self) -> str:
        """Return the counts, and a line for each trial that is not done or was retried."""
        state = "it is running" if self.is_running else "it is not running"
        counts = ", ".join(f"{count} {state}" for state, count in self.counts.items())
        lines = [
            f"{self.name} in {self.folder}: {state}",
            f"{count_noun(self.num_trials, 'trial')}: {counts}",
        ]
        shown = sorted(filter(_is_shown, self.trials), key=lambda trial: str(trial["status"]))
        lines += [*map(_trial_line, shown), *self.lost]
        if self.counts["failed"]:
            lines.append("retry failed trials with `--retry`")
        if not self.is_running and (self.counts["stopped"] or self.counts["left"]):
            lines.append("resume with the same command without `--status`")
        return "\n".join(lines)


def _is_shown(trial: Mapping[str, Any]) -> bool:
    return trial["status"] not in ("finished", "pruned") or bool(trial["retries"])


def _trial_line(trial: Mapping[str, Any]) -> str:
    words = [f"{trial['status']}: trial {trial['fingerprint']}: {describe_point(trial['point'])}"]
    if trial["step"] is not None and trial["status"] in NOT_ENDED:
        words.append(f"at step {trial['step']:,}")
    if causes := count_each(retry["cause"] for retry in trial["retries"]):
        words.append(f"retried ({causes})")
    return "; ".join([*words, *(trial["error"] or "").splitlines()[:1]])


def sweep_status(path: str | Path, run: str | Path | None = None) -> SweepStatus:
    """Read the progress of a sweep, given its directory, or its file run in `run` or runs/NAME.

    Raises RunError if no sweep has been started there or a trial cannot be read, and RecipeError if
    the file cannot be read.
    """
    home = find_sweep(Path(path), None if run is None else Path(run))
    record = read_sweep_record(home)
    known = read_trials(home.path)
    trials = [trial_status(trial) for trial in known]
    is_trained = any(trial["status"] == "running" for trial in trials)
    return SweepStatus(
        name=record["name"],
        folder=home.path,
        is_running=is_trained or bool(is_locked(RunDir(home.path))),
        num_trials=int(record.get("num_trials", len(trials))),
        trials=trials,
        lost=[*missing_weights(known), *missing_records(home), *changed_data(known)],
    )


def trial_status(trial: Trial) -> dict[str, Any]:
    """Return the status of a trial as plain data."""
    seeds = [seed for seed in seed_dirs(trial.folder) if seed not in trial.finished_seeds]
    rows = read_log(trial, seeds[0]) if seeds else []
    keys = ("number", "point", "fingerprint", "value", "error")
    plain = {key: getattr(trial, key) for key in keys}
    step = int(rows[-1]["step"]) if rows else None
    return {
        **plain,
        "status": trial_state(trial),
        "step": step,
        "retries": [asdict(retry) for retry in trial.retries],
    }
