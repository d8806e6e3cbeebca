"""A sweep's search as an Optuna study, which suggests points and prunes trials: a journal that all
workers write to.

Trainings do not know it: their metrics are read and reported here, so that a trial is pruned by one
decision.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.study import StudyDirection
from optuna.trial import BaseTrial, FixedTrial, FrozenTrial, TrialState, create_trial

from composer.errors import RunError
from composer.sweeps.sweep import Axis, Point, Pruner, Sweep, Value, is_active
from composer.sweeps.trial import Trial

STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


class Suggestion(NamedTuple):
    """A point that the study suggests. `trial` is Optuna's, which keeps its attributes."""

    number: int
    point: Point
    trial: optuna.trial.Trial


class JournalLock(JournalFileOpenLock):
    """Optuna's lock on a journal; it cuts off what a worker that was killed had begun to write."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.file = file

    def acquire(self) -> bool:
        """Wait for the lock, and leave whole lines alone in the journal."""
        super().acquire()
        with self.file.open("r+b") as journal:
            if (
                journal.seek(0, os.SEEK_END)
                and journal.seek(-1, os.SEEK_END) >= 0
                and journal.read() != b"\n"
            ):
                journal.seek(0)
                journal.truncate(journal.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Release the lock, unless another worker took it for one that a kill has left."""
        with suppress(RuntimeError):
            super().release()


class Study:
    """Optuna's study of the first goal of a sweep, stored as a journal. Raises RunError if it
    cannot be read.

    `max_steps` are those of the longest training, if known; hyperband builds its brackets on it.
    """

    def __init__(self, sweep: Sweep, file: Path, max_steps: int | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.sweep = sweep
        goal = (
            StudyDirection.MINIMIZE if sweep.rank[0].direction == "min" else StudyDirection.MAXIMIZE
        )
        try:
            storage = JournalStorage(JournalFileBackend(str(file), JournalLock(file)))
            name, pruner = sweep.fingerprint[:12], make_pruner(sweep.pruner, max_steps)
            self.study = optuna.create_study(
                storage=storage, study_name=name, direction=goal, pruner=pruner, load_if_exists=True
            )
        except OSError:
            raise
        except Exception as error:  # what is in a damaged file may be anything
            hint = "remove the file: the study is rebuilt from the trials' folders"
            raise RunError.of(
                f"the Optuna study cannot be opened: {error!r}", hint, str(file)
            ) from None

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return Optuna's trials, of every state by default: all points that were suggested, also
        those skipped.
        """
        return self.study.get_trials(deepcopy=False, states=states or None)

    def latest_trials(self) -> dict[str, FrozenTrial]:
        """Return Optuna's latest trial of each fingerprint."""
        trials = self.trials()
        return {
            trial.user_attrs["fingerprint"]: trial
            for trial in trials
            if "fingerprint" in trial.user_attrs
        }

    def enqueue(self, points: Mapping[str, Point]) -> None:
        """Append points, by their fingerprints, to the queue, unless they are in it already."""
        waiting = {
            name for name, trial in self.latest_trials().items() if not trial.state.is_finished()
        }
        for fingerprint, point in points.items():
            if fingerprint not in waiting:
                attributes = {"point": point, "fingerprint": fingerprint}
                self.study.enqueue_trial(self.free_values(point), user_attrs=attributes)

    def restore(self, trials: Iterable[Trial]) -> None:
        """Add ended trials that the study lacks: its file was lost, or the process was killed
        before it was told.
        """
        known = self.latest_trials()
        for trial in trials:
            if trial.status in STATES and trial.fingerprint not in known:
                fixed = FixedTrial(self.free_values(trial.point))
                for axis in self.sweep.free_axes:
                    if axis.name in trial.point:
                        suggest_value(axis, fixed)  # which records its distribution
                details: dict[str, Any] = {
                    "params": fixed.params,
                    "distributions": fixed.distributions,
                }
                details["user_attrs"] = {"point": trial.point, "fingerprint": trial.fingerprint}
                value = trial.value if trial.status == "finished" else None
                self.study.add_trial(
                    create_trial(state=STATES[trial.status], value=value, **details)
                )

    def free_values(self, point: Point) -> dict[str, object]:
        """Return the values of a point that Optuna chooses; zipped axes follow from them."""
        return {axis.name: point[axis.name] for axis in self.sweep.free_axes if axis.name in point}

    def running(self) -> dict[int, str | None]:
        """Return the fingerprint of each suggestion without a result; None until a worker has
        computed its costs.
        """
        return {
            trial.number: trial.user_attrs.get("fingerprint")
            for trial in self.trials(TrialState.RUNNING)
        }

    def suggestion(self, number: int) -> Suggestion:
        """Return a suggestion that has no result yet."""
        return self._suggestion(optuna.trial.Trial(self.study, self.trials()[number]._trial_id))

    def is_open(self) -> bool:
        """Return whether a point waits in the queue, or some worker's has no result yet."""
        return bool(self.trials(TrialState.RUNNING, TrialState.WAITING))

    def ask_queued(self) -> Suggestion | None:
        """Return the queue's first point, which no other worker is given; None if the queue is
        empty.
        """
        self.study.sampler = RandomSampler()  # it draws nothing: the point is known
        trial_id = self.study._pop_waiting_trial_id()
        return (
            None if trial_id is None else self._suggestion(optuna.trial.Trial(self.study, trial_id))
        )

    def ask(self, at_random: bool = False) -> Suggestion:
        """Return what the sampler suggests, which ignores all results if `at_random`."""
        # each trial has a seed of its own, so that a resumed sweep draws the same points, and far
        # from those of other trials, so that sweeps of neighbouring seeds draw different ones
        trial = self.study.ask()
        seed = (self.sweep.search.seed * 1_000_003 + trial.number) % 2**32
        # TPE first learns from ten trials at random points; Optuna counts every pruned trial as one
        # to learn from, and points that were never trained are told as such
        startup = 10 + sum(
            "skipped" in trial.user_attrs for trial in self.trials(TrialState.PRUNED)
        )
        learns = self.sweep.search.kind == "tpe" and not at_random
        tpe = TPESampler(n_startup_trials=startup, seed=seed, constant_liar=True)
        self.study.sampler = tpe if learns else RandomSampler(seed=seed)
        return self._suggestion(trial)

    def _suggestion(self, trial: optuna.trial.Trial) -> Suggestion:
        # draws even where the point is known, since the study has the values of a trial only once
        # they are suggested
        point = suggest_point(self.sweep, trial)
        return Suggestion(trial.number, trial.user_attrs.get("point", point), trial)

    def report(self, suggestion: Suggestion, scores: Mapping[int, float]) -> int | None:
        """Report scores by step, and return the step at which the trial is to be pruned, if it is."""
        known = self.study._storage.get_trial(suggestion.trial._trial_id).intermediate_values
        # another worker has ended it, and this one's lease is lost
        with suppress(UpdateFinishedTrialError):
            for step in sorted(set(scores) - set(known)):
                suggestion.trial.report(scores[step], step)
                if suggestion.trial.should_prune():
                    return step
        return None

    def tell(self, number: int, trial: Trial) -> None:
        """Tell the result of a trial; telling it twice changes nothing."""
        value = trial.value if trial.status == "finished" else None
        with suppress(UpdateFinishedTrialError):
            self.study.tell(number, value, state=STATES[trial.status], skip_if_finished=True)

    def num_points(self, before: int | None = None) -> int:
        """Return how many points were suggested and not skipped; one that is trained again counts
        once.
        """
        trials = (trial for trial in self.trials()[:before] if "skipped" not in trial.user_attrs)
        return len({trial.user_attrs.get("fingerprint", trial.number) for trial in trials})

    def note(self, suggestion: Suggestion, **attributes: str) -> None:
        """Set attributes of a suggestion, unless another worker has ended it."""
        with suppress(UpdateFinishedTrialError):
            for name, value in attributes.items():
                suggestion.trial.set_user_attr(name, value)

    def skip(self, suggestion: Suggestion, reason: str, as_bad: bool) -> None:
        """End a suggestion that is not trained; `as_bad` teaches the sampler to look elsewhere."""
        self.note(suggestion, skipped=reason)
        state = TrialState.PRUNED if as_bad else TrialState.FAIL
        # Optuna looks before it writes, and another worker may come between
        with suppress(UpdateFinishedTrialError):
            self.study.tell(suggestion.number, state=state, skip_if_finished=True)


def make_pruner(pruner: Pruner | None, max_steps: int | None) -> BasePruner:
    """Return Optuna's pruner. If the longest training is not known, hyperband waits for the first
    that ends.
    """
    if pruner is None:
        return NopPruner()
    first = pruner.first_step(max_steps)
    if pruner.kind == "median":
        return MedianPruner(n_startup_trials=pruner.trials, n_warmup_steps=first)
    longest = "auto" if max_steps is None or max_steps < first else max_steps
    return HyperbandPruner(
        min_resource=first, max_resource=longest, reduction_factor=pruner.reduction
    )


def random_draws(sweep: Sweep) -> Iterator[Point]:
    """Yield points of a random search without end, the same ones for the same seed; some of them
    again and again.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=RandomSampler(seed=sweep.search.seed))
    while True:
        yield suggest_point(sweep, study.ask())


def suggest_point(sweep: Sweep, trial: BaseTrial) -> Point:
    """Return the point of a trial: for each active axis the value that it has already, or a drawn
    one.
    """
    values: dict[str, Value] = {}
    for axis in sweep.free_axes:  # first those on which others depend
        if is_active(axis, sweep.complete(values)):
            values[axis.name] = suggest_value(axis, trial)
    return sweep.complete(values)


def suggest_value(axis: Axis, trial: BaseTrial) -> Value:
    """Return an axis's value in a trial: the one that it has already, or a drawn one."""
    if axis.labels is not None:
        return axis.labels[axis.labels.index(trial.suggest_categorical(axis.name, axis.labels))]
    if axis.integer:
        return trial.suggest_int(axis.name, int(axis.low), int(axis.high), log=axis.log)
    return trial.suggest_float(axis.name, axis.low, axis.high, log=axis.log)
