"""Members of archives, manifests that fit changed files, and the names and contents of folders."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer.hub.pack_format import FILES, MANIFEST

Member = tuple[tarfile.TarInfo, bytes]


def info(
    name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tarfile.TarInfo:
    """Return the header of a member."""
    result = tarfile.TarInfo(name)
    result.size, result.type, result.linkname = size, kind, link
    return result


def members(folder: Path, top: str = "untrained/") -> list[Member]:
    """Return the members of a pack's archive, in order."""
    contents = [(name, (folder / name).read_bytes()) for name in (MANIFEST, *FILES)]
    return [(info(f"{top}{name}", len(data)), data) for name, data in contents]


def to_archive(
    result: Sequence[Member], tail: bytes = bytes(1024), form: int = tarfile.USTAR_FORMAT
) -> bytes:
    """Return an archive of any members."""
    blocks = b"".join(head.tobuf(form) + data + bytes(-len(data) % 512) for head, data in result)
    return blocks + tail


def update_manifest(folder: Path, **more: Any) -> None:
    """Make pack.json of a folder fit its files again; `more` are other keys of it."""
    files = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for name, data in ((item, (folder / item).read_bytes()) for item in FILES)
    }
    message = json.loads((folder / MANIFEST).read_text(encoding="utf-8")) | {"files": files} | more
    (folder / MANIFEST).write_text(json.dumps(message), encoding="utf-8")


def names_in(parent: Path) -> list[str]:
    """Return the names in a folder, hidden ones too, except for the recipe cache and the pack that
    was pulled.
    """
    return sorted(
        item.name
        for item in parent.iterdir()
        if item.name not in ("store", "bad", "bad.tar", "bad.tar.gz")
    )


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by name."""
    return {item.name: item.read_bytes() for item in folder.iterdir()}


def archive_names(data: bytes) -> list[str]:
    """Return the names in an archive, as tarfile reads it."""
    with tarfile.open(fileobj=io.BytesIO(data)) as result:
        return result.getnames()
