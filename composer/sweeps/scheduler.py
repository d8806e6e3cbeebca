"""Running a sweep, as every engine does: ask the study for points, claim their trials, and tell it how they end.

Every trial is a directory named by its fingerprint, and every seed in it an ordinary run folder. The directories are
what counts: a sweep that was stopped anywhere is resumed from them, by any number of processes.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, replace

from composer.atomic_io import atomic_write
from composer.formatting import count_noun, format_bound, format_duration
from composer.sweeps.directory import check_resumable, write_sweep_record
from composer.sweeps.leases import EXPIRES, Lease, claim, is_claimed, num_claims
from composer.sweeps.points import CostPlanner, PointCost, cost_point, point_recipe
from composer.sweeps.study import Study, Suggestion
from composer.sweeps.sweep import COSTS, Sweep, SweepDir
from composer.sweeps.trial import (
    ENDED,
    Trial,
    describe_point,
    describe_retry,
    read_log,
    read_trial,
    read_trials,
    retry_record,
    write_trial,
)
from composer.sweeps.trial_runner import TrialTask, budget_spent, train_command
from composer.training.loggers import ProgressDisplay
from composer.training.wandb_logger import sweep_overrides

POLL_SECONDS = 0.25
MAX_SUGGESTIONS_PER_TRIAL = 10
"""Suggestions of a search for each trial that is wanted; the others are duplicates, impossible or excluded."""
REFRESH_SECONDS = 1.0
"""Seconds between two looks at what other workers have done."""
PLAIN_SECONDS = 60.0
"""Seconds between two lines of progress without a terminal, if nothing but the time left has changed."""


@dataclass(frozen=True)
class ClaimedTrial:
    """A trial that this process trains, as it was when it began: the suggestion that it answers, and its lease."""

    suggestion: Suggestion
    lease: Lease
    trial: Trial
    task: TrialTask


class Scheduler(ABC):
    """A running sweep: what every engine does alike. `points` are those known beforehand: none of a search that learns.

    An engine trains what `next_trial` returns, and hands each trial that has ended to `end_trial`.
    """

    def __init__(self, sweep: Sweep, home: SweepDir, points: list[PointCost]) -> None:
        self.sweep, self.home = sweep, home
        self.planner = CostPlanner()
        self.points = {point.fingerprint: point for point in points}
        self.num_trials = len(self.points) if sweep.search.kind != "tpe" else sweep.search.trials or 0
        self.claimed: dict[str, ClaimedTrial] = {}
        self.trials: dict[str, Trial] = {}
        self.display = ProgressDisplay()
        self.last_time, self.last_text = 0.0, ""
        self.last_read = -math.inf
        self.first_seen: dict[int, float] = {}
        self.skipped_last = False

    @abstractmethod
    def train_all(self) -> None:
        """Train until no trial is left, here or elsewhere."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all trainings, and wait until they have written a checkpoint and ended; a second signal kills them."""

    def run(self, max_steps: int | None, retry: bool = False) -> int:
        """Run until no trial is left, and return the exit status. `max_steps` are those of a training, if known."""
        try:
            self.open_study(max_steps, retry)
            self.train_all()
        except BaseException:
            was_training = bool(self.claimed)
            self.stop()
            if was_training:
                self.display.say("stopped; run the same command to resume")
            raise
        finally:
            for claimed in self.claimed.values():
                claimed.lease.release()
            self.display.close()
        self.last_read = -math.inf
        self.refresh_trials()
        if not self.trials:
            reasons = Counter(trial.user_attrs.get("skipped", "unknown") for trial in self.study.trials())
            reason = reasons.most_common(1)[0][0] if reasons else "there was none"
            self.display.say(f"no point was trained, of {reasons.total()} that were drawn: {reason}")
        if failed := sum(trial.status == "failed" for trial in self.trials.values()):
            self.display.say(f"trials that have failed: {failed}; the same command with `--retry` tries them again")
        return int(all(trial.status != "finished" for trial in self.trials.values()))

    def open_study(self, max_steps: int | None, retry: bool) -> None:
        """Open the study, and bring it to the state of the trials' directories; `retry` gives failed ones another.

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
        self.start, self.ended_before = time.monotonic(), len(ended)
        if ended:
            has = "has" if len(ended) == 1 else "have"
            self.display.say(f"{self.sweep.name}: {count_noun(len(ended), 'trial')} {has} ended before")

    def reopen(self, trial: Trial, retry: bool) -> Trial:
        """Return a trial as it goes on: one that lacks seeds, or has failed and is to be tried again, runs."""
        if retry and trial.status == "failed":
            retries = (*trial.retries, retry_record("requested", trial.error or ""))
            trial = replace(trial, status="running", error=None, retries=retries)
            self.say_retry(trial)
        elif trial.status == "finished" and not set(self.sweep.seeds) <= set(trial.seeds):  # seeds were added
            trial = replace(trial, status="running", value=None)
        else:
            return trial
        write_trial(trial)
        return trial

    def next_trial(self) -> ClaimedTrial | None:
        """Claim the next trial that can be trained, and return it; None where there is none now."""
        while (suggestion := self.next_suggestion()) is not None:
            if (claimed := self.claim_trial(suggestion)) is not None:
                return claimed
        return None

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
        if self.study.num_points(before=suggestion.number) >= self.num_trials:  # another worker was quicker
            self.study.skip(suggestion, "there are enough trials", as_bad=False)
            return None
        return suggestion

    def is_abandoned(self, number: int, fingerprint: str | None) -> bool:
        """Return whether a suggestion without a result has no worker."""
        if fingerprint is not None:
            return not is_claimed(self.home.trials / fingerprint)
        # its worker has yet to find out what it costs, or was killed meanwhile
        return time.monotonic() - self.first_seen.setdefault(number, time.monotonic()) > EXPIRES

    def claim_trial(self, suggestion: Suggestion) -> ClaimedTrial | None:
        """Claim the trial of a suggestion, or return None if it cannot, may not or need not be trained."""
        known_point = (point for point in self.points.values() if point.point == suggestion.point)
        point = next(known_point, None) or cost_point(self.sweep, suggestion.point, self.planner)
        self.skipped_last = True
        if point.faults or point.condition:
            reason = point.faults[0].message if point.faults else f"excluded by {point.exclusion}"
            self.study.skip(suggestion, reason, as_bad=True)
            return None
        self.study.note(suggestion, fingerprint=point.fingerprint)
        folder = self.home.trials / point.fingerprint
        if (lease := claim(folder)) is None:  # another worker trains it; a second suggestion of it is skipped later
            return None
        # only who holds it knows what has become of it
        trial = read_trial(folder) if (folder / "trial.json").exists() else None
        if trial is not None and trial.status in ENDED:
            lease.release()
            self.trials[trial.fingerprint] = trial
            if trial.number == suggestion.number:  # killed after it was written, before the study was told
                self.study.tell(suggestion.number, trial)
            else:
                self.study.skip(suggestion, f"the same as trial {trial.number}", as_bad=False)
            return None
        self.skipped_last = False
        try:
            return self.begin_trial(point, suggestion, trial, lease)
        except BaseException:
            lease.release()
            raise

    def begin_trial(self, point: PointCost, suggestion: Suggestion, trial: Trial | None, lease: Lease) -> ClaimedTrial:
        """Write down that a trial runs, or runs again, and return it."""
        folder = self.home.trials / point.fingerprint
        costs = {name: getattr(point, name) for name in (*COSTS, "at_most")}
        new = Trial(suggestion.number, suggestion.point, point.fingerprint, **costs, folder=folder)
        # a trial that is started again stays pruned
        trial = new if trial is None else replace(new, pruned_at=trial.pruned_at, retries=trial.retries)
        write_trial(trial)
        self.trials[trial.fingerprint] = trial
        size = format_bound(f"{trial.parameters:,} parameters", trial.at_most)
        self.display.say(f"trial {trial.number}: {describe_point(trial.point)}  ({size}, {folder})")
        if (claims := num_claims(folder)) > 1:
            self.display.say(f"trial {trial.number} goes on here from what is there (claim {claims})")
        recipe = point_recipe(self.sweep, suggestion.point)
        if not trial.recipe.exists():
            atomic_write(trial.recipe, recipe.dump().encode())
        data = recipe.data_dir or recipe.file.parent
        shown = sweep_overrides(recipe, self.sweep.name, suggestion.point, os.environ)
        arguments = [*shown, "--data", str(data.absolute())]
        commands = {
            seed: train_command(trial.recipe, trial.run(seed), [f"training.seed={seed}", *arguments])
            for seed in self.sweep.seeds
        }
        task = TrialTask(commands, recipe.training, self.sweep.rank[0], self.sweep.retries)
        self.claimed[trial.fingerprint] = ClaimedTrial(suggestion, lease, trial, task)
        return self.claimed[trial.fingerprint]

    def refresh_trials(self) -> bool:
        """Read the trials that are new, or had not ended, as others train them; return False if it is too soon."""
        if time.monotonic() - self.last_read < REFRESH_SECONDS:
            return False
        self.last_read = time.monotonic()
        for file in self.home.trials.glob("*/trial.json"):
            known = self.trials.get(file.parent.name)
            if known is None or known.status not in ENDED:
                self.update_trial(read_trial(file.parent))
        return True

    def update_trial(self, trial: Trial) -> None:
        """Take over what is written of a trial; print why it is tried again, if it is, here."""
        before = self.trials.get(trial.fingerprint)
        self.trials[trial.fingerprint] = trial
        if before is not None and trial.fingerprint in self.claimed and len(trial.retries) > len(before.retries):
            self.say_retry(trial)

    def end_trial(self, trial: Trial) -> None:
        """Tell the study how a trial ended, by what was written, and give it back."""
        self.trials[trial.fingerprint] = trial
        claimed = self.claimed.pop(trial.fingerprint)
        self.study.tell(claimed.suggestion.number, trial)
        claimed.lease.release()
        text = f"trial {trial.number}: {describe_point(trial.point)}: {trial.status}"
        if trial.status == "finished":
            text += f", {self.sweep.rank[0].metric} {trial.value:.4g}"
        elif trial.status == "pruned":
            text += f" at step {trial.pruned_at:,}"
        self.display.say("\n    ".join([text, *(trial.error or "").splitlines()]))

    def lose_trial(self, trial: Trial) -> None:
        """Forget a trial that another worker has claimed."""
        del self.claimed[trial.fingerprint]
        self.display.say(f"trial {trial.number}: lost, since its lease was not renewed here in time")

    def say_retry(self, trial: Trial) -> None:
        """Print why a training of a trial is started again."""
        text = describe_retry(trial.retries, self.sweep.retries)
        self.display.say(f"trial {trial.number}: {describe_point(trial.point)}: {text}")

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
        leader = "" if best is None else f"; best {goal.metric} {best.value:.4g} ({describe_point(best.point)})"
        interval = 1.0 if self.display.console.is_terminal else PLAIN_SECONDS
        if now - self.last_time < interval and text + leader == self.last_text:
            return
        self.last_time, self.last_text = now, text + leader
        ended = sum(trial.status in ENDED for trial in trials)
        running = [running_progress(self.trials[name], claimed.task) for name, claimed in self.claimed.items()]
        share = sum(spent for spent, _ in running)
        done = ended - self.ended_before + share
        left = max(0.0, self.num_trials - ended - share)
        time_left = format_duration((now - self.start) / done * left) if done > 0 else "?"
        line = "; ".join([text, f"{time_left} left", *filter(None, (words for _, words in running))]) + leader
        if self.display.console.is_terminal:
            self.display.draw(line, ended / max(1, self.num_trials))
        else:
            self.display.say(line)


def running_progress(trial: Trial, task: TrialTask) -> tuple[float, str]:
    """Return the share of a running trial's budgets, over all seeds, that is spent, and its step and loss in words."""
    seeds = list(task.commands)
    rows = read_log(trial, next((seed for seed in seeds if seed not in trial.finished_seeds), seeds[-1]))
    share = (len(trial.finished_seeds) + budget_spent(rows, task.budget)) / len(seeds)
    row = next((row for row in reversed(rows) if row.get("train/loss") is not None), None)
    words = row and f"trial {trial.number} at step {row['step']:,}, loss {row['train/loss']:.4g}"
    return min(1.0, share), words or ""
