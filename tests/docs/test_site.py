"""The site builds without warnings, has a page for every block and recipe, and loads nothing from
other hosts.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.fenced import ROOT

pytest.importorskip("material")
import composer
from benchmarks.results import list_recipes
from docs.hooks import gallery
from docs.hooks import pages as generated_pages
from docs.hooks.corpus import Cost, GalleryRecipe, compute_cost, gallery_recipes
from tests.samples import sampled


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site of the pages that are committed."""
    target = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(target),
    ]
    process = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return target


@pytest.mark.slow
def test_every_block_and_every_recipe_has_a_page(site: Path) -> None:
    blocks = {path.stem for path in ROOT.glob("blocks/[a-z]*.py")}
    assert {path.stem for path in site.glob("blocks/*.html")} == blocks | {"index"}
    recipes = {
        path
        for path in (ROOT / "recipes").rglob("*.yaml")
        if not {"fragments", "sweeps"} & set(path.parts)
    }
    pages = {
        path.relative_to(site / "gallery").with_suffix("").as_posix()
        for path in site.glob("gallery/**/*.html")
    }
    assert pages == {
        path.relative_to(ROOT / "recipes").with_suffix("").as_posix() for path in recipes
    } | {"index"}


COMMAND = "run `python -m docs.hooks.pages`, and commit what it writes"


def test_the_pages_of_blocks_commands_and_keys_are_current() -> None:
    pages = generated_pages.pages_of_code()
    assert {name for name, text in pages.items() if read_page(name) != text} == set(), COMMAND
    assert {name for name in committed_pages() if not name.startswith("gallery/")} == set(pages), (
        COMMAND
    )


@pytest.mark.slow
def test_the_pages_of_recipes_are_current_but_for_their_costs() -> None:
    costs = dict.fromkeys((recipe.slug for recipe in gallery_recipes()), Cost(0, 0, 0, ""))
    pages = {
        f"gallery/{it.slug}.md": gallery.recipe_page(it, costs[it.slug]) for it in gallery_recipes()
    }
    pages["gallery/index.md"] = gallery.index_page(costs)
    assert {
        name
        for name, text in pages.items()
        if without_costs(read_page(name)) != without_costs(text)
    } == set()
    drawings = {f"gallery/{slug}.svg" for slug in costs}
    assert {name for name in committed_pages() if name.startswith("gallery/")} == {
        *pages,
        *drawings,
    }, COMMAND


def without_costs(page: str | None) -> str:
    """A page of recipes without the line of its costs, and without two columns of the index."""
    page = re.sub(r"^.* parameters; .*FLOPs for a pair.*$", "", page or "", flags=re.MULTILINE)
    return re.sub(r"^(\| <img .*) \| .* \| .* \| (.*) \|$", r"\1 | \2 |", page, flags=re.MULTILINE)


@pytest.mark.parametrize("path", sampled([*list_recipes()], 0, slow=50), ids=lambda path: path.stem)
def test_the_cost_and_the_drawing_of_a_recipe_are_current(path: Path) -> None:
    recipe = GalleryRecipe(path, composer.load(path))
    cost = compute_cost(recipe.recipe)
    assert read_page(f"gallery/{recipe.slug}.svg") == cost.svg, COMMAND
    assert read_page(f"gallery/{recipe.slug}.md") == gallery.recipe_page(recipe, cost), COMMAND
    row = gallery.index_row(recipe, {recipe.slug: cost})
    assert " | ".join(row) in (read_page("gallery/index.md") or ""), COMMAND


def read_page(name: str) -> str | None:
    file = ROOT / "docs" / name
    return file.read_text(encoding="utf-8") if file.exists() else None


def committed_pages() -> set[str]:
    files = (
        path for folder in generated_pages.FOLDERS for path in (ROOT / "docs" / folder).rglob("*.*")
    )
    return {path.relative_to(ROOT / "docs").as_posix() for path in files}


@pytest.mark.slow
def test_a_link_to_a_file_of_the_repository_is_its_content_on_the_site(site: Path) -> None:
    page = (site / "blocks/rnn.html").read_text(encoding="utf-8")
    assert "<summary>blocks/rnn.py</summary>" in page
    assert "class Rnn(" in re.sub(r"<[^>]+>", "", page)


@pytest.mark.slow
def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loads = re.compile(
        r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="http'
    )
    for path in site.rglob("*.html"):
        assert not loads.search(path.read_text(encoding="utf-8")), path


@pytest.mark.slow
def test_included_sections_are_there(site: Path) -> None:
    page = (site / "extending.html").read_text(encoding="utf-8")
    assert "class Shift(Block):" in re.sub(r"<[^>]+>", "", page)
    assert "<!-- from" not in page


@pytest.mark.slow
def test_scores_name_their_runs_and_split(site: Path) -> None:
    page = (site / "gallery/quickstart.html").read_text(encoding="utf-8")
    assert "exact match" in page
    assert "Collected from the run folders" in page
    assert "Not run." in (site / "gallery/papers/vaswani2017_big.html").read_text(encoding="utf-8")


def test_test_scores_come_before_validation_scores() -> None:
    validated = {
        "seed": 1,
        "steps": 5,
        "minutes": 1.0,
        "differs": ["training.max_minutes=1"],
        "scores": {"val/bleu": 11.0},
        "versions": {},
        "ended": "2026-01-01",
        "fingerprints": {"run": "0" * 64},
        "parameters": 7,
        "pairs": {},
    }
    tested = {
        **validated,
        "differs": ["training.max_minutes=2"],
        "scores": {"val/bleu": 22.0, "test/bleu": 33.0},
    }
    tables = gallery.score_tables([validated, tested])
    assert (
        tables.index("the test data")
        < tables.index("33")
        < tables.index("the validation data")
        < tables.index("11")
    )
    assert "22" not in tables
    assert "in brackets" not in tables
