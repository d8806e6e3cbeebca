"""A sweep's search as an Optuna study: suggest points and prune trials.

The study is a memory of the trials' folders, from which it can be made again. Trainings do not know
it: their metrics are read and reported here.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from json import JSONDecodeError
from pathlib import Path

import optuna
from optuna.exceptions import StorageInternalError
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import BaseTrial, FixedTrial, FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from composer.errors import RunError, one_line_error
from composer.sweeps.sweep import Axis, Point, Pruner, Sweep, SweepDir, Value, is_active
from composer.sweeps.trial import Trial

STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
DRIVER = "postgresql+psycopg2:"
CONNECT_SECONDS = 10
"""Seconds that a database has to answer."""


@dataclass(frozen=True)
class Suggestion:
    """A suggested point. `trial` is Optuna's; `reported` are the steps whose scores it knows."""

    number: int
    point: Point
    trial: optuna.trial.Trial
    reported: set[int] = field(default_factory=set)


class Study:
    """Optuna's study of the first goal of a sweep, in a journal of its folder or in a database.

    `max_steps` of the longest training, if known, sets the brackets of hyperband. Raises RunError
    if the journal cannot be read, or the database does not answer.
    """

    def __init__(
        self, sweep: Sweep, home: SweepDir, name: str, max_steps: int | None = None
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.sweep = sweep
        try:
            self.study = optuna.create_study(
                storage=open_journal(home.study) if sweep.storage is None else open_database(sweep),
                study_name=name,
                direction="minimize" if sweep.rank[0].direction == "min" else "maximize",
                pruner=make_pruner(sweep.pruner, max_steps),
                load_if_exists=True,
            )
        except (OSError, RunError, SQLAlchemyError, StorageInternalError):
            raise
        except Exception as error:  # a damaged journal may raise anything
            if sweep.storage is not None:
                message = f"the database of `study` cannot be opened: {one_line_error(error)}"
                hint = "write `postgresql://USER@HOST:PORT/DATABASE`"
                raise RunError.of(message, hint, str(sweep.file)) from None
            message = f"the Optuna study cannot be opened: {error!r}"
            hint = "remove the file: the study is made again from the trials' folders"
            raise RunError.of(message, hint, str(home.study)) from None

    def trials(self, *states: TrialState) -> list[FrozenTrial]:
        """Return Optuna's trials in some states, by default all suggestions, also skipped ones."""
        return self.study.get_trials(deepcopy=False, states=states or None)

    def recover(self, trials: Iterable[Trial]) -> list[Point]:
        """End what an earlier process left open, and add results that it did not tell.

        The trials' folders decide which have ended. Returns the points that it had drawn, and of
        which it had written no folder.
        """
        while self.trials(TrialState.WAITING):
            self.study.tell(self.study.ask(), state=TrialState.FAIL)
        known = {trial.fingerprint: trial for trial in trials}
        untold = {name: trial for name, trial in known.items() if trial.status in STATES}
        lost: list[Point] = []
        for entry in self.trials():
            name = str(entry.user_attrs.get("fingerprint"))
            trial = untold.get(name)
            if entry.state == TrialState.RUNNING and trial is None:
                self.study.tell(entry.number, state=TrialState.FAIL)
                if name not in known and "skipped" not in entry.user_attrs:
                    lost += complete_points(self.sweep, entry.params)
            elif entry.state == TrialState.RUNNING and trial is not None:
                self._tell(entry.number, trial)
            if trial and entry.state in (TrialState.RUNNING, STATES[trial.status]):
                del untold[name]
        for trial in untold.values():
            self.study.add_trial(self._restored(trial))
        return lost

    def _restored(self, trial: Trial) -> FrozenTrial:
        """Return Optuna's trial of an ended one."""
        fixed = FixedTrial(self.free_values(trial.point))
        for axis in self.sweep.free_axes:
            if axis.name in trial.point:
                suggest_value(axis, fixed)  # which records its distribution
        return create_trial(
            state=STATES[trial.status],
            value=trial.value if trial.status == "finished" else None,
            params=fixed.params,
            distributions=fixed.distributions,
            user_attrs={"fingerprint": trial.fingerprint},
        )

    def free_values(self, point: Point) -> dict[str, object]:
        """Return the values of a point that Optuna chooses; zipped axes follow from them."""
        return {axis.name: point[axis.name] for axis in self.sweep.free_axes if axis.name in point}

    def ask_for(self, point: Point) -> Suggestion:
        """Return the suggestion of a known point."""
        self.study.enqueue_trial(self.free_values(point), user_attrs={"point": point})
        self.study.sampler = RandomSampler()  # it draws nothing
        trial = self.study.ask()
        suggest_point(self.sweep, trial)  # the study stores values only when they are suggested
        return Suggestion(trial.number, point, trial)

    def ask(self, at_random: bool = False) -> Suggestion:
        """Return a suggestion of the sampler, which ignores all results if `at_random`."""
        # each draw has its own seed, so that a resumed sweep draws the same points; seeds are far
        # apart, so that sweeps of neighbouring seeds draw different points
        seed = (self.sweep.search.seed * 1_000_003 + self.num_draws()) % 2**32
        # TPE starts with ten random trials; Optuna also counts skipped points, told as pruned
        skipped = [trial for trial in self.trials() if "skipped" in trial.user_attrs]
        startup = 10 + sum(trial.state == TrialState.PRUNED for trial in skipped)
        learns = self.sweep.search.kind == "tpe" and not at_random
        tpe = TPESampler(n_startup_trials=startup, seed=seed, constant_liar=True)
        self.study.sampler = tpe if learns else RandomSampler(seed=seed)
        trial = self.study.ask()
        return Suggestion(trial.number, suggest_point(self.sweep, trial), trial)

    def num_draws(self) -> int:
        """Return the number of suggestions, without those of known points."""
        return sum("point" not in trial.user_attrs for trial in self.trials())

    def note_fingerprint(self, suggestion: Suggestion, fingerprint: str) -> None:
        """Note which trial's folder a suggestion has."""
        suggestion.trial.set_user_attr("fingerprint", fingerprint)

    def report(self, suggestion: Suggestion, scores: Mapping[int, float]) -> int | None:
        """Report scores by step, and return the first step at which to prune the trial, or None."""
        pruned_at = None
        for step in sorted(scores.keys() - suggestion.reported):
            suggestion.trial.report(scores[step], step)
            suggestion.reported.add(step)
            if should_prune(suggestion.trial) and pruned_at is None:
                pruned_at = step
        return pruned_at

    def tell(self, suggestion: Suggestion, trial: Trial) -> None:
        """Tell the result of a trial; the search counts a trial with added seeds once."""
        for known in self.trials(TrialState.COMPLETE):
            if known.user_attrs.get("fingerprint") == trial.fingerprint:
                self.study.tell(suggestion.number, state=TrialState.FAIL)
                return
        self._tell(suggestion.number, trial)

    def _tell(self, number: int, trial: Trial) -> None:
        value = trial.value if trial.status == "finished" else None
        self.study.tell(number, value, state=STATES[trial.status])

    def skip(self, suggestion: Suggestion, reason: str, as_bad: bool) -> None:
        """End a suggestion that is not trained; `as_bad` teaches the sampler to look elsewhere."""
        suggestion.trial.set_user_attr("skipped", reason)
        state = TrialState.PRUNED if as_bad else TrialState.FAIL
        self.study.tell(suggestion.number, state=state)

    def skip_reasons(self) -> list[str]:
        """Return the reason of each suggestion that was not trained."""
        attributes = [trial.user_attrs for trial in self.trials()]
        return [str(own["skipped"]) for own in attributes if "skipped" in own]


def open_journal(file: Path) -> BaseStorage:
    """Open the journal of a sweep, which no other process may be writing."""
    # of a killed process: its lock, and the line that it began to write
    file.with_name(f"{file.name}.lock").unlink(missing_ok=True)
    if file.exists():
        os.truncate(file, file.read_bytes().rfind(b"\n") + 1)
    return JournalStorage(JournalFileBackend(str(file)))


def open_database(sweep: Sweep) -> BaseStorage:
    """Open the database of a sweep's `study`. Raises RunError without its driver."""
    url = str(sweep.storage).replace("postgresql:", DRIVER, 1)
    options = {"connect_args": {"connect_timeout": CONNECT_SECONDS}, "pool_pre_ping": True}
    try:
        return RDBStorage(url, engine_kwargs=options)
    except ImportError:
        hint = "`pip install -c constraints.txt '.[postgres]'`, or remove `study`"
        message = "psycopg2 is not installed, and `study: {storage: ...}` needs it"
        raise RunError.of(message, hint) from None


@contextmanager
def storage_errors(sweep: Sweep) -> Iterator[None]:
    """Raise an error of the database, or of a journal that was removed meanwhile, as RunError."""
    try:
        yield
    except JSONDecodeError:
        message = "the journal of the study was removed or changed while the sweep ran"
        hint = "remove it, and run the same command: it is made again from the trials' folders"
        raise RunError.of(message, hint, str(sweep.file)) from None
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = getattr(error, "orig", None) or error.__cause__ or error
        hint = "start it, or mend its address, user or password (PGPASSWORD, ~/.pgpass), and run"
        hint += " the same command again; without `study` the sweep needs no database"
        message = f"the database of `study` does not answer: {one_line_error(cause)}"
        raise RunError.of(message, hint, str(sweep.file)) from None


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


def complete_points(sweep: Sweep, values: Mapping[str, Value]) -> list[Point]:
    """Return the point of drawn values; none if a process was killed before it drew them all."""
    point = sweep.complete(values)
    for axis in sweep.free_axes:
        if is_active(axis, point) and axis.name not in point:
            return []
    return [point]
