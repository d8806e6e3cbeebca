"""The notebook runs from its top to its end, and shows what its text promises."""

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


def shown(cells: list[Any], source: str, kind: str = "text/plain") -> str:
    """What the only cell that has this in its text shows."""
    (cell,) = (each for each in cells if source in each.source)
    return "".join(each.get("text", "") or each.get("data", {}).get(kind, "") for each in cell.outputs)


def test_it_is_kept_without_outputs() -> None:
    notebook = nbformat.read(FILE, 4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


@pytest.mark.slow
def test_every_step_shows_what_its_text_says(cells: list[Any]) -> None:
    assert shown(cells, "composer.check(attention)") == "[]"
    assert "fix: write `heads: 4`" in shown(cells, "heads=5")
    assert shown(cells, "composer.draw(attention)", "text/html").startswith("<svg")
    assert "'e d c b a'" in shown(cells, "run.translate(")
    assert shown(cells, "run.alignments(", "text/html").startswith("<iframe")
    assert "removed cross_attention" in shown(cells, "composer.diff(attention, one_vector)")
    assert shown(cells, "classes.read(file).model").startswith("Model(")
