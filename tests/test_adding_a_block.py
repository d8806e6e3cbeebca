"""The guide "Adding a block" of ARCHITECTURE.md, followed to the letter in a copy of the checkout,
breaks nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDE = (
    (ROOT / "ARCHITECTURE.md")
    .read_text(encoding="utf-8")
    .partition("## Adding a block\n")[2]
    .partition("\n## ")[0]
)
LISTINGS = dict(re.findall(r"`([\w/]+\.py)`[^`]*?:[^`]*?```python\n(.*?)```", GUIDE, re.DOTALL))
MUST_PASS = [
    "tests/test_house.py",
    "tests/blocks/test_shift.py",
    "tests/laws/test_blocks.py::test_variants_are_of_blocks_that_exist",
    "tests/laws/test_blocks.py::test_a_block_keeps_every_law[shift]",
    "tests/laws/test_random_stacks.py::test_random_stacks_satisfy_the_laws[15]",
    "tests/recipe/test_schema.py",
    "tests/recipe/test_python.py::test_every_block_is_a_function_with_its_signature_and_its_page",
    "tests/docs/test_pages.py::test_every_example_of_a_block_is_accepted",
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's files, with the two listings of the guide written into it."""
    folder = tmp_path_factory.mktemp("clone")
    # a recipe may extend others of its repository
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    for name, text in LISTINGS.items():
        (folder / name).write_text(text, encoding="utf-8")
    run_in(folder, "-m", "composer.cli.main", "schema", "--write")
    return folder


def run_in(folder: Path, *arguments: str) -> None:
    """Run Python in a copy of the checkout, which is imported in place of this one; fail with its
    output.
    """
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def test_the_guide_lists_one_file_and_one_test() -> None:
    assert list(LISTINGS) == ["blocks/shift.py", "tests/blocks/test_shift.py"]


@pytest.mark.slow
def test_the_guide_followed_to_the_letter_passes_the_tests(clone: Path) -> None:
    run_in(clone, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *MUST_PASS)
