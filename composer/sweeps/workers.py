"""Workers of a sweep on this machine: as many trials at once, each with its share of the CPUs and GPUs."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from composer.errors import RunError
from composer.formatting import count_noun
from composer.model.machine import available_memory, visible_cpus, visible_gpus
from composer.sweeps.points import PointCost
from composer.sweeps.scheduler import POLL_SECONDS, REFRESH_SECONDS, ClaimedTrial, Scheduler
from composer.sweeps.sweep import Resources, Sweep, SweepDir
from composer.sweeps.trial import ENDED
from composer.sweeps.trial_runner import PATIENCE, TrainingProcess, TrialRunner


class LocalWorkerPool:
    """Workers on this machine, each with what a trial needs, or with a share of its CPUs and of its GPUs.

    Raises RunError if the machine has fewer GPUs than the trials need, or fewer CPUs or less memory than one does.
    """

    def __init__(self, workers: int, resources: Resources) -> None:
        self.workers, self.resources, self.gpus = workers, resources, visible_gpus(os.environ)
        cpus, memory = visible_cpus(), available_memory()
        if (resources.cpus or 0) > cpus or (resources.memory or 0) > memory:
            there = Resources(len(self.gpus), cpus, None if math.isinf(memory) else int(memory)).describe()
            message = f"a trial needs {resources.describe()}, and this machine has {there}"
            raise RunError.of(message, "write less under `resources`, or run the sweep on a larger machine")
        if (needed := resources.gpus_of(workers)) > len(self.gpus):
            who = "a trial needs" if workers == 1 else f"{workers} trials at once need"
            message = f"{who} {count_noun(needed, 'GPU')}, and this machine has {len(self.gpus)}"
            hint = "write fewer `gpus` under `resources`, or run the sweep where they are: `--slurm`, `--ray ADDRESS`"
            raise RunError.of(message, hint)
        # a shell's background jobs ignore SIGINT, and children would inherit that; trainings listen to it
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def start(self, command: Sequence[str], log: Path, slot: int) -> TrainingProcess:
        """Start a command, whose output is appended to `log`."""
        own = worker_environment(os.environ, slot, self.workers, self.gpus, self.resources)
        return TrainingProcess(command, log, {**os.environ, **own}, os.getcwd())


def worker_environment(
    environment: Mapping[str, str], slot: int, workers: int, gpus: Sequence[str], resources: Resources
) -> dict[str, str]:
    """Return the variables of one worker: its threads, and its GPUs where several workers share them."""
    own = {}
    if "OMP_NUM_THREADS" not in environment:
        own["OMP_NUM_THREADS"] = str(resources.cpus or max(1, visible_cpus() // workers))
    if gpus and resources.gpus is not None:
        first = resources.gpus_of(slot + 1) - resources.whole_gpus
        own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[first : first + resources.whole_gpus])
    elif gpus and workers > 1:
        share = gpus[slot % workers :: workers] if len(gpus) >= workers else [gpus[slot % len(gpus)]]
        own["CUDA_VISIBLE_DEVICES"] = ",".join(share)
    return own


class LocalScheduler(Scheduler):
    """A sweep whose trials are trained on this machine."""

    def __init__(self, sweep: Sweep, home: SweepDir, points: list[PointCost], pool: LocalWorkerPool) -> None:
        super().__init__(sweep, home, points)
        self.pool = pool
        self.runners: list[TrialRunner | None] = [None] * pool.workers
        self.last_refresh = -math.inf

    def train_all(self) -> None:
        """Train until no trial is left, here or elsewhere."""
        while self.fill_slots():
            self.poll()
            time.sleep(POLL_SECONDS)

    def fill_slots(self) -> bool:
        """Give every free slot a trial, if there is one, and return whether any trial runs, here or elsewhere."""
        if all(self.runners) or time.monotonic() - self.last_refresh < REFRESH_SECONDS:
            return True
        for slot, runner in enumerate(self.runners):
            if runner is None and (claimed := self.next_trial()) is not None:
                self.runners[slot] = self.make_runner(claimed, slot)
        if not all(self.runners):
            self.last_refresh = time.monotonic()
        return any(self.runners) or self.study.is_open()

    def make_runner(self, claimed: ClaimedTrial, slot: int) -> TrialRunner:
        """Return what trains a trial in one slot of the pool."""
        report = partial(self.study.report, claimed.suggestion)
        return TrialRunner(claimed.task, claimed.trial, partial(self.pool.start, slot=slot), report)

    def poll(self) -> None:
        """Poll every trial once, and show the progress of the sweep."""
        for slot, runner in enumerate(self.runners):
            if runner is None:
                continue
            if self.claimed[runner.trial.fingerprint].lease.is_lost:
                runner.stop(signal.SIGKILL)
                self.runners[slot] = None
                self.lose_trial(runner.trial)
                continue
            trial = runner.poll()
            self.update_trial(trial)
            if trial.status in ENDED:
                self.runners[slot] = None
                self.end_trial(trial)
        self.refresh_trials()
        self.show_progress()

    def stop(self) -> None:
        """Stop all trainings, and wait until they have written a checkpoint and ended; a second signal kills them."""
        running = [runner for runner in self.runners if runner is not None]
        deadline = time.monotonic() + PATIENCE
        try:
            for runner in running:
                runner.stop(signal.SIGTERM)
            while not all(runner.has_stopped() for runner in running) and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        finally:
            for runner in running:
                if not runner.has_stopped():
                    runner.stop(signal.SIGKILL)
