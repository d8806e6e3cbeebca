"""Freed memory of this process: kept for the next step, or given back to the system."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from contextlib import suppress
from pathlib import Path


@functools.cache
def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory, since the next step asks for it again."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(-3, (1 << 31) - 1)  # M_MMAP_THRESHOLD
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
        mallopt(-2, 64 << 20)  # M_TOP_PAD


def trim_if_doubled(before: int) -> int:
    """Give freed memory back if the process has doubled since `before`; return the next `before`.

    Batches of many shapes leave holes that add up. before: 0 at first, and after a trim.
    """
    now = resident_memory()
    if not before or now <= 2 * before:
        return before or now
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return 0


def resident_memory() -> int:
    """Return the bytes of this process in memory; 0 if the system does not say."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    return 0
