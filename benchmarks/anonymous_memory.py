"""Memory of this process that no file backs. Linux only."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def status_bytes(field: str) -> int:
    """Return a size of /proc/self/status in bytes: RssAnon now, VmHWM the peak with mapped files.

    The peak of `resource.getrusage` may be that of the parent.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024


class Peak:
    """The most bytes that no file backed, while it was watched."""

    bytes = 0


@contextmanager
def watch_memory() -> Iterator[Peak]:
    """Look at the memory every 20 ms."""
    peak, is_over = Peak(), threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            peak.bytes = max(peak.bytes, status_bytes("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        is_over.set()
        watcher.join()
