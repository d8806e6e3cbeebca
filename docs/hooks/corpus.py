"""The recipes of this repository as the gallery shows them: loaded and costed once, with the scores
of their runs.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import composer
from benchmarks.results import is_current, list_recipes, read_results
from composer.recipe.recipe import Recipe
from composer.viz.architecture import Drawing
from composer.viz.architecture_graph import build_graph

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
CACHE = ROOT / ".cache/architectures.json"
COST_CODE = (
    "blocks/**/*.py",
    "composer/checks/planner.py",
    "composer/model/costs.py",
    "composer/model/builder.py",
    "composer/model/encoder_decoder.py",
    "composer/viz/architecture*.py",
    "composer/viz/edge_routing.py",
    "composer/viz/templates/architecture.svg",
)
"""Code that a recipe's cost and drawing depend on."""
FOLDERS = (
    "quickstart",
    "papers",
    "domhan",
    "ladder",
    "multi30k",
    "active_memory",
    "algorithms",
    "stacks",
    "memory",
    "babi",
    "dialect",
    "pictures",
)
"""Folders of recipes in the order of the gallery."""


@dataclass(frozen=True)
class GalleryRecipe:
    """A recipe of the gallery: its file, and the loaded recipe."""

    path: Path
    recipe: Recipe

    @property
    def slug(self) -> str:
        """The path below recipes/ without suffix: `papers/bahdanau2015`."""
        return self.path.relative_to(RECIPES).with_suffix("").as_posix()

    @property
    def folder(self) -> str:
        """The folder below recipes/, or the recipe's own name."""
        return self.slug.split("/")[0]

    @property
    def text(self) -> str:
        """The text of the file, without the line for editors."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return "\n".join(line for line in lines if not line.startswith("# yaml-language-server"))

    @property
    def description(self) -> str:
        """The comment at the top, as prose."""
        comment = re.match(r"(?:#.*\n)*", self.text + "\n")
        assert comment is not None
        return " ".join(
            line.lstrip("# ").strip() for line in comment[0].splitlines() if line.strip("# ")
        )

    @property
    def extends(self) -> tuple[Path, ...]:
        """The files that the recipe extends."""
        line = re.search(r"^extends:\s*(.+)$", self.text, re.MULTILINE)
        names = re.findall(r"[\w./-]+\.yaml", line[1]) if line else []
        return tuple((self.path.parent / name).resolve() for name in names)


@cache
def gallery_recipes() -> tuple[GalleryRecipe, ...]:
    """Return every recipe that can be run as it is, in the order of the gallery."""
    recipes = (GalleryRecipe(path, composer.load(path)) for path in list_recipes())
    return tuple(sorted(recipes, key=lambda recipe: (folder_order(recipe.folder), recipe.slug)))


def folder_order(folder: str) -> tuple[int, str]:
    """Return the sort key of a folder: those in FOLDERS first."""
    return FOLDERS.index(folder) if folder in FOLDERS else len(FOLDERS), folder


def find_blocks(value: Any, known: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield every block of a model, canonical or as written: its name and its item."""
    if isinstance(value, list):
        for item in value:
            if isinstance(item, str) and item in known:
                yield item, item
            elif isinstance(item, Mapping) and len(item) == 1 and next(iter(item)) in known:
                yield next(iter(item)), item
            yield from find_blocks(item, known)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from find_blocks(item, known)


def model_stacks(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a model that hold blocks."""
    return {key: model[key] for key in ("encoder", "encoders", "decoder", "stacks") if key in model}


# ------------------------------------------------------------------------------------------- costs


class Cost(NamedTuple):
    """The plan of a recipe, and its drawing."""

    parameters: int
    flops: int
    state_bytes: int
    svg: str


def compute_costs() -> dict[str, Cost]:
    """Return the cost of each recipe by its slug, cached by code and fingerprints."""
    cache = json.loads(CACHE.read_text(encoding="utf-8")) if CACHE.exists() else {}
    code = cost_code_sha256()
    keys = {recipe.slug: cache_key(recipe, code) for recipe in gallery_recipes()}
    costs = {}
    for recipe in gallery_recipes():
        cached = cache.get(keys[recipe.slug])
        costs[recipe.slug] = Cost(*cached) if cached else compute_cost(recipe.recipe)
    CACHE.parent.mkdir(exist_ok=True)
    CACHE.write_text(
        json.dumps({keys[slug]: cost for slug, cost in costs.items()}), encoding="utf-8"
    )
    return costs


def cost_code_sha256() -> str:
    """Return the SHA-256 of the code that costs depend on."""
    files = sorted(path for pattern in COST_CODE for path in ROOT.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def cache_key(recipe: GalleryRecipe, code: str) -> str:
    """Return the key of a recipe's cached cost and drawing, which depend on its data."""
    fingerprints = recipe.recipe.fingerprints
    return hashlib.sha256(
        f"{code}{recipe.slug}{fingerprints['model']}{fingerprints['data']}".encode()
    ).hexdigest()


def compute_cost(recipe: Recipe) -> Cost:
    """Plan and draw a recipe."""
    plan = recipe.plan()
    return Cost(
        plan.parameters, plan.flops, plan.state_bytes, Drawing(build_graph(recipe, plan)).svg()
    )


# -------------------------------------------------------------------------------------------
# results


Run = Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """The runs of a recipe. is_current: Whether the recipe has not changed since."""

    runs: Sequence[Run]
    is_current: bool


@cache
def load_results() -> dict[str, Results]:
    """Return the runs in docs/results by the slug of their recipe."""
    results = {}
    for recipe in gallery_recipes():
        entry = read_results(recipe.path)
        if entry is not None:
            results[recipe.slug] = Results(entry["runs"], is_current(recipe.recipe, entry))
    return results


def measured_page(slug: str) -> str:
    """Return the journal that names a recipe by its path or by a distinctive name, "" if none does.

    A journal in which a line names it and says `not run` has not measured it.
    """
    folder, _, name = slug.rpartition("/")
    for page in sorted((ROOT / "docs/journal").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        is_named = slug in text or (
            "_" in name and f"{folder}/" in text and re.search(rf"\b{name}\b", text)
        )
        if is_named and not re.search(rf"\b{name}\b.*\bnot run\b", text):
            return page.name
    return ""
