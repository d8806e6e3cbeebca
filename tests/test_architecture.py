"""What ARCHITECTURE.md shows is true: its example block keeps the laws, and its example test
passes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import blocks

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"`([\w/]+\.py)`[^`]*?:[^`]*?```python\n(.*?)```", TEXT, re.DOTALL))


@pytest.fixture(scope="module")
def example() -> dict[str, object]:
    """The names of the example test, with the example block in the place that the document gives
    it.
    """
    name = "blocks.shift"
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(EXAMPLES["blocks/shift.py"], "ARCHITECTURE.md", "exec"), module.__dict__)
    blocks.shift = module  # type: ignore[attr-defined]
    names: dict[str, object] = {}
    exec(compile(EXAMPLES["tests/blocks/test_shift.py"], "ARCHITECTURE.md", "exec"), names)
    yield names
    del sys.modules[name], blocks.shift  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["test_laws", "test_equation"])
def test_the_tests_of_the_example_pass(example: dict[str, object], name: str) -> None:
    example[name]()  # type: ignore[operator]


def test_every_file_that_is_named_is_there() -> None:
    decisions = [page.read_text(encoding="utf-8") for page in ROOT.glob("docs/decisions/*.md")]
    named = re.findall(r"[\w./]+\.(?:py|json|yaml)\b", "\n".join([TEXT, *decisions]))
    there = {path.name for path in ROOT.rglob("*") if not {".venv", ".git"} & set(path.parts)}
    example = {"file.yaml", "shift.py", "test_shift.py"}
    written = {"run.json", "tokenizer.json", "aliases.json"}
    assert {Path(item).name for item in named} - there <= example | written
