"""`pack.json`: the hash and the size of every other file of a pack. Its own hash is the pack's fingerprint."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from composer.hub.pack_contents import FILES, MANIFEST, check_size, complaint, refuse
from composer.recipe.cache import is_hash
from composer.recipe.json_schema import RECIPE_NAME

FORMAT = "seqcomposer pack"
VERSION = 1
KEYS = {"format", "version", "name", "files"}

_NAME = re.compile(RECIPE_NAME)


class Described(NamedTuple):
    """What a file must be: its SHA-256, and its bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """A pack.json that has been read. `data` are its bytes."""

    name: str
    files: Mapping[str, Described]
    data: bytes

    @property
    def sha256(self) -> str:
        """The fingerprint of the pack."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def size(self) -> int:
        """The bytes of the whole pack."""
        return len(self.data) + sum(each.size for each in self.files.values())


def manifest_of(name: str, files: Mapping[str, Described], origin: str | Path) -> Manifest:
    """The pack.json of files that are known. Raises RunError where a pack cannot be called so."""
    told = {file: {"sha256": each.sha256, "size": each.size} for file, each in files.items()}
    whole = {"format": FORMAT, "version": VERSION, "name": name, "files": told}
    return manifest(json.dumps(whole, indent=1, sort_keys=True).encode() + b"\n", origin)


def manifest(data: bytes, origin: str | Path) -> Manifest:
    """What a pack.json says. Raises RunError."""
    told = _object(data, origin)
    if told.get("format") != FORMAT:
        refuse(origin, f"{MANIFEST} is not that of a pack")
    version = told.get("version")
    if type(version) is not int or version < 1:
        refuse(origin, f"{MANIFEST} says no version of its form")
    if version > VERSION:
        refuse(
            origin, f"this pack has form {version}, and this seqcomposer reads up to {VERSION}", "install a newer one"
        )
    name, files = told.get("name"), told.get("files")
    if set(told) != KEYS or not isinstance(files, dict) or not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(origin, f"{MANIFEST} does not have its keys: {', '.join(sorted(KEYS))}")
    return Manifest(name, _described(files, origin), data)


def _object(data: bytes, origin: str | Path) -> dict[str, Any]:
    check_size(MANIFEST, len(data), origin)
    try:
        told = json.loads(data.decode(), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        refuse(origin, f"{MANIFEST} cannot be read: {error}")
    if not isinstance(told, dict):
        refuse(origin, f"{MANIFEST} is not a JSON object")
    return told


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping in which no key stands twice: readers differ about which of them counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _described(files: dict[str, Any], origin: str | Path) -> dict[str, Described]:
    for name in files:
        told = complaint(name) or (f"is {MANIFEST} itself" if name == MANIFEST else "")
        if told:
            refuse(origin, f"{MANIFEST} lists {name!a}, which {told}")
    missing = [name for name in FILES if name not in files]
    if missing:
        refuse(origin, f"{MANIFEST} does not list {', '.join(f'`{name}`' for name in missing)}")
    return {name: _one(name, files[name], origin) for name in FILES}


def _one(name: str, told: Any, origin: str | Path) -> Described:
    sha256, size = (told.get("sha256"), told.get("size")) if isinstance(told, dict) and len(told) == 2 else ("", None)
    if not is_hash(sha256) or type(size) is not int or size < 0:
        refuse(origin, f"{MANIFEST} does not say `sha256` and `size` of `{name}`")
    check_size(name, size, origin)
    return Described(sha256, size)
