"""Run a sweep: ask the study for points, start trainings in a worker pool, and poll them.

Every trial is a directory named by its fingerprint, and every seed in it an ordinary run folder.
The directories are the state of a sweep: any number of processes can resume it from them.
"""

from __future__ import annotations

import math
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from composer.atomic_io import atomic_write
from composer.data.sources import check_files
from composer.errors import MAX_LISTED, ComposerError, DataError, RecipeError, RunError
from composer.formatting import count_noun, format_bound, format_duration
from composer.recipe.recipe import Recipe
from composer.sweeps.directory import check_resumable, lock_sweep, write_sweep_record
from composer.sweeps.leases import EXPIRES, Lease, claim, is_claimed, num_claims
from composer.sweeps.measured_goals import check_goals
from composer.sweeps.points import (
    CostPlanner,
    PointCost,
    cost_point,
    list_points,
    point_recipe,
    probe_recipe,
)
from composer.sweeps.study import Study, Suggestion
from composer.sweeps.sweep import (
    COSTS,
    MEMORY_UNITS,
    Goal,
    Resources,
    Sweep,
    SweepDir,
    pruning_warnings,
)
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
"""Suggestions of a search per trial at most: some are duplicates, impossible or excluded."""
REFRESH_SECONDS = 1.0
"""Seconds between two reads of the trials of other workers."""
PLAIN_SECONDS = 60.0
"""Seconds between lines of progress without a terminal, if only the time left has changed."""


def run_sweep(
    sweep: Sweep,
    folder: Path,
    workers: int = 1,
    ray: str | None = None,
    joins: bool = False,
    retry: bool = False,
) -> int:
    """Run or resume a sweep in `folder`; return 1 if a trial failed or none finished, else 0.

    Args:
        ray: The address of a Ray cluster to train on instead of this machine.
        joins: Let other processes run the same sweep.
        retry: Retry failed trials.

    Raises:
        RecipeError, DataError, RunError: Before anything is trained.
        KeyboardInterrupt, SystemExit: After a signal, when all trainings have written a checkpoint.
    """
    home = SweepDir(folder)
    trainable, recipe = check_sweep(sweep, home)
    with nullcontext() if joins else lock_sweep(home):
        needs = sweep.resources
        pool: LocalWorkerPool | RayWorkerPool
        if ray is None:
            pool = LocalWorkerPool(workers, needs)
        else:
            pool = RayWorkerPool(ray, workers, needs)
        scheduler = Scheduler(sweep, home, trainable, pool)
        if isinstance(pool, RayWorkerPool) and not pool.options["num_gpus"]:
            pool.reserve(with_planned_memory(sweep, trainable, scheduler.display.say))
        for fault in pruning_warnings(sweep, recipe.training) if recipe else ():
            scheduler.display.say(fault.render())
        return scheduler.run(None if recipe is None else recipe.training.max_steps, retry)


def check_sweep(sweep: Sweep, home: SweepDir) -> tuple[list[PointCost], Recipe | None]:
    """Return the known points that can be trained, and the recipe of one; write nothing.

    Raises RecipeError, DataError and RunError if all trials would fail.
    """
    check_resumable(home, sweep)
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


def with_planned_memory(
    sweep: Sweep, points: Sequence[PointCost], say: Callable[[str], None]
) -> Resources:
    """Return the resources of a trial, with the planned memory of the largest point if unset.

    The plan is multiplied by 1.5 for fragmentation, plus 1.5 GiB for Python, torch and a worker.
    With a GPU the tensors are in its memory, and the need for main memory is unknown.
    """
    needs = sweep.resources
    if needs.memory is not None or needs.gpus or not points:
        return needs
    largest = max(points, key=lambda point: (point.parameters, point.flops))
    with suppress(ComposerError):  # which its training reports
        planned = plan_training(point_recipe(sweep, largest.point)).memory.bytes
        needs = replace(needs, memory=int(1.5 * planned + 1.5 * MEMORY_UNITS["G"]))
        request = f"each trial asks for {needs.describe()}, as planned for the largest point"
        say(f"no `memory` in `resources`: {request}")
    return needs


class Scheduler:
    """A running sweep. `points` are those known beforehand: none of a search that learns."""

    def __init__(
        self, sweep: Sweep, home: SweepDir, points: list[PointCost], pool: WorkerPool
    ) -> None:
        self.sweep, self.home, self.pool = sweep, home, pool
        self.planner = CostPlanner()
        self.points = {point.fingerprint: point for point in points}
        self.num_trials = len(self.points)
        if sweep.search.kind == "tpe":
            self.num_trials = sweep.search.trials or 0
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
        statuses = [trial.status for trial in self.trials.values()]
        if not statuses:
            reasons = self.skip_reasons()
            reason = reasons.most_common(1)[0][0] if reasons else "there was none"
            count = len(self.study.trials())
            self.display.say(f"no point was trained, of {count} suggested: {reason}")
        elif len(statuses) < self.num_trials:
            self.display.say(self.describe_lack())
        if failed := statuses.count("failed"):
            self.display.say(f"{failed} failed; retry with the same command and `--retry`")
        return exit_status(statuses)

    def skip_reasons(self) -> Counter[str]:
        """Count the suggestions that were not trained, by reason."""
        reasons = Counter[str]()
        for trial in self.study.trials():
            reason = trial.user_attrs.get("skipped")
            if reason is not None:
                reasons["the same as an earlier trial" if "the same as" in reason else reason] += 1
        return reasons

    def describe_lack(self) -> str:
        """Say why a search has ended with fewer trials than requested."""
        reasons = self.skip_reasons().most_common(MAX_LISTED)
        text = f"the search ended after {len(self.trials)} of"
        text += f" {count_noun(self.num_trials, 'trial')}"
        if not reasons:
            return text
        return f"{text}; its other suggestions: " + "; ".join(f"{n:,} {why}" for why, n in reasons)

    def open_study(self, max_steps: int | None, retry: bool) -> None:
        """Open the study and restore it from the trials' directories; `retry` reopens failed ones.

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
        # the time left is estimated from trials that end from here on
        self.start, self.done_before = time.monotonic(), self.trials_done([])
        if ended:
            self.display.say(f"{self.sweep.name}: {count_noun(len(ended), 'trial')} ended before")
        for sentence in missing_weights(self.trials.values()):
            self.display.say(f"warning: {sentence}")

    def reopen(self, trial: Trial, retry: bool) -> Trial:
        """Return a trial, running again if it lacks seeds, or failed and `retry` is set."""
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
        """Give free slots a trial, and return True if any trial runs, here or elsewhere."""
        if all(self.runners) or time.monotonic() - self.last_refresh < REFRESH_SECONDS:
            return True
        for slot in range(len(self.runners)):
            while self.runners[slot] is None and (suggestion := self.next_suggestion()) is not None:
                self.runners[slot] = self.start_trial(suggestion, slot)
        if not all(self.runners):
            self.last_refresh = time.monotonic()
        return any(self.runners) or self.study.is_open()

    def next_suggestion(self) -> Suggestion | None:
        """Return an abandoned suggestion, else a queued one, else a new one of the search."""
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
        """True if a suggestion without a result has no worker."""
        if fingerprint is not None:
            return not is_claimed(self.home.trials / fingerprint)
        # its worker is still planning it, or was killed meanwhile
        return time.monotonic() - self.first_seen.setdefault(number, time.monotonic()) > EXPIRES

    def start_trial(self, suggestion: Suggestion, slot: int) -> TrialRunner | None:
        """Start a suggestion, or return None if it cannot, may not or need not be trained."""
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
        # read after the claim: only its holder changes it
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
        """Record that a trial runs, or runs again, and return its runner."""
        folder = self.home.trials / point.fingerprint
        costs = {name: getattr(point, name) for name in (*COSTS, "at_most")}
        new = Trial(suggestion.number, suggestion.point, point.fingerprint, **costs, folder=folder)
        if trial is not None:  # a trial that is started again stays pruned
            new = replace(new, pruned_at=trial.pruned_at, retries=trial.retries)
        trial = new
        write_trial(trial)
        self.trials[trial.fingerprint] = trial
        size = format_bound(f"{trial.parameters:,} parameters", trial.at_most)
        self.say_of(trial, f"{describe_point(trial.point)}  ({size}, {folder})")
        if (claims := num_claims(folder)) > 1:
            self.say_of(trial, f"resumes here from its folder (claim {claims})")
        recipe = point_recipe(self.sweep, suggestion.point)
        # a damaged one would fail for ever
        if not trial.recipe.exists() or trial.recipe.read_bytes() != recipe.dump().encode():
            atomic_write(trial.recipe, recipe.dump().encode())
        data = recipe.data_dir or recipe.file.parent
        shown = sweep_overrides(recipe, self.sweep.name, suggestion.point)
        arguments = [*shown, "--data", str(data.absolute())]
        budget = budget_of(recipe.training)
        return TrialRunner(self.study, self.pool, suggestion, trial, lease, slot, arguments, budget)

    def refresh_trials(self) -> None:
        """Read new and running trials, which other workers may have trained."""
        for file in self.home.trials.glob("*/trial.json"):
            known = self.trials.get(file.parent.name)
            if known is None or known.status not in ENDED:
                self.trials[file.parent.name] = read_trial(file.parent)

    def poll(self) -> None:
        """Poll every trial once, and show the progress of the sweep."""
        for slot, runner in enumerate(self.runners):
            if runner is not None and not self.poll_runner(runner):
                self.runners[slot] = None
        if time.monotonic() - self.last_read > REFRESH_SECONDS:
            self.last_read = time.monotonic()
            self.refresh_trials()
        self.show_progress()

    def poll_runner(self, runner: TrialRunner) -> bool:
        """Poll a trial, and return True while it runs here."""
        if runner.lease.is_lost:
            runner.stop(signal.SIGKILL)
            self.say_of(runner.trial, "lost, since its lease was not renewed here in time")
            return False
        num_retries = len(runner.trial.retries)
        trial = runner.poll()
        self.trials[trial.fingerprint] = trial
        if len(trial.retries) > num_retries:
            self.say_retry(trial)
        if trial.status not in ENDED:
            return True
        runner.lease.release()
        text = f"{describe_point(trial.point)}: {trial.status}"
        if trial.status == "finished":
            text += f", {self.sweep.rank[0].metric} {trial.value:.4g}"
        elif trial.status == "pruned":
            text += f" at step {trial.pruned_at:,}"
        self.say_of(trial, "\n    ".join([text, *(trial.error or "").splitlines()]))
        return False

    def say_of(self, trial: Trial, text: str) -> None:
        """Print a line about a trial."""
        self.display.say(f"trial {trial.fingerprint}: {text}")

    def say_retry(self, trial: Trial) -> None:
        """Print the reason why a training is started again."""
        text = describe_retry(trial.retries, self.sweep.retries)
        self.say_of(trial, f"{describe_point(trial.point)}: {text}")

    def show_progress(self) -> None:
        """Show the progress; in plain lines only if it has changed, or a while has passed."""
        now, trials = time.monotonic(), self.trials.values()
        statuses = Counter(trial.status for trial in trials)
        text = f"{statuses['finished']} of {self.num_trials} done, {statuses['running']} running, "
        text += f"{statuses['pruned']} pruned, {statuses['failed']} failed"
        best = describe_best(self.sweep.rank[0], trials)
        interval = 1.0 if self.display.console.is_terminal else PLAIN_SECONDS
        if now - self.last_time < interval and text + best == self.last_text:
            return
        self.last_time, self.last_text = now, text + best
        ended = sum(trial.status in ENDED for trial in trials)
        runners = [runner for runner in self.runners if runner is not None]
        running = [running_progress(runner) for runner in runners]
        all_done = self.trials_done(runners) + sum(share for share, _ in running)
        done, left = all_done - self.done_before, max(0.0, self.num_trials - all_done)
        parts = [text]
        if left > 0:
            time_left = format_duration((now - self.start) / done * left) if done > 0 else "?"
            parts.append(f"{time_left} left")
        parts += [words for _, words in running if words]
        line = "; ".join(parts) + best
        if self.display.console.is_terminal:
            self.display.draw(line, ended / max(1, self.num_trials))
        else:
            self.display.say(line)

    def trials_done(self, runners: Sequence[TrialRunner]) -> float:
        """Return the number of trials done, in parts by finished seeds; without `runners`."""
        polled = {runner.trial.fingerprint for runner in runners}
        done = 0.0
        for name, trial in self.trials.items():
            if name in polled:
                continue
            if trial.status in ENDED:
                done += 1
            else:
                done += len(trial.finished_seeds) / len(self.sweep.seeds_of(trial))
        return done

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


def describe_best(goal: Goal, trials: Iterable[Trial]) -> str:
    """Name the best finished trial, for the end of a line, which a narrow terminal cuts."""
    sign = 1 if goal.direction == "min" else -1
    finished = [trial for trial in trials if trial.status == "finished"]
    measured = [trial for trial in finished if trial.value is not None]
    if not measured:
        return ""
    best = min(measured, key=lambda trial: (sign * (trial.value or 0.0), trial.number))
    return f"; best {goal.metric} {best.value:.4g} ({describe_point(best.point)})"


def running_progress(runner: TrialRunner) -> tuple[float, str]:
    """Return the share of a trial's budgets that is spent, and its step and loss in words."""
    rows = read_log(runner.trial, runner.seed)
    share = (len(runner.trial.finished_seeds) + runner.budget_spent(rows)) / len(runner.seeds)
    words = ""
    for row in rows:
        loss = row.get("train/loss")
        if loss is not None:
            words = f"trial {runner.trial.fingerprint} at step {row['step']:,}, loss {loss:.4g}"
    return min(1.0, share), words
