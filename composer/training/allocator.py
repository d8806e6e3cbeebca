"""The C library's memory, told to keep what a training step frees: the next step asks for it again."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGE = (1 << 31) - 1


def keep_freed_memory() -> None:
    """Has glibc give freed memory back neither at once nor page by page. Does nothing elsewhere."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, LARGE)
        mallopt(M_TOP_PAD, 64 << 20)
