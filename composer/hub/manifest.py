"""Contents of a pack: its seven files, their SHA-256 and sizes (`pack.json`), and run.json without local paths.

A name is checked before anything of its file is read, and a file is read only as far as the manifest says.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from composer.atomic_io import is_hash, open_regular
from composer.errors import RunError, os_error_reason
from composer.recipe.schema_reader import RECIPE_NAME
from composer.recipe.yaml_reader import MAX_BYTES, strings_in

MANIFEST = "pack.json"
FILES = ("README.md", "metrics.jsonl", "model.safetensors", "recipe.yaml", "run.json", "tokenizer.json")
NAMES = frozenset((MANIFEST, *FILES))
MAX_BYTES_OF = {
    **dict.fromkeys(("README.md", "metrics.jsonl", "tokenizer.json"), 1 << 28),
    "recipe.yaml": MAX_BYTES,
    "run.json": 1 << 24,
    MANIFEST: 1 << 16,
}
"""Largest sizes of files that are read into memory; weights have no limit of their own."""
REPACK = "ask for a pack as `seqcomposer pack RUN` makes it"
REGULAR, FOLDER = "file", "folder"
CHUNK = 1 << 20
"""Bytes that are read and hashed at once."""
WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


class Entry(NamedTuple):
    """A member of a folder, an archive or a repository; its kind is `file`, or says what else it is."""

    name: str
    kind: str
    size: int


def refuse(origin: str | Path, message: str, fix: str = REPACK) -> NoReturn:
    """Raise RunError about a pack that is not accepted; nothing of it is left on disk."""
    raise RunError.of(f"{message}; nothing was written", fix, str(origin))


def check_entries(entries: Iterable[Entry], origin: str | Path) -> None:
    """Raise RunError where a member is no file of a pack, or two have one name."""
    seen: set[str] = set()
    for entry in entries:
        problem = name_problem(entry.name) or ("" if entry.kind == REGULAR else f"is a {entry.kind}")
        if problem:
            refuse(origin, f"{entry.name!a} {problem}")
        if entry.name in seen:
            refuse(origin, f"`{entry.name}` is there twice")
        seen.add(entry.name)


def check_size(name: str, size: int, origin: str | Path) -> None:
    """Raise RunError where a file is larger than its MAX_BYTES_OF."""
    limit = MAX_BYTES_OF.get(name, size)
    if size > limit:
        refuse(origin, f"`{name}` has {size:,} bytes, and at most {limit:,} are read")


def name_problem(name: str) -> str:
    """Return what is wrong with a file's name; "" where it is the name of a pack's file."""
    if name in NAMES:
        return ""
    problems = {
        "has characters that cannot be seen": not name.isprintable() or not name.strip(),
        "leads to another folder": name in (".", "..") or any(mark in name for mark in "/\\:"),
        "looks like the name of another file": _fold(name) in map(_fold, NAMES),
        "has characters that look like others": not name.isascii(),
        "is hidden": name.startswith("."),
        "ends with a character that some systems drop": name.endswith((".", " ")),
        "is a device on some systems": WINDOWS_DEVICE.fullmatch(name),
    }
    unlisted = "is no part of a pack, which holds no code and nothing that is not listed"
    return next((problem for problem, applies in problems.items() if applies), unlisted)


def _fold(name: str) -> str:
    """Return a name as a case-insensitive system that normalises Unicode sees it."""
    return unicodedata.normalize("NFKC", name).casefold().rstrip(". ")


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


def make_manifest(name: str, files: Mapping[str, FileDigest], origin: str | Path) -> Manifest:
    """Make the manifest of some files. Raises RunError where a pack cannot have this name."""
    digests = {file: digest._asdict() for file, digest in files.items()}
    content = {"format": FORMAT, "version": VERSION, "name": name, "files": digests}
    return parse_manifest(json.dumps(content, indent=1, sort_keys=True).encode() + b"\n", origin)


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
        message = f"this pack has format version {version}, and this seqcomposer reads up to {VERSION}"
        refuse(origin, message, "install a newer seqcomposer")
    is_named = isinstance(name, str) and re.fullmatch(RECIPE_NAME, name)
    if set(content) != KEYS or not isinstance(files, dict) or not is_named:
        refuse(origin, f"{MANIFEST} must have exactly the keys {', '.join(sorted(KEYS))}")
    for file in files:
        problem = name_problem(file) or (f"is {MANIFEST} itself" if file == MANIFEST else "")
        if problem:
            refuse(origin, f"{MANIFEST} lists {file!a}, which {problem}")
    missing = [file for file in FILES if file not in files]
    if missing:
        refuse(origin, f"{MANIFEST} does not list {', '.join(f'`{file}`' for file in missing)}")
    return Manifest(str(name), {file: _parse_digest(file, files[file], origin) for file in FILES}, data)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a mapping, and refuse duplicate keys: readers differ about which of them counts."""
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key is there twice")
    return mapping


def _parse_digest(name: str, entry: Any, origin: str | Path) -> FileDigest:
    is_pair = isinstance(entry, dict) and len(entry) == 2
    sha256, size = (entry.get("sha256"), entry.get("size")) if is_pair else ("", None)
    if not is_hash(sha256) or type(size) is not int or size < 0:
        refuse(origin, f"{MANIFEST} has no valid `sha256` and `size` of `{name}`")
    check_size(name, size, origin)
    return FileDigest(sha256, size)


def open_file(path: Path, origin: str | Path) -> BinaryIO:
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
    sha256 = hashlib.sha256()
    with open_file(path, origin) as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
        return FileDigest(sha256.hexdigest(), file.tell())


def copy_verified(read: Callable[[int], bytes], target: Path, expected: FileDigest, origin: str | Path) -> None:
    """Copy exactly as many bytes as `expected` has, hashing what is written. Raises RunError where they differ.

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


PRIVATE_KEYS = frozenset(("host", "hostname", "user", "username", "pid", "cwd"))
LOCAL_PATH = re.compile(r"(/|~|[A-Za-z]:[\\/]|\\\\|\.\.[\\/]).*", re.DOTALL)


def redact_record(record: Mapping[str, Any]) -> bytes:
    """Return run.json for others: without this machine's folders, users and host. Idempotent."""
    paths = {text.rstrip("\\/") for text in strings_in(record) if is_local_path(text)}
    redacted = _redact(dict(record), sorted(filter(None, paths), key=len, reverse=True))
    if isinstance(redacted.get("data"), dict) and "folders" in redacted["data"]:
        redacted["data"]["folders"] = []  # none of them exists where the pack is pulled
    return (json.dumps(redacted, indent=2, ensure_ascii=False) + "\n").encode()


def is_local_path(text: str) -> bool:
    """Return whether a text is an absolute path, or one that leads upwards, of any system."""
    return LOCAL_PATH.fullmatch(text) is not None


def local_paths_in(dataset: Mapping[str, Any]) -> list[str]:
    """Return the local paths in the section `data` of a recipe, sorted."""
    data = {key: value for key, value in dataset.items() if key != "tokenizer"}  # there `/` is a mark
    return sorted(set(filter(is_local_path, strings_in(data))))


def _redact(value: Any, paths: Sequence[str]) -> Any:
    """Replace local paths by their last names; `paths` are also replaced inside texts."""
    if isinstance(value, dict):
        return {key: _redact(item, paths) for key, item in value.items() if key not in PRIVATE_KEYS}
    if isinstance(value, list):
        return [_redact(item, paths) for item in value]
    if not isinstance(value, str):
        return value
    if is_local_path(value):
        return basename(value)
    for path in paths:
        value = re.sub(rf"(?<![\w/\\]){re.escape(path)}(?!\w)", lambda match: basename(match[0]), value)
    home = str(Path.home())
    return value.replace(home, "~") if len(home) > 1 else value


def basename(path: str) -> str:
    """Return the last name of a path of any system."""
    return re.split(r"[\\/]", path.rstrip("\\/"))[-1].lstrip("~")
