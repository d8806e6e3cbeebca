"""The recipes of this repository as the site shows them: read once, costed once, with what their runs have scored."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import composer
from benchmarks.results import recipes, still
from composer.recipe.recipe import Recipe
from composer.viz.architecture import Drawing
from composer.viz.architecture_graph import build_graph

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "recipes"
CACHE = ROOT / ".cache/architectures.json"
COSTING = (
    "blocks/**/*.py",
    "composer/model/planner.py",
    "composer/model/builder.py",
    "composer/model/encoder_decoder.py",
    "composer/viz/architecture*.py",
    "composer/viz/edge_routing.py",
    "composer/viz/templates/architecture.svg",
)
"""What decides what a recipe costs and how it is drawn, beside the recipe."""
FIRST = (
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
)
"""The folders of recipes in the order of the gallery."""


@dataclass(frozen=True)
class Shown:
    """A recipe of the gallery: where it stands below recipes/, its text and what it says of itself."""

    path: Path
    recipe: Recipe

    @property
    def place(self) -> str:
        """`papers/bahdanau2015`."""
        return self.path.relative_to(RECIPES).with_suffix("").as_posix()

    @property
    def chapter(self) -> str:
        """The folder that it stands in, or its own name."""
        return self.place.split("/")[0]

    @property
    def text(self) -> str:
        """The file, without the line for editors."""
        lines = self.path.read_text(encoding="utf-8").splitlines()
        return "\n".join(line for line in lines if not line.startswith("# yaml-language-server"))

    @property
    def about(self) -> str:
        """The comment at its head, as prose."""
        head = re.match(r"(?:#.*\n)*", self.text + "\n")
        assert head is not None
        return " ".join(line.lstrip("# ").strip() for line in head[0].splitlines() if line.strip("# "))

    @property
    def extends(self) -> tuple[Path, ...]:
        """The files that it extends, as it names them."""
        found = re.search(r"^extends:\s*(.+)$", self.text, re.MULTILINE)
        names = re.findall(r"[\w./-]+\.yaml", found[1]) if found else []
        return tuple((self.path.parent / name).resolve() for name in names)


@cache
def shown() -> tuple[Shown, ...]:
    """Every recipe that can be run as it is, in the order of the gallery."""
    found = (Shown(path, composer.load(path)) for path in recipes())
    return tuple(sorted(found, key=lambda each: (order(each.chapter), each.place)))


def order(chapter: str) -> tuple[int, str]:
    """Where a folder stands in the gallery: a new one comes last."""
    return FIRST.index(chapter) if chapter in FIRST else len(FIRST), chapter


def blocks_in(value: Any, known: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Every block of a frozen or written model: its name and what is written there."""
    if isinstance(value, list):
        for each in value:
            if isinstance(each, str) and each in known:
                yield each, each
            elif isinstance(each, Mapping) and len(each) == 1 and next(iter(each)) in known:
                yield next(iter(each)), each
            yield from blocks_in(each, known)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from blocks_in(each, known)


def stacks(model: Mapping[str, Any]) -> dict[str, Any]:
    """What of a model holds blocks."""
    return {key: model[key] for key in ("encoder", "encoders", "decoder", "stacks") if key in model}


# ------------------------------------------------------------------------------------------- costs


class Cost(NamedTuple):
    """What is planned of a recipe, and its picture."""

    parameters: int
    flops: int
    state_bytes: int
    svg: str


def costs(wanted: bool) -> dict[str, Cost]:
    """What each recipe costs and its picture, by its place; from the cache where nothing has changed."""
    if not wanted:
        return {}
    kept = json.loads(CACHE.read_text(encoding="utf-8")) if CACHE.exists() else {}
    code = costing_code()
    found = {each.place: Cost(*(kept.get(key(each, code)) or cost(each.recipe))) for each in shown()}
    CACHE.parent.mkdir(exist_ok=True)
    CACHE.write_text(json.dumps({key(each, code): found[each.place] for each in shown()}), encoding="utf-8")
    return found


def costing_code() -> str:
    """A fingerprint of the code that costs."""
    files = sorted(path for pattern in COSTING for path in ROOT.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def key(each: Shown, code: str) -> str:
    """What the cost of a recipe is a function of: the vocabularies' bounds stand in its data."""
    prints = each.recipe.fingerprints
    return hashlib.sha256(f"{code}{prints['model']}{prints['data']}".encode()).hexdigest()


def cost(recipe: Recipe) -> Cost:
    """What `plan` tells of a recipe, and what `draw` draws."""
    plan = recipe.plan()
    return Cost(plan.parameters, plan.flops, plan.state_bytes, Drawing(build_graph(recipe, plan)).svg())


# ------------------------------------------------------------------------------------------- results


@cache
def results() -> dict[str, list[dict[str, Any]]]:
    """What `benchmarks/results.py` has collected, by the recipe's place, where the recipe says what it said then."""
    told = json.loads((ROOT / "docs/results.json").read_text(encoding="utf-8"))
    known = {f"recipes/{each.place}.yaml": each for each in shown()}
    return {
        known[path].place: kept["runs"]
        for path, kept in told.items()
        if path in known and still(known[path].path, kept)
    }
