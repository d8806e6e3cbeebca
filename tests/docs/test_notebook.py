"""The notebook runs from top to bottom, and its outputs agree with its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

FILE = Path(__file__).parents[2] / "docs" / "notebooks" / "recipe_to_picture.ipynb"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    notebook = nbformat.read(FILE, 4)
    place = {"metadata": {"path": str(tmp_path_factory.mktemp("notebook"))}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def output_of(cells: list[Any], source: str, kind: str = "text/plain") -> str:
    """Return the output of the only cell whose source has this text."""
    (cell,) = (cell for cell in cells if source in cell.source)
    return "".join(cell.get("text", "") or cell.get("data", {}).get(kind, "") for cell in cell.outputs)


def test_the_notebook_is_stored_without_outputs() -> None:
    notebook = nbformat.read(FILE, 4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


@pytest.mark.slow
def test_every_output_agrees_with_the_text(cells: list[Any]) -> None:
    assert output_of(cells, "composer.check(attention)") == "[]"
    assert "fix: write `heads: 4`" in output_of(cells, "heads=5")
    assert output_of(cells, "composer.draw(attention)", "text/html").startswith("<svg")
    assert "'e d c b a'" in output_of(cells, "run.translate(")
    assert output_of(cells, "run.alignments(", "text/html").startswith("<iframe")
    assert "removed cross_attention" in output_of(cells, "composer.diff(attention, one_vector)")
    assert output_of(cells, "classes.read(file).model").startswith("Model(")
