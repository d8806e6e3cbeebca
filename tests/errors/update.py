"""Write the snapshots of errors anew: `python -m tests.errors.update`.

Prints how many cases have other words, and each that has another code or another place: look
whether that is meant.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.errors.snapshots import FILES, faults_of, meaning, read, write


def main() -> None:
    for file in FILES:
        cases, reworded = read(file), 0
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                faults = faults_of(case["recipe"], Path(folder))
            before, now = meaning(case["faults"]), meaning(faults)
            reworded += faults != case["faults"] and before == now
            if before != now:
                print(f"{case['recipe']!r}\n    was {before} and is {now}")
            case["faults"] = faults
        write(file, cases)
        print(f"{file.name}: {reworded} of {len(cases)} cases have other words")


if __name__ == "__main__":
    main()
