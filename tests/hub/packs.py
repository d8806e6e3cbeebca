"""Packs with something wrong in them, and what is left of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer.hub.manifest import FILES, MANIFEST

Member = tuple[tarfile.TarInfo, bytes]


def info(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    """The header of a member."""
    result = tarfile.TarInfo(name)
    result.size, result.type, result.linkname = size, kind, link
    return result


def members(folder: Path, top: str = "untrained/") -> list[Member]:
    """What an archive of a pack holds, in order."""
    contents = [(name, (folder / name).read_bytes()) for name in (MANIFEST, *FILES)]
    return [(info(f"{top}{name}", len(data)), data) for name, data in contents]


def to_archive(result: Sequence[Member], tail: bytes = bytes(1024), form: int = tarfile.USTAR_FORMAT) -> bytes:
    """An archive of members, as they are."""
    whole = b"".join(head.tobuf(form) + data + bytes(-len(data) % 512) for head, data in result)
    return gzip.compress(whole + tail, 1, mtime=0)


def update_manifest(folder: Path, **more: Any) -> None:
    """Makes pack.json of a folder fit its files again; `more` are other keys or other files of it."""
    files = {
        name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        for name, data in ((item, (folder / item).read_bytes()) for item in FILES)
    }
    message = json.loads((folder / MANIFEST).read_text(encoding="utf-8")) | {"files": files} | more
    (folder / MANIFEST).write_text(json.dumps(message), encoding="utf-8")


def left(parent: Path) -> list[str]:
    """What is below a folder, hidden or not, but the store and what was to be pulled."""
    return sorted(item.name for item in parent.iterdir() if item.name not in ("store", "bad", "bad.tar.gz"))


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {item.name: item.read_bytes() for item in folder.iterdir()}


def opened(data: bytes) -> list[str]:
    """The names in an archive, as everybody's tar reads it."""
    with tarfile.open(fileobj=io.BytesIO(data)) as result:
        return result.getnames()
