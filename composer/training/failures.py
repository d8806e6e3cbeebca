"""How a training that did not finish is recorded and explained: interrupts, full disks, memory."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from composer.errors import RunError, RunFailed, os_error_hint, os_error_reason
from composer.model.weights import is_out_of_memory
from composer.run_dir import OTHER_RUN, utc_now
from composer.training.checkpointing import restore_error
from composer.training.distributed import (
    RESUME_HINT,
    PeerLost,
    TrainingInterrupted,
    is_main_process,
)
from composer.training.setup import TrainingSetup


@contextmanager
def recorded_failure(training: TrainingSetup) -> Iterator[None]:
    """Record in run.json how a training that did not finish has ended, and explain it."""
    try:
        yield
    except TrainingInterrupted as interrupt:
        if not is_main_process():
            # the main process says how it ended; this one must not look like a crash
            raise SystemExit(0) from None
        record_end(training, "interrupted")
        training.display.say(describe_interrupt(training))
        if interrupt.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise SystemExit(128 + interrupt.number) from None
    except PeerLost:
        record_end(training, "failed")
        raise
    except (KeyboardInterrupt, SystemExit):
        record_end(training, "interrupted")
        raise
    except BaseException as error:
        record_end(training, "failed")
        explained = explain_failure(error, training)
        if explained is None:
            raise
        raise explained from error


def record_end(training: TrainingSetup, status: str) -> None:
    """End the log of metrics and write the status into run.json, as far as the disk lets it."""
    if training.loop.logger is not None:
        training.loop.logger.close(1)
    if is_main_process():
        with suppress(OSError, RunError):
            record = training.run_dir.read()
            training.run_dir.write(replace(record, status=status, ended_at=utc_now()))


def describe_interrupt(training: TrainingSetup) -> str:
    """Return in words that a training has stopped between two steps, and how it goes on."""
    command = f"`--resume --run {shlex.quote(str(training.run_dir.path))}`"
    return (
        f"stopped at step {training.loop.progress.step:,}, everything is saved; the same command"
        f" with {command} resumes it; with `--finish` in place of `--resume` it ends with the best"
        " weights so far"
    )


def explain_failure(error: BaseException, training: TrainingSetup) -> RunFailed | RunError | None:
    """Return the error of a full disk, too little memory or a checkpoint; None for others."""
    if isinstance(error, OSError):
        fix = f"{os_error_hint(error)}, or take another with {OTHER_RUN}; {RESUME_HINT}"
        path = str(error.filename or training.run_dir.path)
        return RunFailed.of(os_error_reason(error), fix, path)
    if is_out_of_memory(error):
        return memory_error(training)
    checkpoint = training.start.checkpoint
    return restore_error(error, checkpoint) if checkpoint else None


def memory_error(training: TrainingSetup) -> RunFailed:
    """Return the error of a batch that did not fit into memory."""
    section = training.recipe.training
    batch = training.module.last_batch
    shapes = []
    for side, ids in {**batch.get("sources", {}), "target": batch.get("target_in")}.items():
        if ids is not None:
            shapes.append(f"{side} {ids.shape[0]} x {ids.shape[1]}")
    shape = ", ".join(shapes) or "unknown shape"
    cause = (
        f"out of memory on a batch of {shape} with `tokens_per_batch` {section.tokens_per_batch}"
    )
    same = f"`training.accumulate={2 * section.accumulate}`"
    smaller = f"`training.tokens_per_batch={max(1, section.tokens_per_batch // 2)}`"
    fix = (
        f"begin a new run with {same}, which computes the same updates in less memory, or with"
        f" {smaller}; `--from RUN` starts it from the weights of this one"
    )
    return RunFailed.of(cause, fix, str(training.run_dir.path))
