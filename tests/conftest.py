"""For all tests: one thread for each process, since pytest runs as many processes as there are cores."""

from __future__ import annotations

import os

# before anything imports torch
os.environ.setdefault("OMP_NUM_THREADS", "1")
