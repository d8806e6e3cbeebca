"""Runs a sweep: one process asks the study for points and tells it what came of them; each training is a process.

Every trial is a folder named by its fingerprint, and every seed in it an ordinary run that an ordinary `train` has
made. The folders are what counts: the study can be made anew from them, a sweep that was stopped anywhere goes on, and
whoever removes a trial's folder has it run again.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

from composer import run_dir
from composer.atomic_io import atomic_write, remove_temporaries
from composer.data.sources import check_files
from composer.errors import DataError, RecipeError, RunError, RunFailed
from composer.run_dir import RunDir
from composer.sweeps.axes import Point, Search, Sweep
from composer.sweeps.point import group
from composer.sweeps.progress import SweepDisplay, describe
from composer.sweeps.search_space import PointCost, costed, points_of, random_points, recipe_of
from composer.sweeps.study import TROUBLE, Study, Suggestion
from composer.sweeps.trial_dir import ENDED, SweepFolder, Trial, begin, must_fit, read_trials, write_trial
from composer.sweeps.trial_runner import PATIENCE, Runner
from composer.sweeps.workers import LocalCrew, WorkerPool

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
    home = SweepFolder(folder)
    must_fit(home, sweep)
    points = points_of(sweep)
    ready = [found for found in points if found.runs]
    if points and not ready:
        raise RunError.of(
            "no point of this sweep can be trained", "`--dry-run` tells what is wrong with each", str(sweep.file)
        )
    must_find_data(sweep, ready, data)
    with held(home):
        must_fit(home, sweep)
        return Engine(sweep, home, ready, crew_of(workers, address), workers, data, quiet).run()


def must_find_data(sweep: Sweep, ready: list[PointCost], data: Path | None) -> None:
    """Raises DataError where the first point's files are not fit: all others would fail over them one by one."""
    point = ready[0].point if ready else random_points(any_one(sweep))[0]
    try:
        recipe = recipe_of(sweep, point)
    except RecipeError:
        return
    if faults := check_files(recipe, recipe.folders(data)):
        raise DataError(faults)


@contextmanager
def held(home: SweepFolder) -> Iterator[None]:
    """Holds the folder against other sweeps. Raises RunError where it is held, RunFailed where it cannot be written."""
    with locked(home):
        for trial in home.trials.glob("*"):
            remove_temporaries(trial)
        try:
            yield
        except OSError as error:
            message = f"{error.strerror or error}: {error.filename or home.path}"
            raise RunFailed.of(message, "make room; the same command then goes on", str(home.path)) from error
        except TROUBLE as error:
            message = f"the study cannot be written: {error}"
            raise RunFailed.of(message, "make room; the same command then goes on", str(home.study)) from error


def locked(home: SweepFolder) -> IO[str]:
    """The folder's lock. Raises RunError where another sweep has it."""
    try:
        return run_dir.locked(RunDir(home.path))
    except RunError as error:
        raise RunError(
            [replace(fault, message=fault.message.replace("training", "sweep")) for fault in error.faults]
        ) from None


def crew_of(workers: int, address: str | None) -> WorkerPool:
    """Who trains: processes of this machine, or of a Ray cluster."""
    if address is None:
        return LocalCrew(workers)
    from composer.sweeps.ray_workers import RayCrew

    return RayCrew(address, workers)


class Engine:
    """A sweep that runs. `ready` are the points that are known before it begins: none of a search that learns."""

    def __init__(
        self,
        sweep: Sweep,
        home: SweepFolder,
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
        self.runners: list[Runner | None] = [None] * workers
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
        begin(self.home, self.sweep)
        self.study = Study(self.sweep, self.home.study, longest(self.sweep, list(self.ready.values())))
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

    def runner(self, asked: Suggestion, slot: int) -> Runner | None:
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
        recipe = recipe_of(self.sweep, asked.point)
        if not trial.recipe.exists():
            atomic_write(trial.recipe, recipe.dump().encode())
        data = self.data or recipe.data_dir or recipe.file.parent
        together = group(recipe.logging["wandb"], self.sweep.name, os.environ)
        return Runner(self.study, self.crew, asked, trial, slot, together, data.absolute())

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
            f"trial {trial.number}: {describe(trial.point)}  ({trial.parameters:,} parameters, {trial.folder})"
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
        return next((found for found in self.ready.values() if found.point == point), None) or costed(self.sweep, point)

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
                self.display.say(ending(trial, self.sweep.rank[0].metric))
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


def longest(sweep: Sweep, ready: list[PointCost]) -> int | None:
    """How many steps a training of this sweep has at most, if its first or any point says so."""
    point = ready[0].point if ready else random_points(any_one(sweep))[0]
    try:
        most: int | None = recipe_of(sweep, point).training["max_steps"]
    except RecipeError:
        return None
    return most


def ending(trial: Trial, metric: str) -> str:
    """How a trial ended, in words."""
    told = f"trial {trial.number}: {describe(trial.point)}: {trial.status}"
    if trial.status == "finished":
        return f"{told}, {metric} {trial.value:.4g}"
    if trial.status == "pruned":
        return f"{told} at step {trial.pruned_at:,}"
    lines = (trial.error or "").splitlines()
    return "\n    ".join([told, *lines])
