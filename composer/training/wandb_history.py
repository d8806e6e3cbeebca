"""What W&B has of a run that is resumed: each segment of an offline run is a file of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from composer.processes.python import python_environment

SECONDS = 120.0
"""The longest that reading one file may take."""


def recorded_names(folder: Path, own: Path) -> Mapping[int, set[str]]:
    """Return the names that W&B has logged offline for each step of a run, by W&B's own reader.

    own: The folder of the segment that begins now. The last rows of a killed training are in no
    file, and of a damaged file what can be read counts. Raises OSError, ValueError and
    subprocess.SubprocessError.
    """
    names: defaultdict[int, set[str]] = defaultdict(set)
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    for file in (file for file in files if not file.parent.samefile(own)):
        command = [
            sys.executable,
            "-P",
            "-m",
            "wandb",
            "leet",
            "inspect",
            "--json",
            str(file.resolve()),
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            cwd=own,  # W&B takes settings from the folder that it starts in
            env=python_environment(os.environ),
        )
        for line in done.stdout.splitlines():
            record = json.loads(line) if '"type":"history"' in line else {}
            row = record.get("history", {}).get("item", {})
            if "step" in row:  # of a table `samples` there are `samples._type` and others
                names[int(row["step"])] |= {name.partition(".")[0] for name in row}
    return names
