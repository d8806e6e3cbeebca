"""Workers: processes that train, on this machine. What the engine asks of them is start, poll and stop."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from composer.errors import RunError
from composer.run_dir import LOCK, RunDir, read_metrics
from composer.sweeps.study import Study, Suggestion
from composer.sweeps.trial_dir import Status, Trial, final_score, read_run_records, write_trial

SET_PARENT_DEATH_SIGNAL = 1
"""prctl's PR_SET_PDEATHSIG."""
CARDS = Path("/proc/driver/nvidia/gpus")


class Job(Protocol):
    """One command that runs somewhere."""

    def poll(self) -> int | None:
        """Its exit status, negative where a signal ended it; None while it runs."""
        ...

    def stop(self, number: int) -> None:
        """Sends it a signal; SIGKILL ends all processes that it has started."""
        ...


class WorkerPool(Protocol):
    """Whoever starts commands: this machine, or a cluster."""

    def start(self, command: Sequence[str], log: Path, slot: int) -> Job:
        """Starts a command, which writes what it has to say at the end of `log`."""
        ...

    def close(self) -> None:
        """Gives back what was taken; no job runs any more."""
        ...


class LocalJob:
    """A process of this machine, and of the group that it leads."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,
                preexec_fn=ends_with_parent(),
            )

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self, number: int) -> None:
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.process.poll() is None:
                self.process.send_signal(number)


class LocalWorkerPool:
    """Workers on this machine: each has a share of its processors, and of its graphics cards where there are any."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # ignored in a shell's background job; trainings listen

    def start(self, command: Sequence[str], log: Path, slot: int) -> Job:
        return LocalJob(
            command, log, {**os.environ, **worker_environment(os.environ, slot, self.workers, visible_gpus(os.environ))}
        )

    def close(self) -> None:
        """Nothing was taken."""


def train_command(recipe: Path, run: Path, settings: Sequence[str], data: Path | None) -> list[str]:
    """The command that trains a recipe into a run folder, from where a killed one stopped."""
    told = [sys.executable, "-m", "composer.cli.main", "train", str(recipe), *settings, "--run", str(run), "--resume"]
    return told + (["--data", str(data)] if data is not None else [])


def ends_with_parent() -> Callable[[], object] | None:
    """What a child does before it begins: it asks to be told to end when its parent is gone, SIGKILL included.

    Elsewhere than on Linux there is no such thing: what goes on training then is waited for, by its lock.
    """
    if not sys.platform.startswith("linux"):
        return None
    return partial(ctypes.CDLL(None).prctl, SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def is_locked(run: Path) -> bool:
    """Whether a training holds a run folder: one of a sweep that was killed, which has not ended yet."""
    try:
        import fcntl
    except ImportError:  # the system has no such locks
        return False
    try:
        with (run / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # nothing is there, or a file system without locks
        return False
    return False


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """The graphics cards that this process may use."""
    if (told := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [each.strip() for each in told.split(",") if each.strip() not in ("", "-1")]
    return [str(number) for number in range(len(list(CARDS.iterdir())))] if CARDS.is_dir() else []


def worker_environment(environment: Mapping[str, str], slot: int, workers: int, there: Sequence[str]) -> dict[str, str]:
    """What the environment tells a worker: its threads, and its cards where several workers must part them."""
    told = {}
    if "OMP_NUM_THREADS" not in environment:
        told["OMP_NUM_THREADS"] = str(max(1, cpu_count() // workers))
    if there and workers > 1:
        own = there[slot % workers :: workers] if len(there) >= workers else [there[slot % len(there)]]
        told["CUDA_VISIBLE_DEVICES"] = ",".join(own)
    return told


def cpu_count() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


LOST = -int(signal.SIGKILL)
"""The status of a command whose machine or keeper is gone."""


ANSWER = 10.0
"""Seconds in which a cluster must answer."""


class CommandActor:
    """Runs where Ray has found room, and keeps one command there; it is asked through Ray what any job is asked."""

    def __init__(self, command: Sequence[str], log: str, folder: str) -> None:
        os.chdir(folder)
        self.job = LocalJob(command, Path(log), dict(os.environ))

    def poll(self) -> int | None:
        return self.job.poll()

    def stop(self, number: int) -> None:
        self.job.stop(number)


class RayJob:
    """A command somewhere in the cluster. While Ray looks for a place, it runs and has no status."""

    def __init__(self, ray: Any, keeper: Any) -> None:
        self.ray, self.keeper = ray, keeper
        self.answer = keeper.poll.remote()
        self.status: int | None = None

    def poll(self) -> int | None:
        """What the keeper has answered; the next question is on its way when this one is answered."""
        if self.status is None and self.ray.wait([self.answer], timeout=0)[0]:
            try:
                self.status = self.ray.get(self.answer)
            except self.ray.exceptions.RayError:
                self.status = LOST
            if self.status is None:
                self.answer = self.keeper.poll.remote()
            else:
                self.ray.kill(self.keeper)
        return self.status

    def stop(self, number: int) -> None:
        if self.status is None:
            self.keeper.stop.remote(number)


class RayWorkerPool:
    """A Ray cluster: `auto` is the one that runs here, `local` one that is started for this sweep, else an address.

    Raises RunError where Ray is not installed or the cluster does not answer.
    """

    def __init__(self, address: str, workers: int) -> None:
        self.ray = import_ray()
        heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        check_reachable(address)
        try:
            self.ray.init(address=address, log_to_driver=False, logging_level="error", configure_logging=True)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError, self.ray.exceptions.RayError) as error:
            raise no_cluster_error(address, error) from None
        for number, handler in heard.items():  # Ray has put its own in their place, with exit statuses of its own
            signal.signal(number, handler)
        there = self.ray.cluster_resources()
        self.needs = resources_per_worker(there.get("CPU", 1), there.get("GPU", 0), workers)

    def start(self, command: Sequence[str], log: Path, slot: int) -> Job:
        threads, cards = self.needs
        keeper = self.ray.remote(CommandActor).options(num_cpus=threads, num_gpus=cards, max_restarts=0)
        return RayJob(self.ray, keeper.remote(list(command), str(log.absolute()), os.getcwd()))

    def close(self) -> None:
        self.ray.shutdown()


def check_reachable(address: str) -> None:
    """Raises RunError where nobody listens at HOST:PORT; Ray itself would ask for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER).close()
    except (OSError, OverflowError) as error:
        raise no_cluster_error(address, error) from None


def no_cluster_error(address: str, error: Exception) -> RunError:
    """No cluster is where one was told to be."""
    fix = "start one with `ray start --head` and write its address, `--ray auto` for the one here, or `--ray local`"
    return RunError.of(f"no Ray cluster answers at `{address}`: {error}", fix)


def resources_per_worker(processors: float, cards: float, workers: int) -> tuple[int, float]:
    """The processors and graphics cards of one worker; where there are fewer cards than workers, they are shared."""
    own = cards // workers if cards >= workers else cards / workers
    return max(1, int(processors // workers)), own


def import_ray() -> Any:
    """Ray, or RunError with what to install."""
    try:
        import ray
    except ImportError:
        raise RunError.of("Ray is not installed", "`pip install 'seqcomposer[ray]'`, or leave `--ray` away") from None
    return ray


RETRIES = 2
"""How often one trial's worker is started again after it was killed."""
KILLED = (130, 137, 143)
"""Exit statuses of a training that somebody else has ended; a negative one says the same."""
PATIENCE = 300.0
"""Seconds that a training has to write its checkpoint when it is told to end."""
TAIL = 12
"""Lines that are kept of what a failed training has printed."""


class TrialRunner:
    """Trains one trial in one slot. `settings` are laid over its recipe, beside the seed."""

    def __init__(
        self,
        study: Study,
        crew: WorkerPool,
        asked: Suggestion,
        trial: Trial,
        slot: int,
        settings: Sequence[str],
        data: Path,
    ) -> None:
        self.study, self.crew, self.asked, self.slot = study, crew, asked, slot
        self.settings, self.data = settings, data
        self.trial = trial
        self.seeds, self.goal = study.sweep.seeds, study.sweep.rank[0]
        self.seed = self.seeds[0]
        self.job: Job | None = None
        self.kills, self.read, self.told = 0, -1, math.inf

    def look(self) -> Trial:
        """Looks once at what goes on, does what is to be done next, and returns the trial as it now is."""
        if self.job is None:
            self.begin()
            return self.trial
        status = self.job.poll()
        if status is None:
            self.watch(self.job)
        else:
            self.job = None
            self.over(status)
        return self.trial

    def begin(self) -> None:
        """Starts the next seed; waits where the worker of a sweep that was killed has not ended yet."""
        self.trial = replace(self.trial, seeds=read_run_records(self.trial.folder))
        left = [seed for seed in self.seeds if self.trial.seeds.get(seed, {}).get("status") != "finished"]
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif not left:
            self.conclude()
        elif not is_locked(self.trial.run(left[0])):
            self.seed = left[0]
            told = [f"training.seed={self.seed}", *self.settings]
            command = train_command(self.trial.recipe, self.trial.run(self.seed), told, self.data)
            self.job = self.crew.start(command, self.trial.log(self.seed), self.slot)

    def watch(self, job: Job) -> None:
        """Tells the study how the first seed does, and the training to end if the study says so."""
        if self.trial.pruned_at is not None:
            if time.monotonic() - self.told > PATIENCE:
                job.stop(signal.SIGKILL)
        elif (step := self.report()) is not None:
            self.trial = replace(self.trial, pruned_at=step)
            write_trial(self.trial)  # before anybody hears of it: what is decided stays so
            self.told = time.monotonic()
            job.stop(signal.SIGTERM)

    def report(self) -> int | None:
        """Tells new scores of the first seed to the study; the step at which the trial shall end, if it shall."""
        file = RunDir(self.trial.run(self.seed)).metrics
        size = file.stat().st_size if self.seed == self.seeds[0] and file.exists() else -1
        if size == self.read:
            return None
        self.read = size
        return self.study.report(self.asked, scores_by_step(file, self.goal.metric))

    def over(self, status: int) -> None:
        """What comes after a training that ended."""
        if self.trial.pruned_at is not None:
            self.end("pruned")
        elif status == 0:
            self.report()  # the last rows; it is too late to end it
            self.kills = 0
            self.begin()
        elif status < 0 or status in KILLED:
            self.kills += 1
            if self.kills > RETRIES:
                self.end(
                    "failed",
                    error=f"its training was killed {self.kills} times, the last time by {signal_name(status)}",
                )
        else:
            self.end("failed", error=error_excerpt(self.trial.log(self.seed), status))

    def conclude(self) -> None:
        """All seeds have finished."""
        found = {seed: final_score(self.trial, seed, self.goal.metric) for seed in self.seeds}
        values = [value for value in found.values() if value is not None and math.isfinite(value)]
        if len(values) == len(found):
            self.end("finished", value=fmean(values))
            return
        missing = [str(seed) for seed, value in found.items() if value is None or not math.isfinite(value)]
        there = sorted({name for record in self.trial.seeds.values() for name in record.get("scores", {})})
        self.end(
            "failed",
            error=f"no `{self.goal.metric}` was logged with seed {', '.join(missing)}; what was: {', '.join(there)}",
        )

    def end(self, status: Status, value: float | None = None, error: str | None = None) -> None:
        """Writes how the trial ended, and then tells the study: a kill in between is made good from what is written."""
        self.trial = replace(
            self.trial, status=status, value=value, error=error, seeds=read_run_records(self.trial.folder)
        )
        write_trial(self.trial)
        self.study.tell(self.asked.number, self.trial)

    def stop(self, number: int) -> None:
        """Sends a signal to the training, if there is one."""
        if self.job is not None:
            self.job.stop(number)

    def has_stopped(self) -> bool:
        """Whether no training of this trial runs any more."""
        return self.job is None or self.job.poll() is not None


def scores_by_step(file: Path, metric: str) -> Mapping[int, float]:
    """The validations in a metrics.jsonl by their step; what is no number there is none here."""
    rows = read_metrics(file)
    return {row["step"]: math.nan if row[metric] is None else float(row[metric]) for row in rows if metric in row}


def signal_name(status: int) -> str:
    """The signal that ended a process."""
    number = -status if status < 0 else status - 128
    return signal.Signals(number).name if number in list(signal.Signals) else f"exit status {status}"


def error_excerpt(log: Path, status: int) -> str:
    """What a training said before it failed, the most telling line first."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-TAIL:]
    if not lines:
        return f"its training ended with exit status {status} and said nothing"
    first = next((number for number, line in enumerate(lines) if "error[" in line), None)
    return "\n".join(lines[first:] if first is not None else [lines[-1], *lines[:-1]])
