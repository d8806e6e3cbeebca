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
from docs.hooks.corpus import GalleryRecipe, Results, gallery_recipes
from tests.samples import sampled


@pytest.mark.slow
def test_the_site(tmp_path: Path) -> None:
    """One build for all checks. Every warning is an error, so all links and anchors are right."""
    build_site(tmp_path)
    check_every_block_and_every_recipe_has_a_page(tmp_path)
    check_a_link_to_a_recipe_leads_to_its_page(tmp_path)
    check_a_link_to_a_file_of_the_repository_is_its_content_on_the_site(tmp_path)
    check_nothing_is_loaded_from_other_hosts(tmp_path)
    check_included_sections_are_there(tmp_path)
    check_scores_name_their_runs_and_split(tmp_path)


def build_site(target: Path) -> None:
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


def check_every_block_and_every_recipe_has_a_page(site: Path) -> None:
    blocks = {path.stem for path in ROOT.glob("blocks/[a-z]*.py")}
    assert {path.stem for path in site.glob("blocks/*.html")} == blocks | {"index"}
    pages = {page.relative_to(site / "gallery").stem for page in site.glob("gallery/**/*.html")}
    assert pages == {recipe.stem for recipe in list_recipes()}


def check_a_link_to_a_recipe_leads_to_its_page(site: Path) -> None:
    for page in ("blocks/rnn.html", "recipes.html"):
        text = (site / page).read_text(encoding="utf-8")
        assert 'gallery/papers/bahdanau2015.html"' in text
        assert 'bahdanau2015.yaml"' not in text


def check_a_link_to_a_file_of_the_repository_is_its_content_on_the_site(site: Path) -> None:
    page = (site / "blocks/rnn.html").read_text(encoding="utf-8")
    assert "<summary>blocks/rnn.py</summary>" in page
    assert "class Rnn(" in re.sub(r"<[^>]+>", "", page)


def check_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    loads = re.compile(
        r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="http'
    )
    for path in site.rglob("*.html"):
        assert not loads.search(path.read_text(encoding="utf-8")), path


def check_included_sections_are_there(site: Path) -> None:
    page = (site / "extending.html").read_text(encoding="utf-8")
    assert "class Shift(Block):" in re.sub(r"<[^>]+>", "", page)
    assert "<!-- from" not in page


def check_scores_name_their_runs_and_split(site: Path) -> None:
    page = (site / "gallery/quickstart.html").read_text(encoding="utf-8")
    assert "exact match" in page
    assert "Collected from the run folders" in page
    assert "Not run." in (site / "gallery/papers/vaswani2017_big.html").read_text(encoding="utf-8")


COMMAND = "run `python -m docs.hooks.pages`, and commit what it writes"


def test_the_pages_of_blocks_are_current() -> None:
    pages = generated_pages.pages_of_code()
    blocks = {name: text for name, text in pages.items() if name.startswith("blocks/")}
    assert {name for name, text in blocks.items() if read_page(name) != text} == set(), COMMAND
    files = {f"blocks/{path.name}" for path in (ROOT / "docs/blocks").iterdir()}
    assert files == set(blocks), COMMAND


def test_the_list_of_recipes_is_current_but_for_their_parameters() -> None:
    parameters = dict.fromkeys((recipe.slug for recipe in gallery_recipes()), 0)
    page = gallery.list_page(parameters)
    assert without_parameters(read_page("recipes.md")) == without_parameters(page), COMMAND


def without_parameters(page: str) -> str:
    return re.sub(r" \| [^|]+ \| ([^|]+) \|$", r" | \1 |", page, flags=re.MULTILINE)


@pytest.mark.parametrize("path", sampled([*list_recipes()], 2, slow=50), ids=lambda path: path.stem)
def test_the_parameters_of_a_recipe_are_current(path: Path) -> None:
    recipe = GalleryRecipe(path, composer.load(path))
    row = gallery.list_row(recipe, recipe.recipe.plan().parameters)
    assert " | ".join(row) in read_page("recipes.md"), COMMAND


def read_page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_test_scores_come_before_validation_scores() -> None:
    validated = {
        "seed": 1,
        "steps": 5,
        "minutes": 1.0,
        "command": "seqcomposer train a.yaml training.max_minutes=1",
        "commit": None,
        "scores": {"val/bleu": 11.0},
        "versions": {},
        "ended": "2026-01-01",
        "fingerprints": {"run": "0" * 64},
        "parameters": 7,
        "pairs": {},
    }
    tested = {
        **validated,
        "command": "seqcomposer train a.yaml training.max_minutes=2",
        "scores": {"val/bleu": 22.0, "test/bleu": 33.0},
    }
    tables = gallery.score_tables(Results([validated, tested], is_current=True))
    assert (
        tables.index("the test data")
        < tables.index("33")
        < tables.index("the validation data")
        < tables.index("11")
    )
    assert "22" not in tables
    assert "in brackets" not in tables
    assert "changed since" not in tables
    assert "changed since" in gallery.score_tables(Results([tested], is_current=False))
