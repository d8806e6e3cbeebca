"""The notebooks run from top to bottom, and are stored without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
RECIPE, OWN = FOLDER / "recipe_to_picture.ipynb", FOLDER / "own_block.ipynb"


def code_cells(file: Path) -> list[Any]:
    notebook = nbformat.read(file, 4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def executed(file: Path, folder: Path) -> list[Any]:
    """Return the code cells of a notebook that has been run."""
    notebook = nbformat.read(file, 4)
    place = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def output_of(cells: list[Any], source: str, kind: str = "text/plain") -> str:
    """Return the output of the only cell whose source has this text."""
    (cell,) = (cell for cell in cells if source in cell.source)
    return "".join(
        cell.get("text", "") or cell.get("data", {}).get(kind, "") for cell in cell.outputs
    )


@pytest.mark.parametrize("file", [RECIPE, OWN], ids=lambda file: file.stem)
def test_a_notebook_is_stored_without_outputs(file: Path) -> None:
    assert [cell.outputs for cell in code_cells(file) if cell.outputs] == []


@pytest.mark.slow
def test_from_a_recipe_to_a_picture(tmp_path: Path) -> None:
    cells = executed(RECIPE, tmp_path)
    assert output_of(cells, "composer.check(attention)") == "[]"
    assert "fix: write `heads: 4`" in output_of(cells, "heads=5")
    assert output_of(cells, "composer.draw(attention)", "text/html").startswith("<svg")
    assert "'e d c b a'" in output_of(cells, "run.translate(")
    assert output_of(cells, "run.alignments(", "text/html").startswith("<iframe")
    assert "removed cross_attention" in output_of(cells, "composer.diff(attention, one_vector)")
    assert "Adam(learning_rate=0.005" in output_of(cells, "composer.load(")


@pytest.mark.slow
def test_a_block_of_ones_own(tmp_path: Path) -> None:
    cells = executed(OWN, tmp_path)
    assert output_of(cells, 'check_block("shift"') == ""
    assert "invariant `chunks`: Forgetful()" in output_of(cells, "check_block(Forgetful")
    assert output_of(cells, "composer.check(recipe)") == "[]"
    assert "`past` takes a number, 0 or more and below 1" in output_of(
        cells, "composer.check(wrong)"
    )
    assert output_of(cells, "run.translate(") == "['a b c d', 'b a d g e']"
    assert "'from': 'a notebook:Shift'" in output_of(cells, "composer.train(recipe")
    assert "the block `shift` has another source" in output_of(
        cells, 'composer.open_run("shifted")'
    )
