"""Format of a pack: six files, their SHA-256 and sizes in `pack.json`, and checks of each file.

Commands trust the files of a run folder, so files from elsewhere are checked once, before they are
put in place: a hash is a hash, and printed text is one visible line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from composer.atomic_io import open_regular, os_errors_as_run_errors, sha256_of_file
from composer.errors import RunError
from composer.formatting import CONTROL_CHARACTERS
from composer.recipe.registry import OWN, plug_ins
from composer.recipe.schema_reader import RECIPE_NAME
from composer.recipe.yaml_reader import MAX_BYTES, strings_in
from composer.run_dir import RESUME
from composer.runs.forms import is_plain_data
from composer.runs.record import HASHED, RunRecord, Sha256, Size

MANIFEST = "pack.json"
FILES = (
    "README.md",
    "metrics.jsonl",
    "model.safetensors",
    "recipe.yaml",
    "run.json",
    "tokenizer.json",
)
NAMES = frozenset((MANIFEST, *FILES))
MAX_BYTES_OF = {
    **dict.fromkeys(("README.md", "metrics.jsonl", "tokenizer.json"), 1 << 28),
    "recipe.yaml": MAX_BYTES,
    "run.json": 1 << 24,
    MANIFEST: 1 << 16,
}
"""Largest sizes of files that are read into memory; weights have no limit."""
REPACK = "ask for a pack made by `seqcomposer pack RUN`"
LOCAL_PATH = re.compile(r"(/|~|[A-Za-z]:[\\/]|\\\\|\.\.[\\/]).*", re.DOTALL)


class Member(NamedTuple):
    """A member of a folder, an archive or a repository: a regular file, or a folder, link, ..."""

    name: str
    size: int
    is_regular: bool = True


class FileDigest(BaseModel, extra="forbid", strict=True, frozen=True):
    """SHA-256 and size of a file, in bytes."""

    sha256: Sha256
    size: Size


class Manifest(BaseModel, extra="forbid", strict=True, frozen=True):
    """What pack.json says."""

    format: Literal["seqcomposer pack"] = "seqcomposer pack"
    version: Annotated[int, Field(ge=1, le=1)] = 1
    name: Annotated[str, StringConstraints(pattern=RECIPE_NAME)]
    files: Mapping[str, FileDigest]


def refuse(origin: str | Path, message: str, fix: str = REPACK) -> NoReturn:
    """Raise RunError about a refused pack, of which nothing is left on disk."""
    raise RunError.of(f"{message}; nothing was written", fix, str(origin))


def check_members(members: Iterable[Member], origin: str | Path) -> None:
    """Raise RunError if a member is not a file of a pack, or too large, or two have one name."""
    seen: set[str] = set()
    for name, size, is_regular in members:
        if name not in NAMES:
            message = "is not part of a pack, which holds only the files that it lists and no code"
            refuse(origin, f"{name!a} {message}")
        if not is_regular:
            refuse(origin, f"{name!a} is not a regular file")
        if name in seen:
            refuse(origin, f"`{name}` is listed twice")
        if not 0 <= size <= MAX_BYTES_OF.get(name, size):
            refuse(origin, f"`{name}` has {size:,} bytes, and at most {MAX_BYTES_OF[name]:,}")
        seen.add(name)


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file to where nothing is, onto the disk. Raises RunError, also for a link."""
    fix = "replace it by the file itself" if source.is_symlink() else ""
    with (
        os_errors_as_run_errors(source, "this cannot be copied", fix),
        open_regular(source, follow=False) as file,
        target.open("xb") as copy,
    ):
        check_members([Member(source.name, os.fstat(file.fileno()).st_size)], source)
        shutil.copyfileobj(file, copy)
        copy.flush()
        os.fsync(copy.fileno())


def digest_files(folder: Path) -> dict[str, FileDigest]:
    """Return SHA-256 and size of each file of a pack. Raises OSError if one is missing."""
    digests = {}
    for name in FILES:
        size = (folder / name).stat().st_size
        digests[name] = FileDigest(sha256=sha256_of_file(folder / name), size=size)
    return digests


def read_manifest(folder: Path, origin: str | Path) -> Manifest:
    """Return the manifest of a folder to which its files have been copied. Raises RunError."""
    try:
        manifest = Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        fix = f"{REPACK}; one of a later version needs a later seqcomposer"
        place = ".".join(map(str, first["loc"]))
        refuse(origin, f"{MANIFEST} is not that of a pack: {place!a}: {first['msg']}", fix)
    for name in sorted({*FILES} ^ manifest.files.keys()):
        refuse(origin, f"{MANIFEST} lists other files than those of a pack: {name!a}")
    return manifest


def is_local_path(text: str) -> bool:
    """True if a text is an absolute path, or leads upwards, on any system."""
    return LOCAL_PATH.fullmatch(text) is not None


def local_paths_in(dataset: Mapping[str, Any]) -> list[str]:
    """Return the local paths in the section `data` of a recipe, sorted."""
    data = dict(dataset)
    if "file" not in data.get("tokenizer", {"file": ""}):
        del data["tokenizer"]  # its marks can be `/`
    return sorted(set(filter(is_local_path, strings_in(data))))


def basename(path: str) -> str:
    """Return the last name of a path of any system."""
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1].lstrip("~")


def check_card(card: bytes, origin: str | Path) -> None:
    """Raise RunError if a README.md has control characters, which a terminal would execute."""
    if CONTROL_CHARACTERS.search(card.decode(errors="replace").replace("\r\n", "\n")):
        refuse(origin, "README.md has control characters", "remove them, and pack the run again")


def check_finished(record: RunRecord, origin: str | Path) -> None:
    """Raise RunError if the training of a run has not finished."""
    if not record.is_finished:
        fix = f"finish it with the command that started it and {RESUME}, or with `--finish`"
        refuse(origin, "the training of this run has not finished", fix)


def check_record(record: RunRecord, files: Mapping[str, FileDigest], origin: str | Path) -> None:
    """Raise RunError if run.json is not that of a finished run with these files."""
    check_finished(record, origin)
    for key, value in record.as_data().items():
        if not is_visible([key, value]):
            message = f"in run.json `{key[:100]}` is not what a training writes"
            refuse(origin, message, "ask for the run again, with its original run.json")
    for key, name in HASHED.items():
        if getattr(record, key) not in (None, files[name].sha256):
            message = f"run.json was recorded with another `{name}`"
            refuse(origin, message, "take all files from the same run again")


def is_visible_row(line: bytes) -> bool:
    """True if a line of metrics.jsonl holds values that a training logs."""
    try:
        row = json.loads(line)
    except RecursionError:
        return False
    except ValueError:
        return True  # it was cut off, and readers skip it
    return is_plain_data(row, depth=2) and is_visible(row)


def is_visible(data: object) -> bool:
    """True if all keys and texts of plain data are one line of printable characters."""
    if isinstance(data, dict):
        return is_visible(list(data)) and is_visible(list(data.values()))
    if isinstance(data, list):
        return all(map(is_visible, data))
    return not isinstance(data, str) or data.isprintable()


def missing_plug_in(record: RunRecord) -> str:
    """Return a hint that names a missing plug-in of a pack, or ""."""
    installed = {*OWN, *(point.name for point in plug_ins())}
    for block, source in record.plug_ins.items():
        if block not in installed:
            package = source.get("distribution") or source.get("from") or "an unknown package"
            version = f"=={source['version']}" if source.get("version") else ""
            return (
                f"review and install the plug-in with the block `{block}` from {package}{version}"
            )
    return ""
