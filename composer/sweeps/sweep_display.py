"""What a running sweep prints: lines about trials, and its progress."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence

from composer.formatting import count_noun, format_bound, format_duration
from composer.sweeps.sweep import Goal, Sweep
from composer.sweeps.trial import ENDED, Trial, describe_point, describe_retry
from composer.sweeps.trial_course import TrialCourse
from composer.training.loggers import ProgressDisplay

PLAIN_SECONDS = 60.0
"""Seconds between lines of progress without a terminal, if only the time left has changed."""


class SweepDisplay:
    """Prints lines about the trials of a sweep, and the progress of all `num_trials`."""

    def __init__(self, sweep: Sweep, num_trials: int) -> None:
        self.sweep, self.num_trials = sweep, num_trials
        self.display = ProgressDisplay()
        self.last_time, self.last_text = 0.0, ""
        self.start, self.done_before = time.monotonic(), 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self.display.say(text)

    def close(self) -> None:
        """Remove the bar of a terminal."""
        self.display.close()

    def begin(self, trials: Iterable[Trial]) -> None:
        """Measure the pace from here on; `trials` are those of an earlier process."""
        known = list(trials)
        self.start, self.done_before = time.monotonic(), self.num_done(known, [])
        if ended := sum(trial.status in ENDED for trial in known):
            self.say(f"{self.sweep.name}: {count_noun(ended, 'trial')} ended before")

    def say_of(self, trial: Trial, text: str) -> None:
        """Print a line about a trial."""
        self.say(f"trial {trial.fingerprint}: {text}")

    def say_started(self, trial: Trial, goes_on: bool) -> None:
        """Print the point of a trial, and where it is trained."""
        size = format_bound(f"{trial.parameters:,} parameters", trial.at_most)
        place = f"resumes in {trial.folder}" if goes_on else str(trial.folder)
        self.say_of(trial, f"{describe_point(trial.point)}  ({size}, {place})")

    def say_retry(self, trial: Trial) -> None:
        """Print the reason why a training is started again."""
        text = describe_retry(trial.retries, self.sweep.retries)
        self.say_of(trial, f"{describe_point(trial.point)}: {text}")

    def say_ended(self, trial: Trial) -> None:
        """Print the result of a trial."""
        text = f"{describe_point(trial.point)}: {trial.status}"
        if trial.status == "finished":
            text += f", {self.sweep.rank[0].metric} {trial.value:.4g}"
        elif trial.status == "pruned":
            text += f" at step {trial.pruned_at:,}"
        self.say_of(trial, "\n    ".join([text, *(trial.error or "").splitlines()]))

    def show(self, trials: Sequence[Trial], courses: Sequence[TrialCourse]) -> None:
        """Show the progress; in plain lines only if it has changed, or a while has passed."""
        now = time.monotonic()
        statuses = Counter(trial.status for trial in trials)
        text = f"{statuses['finished']} of {self.num_trials} done, {len(courses)} running, "
        text += f"{statuses['pruned']} pruned, {statuses['failed']} failed"
        best = describe_best(self.sweep.rank[0], trials)
        interval = 1.0 if self.display.console.is_terminal else PLAIN_SECONDS
        if now - self.last_time < interval and text + best == self.last_text:
            return
        self.last_time, self.last_text = now, text + best
        running = [course.progress() for course in courses]
        all_done = self.num_done(trials, courses) + sum(share for share, _ in running)
        done, left = all_done - self.done_before, max(0.0, self.num_trials - all_done)
        parts = [text]
        if left > 0:
            time_left = format_duration((now - self.start) / done * left) if done > 0 else "?"
            parts.append(f"{time_left} left")
        parts += [words for _, words in running if words]
        line = "; ".join(parts) + best
        if self.display.console.is_terminal:
            ended = sum(trial.status in ENDED for trial in trials)
            self.display.draw(line, ended / max(1, self.num_trials))
        else:
            self.say(line)

    def num_done(self, trials: Iterable[Trial], courses: Sequence[TrialCourse]) -> float:
        """Return the number of trials done, in parts by finished seeds; without the `courses`."""
        running = {course.trial.fingerprint for course in courses}
        done = 0.0
        for trial in trials:
            if trial.status in ENDED:
                done += 1
            elif trial.fingerprint not in running:
                done += len(trial.finished_seeds) / len(self.sweep.seeds_of(trial))
        return done


def describe_best(goal: Goal, trials: Iterable[Trial]) -> str:
    """Name the best finished trial, for the end of a line, which a narrow terminal cuts."""
    sign = 1 if goal.direction == "min" else -1
    measured = []
    for trial in trials:
        if trial.status == "finished" and trial.value is not None:
            measured.append((sign * trial.value, trial.number, trial))
    if not measured:
        return ""
    value, _, best = min(measured, key=lambda one: one[:2])
    return f"; best {goal.metric} {sign * value:.4g} ({describe_point(best.point)})"
