"""Which files of a repository or an artifact are a pack, a run or a recipe: names, kinds, sizes."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping

from composer.errors import RunError, shorten_list
from composer.hub.pack_format import MANIFEST, NAMES, Member, check_members, refuse
from composer.recipe.yaml_reader import MAX_BYTES
from composer.suggest import did_you_mean

RECORD = "run.json"
RECIPE_SUFFIXES, ARCHIVE_SUFFIXES = (".yaml", ".yml"), (".tar", ".tar.gz")
RECIPE_PATH = re.compile(r"([^./\\:][^/\\:]*/)*[^./\\:][^/\\:]*\.ya?ml")
"""A relative path that means the same on every system."""
BESIDE = frozenset(
    (".git", ".gitattributes", ".gitignore", ".lfsconfig", ".cache", ".eval_results")
)
"""What git and the hub put beside a pack."""
MAX_RECIPES = 2_000
GIB = 1 << 30
DEFAULT_MAX_GIB = 10.0


def choose(
    members: Mapping[str, Member], path: str, max_bytes: int, origin: str
) -> tuple[str, list[str]]:
    """Return the path of the pack, run or recipe at `path`, and the names of all its files.

    Of one that is alone in its repository the path may be left out. Raises RunError, before
    anything is downloaded.
    """
    inside = members_under(path, members)
    candidates = pull_candidates(members)
    if path in members:
        names = names_with(members[path], members, origin)
    elif inside.keys() & {MANIFEST, RECORD}:
        # a pack holds nothing but its files; of a run folder only those are taken
        chosen = [name for name in inside if MANIFEST in inside or name in NAMES]
        check_members([inside[name]._replace(name=name) for name in chosen], origin)
        names = [inside[name].name for name in chosen]
    elif len(candidates) == 1 and not path:
        return choose(members, candidates[0], max_bytes, origin)
    else:
        message = f"{path!a} is not a pack, a run folder or a recipe"
        fix = f"write `{origin.partition('#')[0]}#PATH` with one of: {shorten_list(candidates)}"
        raise RunError.of(f"{message}{did_you_mean(path, candidates)}", fix, origin)
    check_limit([members[name] for name in names], max_bytes, origin)
    return path, names


def members_under(path: str, members: Mapping[str, Member]) -> dict[str, Member]:
    """Return the members in a folder, by their names there; without those of git and the hub."""
    start = f"{path}/" if path else ""
    inside = {}
    for name, member in members.items():
        inner = name.removeprefix(start)
        if name.startswith(start) and inner.partition("/")[0] not in BESIDE:
            inside[inner] = member
    return inside


def names_with(member: Member, members: Mapping[str, Member], origin: str) -> list[str]:
    """Return the name of an archive, or of a recipe and of all that it may extend."""
    is_archive = member.name.endswith(ARCHIVE_SUFFIXES)
    if not member.is_regular or not (is_archive or is_recipe(member)):
        fix = "name an archive, in .tar, or a recipe of up to 1 MiB, in .yaml"
        refuse(origin, f"`{member.name}` is neither a recipe nor an archive", fix)
    recipes = [name for name, other in members.items() if is_recipe(other)]
    return [member.name] if is_archive or len(recipes) > MAX_RECIPES else recipes


def is_recipe(member: Member) -> bool:
    """True if a member can be a recipe that another extends."""
    is_small = member.is_regular and member.size <= MAX_BYTES
    return is_small and member.name.isprintable() and bool(RECIPE_PATH.fullmatch(member.name))


def pull_candidates(members: Iterable[str]) -> list[str]:
    """Return the paths of all packs, archives and recipes."""
    end = f"/{MANIFEST}"
    folders = [name.removesuffix(end) for name in members if name.endswith(end)]
    files = [name for name in members if name.endswith((*ARCHIVE_SUFFIXES, *RECIPE_SUFFIXES))]
    return sorted([*folders, *(name for name in files if name.rpartition("/")[0] not in folders)])


def check_limit(members: Iterable[Member], max_bytes: int, origin: str) -> None:
    """Raise RunError if files are larger than the user, or the disk, allows."""
    size = sum(member.size for member in members)
    message = f"this has {size / GIB:.3g} GiB, and the limit is {max_bytes / GIB:.3g}"
    if size > max_bytes:
        hint = f"if you trust it, allow more: `--max-gib {max(1, -(-size // GIB))}`"
        refuse(origin, message, hint)
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        message = f"this has {size / GIB:.3g} GiB, and the disk has {free / GIB:.3g} left"
        refuse(origin, message, "make room for temporary files, or set TMPDIR to another disk")
