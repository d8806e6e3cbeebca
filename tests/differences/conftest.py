"""The runs with random weights that the tests of runs make."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "runs"))
