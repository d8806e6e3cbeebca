"""What is taken of a place far away: its names and sizes are looked at first, then only what is needed is fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from composer.errors import RunError, did_you_mean
from composer.hub.archive import ENDING
from composer.hub.pack_contents import ALL, MANIFEST, REGULAR, Entry, check_entries, check_entry, refuse
from composer.recipe.yaml_reader import MAX_BYTES

RECIPES = (".yaml", ".yml")
RECORD = "run.json"
RECIPES_IN = "recipes"
"""The folder into which recipes are fetched, by their own paths; above it none may climb."""
LEFT = (".gitattributes", ".gitignore")
"""What git and the hub put beside a pack."""
MOST_ENTRIES = 100_000
MOST_RECIPES = 2_000
GIB = 1 << 30
ANSWERS = 30
"""Seconds in which a place has to say what it has."""
SHOWN = 5
"""Things that could be pulled that are named."""


@dataclass(frozen=True)
class Place:
    """A place far away: what lies there by its path, and how one file of it is fetched to a path here.

    `origin` is how the user named it, `pinned` how it can be named for ever.
    """

    origin: str
    pinned: str
    entries: Mapping[str, Entry]
    fetch: Callable[[str, Path], None]

    @property
    def commonly(self) -> str:
        """How a path in it is named."""
        return f"{self.origin.partition('#')[0]}#PATH"


def taken(place: Place, path: str, into: Path, limit: int) -> Path:
    """Fetches the recipe, archive, pack or run folder at a path of `place` into the folder `into`; where it is now.

    A recipe comes with the recipes around it, which it may extend. Raises RunError.
    """
    if len(place.entries) > MOST_ENTRIES:
        refuse(place.origin, f"more than {MOST_ENTRIES:,} files are there", "ask for a smaller place")
    path = path or alone(place)
    if path in place.entries:
        return taken_file(place, path, into, limit)
    start = f"{path}/" if path else ""
    inside = {name.removeprefix(start): each for name, each in place.entries.items() if name.startswith(start)}
    if MANIFEST not in inside and RECORD not in inside:
        absent(place, path, bool(inside))
    return taken_folder(place, start, inside, into / "pulled", limit)


def alone(place: Place) -> str:
    """The one archive or recipe of a place that is no pack itself; "" where there is none, or several."""
    if MANIFEST in place.entries or RECORD in place.entries:
        return ""
    found = candidates(place)
    return found[0] if len(found) == 1 else ""


def candidates(place: Place) -> list[str]:
    """What could be pulled from a place: archives, recipes, and folders that are packs."""
    folders = [name.removesuffix(f"/{MANIFEST}") for name in place.entries if name.endswith(f"/{MANIFEST}")]
    others = [name for name in place.entries if name.endswith((ENDING, *RECIPES))]
    return sorted([*folders, *(name for name in others if name.rpartition("/")[0] not in folders)])


def absent(place: Place, path: str, folder: bool) -> NoReturn:
    """Raises RunError where nothing at a path can be pulled."""
    found = candidates(place)
    shown = ", ".join(f"`{each}`" for each in found[:SHOWN]) + (", ..." if len(found) > SHOWN else "")
    what = (
        f"`{path}` is no pack, run folder or recipe"
        if folder
        else f"nothing is called `{path}` there{did_you_mean(path, found)}"
    )
    fix = f"there are {shown}; write `{place.commonly}`" if found else "ask where it is"
    raise RunError.of(what if path else "this is no pack, run folder or recipe itself", fix, place.origin)


def taken_file(place: Place, path: str, into: Path, limit: int) -> Path:
    """Fetches an archive, or a recipe with those around it."""
    check_kind(place, path)
    if path.endswith(RECIPES):
        return taken_recipe(place, path, into)
    if not path.endswith(ENDING):
        refuse(place.origin, f"`{path}` is no recipe and no archive", f"name a file that ends in .yaml or {ENDING}")
    within(place.entries[path].size, limit, place.origin)
    target = into / "pulled.tar.gz"
    place.fetch(path, target)
    return target


def check_kind(place: Place, path: str) -> None:
    """Raises RunError where a path is no regular file."""
    if place.entries[path].kind != REGULAR:
        refuse(place.origin, f"`{path}` is a {place.entries[path].kind}", "name the file itself")


def taken_recipe(place: Place, path: str, into: Path) -> Path:
    """Fetches a recipe and all others of the place: which of them it extends is seen when it is read."""
    top = into / RECIPES_IN
    check_kind(place, path)
    around = [name for name, each in place.entries.items() if plain_recipe(name, each)]
    for name in around if len(around) <= MOST_RECIPES else [path]:
        target = top / name
        target.parent.mkdir(parents=True, exist_ok=True)
        place.fetch(name, target)
    if not (top / path).is_file():
        refuse(
            place.origin, f"`{path}` is larger than 1 MiB, or its path is hidden", "a recipe is a few kilobytes of text"
        )
    return top / path


def plain_recipe(name: str, entry: Entry) -> bool:
    """Whether something is a recipe that can be written below a folder here without a doubt where."""
    steps = name.split("/")
    safe = (
        name.isprintable() and "\\" not in name and ":" not in name and all(not step.startswith(".") for step in steps)
    )
    return name.endswith(RECIPES) and entry.kind == REGULAR and entry.size <= MAX_BYTES and safe and all(steps)


def taken_folder(place: Place, start: str, inside: Mapping[str, Entry], into: Path, limit: int) -> Path:
    """Fetches a pack, in which nothing else may be, or the files of a run folder that a pack has."""
    if MANIFEST in inside:
        wanted: Sequence[str] = [name for name in inside if name not in LEFT]
        check_entries((inside[name]._replace(name=name) for name in wanted), place.origin)
    else:
        wanted = sorted(ALL & set(inside))
        for name in wanted:
            check_entry(inside[name]._replace(name=name), place.origin)
    within(sum(inside[name].size for name in wanted), limit, place.origin)
    into.mkdir()
    for name in wanted:
        place.fetch(start + name, into / name)
    return into


def within(size: int, limit: int, origin: str) -> None:
    """Raises RunError where something is larger than the user takes."""
    if size > limit:
        refuse(
            origin,
            f"this has {size / GIB:.3g} GiB, and at most {limit / GIB:.3g} are taken",
            f"if you trust it, take more: `--max_gib {max(1, -(-size // GIB))}`",
        )
