"""Shelves: `FOLDER/NAME[@ALIAS]`, with all versions of a pack.

`FOLDER/NAME/v1`, `v2`, ... are packs and never change. `FOLDER/NAME/aliases.json` maps aliases to
them, such as `{"latest": "v2"}`, and is replaced as a whole.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from pydantic import TypeAdapter

from composer.atomic_io import atomic_write, lock_of, read_text
from composer.errors import RunError, shorten_list
from composer.hub.pack import copy_pack
from composer.suggest import did_you_mean

ALIASES, LATEST = "aliases.json", "latest"
WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
VERSION = "v[0-9]+"
NAMING = "write `FOLDER/NAME@ALIAS` with letters, digits, `.`, `_` and `-`; `v1` is a version"
FORMS = "write a path, `FOLDER/NAME@ALIAS`, `git+URL`, `wandb:NAME` or `hub:NAME`"


def split_alias(path: Path) -> tuple[Path, str]:
    """Return a path without `@ALIAS`, and the alias; `latest` if there is none."""
    name, _, alias = path.name.partition("@")
    return path.with_name(name) if name else path, alias or LATEST


def is_shelved(path: Path) -> bool:
    """True if a pack that is written there is a version on a shelf."""
    return "@" in path.name or (path / ALIASES).is_file()


def read_aliases(entry: Path) -> dict[str, str]:
    """Return the versions of a pack's aliases, {} of what is on no shelf. Raises RunError."""
    file = entry / ALIASES
    try:
        return TypeAdapter(dict[str, str]).validate_json(read_text(file)) if file.exists() else {}
    except ValueError:
        fix = 'write versions by alias: {"latest": "v1"}'
        raise RunError.of("this does not map aliases to versions", fix, str(file)) from None


def find_version(path: Path) -> Path:
    """Return a path that exists, or the folder of `FOLDER/NAME[@ALIAS]`. Raises RunError."""
    if path.exists() and not (path / ALIASES).exists():
        return path
    entry, alias = split_alias(path)
    aliases = read_aliases(entry)
    version = aliases.get(alias, alias)
    if not aliases or not re.fullmatch(VERSION, version) or not (entry / version).is_dir():
        near, fix = did_you_mean(alias, aliases), FORMS
        if aliases:
            names = [*sorted(aliases), *(f"v{number}" for number in version_numbers(entry))]
            fix = f"write `{entry}@ALIAS` with one of: {shorten_list(names)}"
        elif entry.parent.is_dir():
            near = did_you_mean(entry.name, os.listdir(entry.parent))
        raise RunError.of(f"this does not exist{near}", fix, str(path))
    return entry / version


def version_numbers(entry: Path) -> list[int]:
    """Return the numbers of a pack's versions, sorted."""
    return sorted(int(name[1:]) for name in os.listdir(entry) if re.fullmatch(VERSION, name))


def check_parents(path: Path) -> None:
    """Raise RunError if a folder with `@` in its name would be made: an alias stands last."""
    for parent in path.parents:
        if "@" in parent.name and not parent.exists():
            message = f"a shelf is a folder, without `@`, and `{parent}` does not exist"
            raise RunError.of(message, NAMING, str(path))


def check_neighbours(path: Path, has_versions: bool) -> None:
    """Raise RunError if a name beside a new pack is the same in another case, or has no versions.

    has_versions: Whether the pack is a version on a shelf.
    """
    for name in os.listdir(path.parent) if path.parent.is_dir() else ():
        if name.casefold() != path.name.casefold():
            continue  # it may be a folder that is not ours to open
        there = path.parent / name
        if name != path.name if (there / ALIASES).exists() else has_versions:
            reason = "has no versions" if name == path.name else "differs only in case"
            fix = "remove or rename it, or choose another name"
            raise RunError.of(f"`{there}` is here, which {reason}", fix, str(path))


def add_version(pack: Path, path: Path) -> Path:
    """Copy a pack to a new version of `FOLDER/NAME`; move `latest` and the alias to it.

    Raises RunError, with all versions and aliases as they were.
    """
    entry, alias = split_alias(path)
    if not re.fullmatch(f"{WORD}@(?!{VERSION}$){WORD}", f"{entry.name}@{alias}"):
        raise RunError.of("this is not `FOLDER/NAME@ALIAS`", NAMING, str(path))
    entry.parent.mkdir(parents=True, exist_ok=True)
    check_neighbours(entry, has_versions=True)
    entry.mkdir(exist_ok=True)
    with lock_of(entry) as is_free:
        if is_free is False:
            raise RunError.of("another push is writing here", "wait, and push again", str(entry))
        aliases = read_aliases(entry)
        atomic_write(entry / ALIASES, json.dumps(aliases).encode())
        version = f"v{1 + max(version_numbers(entry), default=0)}"
        copy_pack(pack, entry / version)
        aliases |= {LATEST: version, alias: version}
        atomic_write(entry / ALIASES, json.dumps(aliases).encode())
    return entry / version
