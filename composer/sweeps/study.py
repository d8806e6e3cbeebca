"""A sweep's search as an Optuna study: suggest points and prune trials.

All workers write to one journal. Trainings do not know it: their metrics are read and reported
here, so that pruning is decided once per trial.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

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
    """A suggested point. `trial` is Optuna's, which holds its attributes."""

    number: int
    point: Point
    trial: optuna.trial.Trial


class JournalLock(JournalFileOpenLock):
    """Optuna's lock on a journal; it removes the partial line of a killed worker."""

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self.file = file

    def acquire(self) -> bool:
        """Wait for the lock, and remove a partial last line from the journal."""
        super().acquire()
        with self.file.open("r+b") as journal:
            if journal.seek(0, os.SEEK_END):
                journal.seek(-1, os.SEEK_END)
                if journal.read() != b"\n":
                    journal.seek(0)
                    journal.truncate(journal.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        """Release the lock, unless another worker has broken it as stale."""
        with suppress(RuntimeError):
            super().release()


class Study:
    """Optuna's study of the first goal of a sweep, stored as a journal.

    `max_steps` of the longest training, if known, sets the brackets of hyperband. Raises RunError
    if the journal cannot be read.
    """

    def __init__(self, sweep: Sweep, file: Path, max_steps: int | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.sweep = sweep
        goal = StudyDirection.MAXIMIZE
        if sweep.rank[0].direction == "min":
            goal = StudyDirection.MINIMIZE
        try:
            storage = JournalStorage(JournalFileBackend(str(file), JournalLock(file)))
            name, pruner = sweep.fingerprint[:12], make_pruner(sweep.pruner, max_steps)
            self.study = optuna.create_study(
                storage=storage, study_name=name, direction=goal, pruner=pruner, load_if_exists=True
            )
        except OSError:
            raise
        except Exception as error:  # a damaged file may raise anything
            message = f"the Optuna study cannot be opened: {error!r}"
            hint = "remove the file: the study is rebuilt from the trials' folders"
            raise RunError.of(message, hint, str(file)) from None

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return Optuna's trials in some states, by default all suggestions, also skipped ones."""
        return self.study.get_trials(deepcopy=False, states=states or None)

    def latest_trials(self) -> dict[str, FrozenTrial]:
        """Return Optuna's latest trial of each fingerprint."""
        known = [trial for trial in self.trials() if "fingerprint" in trial.user_attrs]
        return {trial.user_attrs["fingerprint"]: trial for trial in known}

    def enqueue(self, points: Mapping[str, Point]) -> None:
        """Append points, by their fingerprints, to the queue, unless they are in it already."""
        latest = self.latest_trials()
        for fingerprint, point in points.items():
            if fingerprint not in latest or latest[fingerprint].state.is_finished():
                attributes = {"point": point, "fingerprint": fingerprint}
                self.study.enqueue_trial(self.free_values(point), user_attrs=attributes)

    def restore(self, trials: Iterable[Trial]) -> None:
        """Add ended trials that the study lacks, after its file was lost or a process killed."""
        known = self.latest_trials()
        for trial in trials:
            if trial.status in STATES and trial.fingerprint not in known:
                fixed = FixedTrial(self.free_values(trial.point))
                for axis in self.sweep.free_axes:
                    if axis.name in trial.point:
                        suggest_value(axis, fixed)  # which records its distribution
                restored = create_trial(
                    state=STATES[trial.status],
                    value=trial.value if trial.status == "finished" else None,
                    params=fixed.params,
                    distributions=fixed.distributions,
                    user_attrs={"point": trial.point, "fingerprint": trial.fingerprint},
                )
                self.study.add_trial(restored)

    def free_values(self, point: Point) -> dict[str, object]:
        """Return the values of a point that Optuna chooses; zipped axes follow from them."""
        return {axis.name: point[axis.name] for axis in self.sweep.free_axes if axis.name in point}

    def running(self) -> dict[int, str | None]:
        """Return the fingerprint of each suggestion without a result, None until it is planned."""
        running = self.trials(TrialState.RUNNING)
        return {trial.number: trial.user_attrs.get("fingerprint") for trial in running}

    def suggestion(self, number: int) -> Suggestion:
        """Return a suggestion that has no result yet."""
        return self._suggestion(optuna.trial.Trial(self.study, self.trials()[number]._trial_id))

    def is_open(self) -> bool:
        """True if a point is queued, or a worker's suggestion has no result yet."""
        return bool(self.trials(TrialState.RUNNING, TrialState.WAITING))

    def ask_queued(self) -> Suggestion | None:
        """Take the first point of the queue, for this worker alone; None if it is empty."""
        self.study.sampler = RandomSampler()  # it draws nothing: the point is known
        trial_id = self.study._pop_waiting_trial_id()
        if trial_id is None:
            return None
        return self._suggestion(optuna.trial.Trial(self.study, trial_id))

    def ask(self, at_random: bool = False) -> Suggestion:
        """Return a suggestion of the sampler, which ignores all results if `at_random`."""
        # each trial has its own seed, so that a resumed sweep draws the same points; seeds are far
        # apart, so that sweeps of neighbouring seeds draw different points
        trial = self.study.ask()
        seed = (self.sweep.search.seed * 1_000_003 + trial.number) % 2**32
        # TPE starts with ten random trials; Optuna also counts skipped points, told as pruned
        pruned = self.trials(TrialState.PRUNED)
        startup = 10 + sum("skipped" in trial.user_attrs for trial in pruned)
        learns = self.sweep.search.kind == "tpe" and not at_random
        tpe = TPESampler(n_startup_trials=startup, seed=seed, constant_liar=True)
        self.study.sampler = tpe if learns else RandomSampler(seed=seed)
        return self._suggestion(trial)

    def _suggestion(self, trial: optuna.trial.Trial) -> Suggestion:
        # draw even if the point is known: the study stores values only when they are suggested
        point = suggest_point(self.sweep, trial)
        return Suggestion(trial.number, trial.user_attrs.get("point", point), trial)

    def report(self, suggestion: Suggestion, scores: Mapping[int, float]) -> int | None:
        """Report scores by step, and return the step at which to prune the trial, or None."""
        known = self.study._storage.get_trial(suggestion.trial._trial_id).intermediate_values
        # another worker has ended it, and this one's lease is lost
        with suppress(UpdateFinishedTrialError):
            for step in sorted(set(scores) - set(known)):
                suggestion.trial.report(scores[step], step)
                if should_prune(suggestion.trial):
                    return step
        return None

    def tell(self, number: int, trial: Trial) -> None:
        """Tell the result of a trial; telling it twice changes nothing."""
        value = trial.value if trial.status == "finished" else None
        with suppress(UpdateFinishedTrialError):
            self.study.tell(number, value, state=STATES[trial.status], skip_if_finished=True)

    def num_points(self, before: int | None = None) -> int:
        """Return the number of points suggested and not skipped, each counted once."""
        trials = [trial for trial in self.trials()[:before] if "skipped" not in trial.user_attrs]
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
        # Optuna checks before it writes, and another worker may come in between
        with suppress(UpdateFinishedTrialError):
            self.study.tell(suggestion.number, state=state, skip_if_finished=True)


def should_prune(trial: optuna.trial.Trial) -> bool:
    """Return True if the pruner ends this trial."""
    # Optuna asks NumPy for the best score, which warns if all are NaN
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        return trial.should_prune()


def make_pruner(pruner: Pruner | None, max_steps: int | None) -> BasePruner:
    """Return Optuna's pruner; without `max_steps`, hyperband waits for the first trial to end."""
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
    """Yield points of a random search endlessly, with repetitions; the seed decides them."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=RandomSampler(seed=sweep.search.seed))
    while True:
        yield suggest_point(sweep, study.ask())


def suggest_point(sweep: Sweep, trial: BaseTrial) -> Point:
    """Return the point of a trial: its value of each active axis, drawn if it has none."""
    values: dict[str, Value] = {}
    for axis in sweep.free_axes:  # first those on which others depend
        if is_active(axis, sweep.complete(values)):
            values[axis.name] = suggest_value(axis, trial)
    return sweep.complete(values)


def suggest_value(axis: Axis, trial: BaseTrial) -> Value:
    """Return the value of an axis in a trial, drawn if it has none."""
    if axis.labels is not None:
        return axis.labels[axis.labels.index(trial.suggest_categorical(axis.name, axis.labels))]
    if axis.integer:
        return trial.suggest_int(axis.name, int(axis.low), int(axis.high), log=axis.log)
    return trial.suggest_float(axis.name, axis.low, axis.high, log=axis.log)
