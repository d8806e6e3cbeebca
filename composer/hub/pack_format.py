"""Format of a pack: six files, their SHA-256 and sizes in `pack.json`, and checks of each file.

Only files with one of the seven names are read, and only as far as the manifest says. Commands
trust the files of a run folder, so files from elsewhere are checked once, before they are put in
place: a hash is a hash, and printed text is one visible line.
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
"""Largest sizes of files that are read into memory; weights have no limit."""
REPACK = "ask for a pack made by `seqcomposer pack RUN`"
CHUNK = 1 << 20
"""Bytes read and hashed at once."""
UNLISTED = "is not part of a pack, which holds only the files that it lists and no code"


class Member(NamedTuple):
    """A member of a folder, an archive or a repository: a regular file, or a folder, link, ..."""

    name: str
    size: int
    is_regular: bool = True


def refuse(origin: str | Path, message: str, fix: str = REPACK) -> NoReturn:
    """Raise RunError about a refused pack, of which nothing is left on disk."""
    raise RunError.of(f"{message}; nothing was written", fix, str(origin))


def check_members(members: Iterable[Member], origin: str | Path) -> None:
    """Raise RunError if a member is not a file of a pack, or two have one name."""
    seen: set[str] = set()
    for member in members:
        if member.name not in NAMES:
            refuse(origin, f"{member.name!a} {UNLISTED}")
        if not member.is_regular:
            refuse(origin, f"{member.name!a} is not a regular file")
        if member.name in seen:
            refuse(origin, f"`{member.name}` is listed twice")
        seen.add(member.name)


def check_size(name: str, size: int, origin: str | Path) -> None:
    """Raise RunError if a file is larger than its MAX_BYTES_OF."""
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
        message = f"this pack has format version {version}"
        message += f", and this seqcomposer reads up to {VERSION}"
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
    digests = {file: _parse_digest(file, files[file], origin) for file in FILES}
    return Manifest(str(name), digests, data)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a mapping without duplicate keys, of which readers of JSON choose differently."""
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
    """Open a regular file for reading. Raises RunError for links, devices and missing files."""
    try:
        return open_regular(path, follow=False)
    except OSError as error:
        reason = "is a link" if path.is_symlink() else f"cannot be read: {os_error_reason(error)}"
        refuse(origin, f"`{path.name}` {reason}", "replace it by the file itself")


def read_small(path: Path, origin: str | Path) -> bytes:
    """Return the content of a file. Raises RunError if it is larger than its MAX_BYTES_OF."""
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
    """Copy exactly the expected bytes and verify their hash. Raises RunError if they differ.

    The caller checks for more bytes.
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


def check_digests(record: RunRecord, files: Mapping[str, FileDigest], origin: str | Path) -> None:
    """Raise RunError if run.json belongs to another recipe, tokenizer or weights."""
    for key, name in HASHED.items():
        if getattr(record, key) not in (None, files[name].sha256):
            message = f"run.json was recorded with another `{name}`"
            refuse(origin, message, "take all files from the same run again")


def read_record(folder: Path, origin: str) -> RunRecord:
    """Return run.json. Raises RunError if it is not that of a finished run."""
    try:
        record = RunDir(folder).read()
    except RunError as error:
        refuse(origin, error.faults[0].message)
    check_record(record, origin)
    check_finished(record, origin, f"let its author finish it with {RESUME}, and pull it then")
    return record


def check_finished(record: RunRecord, origin: str | Path, fix: str) -> None:
    """Raise RunError if the training of a run has not finished."""
    if not record.is_finished:
        refuse(origin, "the training of this run has not finished", fix)


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


def read_recipe(path: Path, record: RunRecord, origin: str) -> Recipe:
    """Load the recipe of a pack, which extends no other. Raises RunError with its first fault."""
    try:
        if "extends" in read(path, path.name).value:
            refuse(origin, "the recipe of a pack must not extend another")
        return load(path)
    except RunError:
        raise
    except ComposerError as error:
        first = error.faults[0]
        packed_by = record.versions.get("seqcomposer")
        installed = next((package.version for package in distributions(name="seqcomposer")), None)
        maker = "ask its author"
        if packed_by and packed_by != installed:
            maker = f"it was made by seqcomposer {packed_by}, and this is {installed}"
        place = f"recipe.yaml:{first.line}:{first.column}: " if first.line else ""
        message = f"its recipe cannot be read here: {place}{first.message}"
        refuse(origin, message, missing_plug_ins(record) or first.hint or maker)


def missing_plug_ins(record: RunRecord) -> str:
    """Return a hint that names the missing plug-ins of a pack, or "".

    `record` has passed `check_record`.
    """
    installed = {*OWN, *(point.name for point in plug_ins())}
    names = []
    for name, source in record.plug_ins.items():
        if name in installed:
            continue
        package = source.get("distribution") or source.get("from") or "an unknown package"
        if source.get("distribution") and source.get("version"):
            package += f"=={source['version']}"
        names.append(f"`{name}` from {package}")
    return f"review and install the plug-in with the block {', '.join(names)}" if names else ""


def check_record(record: RunRecord, origin: str | Path) -> None:
    """Raise RunError if a text in run.json has characters that are not printable."""
    for key, value in record.as_data().items():
        if not is_visible([key, value]):
            message = f"in run.json `{key[:100]}` is not what a training writes"
            refuse(origin, message, "ask for the run again, with its original run.json")
