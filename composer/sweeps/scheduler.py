"""Running a sweep: a process asks the study for points, starts trainings in a worker pool, and
polls them.

Every trial is a directory named by its fingerprint, and every seed in it an ordinary run folder.
The directories are what counts: a sweep that was stopped anywhere is resumed from them, by any
number of processes.
"""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from composer.atomic_io import atomic_write
from composer.data.sources import check_files
from composer.errors import MAX_LISTED, ComposerError, DataError, RunError
from composer.formatting import count_noun, format_bound, format_duration
from composer.recipe.recipe import Recipe
from composer.sweeps.directory import check_resumable, lock_sweep, write_sweep_record
from composer.sweeps.leases import EXPIRES, Lease, claim, is_claimed, num_claims
from composer.sweeps.points import (
    CostPlanner,
    PointCost,
    cost_point,
    list_points,
    point_recipe,
    probe_recipe,
)
from composer.sweeps.study import Study, Suggestion
from composer.sweeps.sweep import COSTS, MEMORY_UNITS, Resources, Sweep, SweepDir, pruning_warnings
from composer.sweeps.trial import (
    ENDED,
    Trial,
    describe_point,
    describe_retry,
    exit_status,
    missing_weights,
    read_log,
    read_trial,
    read_trials,
    retry_record,
    write_trial,
)
from composer.sweeps.workers import (
    PATIENCE,
    LocalWorkerPool,
    RayWorkerPool,
    TrialRunner,
    WorkerPool,
)
from composer.training.budget import budget_of
from composer.training.loggers import ProgressDisplay
from composer.training.training_plan import plan_training
from composer.training.wandb_logger import sweep_overrides

POLL_SECONDS = 0.25
MAX_SUGGESTIONS_PER_TRIAL = 10
"""Suggestions of a search for each trial that is wanted; the others are duplicates, impossible or
excluded.
"""
REFRESH_SECONDS = 1.0
"""Seconds between two looks at what other workers have done."""
PLAIN_SECONDS = 60.0
"""Seconds between two lines of progress without a terminal, if nothing but the time left has
changed.
"""


def run_sweep(
    sweep: Sweep,
    folder: Path,
    workers: int = 1,
    ray: str | None = None,
    joins: bool = False,
    retry: bool = False,
) -> int:
    """Run a sweep in `folder`, or resume it there, and return its exit status: 1 if a trial failed,
    or none finished.

    ray: the address of a Ray cluster to train on instead of this machine; joins: whether other
    processes may run the same sweep; retry: whether to try those trials again that have failed.
    Raises RecipeError, DataError and RunError before anything is trained; KeyboardInterrupt and
    SystemExit after a signal, when all trainings have written a checkpoint and ended.
    """
    home = SweepDir(folder)
    trainable, recipe = check_sweep(sweep, home)
    with nullcontext() if joins else lock_sweep(home):
        needs = sweep.resources
        pool = (
            LocalWorkerPool(workers, needs) if ray is None else RayWorkerPool(ray, workers, needs)
        )
        scheduler = Scheduler(sweep, home, trainable, pool)
        if isinstance(pool, RayWorkerPool) and not pool.options["num_gpus"]:
            pool.reserve(with_planned_memory(sweep, trainable, scheduler.display.say))
        for fault in pruning_warnings(sweep, recipe.training) if recipe else ():
            scheduler.display.say(fault.render())
        return scheduler.run(None if recipe is None else recipe.training.max_steps, retry)


def check_sweep(sweep: Sweep, home: SweepDir) -> tuple[list[PointCost], Recipe | None]:
    """Return the points that are known and can be trained, and the recipe of one, if known; write
    nothing.

    Raises RecipeError, DataError and RunError where all trials would fail.
    """
    check_resumable(home, sweep)
    points = [] if sweep.search.kind == "tpe" else list_points(sweep)
    trainable = [point for point in points if point.status == "trained"]
    if points and not trainable:
        hint = "list the faults with `--dry-run`"
        raise RunError.of("no point of this sweep can be trained", hint, str(sweep.file))
    recipe = point_recipe(sweep, trainable[0].point) if trainable else probe_recipe(sweep)
    # all other trials would fail over the same missing files, one by one
    if recipe is not None and (faults := check_files(recipe, recipe.folders())):
        raise DataError(faults)
    return trainable, recipe


def with_planned_memory(
    sweep: Sweep, points: Sequence[PointCost], say: Callable[[str], None]
) -> Resources:
    """Return what a trial needs; without `memory` and GPUs, with what is planned for the largest of
    the points, if any.

    That is half as much again, for what lies between tensors, and 1.5 GiB for Python, torch and a
    worker. With a GPU the tensors are in its memory, and of the machine's nothing is known.
    """
    needs = sweep.resources
    if needs.memory is not None or needs.gpus or not points:
        return needs
    largest = max(points, key=lambda point: (point.parameters, point.flops))
    with suppress(ComposerError):  # which its training reports
        planned = plan_training(point_recipe(sweep, largest.point)).memory.bytes
        needs = replace(needs, memory=int(1.5 * planned + 1.5 * MEMORY_UNITS["G"]))
        say(
            f"no `memory` in `resources`: each trial asks for {needs.describe()}, as planned for"
            " the largest point"
        )
    return needs


class Scheduler:
    """A running sweep. `points` are those known beforehand: none of a search that learns."""

    def __init__(
        self, sweep: Sweep, home: SweepDir, points: list[PointCost], pool: WorkerPool
    ) -> None:
        self.sweep, self.home, self.pool = sweep, home, pool
        self.planner = CostPlanner()
        self.points = {point.fingerprint: point for point in points}
        self.num_trials = (
            len(self.points) if sweep.search.kind != "tpe" else sweep.search.trials or 0
        )
        self.runners: list[TrialRunner | None] = [None] * pool.workers
        self.trials: dict[str, Trial] = {}
        self.display = ProgressDisplay()
        self.last_time, self.last_text = 0.0, ""
        self.last_refresh = self.last_read = -math.inf
        self.first_seen: dict[int, float] = {}
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
        self.refresh_trials()
        if not self.trials:
            reasons = Counter(
                trial.user_attrs.get("skipped", "unknown") for trial in self.study.trials()
            )
            reason = reasons.most_common(1)[0][0] if reasons else "there was none"
            self.display.say(
                f"no point was trained, of {reasons.total()} that were drawn: {reason}"
            )
        if failed := sum(trial.status == "failed" for trial in self.trials.values()):
            self.display.say(
                f"trials that have failed: {failed}; the same command with `--retry` tries them"
                " again"
            )
        if self.trials and len(self.trials) < self.num_trials:
            self.display.say(self.describe_lack())
        return exit_status(trial.status for trial in self.trials.values())

    def describe_lack(self) -> str:
        """Say why a search has ended with fewer trials than it was asked for."""
        skipped = [
            trial.user_attrs["skipped"]
            for trial in self.study.trials()
            if "skipped" in trial.user_attrs
        ]
        reasons = Counter(
            "the same as an earlier trial" if "the same as" in reason else reason
            for reason in skipped
        )
        listed = "; ".join(
            f"{count:,} {reason}" for reason, count in reasons.most_common(MAX_LISTED)
        )
        wanted = (
            f"the search ended after {len(self.trials)} of {count_noun(self.num_trials, 'trial')}"
        )
        return f"{wanted}; its other suggestions: {listed}" if listed else wanted

    def open_study(self, max_steps: int | None, retry: bool) -> None:
        """Open the study, and bring it to the state of the trials' directories; `retry` gives
        failed ones another.

        One worker does so at a time.
        """
        while (lease := claim(self.home.opening)) is None:
            time.sleep(POLL_SECONDS)
        try:
            check_resumable(self.home, self.sweep)
            write_sweep_record(self.home, self.sweep, self.num_trials)
            self.study = Study(self.sweep, self.home.study, max_steps)
            trials = read_trials(self.home.path)
            self.study.restore(trials)
            self.trials = {trial.fingerprint: self.reopen(trial, retry) for trial in trials}
            ended = {name for name, trial in self.trials.items() if trial.status in ENDED}
            points = {name: trial.point for name, trial in self.trials.items()}
            points |= {point.fingerprint: point.point for point in self.points.values()}
            self.study.enqueue({name: point for name, point in points.items() if name not in ended})
        finally:
            lease.release()
        # the pace is that of trials that end from here on
        self.start, self.done_before = time.monotonic(), self.trials_done([])
        if ended:
            has = "has" if len(ended) == 1 else "have"
            self.display.say(
                f"{self.sweep.name}: {count_noun(len(ended), 'trial')} {has} ended before"
            )
        for sentence in missing_weights(self.trials.values()):
            self.display.say(f"warning: {sentence}")

    def reopen(self, trial: Trial, retry: bool) -> Trial:
        """Return a trial as it goes on: one that lacks seeds, or has failed and is to be tried
        again, runs.
        """
        lacking = {*self.sweep.seeds_of(trial)} - {*trial.finished_seeds}
        if retry and trial.status == "failed":
            retries = (*trial.retries, retry_record("requested", trial.error or ""))
            trial = replace(trial, status="running", error=None, retries=retries)
            self.say_retry(trial)
        elif trial.status == "finished" and lacking:  # seeds were added
            trial = replace(trial, status="running", value=None)
        else:
            return trial
        write_trial(trial)
        return trial

    def fill_slots(self) -> bool:
        """Give every free slot a trial, if there is one, and return whether any trial runs, here or
        elsewhere.
        """
        if all(self.runners) or time.monotonic() - self.last_refresh < REFRESH_SECONDS:
            return True
        for slot in range(len(self.runners)):
            while self.runners[slot] is None and (suggestion := self.next_suggestion()) is not None:
                self.runners[slot] = self.start_trial(suggestion, slot)
        if not all(self.runners):
            self.last_refresh = time.monotonic()
        return any(self.runners) or self.study.is_open()

    def next_suggestion(self) -> Suggestion | None:
        """Return what no worker trains any more, then the queue, then what the search suggests."""
        for number, fingerprint in self.study.running().items():
            if self.is_abandoned(number, fingerprint):
                return self.study.suggestion(number)
        if (queued := self.study.ask_queued()) is not None or self.sweep.search.kind != "tpe":
            return queued
        if self.study.num_points() >= self.num_trials:
            return None
        if len(self.study.trials()) >= MAX_SUGGESTIONS_PER_TRIAL * self.num_trials:
            return None
        # a sampler that has learned nothing from a skipped point would suggest it again
        suggestion = self.study.ask(at_random=self.skipped_last)
        # another worker was quicker
        if self.study.num_points(before=suggestion.number) >= self.num_trials:
            self.study.skip(suggestion, "there are enough trials", as_bad=False)
            return None
        return suggestion

    def is_abandoned(self, number: int, fingerprint: str | None) -> bool:
        """Return whether a suggestion without a result has no worker."""
        if fingerprint is not None:
            return not is_claimed(self.home.trials / fingerprint)
        # its worker has yet to find out what it costs, or was killed meanwhile
        return time.monotonic() - self.first_seen.setdefault(number, time.monotonic()) > EXPIRES

    def start_trial(self, suggestion: Suggestion, slot: int) -> TrialRunner | None:
        """Return the runner of a suggestion, or None if it cannot, may not or need not be trained."""
        known_point = (point for point in self.points.values() if point.point == suggestion.point)
        point = next(known_point, None) or cost_point(self.sweep, suggestion.point, self.planner)
        self.skipped_last = True
        if point.faults or point.condition:
            reason = point.faults[0].message if point.faults else f"excluded by {point.exclusion}"
            self.study.skip(suggestion, reason, as_bad=True)
            return None
        self.study.note(suggestion, fingerprint=point.fingerprint)
        folder = self.home.trials / point.fingerprint
        # another worker trains it; a second suggestion of it is skipped later
        if (lease := claim(folder)) is None:
            return None
        # only who holds it knows what has become of it
        trial = read_trial(folder) if (folder / "trial.json").exists() else None
        if trial is not None and trial.status in ENDED:
            lease.release()
            self.trials[trial.fingerprint] = trial
            # killed after it was written, before the study was told
            if trial.number == suggestion.number:
                self.study.tell(suggestion.number, trial)
            else:
                self.study.skip(suggestion, f"the same as trial {trial.number}", as_bad=False)
            return None
        self.skipped_last = False
        try:
            return self.train(point, suggestion, trial, lease, slot)
        except BaseException:
            lease.release()
            raise

    def train(
        self, point: PointCost, suggestion: Suggestion, trial: Trial | None, lease: Lease, slot: int
    ) -> TrialRunner:
        """Write down that a trial runs, or runs again, and return its runner."""
        folder = self.home.trials / point.fingerprint
        costs = {name: getattr(point, name) for name in (*COSTS, "at_most")}
        new = Trial(suggestion.number, suggestion.point, point.fingerprint, **costs, folder=folder)
        # a trial that is started again stays pruned
        trial = (
            new if trial is None else replace(new, pruned_at=trial.pruned_at, retries=trial.retries)
        )
        write_trial(trial)
        self.trials[trial.fingerprint] = trial
        size = format_bound(f"{trial.parameters:,} parameters", trial.at_most)
        self.display.say(
            f"trial {trial.fingerprint}: {describe_point(trial.point)}  ({size}, {folder})"
        )
        if (claims := num_claims(folder)) > 1:
            self.display.say(
                f"trial {trial.fingerprint} goes on here from what is there (claim {claims})"
            )
        recipe = point_recipe(self.sweep, suggestion.point)
        # a damaged one would fail for ever
        if not trial.recipe.exists() or trial.recipe.read_bytes() != recipe.dump().encode():
            atomic_write(trial.recipe, recipe.dump().encode())
        data = recipe.data_dir or recipe.file.parent
        shown = sweep_overrides(recipe, self.sweep.name, suggestion.point)
        arguments = [*shown, "--data", str(data.absolute())]
        return TrialRunner(
            self.study,
            self.pool,
            suggestion,
            trial,
            lease,
            slot,
            arguments,
            budget_of(recipe.training),
        )

    def refresh_trials(self) -> None:
        """Read the trials that are new, or had not ended, since other workers may have trained
        them.
        """
        for file in self.home.trials.glob("*/trial.json"):
            known = self.trials.get(file.parent.name)
            if known is None or known.status not in ENDED:
                self.trials[file.parent.name] = read_trial(file.parent)

    def poll(self) -> None:
        """Poll every trial once, and show the progress of the sweep."""
        for slot, runner in enumerate(self.runners):
            if runner is None:
                continue
            if runner.lease.is_lost:
                runner.stop(signal.SIGKILL)
                self.runners[slot] = None
                self.display.say(
                    f"trial {runner.trial.fingerprint}: lost, since its lease was not renewed here"
                    " in time"
                )
                continue
            before = len(runner.trial.retries)
            trial = runner.poll()
            self.trials[trial.fingerprint] = trial
            if len(trial.retries) > before:
                self.say_retry(trial)
            if trial.status in ENDED:
                runner.lease.release()
                self.runners[slot] = None
                text = f"trial {trial.fingerprint}: {describe_point(trial.point)}: {trial.status}"
                if trial.status == "finished":
                    text += f", {self.sweep.rank[0].metric} {trial.value:.4g}"
                elif trial.status == "pruned":
                    text += f" at step {trial.pruned_at:,}"
                self.display.say("\n    ".join([text, *(trial.error or "").splitlines()]))
        if time.monotonic() - self.last_read > REFRESH_SECONDS:
            self.last_read = time.monotonic()
            self.refresh_trials()
        self.show_progress()

    def say_retry(self, trial: Trial) -> None:
        """Print why a training of a trial is started again."""
        text = describe_retry(trial.retries, self.sweep.retries)
        self.display.say(f"trial {trial.fingerprint}: {describe_point(trial.point)}: {text}")

    def show_progress(self) -> None:
        """Show the progress; in plain lines only if something has changed, or a while has passed."""
        now, goal, trials = time.monotonic(), self.sweep.rank[0], self.trials.values()
        statuses = Counter(trial.status for trial in trials)
        text = f"{statuses['finished']} of {self.num_trials} done, {statuses['running']} running, "
        text += f"{statuses['pruned']} pruned, {statuses['failed']} failed"
        sign = 1 if goal.direction == "min" else -1
        finished = [
            trial for trial in trials if trial.status == "finished" and trial.value is not None
        ]
        best = min(
            finished, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None
        )
        # last of all, since a narrow terminal cuts the end
        leader = (
            ""
            if best is None
            else f"; best {goal.metric} {best.value:.4g} ({describe_point(best.point)})"
        )
        interval = 1.0 if self.display.console.is_terminal else PLAIN_SECONDS
        if now - self.last_time < interval and text + leader == self.last_text:
            return
        self.last_time, self.last_text = now, text + leader
        ended = sum(trial.status in ENDED for trial in trials)
        runners = [runner for runner in self.runners if runner is not None]
        running = [running_progress(runner) for runner in runners]
        all_done = self.trials_done(runners) + sum(spent for spent, _ in running)
        done, left = all_done - self.done_before, max(0.0, self.num_trials - all_done)
        time_left = format_duration((now - self.start) / done * left) if done > 0 else "?"
        line = (
            "; ".join([text, f"{time_left} left", *filter(None, (words for _, words in running))])
            + leader
        )
        if self.display.console.is_terminal:
            self.display.draw(line, ended / max(1, self.num_trials))
        else:
            self.display.say(line)

    def trials_done(self, runners: Sequence[TrialRunner]) -> float:
        """Return how many trials are done, finished seeds of others counted too; without those that
        run here.
        """
        here = {runner.trial.fingerprint for runner in runners}
        return sum(
            (
                1.0
                if trial.status in ENDED
                else len(trial.finished_seeds) / len(self.sweep.seeds_of(trial))
            )
            for name, trial in self.trials.items()
            if name not in here
        )

    def stop(self) -> None:
        """Stop all trainings and wait until they have ended; a second signal kills them."""
        running = [runner for runner in self.runners if runner is not None]
        deadline = time.monotonic() + PATIENCE
        try:
            for runner in running:
                runner.stop(signal.SIGTERM)
            while (
                not all(runner.has_stopped() for runner in running) and time.monotonic() < deadline
            ):
                time.sleep(POLL_SECONDS)
        finally:
            for runner in running:
                if not runner.has_stopped():
                    runner.stop(signal.SIGKILL)
                runner.lease.release()
        if running:
            self.display.say("stopped; run the same command to resume")


def running_progress(runner: TrialRunner) -> tuple[float, str]:
    """Return the share of a running trial's budgets, over all seeds, that is spent, and its step
    and loss in words.
    """
    rows = read_log(runner.trial, runner.seed)
    share = (len(runner.trial.finished_seeds) + runner.budget_spent(rows)) / len(runner.seeds)
    row = next((row for row in reversed(rows) if row.get("train/loss") is not None), None)
    words = (
        row
        and f"trial {runner.trial.fingerprint} at step {row['step']:,}, loss {row['train/loss']:.4g}"
    )
    return min(1.0, share), words or ""
