"""A sweep on a Ray cluster: Tune asks for trials, places each on a node that has room for it, watches and prunes it.

This is the one door to Ray. All machines see the run folders on a shared file system, and have this package installed.
What Tune writes is scratch, which no command reads: the trials' folders are the truth here, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from composer.errors import RunError
from composer.run_dir import RunDir, is_locked
from composer.sweeps.points import PointCost
from composer.sweeps.scheduler import ClaimedTrial, Scheduler
from composer.sweeps.sweep import Sweep, SweepDir
from composer.sweeps.trial import ENDED, read_trial
from composer.sweeps.trial_runner import PATIENCE, TrainingProcess, TrialRunner

try:
    import ray
    from ray import tune
    from ray.tune.schedulers import FIFOScheduler
    from ray.tune.search import Searcher
except ImportError:
    hint = "`pip install 'seqcomposer[ray]'`, or omit `--ray`"
    raise RunError.of("Ray Tune is not installed", hint) from None

STEP_SECONDS = 1.0
"""Seconds between two results of a trial."""
POLL_SECONDS = 0.1
MAX_LINES = 12
"""Lines of an error of Ray that are kept."""
TUNE_SETTINGS = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # a signal is an exception here, as on one machine
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # metrics.jsonl has all of it
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",  # the folders are resumed from
    "TUNE_MAX_PENDING_TRIALS_PG": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",  # a trial's error is printed as it ends
    "RAY_AIR_NEW_OUTPUT": "0",  # with which `verbose=0` is silent
}


def connect(address: str) -> list[dict[str, float]]:
    """Connect to a Ray cluster, and return what each of its nodes has.

    address: `auto` is the cluster that runs here, `local` one that is started for this sweep.
    Raises RunError if it does not answer.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon and port.isdecimal():  # Ray itself would try for minutes, and not for ten seconds
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address=address, log_to_driver=False, logging_level="error", configure_logging=True)
    except (OSError, ValueError, OverflowError, RuntimeError, ray.exceptions.RayError) as error:
        hint = "start one with `ray start --head` and write its address, or write `--ray auto` or `--ray local`"
        raise RunError.of(f"no Ray cluster answers at `{address}`: {error}", hint) from None
    for number, handler in handlers.items():  # Ray has put its own in their place, with exit statuses of its own
        signal.signal(number, handler)
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


class TrialActor(tune.Trainable):
    """A trial on the node where Tune has placed it: one `step` after another until it has ended."""

    def setup(self, config: dict[str, Any]) -> None:
        """Get ready to train the trial in `folder`, from what is there, in the environment that Ray has made."""
        os.chdir(config["directory"])  # Tune is in one of its own, and paths may be relative
        start = partial(TrainingProcess, env=None, folder=config["directory"])
        self.runner = TrialRunner(config["task"], read_trial(Path(config["folder"])), start, lambda scores: None)

    def step(self) -> dict[str, Any]:
        """Train for a while, and return whether the trial has ended; all else is in its folder."""
        trial, until = self.runner.trial, time.monotonic() + STEP_SECONDS
        while trial.status not in ENDED and time.monotonic() < until:
            trial = self.runner.poll()
            time.sleep(POLL_SECONDS)
        return {"done": trial.status in ENDED}

    def cleanup(self) -> None:
        """Stop the training, if there is one, and wait until it has written a checkpoint and ended."""
        self.runner.stop(signal.SIGTERM)
        until = time.monotonic() + PATIENCE
        while not self.runner.has_stopped() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        self.runner.stop(signal.SIGKILL)


class ClaimingSearcher(Searcher):
    """Tune's search: the trials that the sweep's study suggests and this process claims, at most `workers` at once."""

    def __init__(self, sweeping: TuneScheduler) -> None:
        super().__init__()
        self.sweeping = sweeping

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial; None where there is none now, FINISHED where none is left, here or elsewhere."""
        self.sweeping.poll()
        if len(self.sweeping.claimed) >= self.sweeping.workers:
            return None
        if (claimed := self.sweeping.next_trial()) is not None:
            self.sweeping.watch(claimed)
            return {"folder": str(claimed.trial.folder), "directory": os.getcwd(), "task": claimed.task}
        return None if self.sweeping.study.is_open() else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: how a trial has ended is in its folder."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: what was suggested is in the study."""


class PruningScheduler(FIFOScheduler):
    """Tune's scheduler: it stops what the sweep's study prunes, and what another process has claimed."""

    def __init__(self, sweeping: TuneScheduler) -> None:
        super().__init__()
        self.sweeping = sweeping

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        """Keep what stops a trial that Tune would start again and again."""
        super().on_trial_add(controller, trial)
        self.sweeping.stop_trial = controller.stop_trial

    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return whether a trial goes on."""
        goes_on = self.sweeping.goes_on(Path(trial.config["folder"]).name)
        return str(self.CONTINUE if goes_on else self.STOP)


class SweepCallback(tune.Callback):
    """What is done beside Tune: at every step of its loop, and where a trial's node is lost."""

    def __init__(self, sweeping: TuneScheduler) -> None:
        self.sweeping = sweeping

    def on_step_end(self, iteration: int, trials: list[Any], **_: Any) -> None:
        """Tell the study what has ended, and show the progress."""
        self.sweeping.poll()

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Write down that a trial's node was lost, or that it could not be started there, which no retry mends."""
        self.sweeping.handle_loss(trial)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
        """Do the same where Tune itself gives up."""
        self.sweeping.handle_loss(trial)


class TuneScheduler(Scheduler):
    """A sweep whose trials Tune places, `workers` at once, each where its `resources` are."""

    def __init__(
        self, sweep: Sweep, home: SweepDir, points: list[PointCost], workers: int, resources: Mapping[str, float]
    ) -> None:
        super().__init__(sweep, home, points)
        self.workers, self.resources = workers, resources
        self.runners: dict[str, TrialRunner] = {}
        self.handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        self.signals: list[int] = []
        self.stop_trial: Callable[[Any], None] = lambda trial: None

    def train_all(self) -> None:
        """Train until no trial is left, here or elsewhere."""
        os.environ.update(TUNE_SETTINGS)
        scratch = self.home.path.absolute() / "tune"
        for number in self.handlers:  # Ray puts an exit status of its own in the place of what a handler raises
            signal.signal(number, lambda number, _: self.signals.append(number))
        try:
            tune.run(
                TrialActor,
                name=scratch.name,
                storage_path=str(scratch.parent),
                num_samples=-1,
                resources_per_trial=dict(self.resources),
                search_alg=ClaimingSearcher(self),
                scheduler=PruningScheduler(self),
                callbacks=[SweepCallback(self)],
                max_failures=-1,  # they are counted in the trial's folder
                raise_on_failed_trial=False,
                trial_dirname_creator=lambda trial: trial.trial_id,
                verbose=0,
            )
        finally:
            self.restore_handlers()
            ray.shutdown()
            shutil.rmtree(scratch, ignore_errors=True)

    def poll(self) -> None:
        """Tell the study which trials have ended, by what is in their folders, and show the progress."""
        if self.signals:
            self.restore_handlers()
            signal.raise_signal(self.signals.pop())
        if not self.refresh_trials():
            return
        for name, runner in list(self.runners.items()):
            runner.trial = trial = self.trials[name]
            if self.claimed[name].lease.is_lost:
                del self.runners[name]
                self.lose_trial(trial)
            elif trial.status in ENDED:
                del self.runners[name]
                runner.report_scores()  # the last rows; it is too late to prune
                self.end_trial(trial)
            elif trial.pruned_at is not None and not self.is_training(name):
                runner.end("pruned")
        self.show_progress()

    def restore_handlers(self) -> None:
        """Let signals do what they did before."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def watch(self, claimed: ClaimedTrial) -> None:
        """Keep what reports a trial's scores, and writes down how it goes on where its actor cannot."""
        start = partial(TrainingProcess, env=None, folder=os.getcwd())
        report = partial(self.study.report, claimed.suggestion)
        self.runners[claimed.trial.fingerprint] = TrialRunner(claimed.task, claimed.trial, start, report)

    def goes_on(self, name: str) -> bool:
        """Report a trial's scores to the study, and return whether to train it on; why not is written down before."""
        if name not in self.runners:
            return False
        step = self.runners[name].report_scores()
        return step is None or not self.runners[name].prune(step)

    def handle_loss(self, trial: Any) -> None:
        """Count the loss of a trial of Tune as a kill of its training; one that could not be started has failed."""
        runner = self.runners.get(Path(trial.config["folder"]).name)
        if runner is None:
            return
        runner.trial = read_trial(runner.trial.folder)
        error = ray.cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        is_lost = isinstance(error, ray.exceptions.RayActorError) and "creation task" not in str(error)
        if runner.trial.status not in ENDED and is_lost:
            runner.handle_exit(-signal.SIGKILL)
        elif runner.trial.status not in ENDED:
            runner.end("failed", error="\n".join(Text.from_ansi(str(error)).plain.splitlines()[-MAX_LINES:]))
        if runner.trial.status in ENDED:
            self.stop_trial(trial)

    def stop(self) -> None:
        """Wait until all trainings have written a checkpoint and ended, which they do as their actors are gone."""
        ray.shutdown()
        until = time.monotonic() + PATIENCE
        while any(map(self.is_training, self.claimed)) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    def is_training(self, name: str) -> bool:
        """Return whether a process trains a trial."""
        return any(is_locked(RunDir(self.trials[name].run(seed))) for seed in self.sweep.seeds)
