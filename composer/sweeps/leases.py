"""Leases on trials, kept by the file system, so that workers need not know each other.

A trial's folder has a file for each worker that has held it, `lease-1`, `lease-2` and so on; the
last one counts. A worker claims a trial by creating the next file, which only one of several can
do, on shared file systems too, once the last has expired. The holder renews its lease while it
trains, and has lost it if there is a later one.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from composer.atomic_io import parse_json, temporary_sibling

EXPIRES = 60.0
"""Seconds without a renewal until a lease expires, a few times the delay of a file system."""
RENEWED_EVERY = 5.0
"""Seconds between two renewals."""
JOIN_SECONDS = 5.0
"""Seconds to wait for a renewal under way before a lease is released."""
RELEASED = 0.0
"""The time of renewal of a released lease."""


class Lease:
    """A worker's lease on a trial, which a thread renews until it is released or lost."""

    def __init__(self, file: Path) -> None:
        self.file, self._is_lost = file, False
        self._renewed = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew_on_time, daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """True if another worker may hold the trial, so that this one must stop training it."""
        return self._is_lost or time.monotonic() - self._renewed > EXPIRES

    def renew(self) -> bool:
        """Renew the lease; return True if this worker still holds the trial."""
        try:
            os.utime(self.file)
            is_last = _leases(self.file.parent)[-1:] == [self.file]
        except FileNotFoundError:  # somebody has removed the trial
            return False
        except OSError:  # a file system that does not answer may do so at the next call
            return not self.is_lost
        self._renewed = time.monotonic()
        return is_last

    def release(self) -> None:
        """Release the trial: any worker may claim it at once."""
        self._is_over.set()
        self._thread.join(JOIN_SECONDS)  # a renewal that is under way would take it back
        if not self.is_lost:
            with suppress(OSError):
                os.utime(self.file, (RELEASED, RELEASED))

    def _renew_on_time(self) -> None:
        while not self._is_over.wait(RENEWED_EVERY) and not self.is_lost:
            self._is_lost = not self.renew()


def claim(folder: Path) -> Lease | None:
    """Claim the trial in a folder, which is made if missing; None if another worker has it."""
    folder.mkdir(parents=True, exist_ok=True)
    leases = _leases(folder)
    if leases and not is_expired(leases[-1]):
        return None
    file = folder / f"lease-{_number(leases[-1]) + 1 if leases else 1}"
    process = os.getpid()
    worker = {"machine": _machine(), "process": process, "started": _start_of(process)}
    try:
        with file.open("x", encoding="utf-8") as new:
            json.dump(worker, new)
    except FileExistsError:  # another worker was quicker
        return None
    return Lease(file)


def is_claimed(folder: Path) -> bool:
    """True if a worker holds the trial in a folder."""
    leases = _leases(folder)
    return bool(leases) and not is_expired(leases[-1])


def num_claims(folder: Path) -> int:
    """Return the number of workers that have held the trial in a folder."""
    return len(_leases(folder))


def is_expired(lease: Path) -> bool:
    """True if a lease was not renewed in time, or its worker on this machine is gone.

    Its age is by the clock of the file system, which may not be this machine's.
    """
    try:
        renewed = lease.stat().st_mtime
        if renewed == RELEASED or _is_gone(lease.read_text(encoding="utf-8")):
            return True
    except FileNotFoundError:
        return True
    except OSError:  # a file system that does not answer may do so the next time
        return False
    # asking the file system for its time writes a file, so this machine's clock is asked first
    return abs(time.time() - renewed) > EXPIRES / 2 and _time_at(lease.parent) - renewed > EXPIRES


def _is_gone(text: str) -> bool:
    try:
        worker = parse_json(text)
        if worker["machine"] != _machine() or worker["started"] is None:
            return False
        return bool(_start_of(worker["process"]) != worker["started"])
    except (ValueError, KeyError, TypeError):  # it is being written
        return False


@cache
def _machine() -> list[str]:
    """Return the scope of a process number; host names alone may be shared by containers."""
    own = [socket.gethostname()]
    with suppress(OSError):
        own += [
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"),
            os.readlink("/proc/self/ns/pid"),
        ]
    return own


def _start_of(process: int) -> int | None:
    """Return the start time of a process in ticks since boot, or None if unknown."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        # the name, in parentheses, may have any character; 20 fields after it is the time
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _time_at(folder: Path) -> float:
    """Return the time on the clock of a folder's file system."""
    probe = temporary_sibling(folder / "time")
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:  # a reader without write permission claims nothing
        return time.time()
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)


def _leases(folder: Path) -> list[Path]:
    leases = [path for path in folder.glob("lease-*") if path.name[6:].isdecimal()]
    return sorted(leases, key=_number)


def _number(lease: Path) -> int:
    return int(lease.name.removeprefix("lease-"))
