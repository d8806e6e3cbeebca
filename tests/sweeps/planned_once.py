"""For the server from which sweeps are forked: plan a model, and so import once what each of them
would.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from composer.sweeps.points import list_points
from composer.sweeps.spec import read_sweep
from tests.sweeps.stub_sweeps import rates, write_sweep

with tempfile.TemporaryDirectory() as folder:
    list_points(read_sweep(write_sweep(Path(folder), rates(0.1))))
