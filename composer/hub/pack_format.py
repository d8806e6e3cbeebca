"""Format of a pack: six files, the list of their SHA-256 and sizes (`pack.json`), and checks of
what each file holds.

A name is one of seven, or nothing of its file is read, and a file is read only as far as the
manifest says. Commands trust the files of a run folder, which a training has written. So files from
elsewhere are checked once, before they are put in place: a hash is a hash, and printed text is one
visible line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from composer.atomic_io import is_hash, open_regular
from composer.errors import ComposerError, RunError, os_error_reason
from composer.formatting import CONTROL_CHARACTERS
from composer.recipe.recipe import Recipe, load
from composer.recipe.registry import OWN, plug_ins
from composer.recipe.schema_reader import RECIPE_NAME
from composer.recipe.yaml_reader import MAX_BYTES, read, strings_in
from composer.run_dir import RESUME, RunDir
from composer.runs.forms import is_plain_data
from composer.runs.record import HASHED, RunRecord

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
"""Largest sizes of files that are read into memory; weights have no limit of their own."""
REPACK = "ask for a pack as `seqcomposer pack RUN` makes it"
CHUNK = 1 << 20
"""Bytes that are read and hashed at once."""
UNLISTED = "is not part of a pack, which holds only the files that it lists and no code"


class Member(NamedTuple):
    """A member of a folder, an archive or a repository: a regular file or, say, a folder, a link or
    a device.
    """

    name: str
    size: int
    is_regular: bool = True


def refuse(origin: str | Path, message: str, fix: str = REPACK) -> NoReturn:
    """Raise RunError about a pack that is not accepted; nothing of it is left on disk."""
    raise RunError.of(f"{message}; nothing was written", fix, str(origin))


def check_members(members: Iterable[Member], origin: str | Path) -> None:
    """Raise RunError where a member is no file of a pack, or two have one name."""
    seen: set[str] = set()
    for member in members:
        if member.name not in NAMES or not member.is_regular:
            refuse(
                origin,
                f"{member.name!a} {UNLISTED if member.name not in NAMES else 'is no regular file'}",
            )
        if member.name in seen:
            refuse(origin, f"`{member.name}` is listed twice")
        seen.add(member.name)


def check_size(name: str, size: int, origin: str | Path) -> None:
    """Raise RunError where a file is larger than its MAX_BYTES_OF."""
    limit = MAX_BYTES_OF.get(name, size)
    if size > limit:
        refuse(origin, f"`{name}` has {size:,} bytes, and at most {limit:,} are read")


FORMAT = "seqcomposer pack"
VERSION = 1
KEYS = {"format", "version", "name", "files"}


class FileDigest(NamedTuple):
    """Expected SHA-256 and size of a file, in bytes."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """A parsed pack.json. `data` are its bytes."""

    name: str
    files: Mapping[str, FileDigest]
    data: bytes

    @property
    def sha256(self) -> str:
        """The fingerprint of the pack: the SHA-256 of its pack.json."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of the whole pack."""
        return len(self.data) + sum(digest.size for digest in self.files.values())


def parse_manifest(data: bytes, origin: str | Path) -> Manifest:
    """Parse and validate a pack.json. Raises RunError."""
    check_size(MANIFEST, len(data), origin)
    try:
        content = json.loads(data.decode(), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        refuse(origin, f"{MANIFEST} cannot be read: {error}")
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        refuse(origin, f"{MANIFEST} is not the manifest of a pack")
    version, name, files = content.get("version"), content.get("name"), content.get("files")
    if type(version) is not int or version < 1:
        refuse(origin, f"{MANIFEST} has no version of its format")
    if version > VERSION:
        message = (
            f"this pack has format version {version}, and this seqcomposer reads up to {VERSION}"
        )
        refuse(origin, message, "install a newer seqcomposer")
    is_named = isinstance(name, str) and re.fullmatch(RECIPE_NAME, name)
    if set(content) != KEYS or not isinstance(files, dict) or not is_named:
        refuse(origin, f"{MANIFEST} must have exactly the keys {', '.join(sorted(KEYS))}")
    for file in files:
        if file not in FILES:
            refuse(origin, f"{MANIFEST} lists {file!a}, which {UNLISTED}")
    missing = [file for file in FILES if file not in files]
    if missing:
        refuse(origin, f"{MANIFEST} does not list {', '.join(f'`{file}`' for file in missing)}")
    return Manifest(
        str(name), {file: _parse_digest(file, files[file], origin) for file in FILES}, data
    )


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a mapping, and refuse duplicate keys: readers differ about which of them counts."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key is listed twice")
    return mapping


def _parse_digest(name: str, member: Any, origin: str | Path) -> FileDigest:
    is_pair = isinstance(member, dict) and len(member) == 2
    sha256, size = (member.get("sha256"), member.get("size")) if is_pair else ("", None)
    if not is_hash(sha256) or type(size) is not int or size < 0:
        refuse(origin, f"{MANIFEST} has no valid `sha256` and `size` of `{name}`")
    check_size(name, size, origin)
    return FileDigest(sha256, size)


def open_file(path: Path, origin: str | Path) -> BufferedReader:
    """Open a regular file for reading. Raises RunError for links, devices and what is not there."""
    try:
        return open_regular(path, follow=False)
    except OSError as error:
        reason = "is a link" if path.is_symlink() else f"cannot be read: {os_error_reason(error)}"
        refuse(origin, f"`{path.name}` {reason}", "replace it by the file itself")


def read_small(path: Path, origin: str | Path) -> bytes:
    """Return the content of a file. Raises RunError where it is larger than its MAX_BYTES_OF."""
    with open_file(path, origin) as file:
        size = os.fstat(file.fileno()).st_size
        check_size(path.name, size, origin)
        return file.read(size)


def digest_file(path: Path, origin: str | Path) -> FileDigest:
    """Return the SHA-256 and the size of a file. Raises RunError."""
    with open_file(path, origin) as file:
        return FileDigest(hashlib.file_digest(file, "sha256").hexdigest(), file.tell())


def copy_verified(
    read: Callable[[int], bytes], target: Path, expected: FileDigest, origin: str | Path
) -> None:
    """Copy exactly as many bytes as `expected` has, hashing what is written. Raises RunError where
    they differ.

    Whether more bytes follow is for the caller to check.
    """
    sha256, remaining = hashlib.sha256(), expected.size
    with target.open("xb") as file:
        while remaining and (chunk := read(min(CHUNK, remaining))):
            sha256.update(chunk)
            file.write(chunk)
            remaining -= len(chunk)
        file.flush()
        os.fsync(file.fileno())
    if remaining or sha256.hexdigest() != expected.sha256:
        reason = "is cut off" if remaining else "does not match pack.json: its SHA-256 differs"
        fix = "it was changed or damaged: ask for the pack again"
        refuse(origin, f"`{target.name}` {reason}", fix)


LOCAL_PATH = re.compile(r"(/|~|[A-Za-z]:[\\/]|\\\\|\.\.[\\/]).*", re.DOTALL)


def is_local_path(text: str) -> bool:
    """Return whether a text is an absolute path, or one that leads upwards, of any system."""
    return LOCAL_PATH.fullmatch(text) is not None


def local_paths_in(dataset: Mapping[str, Any]) -> list[str]:
    """Return the local paths in the section `data` of a recipe, sorted."""
    # a mark can be `/`
    data = {key: value for key, value in dataset.items() if key != "tokenizer" or "file" in value}
    return sorted(set(filter(is_local_path, strings_in(data))))


def basename(path: str) -> str:
    """Return the last name of a path of any system."""
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1].lstrip("~")


def check_card(card: bytes, origin: str | Path) -> None:
    """Raise RunError where a README.md would send control characters to a terminal on which it is
    read.
    """
    if CONTROL_CHARACTERS.search(card.decode(errors="replace").replace("\r\n", "\n")):
        refuse(origin, "README.md has control characters", "remove them, and pack the run again")


def check_digests(record: RunRecord, files: Mapping[str, FileDigest], origin: str | Path) -> None:
    """Raise RunError where run.json belongs to another recipe, another tokenizer or other weights."""
    for key, name in HASHED.items():
        if getattr(record, key) not in (None, files[name].sha256):
            refuse(
                origin,
                f"run.json was recorded with another `{name}`",
                "take all files from the same run again",
            )


def read_record(folder: Path, origin: str) -> RunRecord:
    """Return run.json. Raises RunError where it is not that of a finished run."""
    try:
        record = RunDir(folder).read()
    except RunError as error:
        refuse(origin, error.faults[0].message)
    check_record(record, origin)
    check_finished(record, origin, f"let its author finish it with {RESUME}, and pull it then")
    return record


def check_finished(record: RunRecord, origin: str | Path, fix: str) -> None:
    """Raise RunError where the training of a run has not finished, whether it has left weights or
    not.
    """
    if not record.is_finished:
        refuse(origin, "the training of this run has not finished", fix)


def is_visible_row(line: bytes) -> bool:
    """Return whether a line of metrics.jsonl holds values that a training logs."""
    try:
        row = json.loads(line)
    except RecursionError:
        return False
    except ValueError:
        return True  # it was cut off, and readers skip it
    return is_plain_data(row, depth=2) and is_visible(row)


def is_visible(data: object) -> bool:
    """Return whether the keys and texts of plain data are on one line, of characters that can all
    be seen.
    """
    if isinstance(data, dict):
        return is_visible(list(data)) and is_visible(list(data.values()))
    return (
        all(map(is_visible, data))
        if isinstance(data, list)
        else not isinstance(data, str) or data.isprintable()
    )


def read_recipe(path: Path, record: RunRecord, origin: str) -> Recipe:
    """Load the recipe of a pack, which must not extend another. Raises RunError with its first
    fault.
    """
    try:
        if "extends" in read(path, path.name).value:
            refuse(origin, "the recipe of a pack is complete, and this one extends another")
        return load(path)
    except RunError:
        raise
    except ComposerError as error:
        first = error.faults[0]
        theirs = record.versions.get("seqcomposer")
        ours = next((one.version for one in distributions(name="seqcomposer")), None)
        is_other = theirs and theirs != ours
        maker = (
            f"it was made by seqcomposer {theirs}, and this is {ours}"
            if is_other
            else "ask its author"
        )
        place = f"recipe.yaml:{first.line}:{first.column}: " if first.line else ""
        message = f"its recipe cannot be read here: {place}{first.message}"
        refuse(origin, message, missing_plug_ins(record) or first.hint or maker)


def missing_plug_ins(record: RunRecord) -> str:
    """Return what to install where a pack uses blocks of plug-ins that are not installed; "" if all
    are.

    `record` has passed `check_record`.
    """
    installed = {*OWN, *(point.name for point in plug_ins())}
    names = []
    for name, source in record.plug_ins.items():
        package = source.get("distribution") or source.get("from") or "an unknown package"
        is_pinned = source.get("distribution") and source.get("version")
        if name not in installed:
            names.append(
                f"`{name}` from {package}" + (f"=={source['version']}" if is_pinned else "")
            )
    return f"review and install the plug-in with the block {', '.join(names)}" if names else ""


def check_record(record: RunRecord, origin: str | Path) -> None:
    """Raise RunError where a text in a run.json has characters that cannot be seen."""
    for key, value in record.as_data().items():
        if not is_visible([key, value]):
            message = f"in run.json `{key[:100]}` is not what a training writes"
            refuse(
                origin, message, "ask for the run again, with run.json as the training has left it"
            )
