"""Running a sweep: one process asks the study for points, starts trainings in a worker pool, and polls them.

Every trial is a directory named by its fingerprint, and every seed in it an ordinary run folder that an ordinary
`train` has made. The directories are what counts: the study can be rebuilt from them, a sweep that was stopped anywhere
is resumed, and a trial whose directory was removed runs again.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from composer.atomic_io import atomic_write, remove_temporaries
from composer.data.sources import check_files
from composer.errors import DataError, RecipeError, RunError, RunFailed
from composer.fingerprint import describe_differences, setting_differences
from composer.formatting import format_bound, format_duration
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import read, to_data
from composer.run_dir import RunDir, locked
from composer.sweeps.points import (
    CostPlanner,
    PointCost,
    cost_point,
    list_points,
    point_recipe,
    pruning_notes,
    random_points,
    wandb_overrides,
)
from composer.sweeps.retries import describe_retry, retry_record
from composer.sweeps.study import StorageError, Study, Suggestion
from composer.sweeps.sweep import (
    COSTS,
    ENDED,
    SearchAlgorithm,
    Sweep,
    SweepDir,
    Trial,
    format_value,
    read_log,
    read_sweep_record,
    read_trials,
    write_trial,
)
from composer.sweeps.workers import PATIENCE, LocalWorkerPool, RayWorkerPool, TrialRunner, WorkerPool
from composer.training.loggers import ProgressDisplay

POLL_SECONDS = 0.25
MAX_SUGGESTIONS_PER_TRIAL = 10
"""Suggestions of a search for each trial that is wanted; the others are duplicates, impossible or excluded."""
PLAIN_SECONDS = 60.0
"""Seconds between two lines of progress without a terminal, if nothing but the time left has changed."""


def run_sweep(
    sweep: Sweep,
    folder: Path,
    workers: int = 1,
    data: Path | None = None,
    ray: str | None = None,
    quiet: bool = False,
    retry: bool = False,
) -> int:
    """Run a sweep in `folder`, or resume it there, and return the exit status: 0 if any trial has finished, else 1.

    data: see `composer.sweep`; ray: the address of a Ray cluster to train on instead of this machine; retry: whether to
    try those trials again that have failed. Raises RecipeError, DataError and RunError before anything is trained;
    KeyboardInterrupt and SystemExit after a signal, when all trainings have written a checkpoint and ended.
    """
    home = SweepDir(folder)
    check_resumable(home, sweep)
    points = [] if sweep.search.kind == "tpe" else list_points(sweep)
    trainable = [point for point in points if point.status == "trained"]
    if points and not trainable:
        hint = "list the faults with `--dry-run`"
        raise RunError.of("no point of this sweep can be trained", hint, str(sweep.file))
    one = replace(sweep, search=SearchAlgorithm("random", 1, sweep.search.seed))
    recipe: Recipe | None = None
    with suppress(RecipeError):  # a random point, where none is known yet, may be impossible
        recipe = point_recipe(sweep, trainable[0].point if trainable else random_points(one)[0])
    # all other trials would fail over the same missing files, one by one
    if recipe is not None and (faults := check_files(recipe, recipe.folders(data))):
        raise DataError(faults)
    with lock_sweep(home):
        check_resumable(home, sweep)
        pool = LocalWorkerPool(workers) if ray is None else RayWorkerPool(ray, workers)
        max_steps = None if recipe is None else recipe.training["max_steps"]
        return Scheduler(sweep, home, trainable, pool, data, quiet).run(max_steps, retry)


@contextmanager
def lock_sweep(home: SweepDir) -> Iterator[None]:
    """Hold the directory against other sweeps: RunError if one holds it, RunFailed if nothing can be written to it."""
    try:
        lock = locked(RunDir(home.path))
    except RunError as error:
        faults = [replace(fault, message=fault.message.replace("training", "sweep")) for fault in error.faults]
        raise RunError(faults) from None
    with lock:
        for trial in home.trials.glob("*"):
            remove_temporaries(trial)
        try:
            yield
        except (OSError, StorageError) as error:
            message, file = f"the study cannot be written: {error}", home.study
            if isinstance(error, OSError):
                message, file = f"{error.strerror or error}: {error.filename or home.path}", home.path
            raise RunFailed.of(message, "free disk space, then run the same command to resume", str(file)) from error


class Scheduler:
    """A running sweep. `points` are those known beforehand: none of a search that learns."""

    def __init__(
        self, sweep: Sweep, home: SweepDir, points: list[PointCost], pool: WorkerPool, data: Path | None, quiet: bool
    ) -> None:
        self.sweep, self.home, self.pool, self.data = sweep, home, pool, data
        self.planner = CostPlanner()
        self.points = {point.fingerprint: point for point in points}
        self.num_trials = len(self.points) if sweep.search.kind != "tpe" else sweep.search.trials or 0
        self.runners: list[TrialRunner | None] = [None] * pool.workers
        self.trials = {trial.fingerprint: trial for trial in read_trials(home.path)}
        self.display = ProgressDisplay(quiet)
        self.last_time, self.last_text = 0.0, ""
        self.unfinished: list[Suggestion] = []
        self.skipped_last = False

    def run(self, max_steps: int | None, retry: bool = False) -> int:
        """Run until no trial is left, and return the exit status."""
        try:
            self.open_study(max_steps, retry)
            while self.fill_slots():
                self.poll()
                time.sleep(POLL_SECONDS)
        except BaseException:
            self.stop()
            raise
        finally:
            self.display.close()
            self.pool.close()
        if not self.trials:
            reasons = Counter(trial.user_attrs.get("skipped", "unknown") for trial in self.study.trials())
            reason = reasons.most_common(1)[0][0] if reasons else "there was none"
            self.display.say(f"no point was trained, of {reasons.total()} that were drawn: {reason}")
        if failed := sum(trial.status == "failed" for trial in self.trials.values()):
            self.display.say(f"trials that have failed: {failed}; the same command with `--retry` tries them again")
        return int(all(trial.status != "finished" for trial in self.trials.values()))

    def open_study(self, max_steps: int | None, retry: bool) -> None:
        """Open the study, and bring it to the state of the trials' directories; `retry` gives failed ones another."""
        write_sweep_record(self.home, self.sweep, self.num_trials)
        self.study = Study(self.sweep, self.home.study, max_steps)
        self.study.restore(self.trials.values())
        for name, trial in self.trials.items():
            if trial.status == "finished" and not set(self.sweep.seeds) <= set(trial.seeds):  # seeds were added
                self.trials[name] = replace(trial, status="running", value=None)
                write_trial(self.trials[name])
        for trial in [trial for trial in self.trials.values() if retry and trial.status == "failed"]:
            retries = (*trial.retries, retry_record("requested", trial.error or ""))
            again = replace(trial, status="running", error=None, retries=retries)
            write_trial(again)
            self.trials[again.fingerprint] = again
            self.say_retry(again)
        ended = {name for name, trial in self.trials.items() if trial.status in ENDED}
        points = {name: trial.point for name, trial in self.trials.items()}
        points |= {point.fingerprint: point.point for point in self.points.values()}
        self.study.enqueue({name: point for name, point in points.items() if name not in ended})
        self.unfinished = self.study.running_suggestions()
        for note in pruning_notes(self.sweep):
            self.display.say(note)
        # the pace is that of trials that end from here on
        self.start, self.ended_before = time.monotonic(), len(ended)
        if ended:
            which = "1 trial has" if len(ended) == 1 else f"{len(ended)} trials have"
            self.display.say(f"{self.sweep.name}: {which} ended before")

    def fill_slots(self) -> bool:
        """Give every free slot a trial, as long as there are any, and return whether a trial runs."""
        for slot in range(len(self.runners)):
            while self.runners[slot] is None and (suggestion := self.next_suggestion()) is not None:
                self.runners[slot] = self.start_trial(suggestion, slot)
        return any(self.runners)

    def next_suggestion(self) -> Suggestion | None:
        """Return what was running when the sweep was stopped, then the queue, then what the search suggests."""
        if self.unfinished:
            return self.unfinished.pop(0)
        if self.study.has_queued():
            return self.study.ask()
        num_suggested = len(self.study.trials())
        is_done = len(self.trials) >= self.num_trials or num_suggested >= MAX_SUGGESTIONS_PER_TRIAL * self.num_trials
        if self.sweep.search.kind != "tpe" or is_done:
            return None
        # a sampler that has learned nothing from a skipped point would suggest it again
        return self.study.ask(at_random=self.skipped_last)

    def start_trial(self, suggestion: Suggestion, slot: int) -> TrialRunner | None:
        """Return the runner of a suggestion, or None if it cannot, may not or need not be trained."""
        known_point = (point for point in self.points.values() if point.point == suggestion.point)
        point = next(known_point, None) or cost_point(self.sweep, suggestion.point, self.planner)
        trial = self.trials.get(point.fingerprint)
        reason = self.skip_reason(point, trial, suggestion)
        self.skipped_last = bool(reason)
        if reason:
            self.study.skip(suggestion, reason, as_bad=point.status != "trained")
            return None
        if trial is not None and trial.status in ENDED:  # killed after it was written, before the study was told
            self.study.tell(suggestion.number, trial)
            return None
        suggestion.trial.set_user_attr("fingerprint", point.fingerprint)
        folder = self.home.trials / point.fingerprint
        costs = {name: getattr(point, name) for name in (*COSTS, "at_most")}
        # a trial that is started again stays pruned
        pruned_at, retries = (None, ()) if trial is None else (trial.pruned_at, trial.retries)
        head = (suggestion.number, suggestion.point, point.fingerprint)
        new = Trial(*head, **costs, status="running", value=None, pruned_at=pruned_at, error=None, folder=folder)
        trial = replace(new, retries=retries)
        write_trial(trial)
        self.trials[trial.fingerprint] = trial
        size = format_bound(f"{trial.parameters:,} parameters", trial.at_most)
        self.display.say(f"trial {trial.number}: {describe_point(trial)}  ({size}, {folder})")
        recipe = point_recipe(self.sweep, suggestion.point)
        if not trial.recipe.exists():
            atomic_write(trial.recipe, recipe.dump().encode())
        data = self.data or recipe.data_dir or recipe.file.parent
        shown = wandb_overrides(recipe, self.sweep.name, suggestion.point, os.environ)
        arguments = [*shown, "--data", str(data.absolute())]
        return TrialRunner(self.study, self.pool, suggestion, trial, slot, arguments)

    def skip_reason(self, point: PointCost, trial: Trial | None, suggestion: Suggestion) -> str:
        """Return why a point is not trained, or ""."""
        if point.faults:
            return point.faults[0].message
        if point.condition:
            return f"excluded by {point.exclusion}"
        if trial is None or trial.number == suggestion.number:
            return ""
        running = {runner.trial.fingerprint for runner in self.runners if runner is not None}
        is_duplicate = trial.status in ENDED or trial.fingerprint in running
        return f"the same as trial {trial.number}" if is_duplicate else ""

    def poll(self) -> None:
        """Poll every trial once, and show the progress of the sweep."""
        for slot, runner in enumerate(self.runners):
            if runner is None:
                continue
            before = len(runner.trial.retries)
            trial = runner.poll()
            self.trials[trial.fingerprint] = trial
            if len(trial.retries) > before:
                self.say_retry(trial)
            if trial.status in ENDED:
                self.runners[slot] = None
                text = f"trial {trial.number}: {describe_point(trial)}: {trial.status}"
                if trial.status == "finished":
                    text += f", {self.sweep.rank[0].metric} {trial.value:.4g}"
                elif trial.status == "pruned":
                    text += f" at step {trial.pruned_at:,}"
                self.display.say("\n    ".join([text, *(trial.error or "").splitlines()]))
        self.show_progress()

    def say_retry(self, trial: Trial) -> None:
        """Print why a training of a trial is started again."""
        text = describe_retry(trial.retries, self.sweep.retries)
        self.display.say(f"trial {trial.number}: {describe_point(trial)}: {text}")

    def show_progress(self) -> None:
        """Show the progress; in plain lines only if something has changed, or a while has passed."""
        now, goal, trials = time.monotonic(), self.sweep.rank[0], self.trials.values()
        statuses = Counter(trial.status for trial in trials)
        text = f"{statuses['finished']} of {self.num_trials} done, {statuses['running']} running, "
        text += f"{statuses['pruned']} pruned, {statuses['failed']} failed"
        sign = 1 if goal.direction == "min" else -1
        finished = [trial for trial in trials if trial.status == "finished" and trial.value is not None]
        best = min(finished, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)
        # last of all, since a narrow terminal cuts the end
        leader = "" if best is None else f"; best {goal.metric} {best.value:.4g} ({describe_point(best)})"
        interval = 1.0 if self.display.console.is_terminal else PLAIN_SECONDS
        if now - self.last_time < interval and text + leader == self.last_text:
            return
        self.last_time, self.last_text = now, text + leader
        ended = sum(trial.status in ENDED for trial in trials)
        running = [running_progress(runner) for runner in self.runners if runner is not None]
        share = sum(spent for spent, _ in running)
        done = ended - self.ended_before + share
        left = max(0.0, self.num_trials - ended - share)
        time_left = format_duration((now - self.start) / done * left) if done > 0 else "?"
        line = "; ".join([text, f"{time_left} left", *filter(None, (words for _, words in running))]) + leader
        if self.display.console.is_terminal:
            self.display.draw(line, ended / max(1, self.num_trials))
        else:
            self.display.say(line)

    def stop(self) -> None:
        """Stop all trainings and wait until they have ended; a second signal kills them."""
        running = [runner for runner in self.runners if runner is not None]
        deadline = time.monotonic() + PATIENCE
        try:
            for runner in running:
                runner.stop(signal.SIGTERM)
            while not all(runner.has_stopped() for runner in running) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        finally:
            for runner in running:
                if not runner.has_stopped():
                    runner.stop(signal.SIGKILL)
        if running:
            self.display.say("stopped; run the same command to resume")


def running_progress(runner: TrialRunner) -> tuple[float, str]:
    """Return the share of a running trial's budgets, over all seeds, that is spent, and its step and loss in words."""
    finished = sum(record.get("status") == "finished" for record in runner.trial.seeds.values())
    row = next((row for row in reversed(read_log(runner.trial, runner.seed)) if "budget_spent" in row), None)
    if row is None:
        return finished / len(runner.seeds), ""
    loss = row.get("train/loss")
    words = f"trial {runner.trial.number} at step {row['step']:,}" + (f", loss {loss:.4g}" if loss is not None else "")
    return min(1.0, (finished + row["budget_spent"][-1]) / len(runner.seeds)), words


def describe_point(trial: Trial) -> str:
    """Return a trial's point as `train` takes it: `encoder=attention rate=0.001`."""
    return " ".join(f"{name}={format_value(value)}" for name, value in trial.point.items()) or "the base alone"


def check_resumable(folder: SweepDir, sweep: Sweep) -> None:
    """Raise RunError if this sweep may not be run in a directory; write nothing."""
    path, other = str(folder.path), "name another with `--run DIR`"
    if folder.path.exists() and not folder.path.is_dir():
        raise RunError.of("a sweep needs a folder, and this is a file", other, path)
    if RunDir(folder.path).is_empty():
        return
    if not folder.record.exists():
        raise RunError.of("this folder is not empty, and was not written by a sweep", other, path)
    record = read_sweep_record(folder)
    if record.get("fingerprint") != sweep.fingerprint:
        hint = "name another folder with `--run DIR`, or restore the sweep file"
        before = to_data(read(folder.sweep, str(folder.sweep)))
        changes = describe_differences(setting_differences(before, to_data(sweep.root)))
        changes = changes or f"its base recipe, or a setting on the command line, was another ({record.get('file')})"
        raise RunError.of(f"this folder belongs to another sweep: {changes}", hint, path)
    if (shrunk := shrink_message(record.get("growable", {}), growable_parts(sweep))) is not None:
        raise RunError.of(shrunk, "write it as it was, or name another folder with `--run DIR`", path)


def write_sweep_record(folder: SweepDir, sweep: Sweep, num_trials: int) -> None:
    """Write sweep.yaml and sweep.json into a new directory, and again if what may change has changed."""
    parts = {"growable": growable_parts(sweep), "num_trials": num_trials, "retries": sweep.retries}
    if folder.record.exists() and parts.items() <= read_sweep_record(folder).items():
        return
    folder.trials.mkdir(parents=True, exist_ok=True)
    atomic_write(folder.sweep, sweep.file.read_bytes())
    files = {"file": str(sweep.file.absolute()), "base": str(sweep.base.absolute())}
    record = {"name": sweep.name, "fingerprint": sweep.fingerprint, **files, **parts}
    # last, since its presence says that the directory is a sweep's
    atomic_write(folder.record, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())


def growable_parts(sweep: Sweep) -> dict[str, Any]:
    """Return what a resumed sweep may have more of: trials, and seeds after the earlier ones."""
    return {"trials": sweep.search.trials, "seeds": [*sweep.seeds]}


def shrink_message(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return what a resumed sweep has less of than before, in words."""
    trials, seeds = before.get("trials"), before.get("seeds", [])
    if trials is not None and now["trials"] < trials:
        return f"`search` had {trials} trials here and now has {now['trials']}; it can only grow"
    if now["seeds"][: len(seeds)] != seeds:
        old, new = (", ".join(map(str, numbers)) for numbers in (seeds, now["seeds"]))
        return f"`seeds` were {old} and are {new}; seeds can only be appended"
    return None
