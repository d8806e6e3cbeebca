"""What a person sees of a sweep: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from composer.sweeps.axes import Goal, Point
from composer.sweeps.trial_dir import ENDED, Trial
from composer.training.progress import ProgressDisplay, format_duration

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
    return "" if found is None else f"; best {goal.metric} {found.value:.4g} ({describe(found.point)})"


def best(trials: Iterable[Trial], goal: Goal) -> Trial | None:
    """The finished trial with the best value; of equals the first."""
    sign = 1 if goal.direction == "min" else -1
    ended = [trial for trial in trials if trial.status == "finished" and trial.value is not None]
    return min(ended, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)


def describe(point: Point) -> str:
    """A point as `train` takes it: `encoder=attention rate=0.001`."""
    told = {name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in point.items()}
    return " ".join(f"{name}={value}" for name, value in told.items()) or "the base alone"
