"""The one thread that decodes: PyTorch uses all cores by itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition, Thread
from time import monotonic

from composer.errors import BlockCodeErrors, error_of_code
from composer.formatting import count_noun
from composer.server.jobs import Job
from composer.server.measures import Measures
from composer.server.refusals import Refused
from composer.server.settings import Settings

END_SECONDS = 5.0
"""Seconds that the end of a server waits for a batch that nobody waits for."""


class Worker:
    """Decodes jobs in the order of their arrival, those of equal settings together.

    reserved: Places of requests that become jobs now.
    """

    def __init__(self, settings: Settings, measures: Measures) -> None:
        self.settings, self.measures = settings, measures
        self.waiting: deque[Job] = deque()
        self.reserved = 0
        self.changed = Condition()
        self.is_closed = False
        self.thread = Thread(target=self._work, name="decoding", daemon=True)
        self.thread.start()

    @contextmanager
    def reserve(self) -> Iterator[None]:
        """Keep a place while a request becomes a job. Raises Refused if there is none."""
        if self.reserved + len(self.waiting) >= self.settings.queue:
            message = f"the queue of {count_noun(self.settings.queue, 'request')} is full"
            raise Refused(503, "full", message, "try again in a second")
        self.reserved += 1
        try:
            yield
        finally:
            self.reserved -= 1

    def add(self, job: Job) -> None:
        """Let a job wait in the place that it had, at once."""
        with self.changed:
            self.waiting.append(job)
            self.changed.notify()

    def drop(self, job: Job) -> None:
        """Forget a job that nobody waits for; one that is answered stays so."""
        job.is_dropped = True
        job.answers.cancel()
        with self.changed:
            if job in self.waiting:
                self.waiting.remove(job)

    def close(self) -> bool:
        """End the thread; False if a batch still holds it."""
        with self.changed:
            self.is_closed = True
            self.changed.notify()
        self.thread.join(END_SECONDS)
        return not self.thread.is_alive()

    def _work(self) -> None:
        while jobs := self._next_batch():
            self._decode(jobs)

    def _next_batch(self) -> list[Job]:
        """Wait for a batch; return an empty one at the end."""
        with self.changed:
            while True:
                self.changed.wait_for(lambda: self.waiting or self.is_closed)
                if not self.waiting:
                    return []
                end = self.waiting[0].arrived + self.settings.wait_ms / 1000
                self.changed.wait_for(self._is_full, end - monotonic())
                batch = self._ready()
                for job in batch:
                    self.waiting.remove(job)
                if begun := [job for job in batch if job.answers.set_running_or_notify_cancel()]:
                    return begun

    def _is_full(self) -> bool:
        batch = self._ready()
        lines = sum(len(job.lines) for job in batch)
        is_alone = not batch or batch[0].batch is None
        return self.is_closed or is_alone or lines >= self.settings.batch_lines

    def _ready(self) -> list[Job]:
        """Return the jobs of the next batch: the first one and those like it."""
        batch: list[Job] = []
        lines = 0
        for job in self.waiting:
            is_like = bool(batch) and job.batch is not None and job.batch == batch[0].batch
            if not batch or (is_like and lines + len(job.lines) <= self.settings.batch_lines):
                batch.append(job)
                lines += len(job.lines)
        return batch

    def _decode(self, jobs: list[Job]) -> None:
        """Answer jobs together; where that fails, each alone, so that one hurts no other."""
        try:
            answers = jobs[0].decode(jobs)
            self.measures.add_batch(len(answers))
        except BlockCodeErrors as error:
            if len(jobs) == 1:
                if isinstance(error, SystemExit):  # raised in the server's loop, it would end it
                    error = RuntimeError(error_of_code(error))
                jobs[0].answers.set_exception(error)
                return
            for job in jobs:
                self._decode([job])
            return
        at = 0
        for job in jobs:
            job.answers.set_result(answers[at : at + len(job.lines)])
            at += len(job.lines)
