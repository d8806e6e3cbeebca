"""The study: which point comes next, and whether a trial goes on. The one door to Optuna.

Only the process that runs the sweep opens it. Trainings know nothing of it: what they write is read and told here, so
that pruning is decided once for a trial, however many processes train it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import StorageInternalError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from composer.errors import RunError, RunFailed
from composer.sweeps.axes import Axis, Point, Pruner, Sweep, Value, complete, is_active

if TYPE_CHECKING:
    from composer.sweeps.trial_dir import Trial

TIMEOUT = 30.0
"""Seconds that a study waits for whoever reads its file."""
STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
StorageError = StorageInternalError
"""What the study's file raises where the disk is full, or somebody has locked it."""
FULL = ("disk I/O error", "disk is full")
"""What SQLite says where no more can be written."""
STRIDE = 1_000_003
"""Between the seeds of two trials, so that no two sweeps of neighbouring seeds draw the same."""


@dataclass(frozen=True)
class Suggestion:
    """A point that the study asks for; `trial` is Optuna's, known outside by its number alone."""

    number: int
    point: Point
    trial: optuna.trial.Trial


class Study:
    """Optuna's study of a sweep in a SQLite file. `longest` is how many steps a training has at most, if that is known.

    Raises RunError where the file cannot be read.
    """

    def __init__(self, sweep: Sweep, file: Path, longest: int | None = None) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.sweep = sweep
        goal = StudyDirection.MINIMIZE if sweep.rank[0].direction == "min" else StudyDirection.MAXIMIZE
        try:
            storage = RDBStorage(f"sqlite:///{file.absolute()}", engine_kwargs={"connect_args": {"timeout": TIMEOUT}})
            self.study = optuna.create_study(
                storage=storage,
                study_name=sweep.fingerprint[:12],
                direction=goal,
                pruner=make_pruner(sweep.prune, longest),
                load_if_exists=True,
            )
        except Exception as error:  # SQLAlchemy's many kinds
            if any(word in str(error) for word in FULL):
                message = "the study cannot be written: the disk is full, or does not answer"
                raise RunFailed.of(message, "make room; the same command then goes on", str(file)) from None
            fix = "remove the file: what the trials came to is in their folders, and is told to a new study"
            raise RunError.of(
                f"the study cannot be opened: {getattr(error, 'orig', None) or error}", fix, str(file)
            ) from None

    def known(self) -> dict[str, FrozenTrial]:
        """The latest trial of each fingerprint that the study has been told of."""
        return {
            each.user_attrs["fingerprint"]: each
            for each in self.study.get_trials(deepcopy=False)
            if "fingerprint" in each.user_attrs
        }

    def count(self) -> int:
        """How many points have been asked for, whatever came of them."""
        return len(self.study.get_trials(deepcopy=False))

    def why(self) -> str:
        """Why most of the points that were left were not trained."""
        told = Counter(each.user_attrs.get("left", "unknown") for each in self.study.get_trials(deepcopy=False))
        return told.most_common(1)[0][0] if told else "there was none"

    def enqueue(self, points: Iterable[tuple[Point, str]]) -> None:
        """Puts points, each with its fingerprint, at the end of the queue; what already stands in it stays there."""
        waiting = {fingerprint for fingerprint, each in self.known().items() if not each.state.is_finished()}
        for point, fingerprint in points:
            if fingerprint not in waiting:
                attributes = {"point": point, "fingerprint": fingerprint}
                self.study.enqueue_trial(self.free(point), user_attrs=attributes)

    def restore(self, trials: Iterable[Trial]) -> None:
        """Tells a study that was lost, or never heard, what is known of trials that have ended."""
        known = self.known()
        for trial in trials:
            if trial.status in STATES and trial.fingerprint not in known:
                values = self.free(trial.point)
                spread = {axis.name: value_distribution(axis) for axis in self.sweep.asked if axis.name in values}
                self.study.add_trial(
                    optuna.trial.create_trial(
                        state=STATES[trial.status],
                        value=trial.value if trial.status == "finished" else None,
                        params=values,
                        distributions=spread,
                        user_attrs={"point": trial.point, "fingerprint": trial.fingerprint},
                    )
                )

    def free(self, point: Point) -> dict[str, Any]:
        """The part of a point that Optuna draws: axes that are tied to another follow from it."""
        return {axis.name: point[axis.name] for axis in self.sweep.asked if axis.name in point}

    def unfinished(self) -> list[Suggestion]:
        """Those that were asked for when the sweep was stopped, and of which nothing was told."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [self.asked(optuna.trial.Trial(self.study, each._trial_id)) for each in running]

    def waits(self) -> bool:
        """Whether a point stands in the queue."""
        return bool(self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,)))

    def ask(self, anywhere: bool = False) -> Suggestion:
        """The next point: of the queue, or the sampler's; `anywhere` is drawn without regard to what is known."""
        self.study.sampler = make_sampler(self.sweep, self.count(), anywhere)
        return self.asked(self.study.ask())

    def asked(self, trial: optuna.trial.Trial) -> Suggestion:
        """A trial with its point, all of whose values the study knows from here on."""
        drawn = draw_point(self.sweep, trial)
        return Suggestion(trial.number, trial.user_attrs.get("point", drawn), trial)

    def name(self, asked: Suggestion, fingerprint: str) -> None:
        """Keeps which trial a point is."""
        asked.trial.set_user_attr("fingerprint", fingerprint)

    def report(self, asked: Suggestion, scores: Mapping[int, float]) -> int | None:
        """Tells scores by step; the step at which the trial shall end, if it shall."""
        told = self.study._storage.get_trial(asked.trial._trial_id).intermediate_values
        for step in sorted(set(scores) - set(told)):
            asked.trial.report(scores[step], step)
            if asked.trial.should_prune():
                return step
        return None

    def tell(self, number: int, trial: Trial) -> None:
        """Tells what a trial came to; it may have been told before."""
        value = trial.value if trial.status == "finished" else None
        self.study.tell(number, value, state=STATES[trial.status], skip_if_finished=True)

    def leave(self, asked: Suggestion, why: str, worst: bool) -> None:
        """A point that is not trained; `worst` teaches the search to look elsewhere."""
        asked.trial.set_user_attr("left", why)
        self.study.tell(asked.number, state=TrialState.PRUNED if worst else TrialState.FAIL, skip_if_finished=True)


def make_sampler(sweep: Sweep, number: int, anywhere: bool) -> BaseSampler:
    """The sampler of one trial. Its seed is the trial's own: a sweep that was stopped draws as it would have."""
    seed = (sweep.search.seed * STRIDE + number) % 2**32
    if sweep.search.kind != "tpe" or anywhere:
        return RandomSampler(seed=seed)
    return TPESampler(seed=seed, constant_liar=True)


def make_pruner(prune: Pruner | None, longest: int | None) -> BasePruner:
    """Optuna's pruner. Where the longest training is not known, hyperband waits for the first that ends."""
    if prune is None:
        return NopPruner()
    if prune.kind == "median":
        return MedianPruner(n_startup_trials=prune.trials, n_warmup_steps=prune.min_steps)
    most = "auto" if longest is None or longest < prune.min_steps else longest
    return HyperbandPruner(min_resource=prune.min_steps, max_resource=most, reduction_factor=prune.reduction)


def draw_point(sweep: Sweep, trial: optuna.trial.Trial) -> Point:
    """The point of a trial: a value for each axis that is active, those first on which others depend."""
    chosen: dict[str, Any] = {}
    for axis in sweep.asked:
        if is_active(axis, complete(sweep, chosen)):
            chosen[axis.name] = suggest_value(axis, trial)
    return complete(sweep, chosen)


def suggest_value(axis: Axis, trial: optuna.trial.Trial) -> Value:
    """An axis's value in a trial: the one that it has already, or one that is drawn."""
    if axis.labels is not None:
        return axis.labels[axis.labels.index(trial.suggest_categorical(axis.name, axis.labels))]
    low, high = axis.low or 0, axis.high or 0
    if axis.whole:
        return trial.suggest_int(axis.name, int(low), int(high), log=axis.log)
    return trial.suggest_float(axis.name, low, high, log=axis.log)


def value_distribution(axis: Axis) -> BaseDistribution:
    """Where an axis's values are drawn from."""
    if axis.labels is not None:
        return CategoricalDistribution(axis.labels)
    low, high = axis.low or 0, axis.high or 0
    return (
        IntDistribution(int(low), int(high), log=axis.log) if axis.whole else FloatDistribution(low, high, log=axis.log)
    )
