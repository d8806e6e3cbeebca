"""`python -m composer`: the command line."""

from __future__ import annotations

import sys
from pathlib import Path

# Python looks into the current folder first, and this program does not, unless it is installed
# there
if (
    not sys.flags.safe_path
    and sys.path
    and Path(sys.path[0]).resolve() != Path(__file__).resolve().parents[1]
):
    del sys.path[0]

from composer.cli.main import main

if __name__ == "__main__":
    main()
