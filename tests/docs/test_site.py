"""The site builds without a warning, has a page for all that there is, and fetches nothing from anywhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.fenced import ROOT

pytest.importorskip("material")
from docs.hooks import gallery


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as it is built, without the costs and pictures of the recipes, which take a minute."""
    target = tmp_path_factory.mktemp("site")
    told = {**os.environ, "DOCS_COSTS": "false", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def test_every_block_and_every_recipe_has_a_page(site: Path) -> None:
    blocks = {path.stem for path in ROOT.glob("blocks/[a-z]*.py")}
    assert {path.stem for path in site.glob("blocks/*.html")} == blocks | {"index"}
    recipes = {path for path in (ROOT / "recipes").rglob("*.yaml") if not {"fragments", "sweeps"} & set(path.parts)}
    pages = {path.relative_to(site / "gallery").with_suffix("").as_posix() for path in site.glob("gallery/**/*.html")}
    assert pages == {path.relative_to(ROOT / "recipes").with_suffix("").as_posix() for path in recipes} | {"index"}


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//|<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="http'
    )
    for path in site.rglob("*.html"):
        assert not loads.search(path.read_text(encoding="utf-8")), path


def test_what_is_included_is_there(site: Path) -> None:
    page = (site / "extending.html").read_text(encoding="utf-8")
    assert "class Shift(Block):" in re.sub(r"<[^>]+>", "", page)
    assert "<!-- from" not in page


def test_scores_are_those_of_runs_and_say_what_they_are_of(site: Path) -> None:
    page = (site / "gallery/quickstart.html").read_text(encoding="utf-8")
    assert "exact match" in page
    assert "Collected from the run folders" in page
    assert "Not run." in (site / "gallery/papers/vaswani2017_big.html").read_text(encoding="utf-8")


def test_a_run_that_was_tested_is_told_by_its_test() -> None:
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
    tested = {**validated, "differs": ["training.max_minutes=2"], "scores": {"val/bleu": 22.0, "test/bleu": 33.0}}
    told = gallery.score_tables([validated, tested])
    assert told.index("the test data") < told.index("33") < told.index("the validation data") < told.index("11")
    assert "22" not in told
    assert "seeds, and in brackets" not in told
