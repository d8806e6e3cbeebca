"""The list of planted faults fits the code: each replaces words that are there, for a test there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from verify.planted_faults import FAULTS, Fault, main

HOME = Path(__file__).parents[2]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_its_file_and_names_a_test(fault: Fault) -> None:
    assert (HOME / fault.file).read_text(encoding="utf-8").count(fault.right) == 1
    file, _, name = fault.test.partition("::")
    tree = ast.parse((HOME / file).read_text(encoding="utf-8"))
    assert name.partition("[")[0] in [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef)
    ]


@pytest.mark.exhaustive
def test_every_planted_fault_is_caught() -> None:
    assert main([]) == 0
