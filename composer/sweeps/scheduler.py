"""Runs a sweep: one process asks the study for points and tells it what came of them; each training is a process.

Every trial is a folder named by its fingerprint, and every seed in it an ordinary run that an ordinary `train` has
made. The folders are what counts: the study can be made anew from them, a sweep that was stopped anywhere goes on, and
whoever removes a trial's folder has it run again.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from composer import run_dir
from composer.atomic_io import atomic_write, remove_temporaries
from composer.data.sources import check_files
from composer.errors import DataError, RecipeError, RunError, RunFailed
from composer.run_dir import RunDir
from composer.sweeps.axes import Goal, Point, Search, Sweep
from composer.sweeps.search_space import (
    PointCost,
    cost_point,
    enumerate_points,
    point_recipe,
    random_points,
    wandb_group_overrides,
)
from composer.sweeps.study import StorageError, Study, Suggestion
from composer.sweeps.trial_dir import (
    ENDED,
    SweepDir,
    Trial,
    check_resumable,
    read_trials,
    write_sweep_record,
    write_trial,
)
from composer.sweeps.workers import PATIENCE, LocalWorkerPool, TrialRunner, WorkerPool
from composer.training.progress import ProgressDisplay, format_duration

PAUSE = 0.25
"""Seconds between two looks at the trials."""
ASKED_AT_MOST = 10
"""Points that a search may draw for each trial that is wanted: the others are double, impossible or excluded."""


def run_sweep(
    sweep: Sweep,
    folder: Path,
    workers: int = 1,
    data: Path | None = None,
    address: str | None = None,
    quiet: bool = False,
) -> int:
    """Runs a sweep in `folder`, or goes on with it; 0 where any trial has finished, else 1.

    `workers` trainings run at once, on this machine or, with `address`, on a Ray cluster. Raises RecipeError and
    RunError, with nothing trained, where the sweep or the folder are not fit; KeyboardInterrupt or SystemExit after a
    signal, when all trainings have written a checkpoint and ended.
    """
    home = SweepDir(folder)
    check_resumable(home, sweep)
    points = enumerate_points(sweep)
    ready = [found for found in points if found.runs]
    if points and not ready:
        raise RunError.of(
            "no point of this sweep can be trained", "`--dry-run` tells what is wrong with each", str(sweep.file)
        )
    check_data(sweep, ready, data)
    with lock_sweep(home):
        check_resumable(home, sweep)
        return Scheduler(sweep, home, ready, make_worker_pool(workers, address), workers, data, quiet).run()


def check_data(sweep: Sweep, ready: list[PointCost], data: Path | None) -> None:
    """Raises DataError where the first point's files are not fit: all others would fail over them one by one."""
    point = ready[0].point if ready else random_points(any_one(sweep))[0]
    try:
        recipe = point_recipe(sweep, point)
    except RecipeError:
        return
    if faults := check_files(recipe, recipe.folders(data)):
        raise DataError(faults)


@contextmanager
def lock_sweep(home: SweepDir) -> Iterator[None]:
    """Holds the folder against other sweeps. Raises RunError where it is held, RunFailed where it cannot be written."""
    with locked(home):
        for trial in home.trials.glob("*"):
            remove_temporaries(trial)
        try:
            yield
        except OSError as error:
            message = f"{error.strerror or error}: {error.filename or home.path}"
            raise RunFailed.of(message, "make room; the same command then goes on", str(home.path)) from error
        except StorageError as error:
            message = f"the study cannot be written: {error}"
            raise RunFailed.of(message, "make room; the same command then goes on", str(home.study)) from error


def locked(home: SweepDir) -> IO[str]:
    """The folder's lock. Raises RunError where another sweep has it."""
    try:
        return run_dir.locked(RunDir(home.path))
    except RunError as error:
        raise RunError(
            [replace(fault, message=fault.message.replace("training", "sweep")) for fault in error.faults]
        ) from None


def make_worker_pool(workers: int, address: str | None) -> WorkerPool:
    """Who trains: processes of this machine, or of a Ray cluster."""
    if address is None:
        return LocalWorkerPool(workers)
    from composer.sweeps.workers import RayWorkerPool

    return RayWorkerPool(address, workers)


class Scheduler:
    """A sweep that runs. `ready` are the points that are known before it begins: none of a search that learns."""

    def __init__(
        self,
        sweep: Sweep,
        home: SweepDir,
        ready: list[PointCost],
        crew: WorkerPool,
        workers: int,
        data: Path | None,
        quiet: bool,
    ) -> None:
        self.sweep, self.home, self.crew, self.data = sweep, home, crew, data
        self.ready: dict[str, PointCost] = {}
        for found in ready:
            self.ready.setdefault(found.fingerprint, found)
        self.wanted = len(self.ready) if sweep.search.kind != "tpe" else sweep.search.trials or 0
        self.runners: list[TrialRunner | None] = [None] * workers
        self.trials = {trial.fingerprint: trial for trial in read_trials(home.path)}
        self.display = SweepDisplay(sweep.rank[0], self.wanted, quiet)
        self.left_over: list[Suggestion] = []
        self.was_left = False

    def run(self) -> int:
        """Runs until no trial is left; the exit status."""
        try:
            self.open()
            while self.fill():
                self.look()
                time.sleep(PAUSE)
        except BaseException:
            self.stop()
            raise
        finally:
            self.display.close()
            self.crew.close()
        if not self.trials:
            self.display.say(f"no point was trained, of {self.study.count()} that were drawn: {self.study.why()}")
        return int(all(trial.status != "finished" for trial in self.trials.values()))

    def open(self) -> None:
        """The study, with all that is known and all that is to be done."""
        write_sweep_record(self.home, self.sweep)
        self.study = Study(self.sweep, self.home.study, max_training_steps(self.sweep, list(self.ready.values())))
        self.study.restore(self.trials.values())
        self.reopen()
        ended = {name for name, trial in self.trials.items() if trial.status in ENDED}
        begun = {name: trial.point for name, trial in self.trials.items()}
        points = {**begun, **{name: found.point for name, found in self.ready.items()}}
        self.study.enqueue((point, name) for name, point in points.items() if name not in ended)
        self.left_over = self.study.unfinished()
        self.display.begin(self.trials.values())
        if ended:
            told = "1 trial has" if len(ended) == 1 else f"{len(ended)} trials have"
            self.display.say(f"{self.sweep.name}: {told} ended before")

    def reopen(self) -> None:
        """Takes up again what has finished with fewer seeds than the sweep has now."""
        for name, trial in self.trials.items():
            if trial.status == "finished" and not set(self.sweep.seeds) <= set(trial.seeds):
                self.trials[name] = replace(trial, status="running", value=None)
                write_trial(self.trials[name])

    # --------------------------------------------------------------------------------------- trials

    def fill(self) -> bool:
        """Gives every free slot a trial, as long as there are any; whether something runs."""
        for slot, runner in enumerate(self.runners):
            while self.runners[slot] is None and runner is None and (asked := self.next()) is not None:
                self.runners[slot] = self.runner(asked, slot)
        return any(self.runners)

    def next(self) -> Suggestion | None:
        """What was left when the sweep was stopped, then the queue, then what the search draws."""
        if self.left_over:
            return self.left_over.pop(0)
        if self.study.waits():
            return self.study.ask()
        if self.sweep.search.kind != "tpe" or len(self.trials) >= self.wanted:
            return None
        if self.study.count() >= ASKED_AT_MOST * self.wanted:
            return None
        return self.study.ask(anywhere=self.was_left)

    def runner(self, asked: Suggestion, slot: int) -> TrialRunner | None:
        """Who trains a point; nobody where it cannot, may not or need not be trained."""
        found = self.costed(asked.point)
        known = self.trials.get(found.fingerprint)
        why = self.why_not(found, known, asked)
        self.was_left = bool(why)
        if why:
            self.study.leave(asked, why, worst=bool(found.faults) or found.excluded)
            return None
        if known is not None and known.status in ENDED:  # killed after it was written, before the study was told
            self.study.tell(asked.number, known)
            return None
        self.study.name(asked, found.fingerprint)
        trial = self.begun(asked, found, known)
        recipe = point_recipe(self.sweep, asked.point)
        if not trial.recipe.exists():
            atomic_write(trial.recipe, recipe.dump().encode())
        data = self.data or recipe.data_dir or recipe.file.parent
        together = wandb_group_overrides(recipe.logging["wandb"], self.sweep.name, os.environ)
        return TrialRunner(self.study, self.crew, asked, trial, slot, together, data.absolute())

    def begun(self, asked: Suggestion, found: PointCost, known: Trial | None) -> Trial:
        """The trial of a point, written down; one that was begun before keeps what was decided of it."""
        trial = Trial(
            number=asked.number,
            point=asked.point,
            fingerprint=found.fingerprint,
            parameters=found.parameters,
            flops=found.flops,
            state_bytes=found.state_bytes,
            status="running",
            value=None,
            pruned_at=None if known is None else known.pruned_at,
            error=None,
            folder=self.home.trials / found.fingerprint,
        )
        write_trial(trial)
        self.trials[found.fingerprint] = trial
        self.display.say(
            f"trial {trial.number}: {describe_point(trial.point)}  ({trial.parameters:,} parameters, {trial.folder})"
        )
        return trial

    def why_not(self, found: PointCost, known: Trial | None, asked: Suggestion) -> str:
        """Why a point is not trained, or ""."""
        if found.faults:
            return found.faults[0].message
        if found.excluded:
            return f"excluded by `{found.condition}`"
        if known is None or known.number == asked.number:
            return ""
        running = {runner.trial.fingerprint for runner in self.runners if runner is not None}
        return f"the same as trial {known.number}" if known.status in ENDED or known.fingerprint in running else ""

    def costed(self, point: Point) -> PointCost:
        """What a point will cost."""
        return next((found for found in self.ready.values() if found.point == point), None) or cost_point(
            self.sweep, point
        )

    # --------------------------------------------------------------------------------------- what goes on

    def look(self) -> None:
        """Looks at every trial once, and says how far all are."""
        for slot, runner in enumerate(self.runners):
            if runner is None:
                continue
            trial = runner.look()
            self.trials[trial.fingerprint] = trial
            if trial.status in ENDED:
                self.runners[slot] = None
                self.display.say(describe_end(trial, self.sweep.rank[0].metric))
        self.display.show(self.trials.values())

    def stop(self) -> None:
        """Tells all trainings to end, and waits until they have; a second signal ends them at once."""
        running = [runner for runner in self.runners if runner is not None]
        until = time.monotonic() + PATIENCE
        try:
            for runner in running:
                runner.stop(signal.SIGTERM)
            while not all(runner.has_stopped() for runner in running) and time.monotonic() < until:
                time.sleep(PAUSE)
        finally:
            for runner in running:
                if not runner.has_stopped():
                    runner.stop(signal.SIGKILL)
        if running:
            self.display.say("stopped; the same command goes on")


def any_one(sweep: Sweep) -> Sweep:
    """The same space, of which one point is drawn by chance."""
    return replace(sweep, search=Search("random", 1, sweep.search.seed))


def max_training_steps(sweep: Sweep, ready: list[PointCost]) -> int | None:
    """How many steps a training of this sweep has at most, if its first or any point says so."""
    point = ready[0].point if ready else random_points(any_one(sweep))[0]
    try:
        most: int | None = point_recipe(sweep, point).training["max_steps"]
    except RecipeError:
        return None
    return most


def describe_end(trial: Trial, metric: str) -> str:
    """How a trial ended, in words."""
    told = f"trial {trial.number}: {describe_point(trial.point)}: {trial.status}"
    if trial.status == "finished":
        return f"{told}, {metric} {trial.value:.4g}"
    if trial.status == "pruned":
        return f"{told} at step {trial.pruned_at:,}"
    lines = (trial.error or "").splitlines()
    return "\n    ".join([told, *lines])


PLAIN_SECONDS = 60.0
"""Seconds between two plain lines that nothing but time has brought."""
LIVE_SECONDS = 1.0


class SweepDisplay:
    """Shows a sweep of `total` trials, of which those in `known` had ended before."""

    def __init__(self, goal: Goal, total: int, quiet: bool = False) -> None:
        self.display = ProgressDisplay(quiet)
        self.goal, self.total = goal, total
        self.began, self.before = time.monotonic(), 0
        self.shown, self.text = 0.0, ""

    def begin(self, trials: Iterable[Trial]) -> None:
        """From here on the pace is measured."""
        self.began = time.monotonic()
        self.before = sum(each.status in ENDED for each in trials)

    def say(self, text: str) -> None:
        """Whole lines, above the live one."""
        self.display.say(text)

    def show(self, trials: Iterable[Trial]) -> None:
        """How far the sweep is; plain lines only where something has changed, or a while has passed."""
        known, now = list(trials), time.monotonic()
        text, leader = standing(known, self.total), leading(known, self.goal)
        live = self.display.is_live
        if now - self.shown < (LIVE_SECONDS if live else PLAIN_SECONDS) and text + leader == self.text:
            return
        self.shown, self.text = now, text + leader
        told = f"{text}; {self.left(known, now)}{leader}"
        ended = sum(each.status in ENDED for each in known)
        self.display.draw(told, ended / max(1, self.total)) if live else self.say(told)

    def close(self) -> None:
        """Takes the live line away."""
        self.display.close()

    def left(self, trials: list[Trial], now: float) -> str:
        """The time left, from the pace of the trials that have ended since the sweep began or went on."""
        ended = sum(each.status in ENDED for each in trials)
        if ended <= self.before:
            return "? left"
        return f"{format_duration((now - self.began) / (ended - self.before) * max(0, self.total - ended))} left"


def standing(trials: list[Trial], total: int) -> str:
    """How many trials there are of each kind."""
    count = Counter(trial.status for trial in trials)
    return (
        f"{count['finished']} of {total} done, {count['running']} running, {count['pruned']} pruned, "
        f"{count['failed']} failed"
    )


def leading(trials: list[Trial], goal: Goal) -> str:
    """The best trial so far; last of all, since a narrow terminal cuts the end."""
    found = best(trials, goal)
    return "" if found is None else f"; best {goal.metric} {found.value:.4g} ({describe_point(found.point)})"


def best(trials: Iterable[Trial], goal: Goal) -> Trial | None:
    """The finished trial with the best value; of equals the first."""
    sign = 1 if goal.direction == "min" else -1
    ended = [trial for trial in trials if trial.status == "finished" and trial.value is not None]
    return min(ended, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)


def describe_point(point: Point) -> str:
    """A point as `train` takes it: `encoder=attention rate=0.001`."""
    told = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in point.items()}
    return " ".join(f"{name}={value}" for name, value in told.items()) or "the base alone"
