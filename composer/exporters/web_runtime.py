"""The programs that a page needs to run a model: two packages of npm, whose content is known."""

from __future__ import annotations

import base64
import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from composer.atomic_io import cache_dir, open_regular
from composer.errors import RunError


@dataclass(frozen=True)
class Package:
    """A package of npm.

    archive: The file that `npm pack` writes. sha512: As npm publishes it. files: What a page needs.
    """

    name: str
    archive: str
    sha512: str
    files: tuple[str, ...]


PACKAGES = (
    Package(
        "onnxruntime-web@1.30.0",
        "onnxruntime-web-1.30.0.tgz",
        "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ==",
        (
            "package/dist/ort.wasm.bundle.min.mjs",
            "package/dist/ort-wasm-simd-threaded.wasm",
            "package/README.md",
        ),
    ),
    Package(
        "@huggingface/tokenizers@0.2.0",
        "huggingface-tokenizers-0.2.0.tgz",
        "LidMHe1FpcSYH4vcSjXooda34pC0M8m1gmDOv7SQi6Iv+ib1zX7J3sHBCC9/3FPCkn2k1b55FneVqMRxrr99pg==",
        ("package/dist/tokenizers.min.mjs", "package/LICENSE"),
    ),
)
"""A newer version is another line here: `npm view NAME dist.integrity` says its SHA-512."""


def find_archives(folder: str | Path | None) -> list[Path]:
    """Return the files of the packages, checked. Raises RunError.

    folder: Where they are; None is this user's cache.
    """
    place = Path(folder) if folder is not None else cache_dir() / "npm"
    archives = [place / package.archive for package in PACKAGES]
    names = " ".join(package.name for package in PACKAGES)
    fix = f"run `mkdir -p {place} && npm pack --pack-destination {place} {names}`"
    for package, archive in zip(PACKAGES, archives, strict=True):
        if not archive.is_file():
            message = f"a page needs {package.name}, a package of npm, and it is not here"
            other = (
                "where there is no npm, copy what this writes elsewhere, and add `--runtime DIR`"
            )
            raise RunError.of(message, f"{fix}; {other}", str(archive))
        if sha512_of(archive) != package.sha512:
            message = f"this file is not {package.name} as npm publishes it"
            raise RunError.of(message, f"remove it, and {fix}", str(archive))
    return archives


def sha512_of(archive: Path) -> str:
    """Return the SHA-512 of a file in base64."""
    with open_regular(archive) as file:
        return base64.b64encode(hashlib.file_digest(file, "sha512").digest()).decode()


def unpack(archives: Sequence[Path], folder: Path) -> None:
    """Write what a page needs of the packages into a folder."""
    folder.mkdir()
    for package, archive in zip(PACKAGES, archives, strict=True):
        with tarfile.open(archive) as members:
            for name in package.files:
                content = members.extractfile(name)
                assert content is not None
                (folder / Path(name).name).write_bytes(content.read())
