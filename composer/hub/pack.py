"""`pack`: a finished run as one folder or one .tar.gz archive, with checksums and a model card."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from composer.atomic_io import atomic_directory, atomic_new_file, os_errors_as_run_errors, require_absent
from composer.errors import RunError
from composer.hub.archive import SUFFIX, open_archive, write_archive
from composer.hub.huggingface import model_card
from composer.hub.manifest import (
    FILES,
    MANIFEST,
    Manifest,
    digest_file,
    local_paths_in,
    make_manifest,
    open_file,
    parse_manifest,
    read_small,
    redact_record,
)
from composer.hub.verify_pack import check_digests, check_record
from composer.inference.run import open_run
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir

CARD = "README.md"
COPIED = ("recipe.yaml", "tokenizer.json", "model.safetensors")


def pack(run: str | PathLike[str], output: str | Path | None = None, license: str = "") -> Path:
    """Pack a finished run into a new folder, or into an archive if `output` ends in .tar.gz, and return its path.

    Equal runs give equal bytes.

    Args:
        run: A run folder, or an opened run. A README.md in it is used as the model card; else one is written.
        output: The new folder or file; `NAME.tar.gz` by default, with the recipe's name.
        license: License of the model card that is written, by its identifier on the hub, such as `mit`.

    Raises:
        RunError: With nothing written.
    """
    folder = RunDir(Path(run))
    if output is not None:
        require_absent(Path(output))
    recipe = open_run(folder.path).recipe  # raises RunError where its parts do not belong together
    target = Path(output) if output is not None else Path(f"{recipe.name}{SUFFIX}")
    if not target.name.endswith(SUFFIX):
        with atomic_directory(target) as draft:
            write_pack(draft, folder, recipe, license)
        return target
    with (
        os_errors_as_run_errors(target),
        packed_temporarily(folder, recipe, license) as (manifest, inside),
        atomic_new_file(target) as file,
    ):
        write_archive(file, manifest, inside)
    return target


def local_paths(run: str | Path) -> list[str]:
    """Return the local paths that the recipe of a run names: others do not have these files."""
    return local_paths_in(load(RunDir(Path(run)).recipe).dataset)


def fingerprint(pack: Path) -> str:
    """Return the SHA-256 of the pack.json of a folder or an archive."""
    if pack.is_dir():
        return parse_manifest((pack / MANIFEST).read_bytes(), pack).sha256
    with open_archive(pack, str(pack)) as archive:
        return archive.manifest.sha256


@contextmanager
def packed_temporarily(folder: RunDir, recipe: Recipe, license: str) -> Iterator[tuple[Manifest, Path]]:
    """Pack a run into a temporary folder, and yield the manifest and that folder."""
    with tempfile.TemporaryDirectory(prefix="seqcomposer-") as draft:
        yield write_pack(Path(draft), folder, recipe, license), Path(draft)


def write_pack(target: Path, folder: RunDir, recipe: Recipe, license: str) -> Manifest:
    """Write the files of a pack and its pack.json into an empty folder. Raises RunError."""
    for name in COPIED:
        with open_file(folder.path / name, folder.path) as source, (target / name).open("xb") as copy:
            shutil.copyfileobj(source, copy)
    metrics = folder.metrics
    (target / metrics.name).write_bytes(read_small(metrics, folder.path) if metrics.exists() else b"")
    record = folder.read()
    check_record(record, folder.record)
    (target / folder.record.name).write_bytes(redact_record(record))
    (target / CARD).write_bytes(_card(folder, recipe, license))
    files = {name: digest_file(target / name, target) for name in FILES}
    check_digests(record, files, folder.path)
    manifest = make_manifest(recipe.name, files, folder.path)
    (target / MANIFEST).write_bytes(manifest.data)
    return manifest


def _card(folder: RunDir, recipe: Recipe, license: str) -> bytes:
    path = folder.path / CARD
    if not path.exists():
        return model_card(recipe, folder.read(), license).encode()
    if license:
        message = "this run has a README.md, which is packed as its model card"
        raise RunError.of(message, "write `license:` at its head instead", str(path))
    return read_small(path, folder.path)
