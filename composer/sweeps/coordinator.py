"""Run a sweep: ask the study for points, hand their trainings to an executor, and record the ends.

Every trial is a directory named by its fingerprint, and every seed in it an ordinary run folder.
The directories are the state of a sweep: this process may be killed at any moment, and started
again anywhere that sees them.
"""

from __future__ import annotations

import json
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from composer.atomic_io import atomic_write
from composer.data.sources import check_files
from composer.errors import MAX_LISTED, DataError, RecipeError, RunError
from composer.formatting import count_noun
from composer.processes.signals import collected_signals, end_by
from composer.recipe.recipe import Recipe
from composer.sweeps.changed_data import changed_data
from composer.sweeps.directory import (
    check_locks,
    check_resumable,
    lock_sweep,
    write_sweep_record,
)
from composer.sweeps.executors.engine import LOCAL, Engine, open_executor
from composer.sweeps.executors.training import PATIENCE, Executor
from composer.sweeps.measured_goals import check_goals
from composer.sweeps.planned_memory import with_planned_memory
from composer.sweeps.points import (
    CostPlanner,
    PointCost,
    cost_point,
    list_points,
    point_recipe,
    probe_recipe,
)
from composer.sweeps.study import Study, Suggestion, storage_errors
from composer.sweeps.sweep import (
    COSTS,
    Point,
    Sweep,
    SweepDir,
    pruning_warnings,
)
from composer.sweeps.sweep_display import SweepDisplay
from composer.sweeps.trial import (
    ENDED,
    Trial,
    exit_status,
    missing_weights,
    read_trials,
    retry_record,
    write_trial,
)
from composer.sweeps.trial_course import TrialCourse
from composer.training.budget import budget_of
from composer.training.wandb_logger import sweep_overrides

POLL_SECONDS = 0.25
MAX_SUGGESTIONS_PER_TRIAL = 10
"""Suggestions of a search per trial at most: some are duplicates, impossible or excluded."""

REFUSED_SECONDS = 60.0
"""Seconds until an engine that has refused a training is asked again."""


def run_sweep(
    sweep: Sweep, folder: Path, workers: int = 1, engine: Engine = LOCAL, retry: bool = False
) -> int:
    """Run or resume a sweep in `folder`; return 1 if a trial failed or none finished, else 0.

    Args:
        workers: The number of trainings at once.
        retry: Retry failed trials.

    Raises:
        RecipeError, DataError, RunError: Before anything is trained.
        KeyboardInterrupt, SystemExit: After a signal, when all trainings have written a checkpoint.
    """
    home = SweepDir(folder)
    known, recipe = check_sweep(sweep, home)
    num_trials = len(known)
    if sweep.search.kind == "tpe":
        num_trials = sweep.search.trials or 0
    display = SweepDisplay(sweep, num_trials)
    with lock_sweep(home):
        check_resumable(home, sweep)  # another may have run here meanwhile
        needs = sweep.resources
        if engine.has_machines:
            check_locks(home)
            needs = with_planned_memory(sweep, known, display.say)
        with open_executor(engine, sweep.name, workers, needs) as executor:
            if (room := executor.capacity()) < min(workers, num_trials):
                display.say(f"there is room for {count_noun(room, 'training')} at once")
            for fault in pruning_warnings(sweep, recipe.training) if recipe else ():
                display.say(fault.render())
            with storage_errors(sweep):
                study_name = write_sweep_record(home, sweep, num_trials)
                max_steps = None if recipe is None else recipe.training.max_steps
                study = Study(sweep, home, study_name, max_steps)
                coordinator = Coordinator(study, home, executor, workers, known, display)
                coordinator.recover(retry)
                return coordinator.run()


def check_sweep(sweep: Sweep, home: SweepDir) -> tuple[list[PointCost], Recipe | None]:
    """Return the known points that can be trained, and the recipe of one; write nothing.

    Raises RecipeError, DataError and RunError if all trials would fail.
    """
    check_resumable(home, sweep)
    if "seeds" in sweep.root.value and any(has_seed(override) for override in sweep.overrides):
        hint = "write them in `seeds` of the sweep's file, or in `--seeds` beside a recipe"
        raise RunError.of("`training.seed` would be replaced by the seeds of the sweep", hint)
    points = [] if sweep.search.kind == "tpe" else list_points(sweep)
    trainable = [point for point in points if point.status == "trained"]
    if len(points) == 1 and points[0].faults:
        raise RecipeError(points[0].faults)
    if points and not trainable:
        hint = "list the faults with `--dry-run`"
        raise RunError.of("no point of this sweep can be trained", hint, str(sweep.file))
    recipe = point_recipe(sweep, trainable[0].point) if trainable else probe_recipe(sweep)
    # all other trials would fail over the same missing files, one by one
    if recipe is not None and (faults := check_files(recipe, recipe.folders())):
        raise DataError(faults)
    if recipe is not None:
        check_goals(sweep, recipe)
    return trainable, recipe


def has_seed(override: str) -> bool:
    """True if an override sets the seed of a training."""
    return override.partition("=")[0].strip() == "training.seed"


class Coordinator:
    """A running sweep. `known` are the points known beforehand: none of a search that learns.

    workers: The number of trainings at once.
    """

    def __init__(
        self,
        study: Study,
        home: SweepDir,
        executor: Executor,
        workers: int,
        known: list[PointCost],
        display: SweepDisplay,
    ) -> None:
        self.study, self.sweep, self.home = study, study.sweep, home
        self.executor, self.workers, self.display = executor, workers, display
        self.planner = CostPlanner()
        self.points = {json.dumps(point.point): point for point in known}
        self.trials: dict[str, Trial] = {}
        self.courses: list[TrialCourse] = []
        self.queue = deque[Point]()
        self.skipped_last, self.pause_until = False, 0.0
        self.signals: list[int] = []

    def recover(self, retry: bool) -> None:
        """Queue what an earlier process has left of the sweep, and with `retry` what has failed."""
        trials = read_trials(self.home.path)
        drawn_before = self.study.recover(trials)
        for trial in trials:
            self.trials[trial.fingerprint] = self.reopened(trial, retry)
            if self.trials[trial.fingerprint].status not in ENDED:
                self.queue.append(trial.point)
        self.queue += [
            one.point for one in self.points.values() if one.fingerprint not in self.trials
        ]
        self.queue += [point for point in drawn_before if json.dumps(point) not in self.points]
        self.display.begin(self.trials.values())
        for sentence in (*missing_weights(self.trials.values()), *changed_data(trials)):
            self.display.say(f"warning: {sentence}")

    def reopened(self, trial: Trial, retry: bool) -> Trial:
        """Return a trial, running again if it lacks seeds, or failed and `retry` is set."""
        lacking = {*self.sweep.seeds_of(trial)} - {*trial.finished_seeds}
        if retry and trial.status == "failed":
            retries = (*trial.retries, retry_record("requested", trial.error or ""))
            trial = replace(trial, status="running", error=None, retries=retries)
            self.display.say_retry(trial)
        elif trial.status == "finished" and lacking:  # seeds were added
            trial = replace(trial, status="running", value=None)
        else:
            return trial
        write_trial(trial)
        return trial

    def run(self) -> int:
        """Run until no trial is left, and return the exit status."""
        with collected_signals() as self.signals:
            try:
                while self.submit_next() or self.courses:
                    time.sleep(POLL_SECONDS)
                    self.poll()
                    if self.signals:
                        end_by(self.signals[0])
            except BaseException:
                self.stop()
                raise
            finally:
                self.display.close()
        for sentence in changed_data(self.trials.values()):
            self.display.say(f"warning: {sentence}")
        statuses = [trial.status for trial in self.trials.values()]
        if not statuses:
            reasons = self.study.skip_reasons()
            reason = Counter(reasons).most_common(1)[0][0] if reasons else "there was none"
            self.display.say(f"no point was trained, of {len(reasons)} suggested: {reason}")
        elif len(statuses) < self.display.num_trials:
            self.display.say(self.describe_lack())
        if failed := statuses.count("failed"):
            self.display.say(f"{failed} failed; retry with the same command and `--retry`")
        return exit_status(statuses)

    def describe_lack(self) -> str:
        """Say why a search has ended with fewer trials than requested."""
        wanted = count_noun(self.display.num_trials, "trial")
        text = f"the search ended after {len(self.trials)} of {wanted}"
        reasons = Counter[str]()
        for reason in self.study.skip_reasons():
            reasons["the same as an earlier trial" if "the same as" in reason else reason] += 1
        most = [f"{count:,} {reason}" for reason, count in reasons.most_common(MAX_LISTED)]
        return f"{text}; its other suggestions: {'; '.join(most)}" if most else text

    def submit_next(self) -> bool:
        """Submit trainings while there is room; return True if there may be more of them."""
        may_have_more = False
        while self.has_room():
            course = self.course_with_seed()
            if course is None:
                suggestion = self.next_suggestion()
                if suggestion is None:
                    break
                may_have_more = True
                course = self.open_trial(suggestion)
                if course is None:
                    break  # the others are looked at before the next suggestion
            seed = course.next_seed()
            if seed is not None:
                self.submit(course, seed)
        return may_have_more

    def has_room(self) -> bool:
        """True if another training may be submitted now."""
        if self.signals or time.monotonic() < self.pause_until:
            return False
        return self.num_busy < min(self.workers, self.executor.capacity())

    def submit(self, course: TrialCourse, seed: int) -> None:
        """Submit a training; an engine that refuses it while others run is asked again later."""
        try:
            course.submit(seed)
        except RunError as error:
            if not self.num_busy:
                raise
            self.display.say(error.render())
            self.pause_until = time.monotonic() + REFUSED_SECONDS

    @property
    def num_busy(self) -> int:
        """The number of trainings that run, or wait for one that another process began."""
        return sum(course.num_busy for course in self.courses)

    def course_with_seed(self) -> TrialCourse | None:
        """Return the first open trial with a seed to train, or None."""
        return next((one for one in self.courses if one.next_seed() is not None), None)

    def next_suggestion(self) -> Suggestion | None:
        """Return a queued point, else a new one of a search that learns."""
        if self.queue:
            return self.study.ask_for(self.queue.popleft())
        wanted = self.display.num_trials
        if self.sweep.search.kind != "tpe" or len(self.trials) >= wanted:
            return None
        if self.study.num_draws() >= MAX_SUGGESTIONS_PER_TRIAL * wanted:
            return None
        # a sampler that has learned nothing from a skipped point would suggest it again
        return self.study.ask(at_random=self.skipped_last)

    def open_trial(self, suggestion: Suggestion) -> TrialCourse | None:
        """Open the trial of a suggestion; None if it cannot, may not or need not be trained."""
        point = self.points.get(json.dumps(suggestion.point))
        if point is None:
            point = cost_point(self.sweep, suggestion.point, self.planner)
        self.skipped_last = True
        if point.faults or point.condition:
            reason = point.faults[0].message if point.faults else f"excluded by {point.exclusion}"
            self.study.skip(suggestion, reason, as_bad=True)
            return None
        before = self.trials.get(point.fingerprint)
        if before is not None and (before.status in ENDED or self.is_open(before)):
            self.study.skip(suggestion, f"the same as trial {before.number}", as_bad=False)
            return None
        self.skipped_last = False
        self.study.note_fingerprint(suggestion, point.fingerprint)
        trial = self.trial_of(point, before)
        write_trial(trial)
        self.trials[trial.fingerprint] = trial
        self.display.say_started(trial, goes_on=before is not None)
        recipe = point_recipe(self.sweep, suggestion.point)
        # a damaged one would fail for ever
        if not trial.recipe.exists() or trial.recipe.read_bytes() != recipe.dump().encode():
            atomic_write(trial.recipe, recipe.dump().encode())
        data = recipe.data_dir or recipe.file.parent
        shown = sweep_overrides(recipe, self.sweep.name, suggestion.point)
        arguments = [*shown, "--data", str(data.absolute())]
        budget = budget_of(recipe.training)
        course = TrialCourse(self.study, self.executor, suggestion, trial, arguments, budget)
        self.courses.append(course)
        return course

    def is_open(self, trial: Trial) -> bool:
        """True if a trial is trained now."""
        return any(course.trial.fingerprint == trial.fingerprint for course in self.courses)

    def trial_of(self, point: PointCost, before: Trial | None) -> Trial:
        """Return the trial of a point, which keeps its number, retries and pruning."""
        number = 1 + max((trial.number for trial in self.trials.values()), default=-1)
        costs = {name: getattr(point, name) for name in (*COSTS, "at_most")}
        folder = self.home.trials / point.fingerprint
        trial = Trial(number, point.point, point.fingerprint, **costs, folder=folder)
        if before is None:
            return trial
        return replace(
            trial, number=before.number, pruned_at=before.pruned_at, retries=before.retries
        )

    def poll(self) -> None:
        """Look once at every open trial, and show the progress of the sweep."""
        for course in list(self.courses):
            num_retries = len(course.trial.retries)
            course.poll()
            self.trials[course.trial.fingerprint] = course.trial
            if len(course.trial.retries) > num_retries:
                self.display.say_retry(course.trial)
            if not course.is_open:
                self.courses.remove(course)
                self.display.say_ended(course.trial)
        self.display.show([*self.trials.values()], self.courses)

    def stop(self) -> None:
        """Stop all trainings and wait until they have ended; another signal kills them."""
        running = [course for course in self.courses if course.jobs]
        deadline, num_signals = time.monotonic() + PATIENCE, len(self.signals)
        try:
            for course in running:
                course.cancel()
            while any(course.has_jobs() for course in running):
                if len(self.signals) > num_signals or time.monotonic() > deadline:
                    break
                time.sleep(POLL_SECONDS)
        finally:
            for course in running:
                with suppress(RunError, OSError):  # the others are killed all the same
                    course.kill()
        if running:
            self.display.say("stopped; run the same command to resume")
