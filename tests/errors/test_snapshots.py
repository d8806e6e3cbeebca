"""What is said of broken recipes is what was said: code and place, and every word of message and
fix.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.errors.snapshots import FILES, faults_of, meaning, read

SHOWN = 5
"""Cases of a file that are shown."""

CASES = [
    pytest.param(file, marks=pytest.mark.slow if file.stem.endswith("_slow") else ())
    for file in FILES
]
"""Models are built for some: most of these are slow."""


@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_faults_have_their_codes_places_and_words(file: Path, tmp_path: Path) -> None:
    found = [(case, faults_of(case["recipe"], tmp_path)) for case in read(file)]
    others = [
        f"{case['recipe']}\n    was {meaning(case['faults'])} and is {meaning(faults)}"
        for case, faults in found
        if meaning(faults) != meaning(case["faults"])
    ]
    assert not others, f"{len(others)} recipes have another code or place:\n" + "\n".join(
        others[:SHOWN]
    )
    reworded = [
        f"{case['recipe']}\n    was {before}\n    is  {now}"
        for case, faults in found
        for before, now in zip(case["faults"], faults, strict=True)
        if before != now
    ]
    advice = "only words differ; if they are meant: python -m tests.errors.update"
    assert not reworded, f"{len(reworded)} faults: {advice}\n" + "\n".join(reworded[:SHOWN])
