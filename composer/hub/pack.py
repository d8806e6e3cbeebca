"""`pack`: a finished run as one folder, or one archive, that somebody else can verify and use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from composer.atomic_io import atomic_directory, atomic_new_file, os_errors_as_run_errors, require_absent
from composer.errors import RunError
from composer.hub.archive import ENDING, opened_archive, write_archive
from composer.hub.checksums import described, opened, small
from composer.hub.manifest import Manifest, manifest, manifest_of
from composer.hub.model_card import card
from composer.hub.pack_contents import FILES, MANIFEST
from composer.hub.redact import places_in, portable_record
from composer.hub.run_schema import check_record
from composer.hub.verify_pack import check_parts
from composer.inference.run import open_run
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir

CARD = "README.md"
COPIED = ("recipe.yaml", "tokenizer.json", "model.safetensors")


def pack(run: str | PathLike[str], output: str | Path | None = None, license: str = "") -> Path:
    """Packs a finished run into a new folder or, where `output` ends in .tar.gz, an archive; returns where it is.

    Without `output` it is `NAME.tar.gz` here. A README.md in the run folder is taken as it is; else a model card is
    written, with `license` (a word of the hub's such as `mit`) if it is given. Raises RunError, with nothing written.
    """
    folder = RunDir(Path(run))
    if output is not None:
        require_absent(Path(output))
    recipe = open_run(folder.path).recipe  # its parts belong together, or this says what does not
    target = Path(output) if output is not None else Path(f"{recipe.name}{ENDING}")
    if not target.name.endswith(ENDING):
        with atomic_directory(target) as draft:
            fill(draft, folder, recipe, license)
        return target
    with (
        os_errors_as_run_errors(target),
        gathered(folder, recipe, license) as (found, inside),
        atomic_new_file(target) as file,
    ):
        write_archive(file, found, inside)
    return target


def local_paths(run: str | Path) -> list[str]:
    """Folders and files of this machine that the recipe of a run names: others do not have them."""
    return places_in(load(RunDir(Path(run)).recipe).dataset)


def fingerprint(pack: Path) -> str:
    """The SHA-256 of a pack's pack.json: of a folder or an archive that was just written."""
    if pack.is_dir():
        return manifest((pack / MANIFEST).read_bytes(), pack).sha256
    with opened_archive(pack, str(pack)) as archive:
        return archive.manifest.sha256


@contextmanager
def gathered(folder: RunDir, recipe: Recipe, license: str) -> Iterator[tuple[Manifest, Path]]:
    """The files of a pack in a folder for the time being, and its pack.json."""
    with tempfile.TemporaryDirectory(prefix="seqcomposer-") as place:
        yield fill(Path(place), folder, recipe, license), Path(place)


def fill(target: Path, folder: RunDir, recipe: Recipe, license: str) -> Manifest:
    """Writes the files of a pack and its pack.json into an empty folder. Raises RunError."""
    for name in COPIED:
        copy(folder.path / name, target / name)
    metrics = folder.metrics
    (target / metrics.name).write_bytes(small(metrics, folder.path) if metrics.exists() else b"")
    record = folder.read()
    check_record(record, folder.record)
    (target / folder.record.name).write_bytes(portable_record(record))
    (target / CARD).write_bytes(written_card(folder, recipe, license))
    files = {name: described(target / name, target) for name in FILES}
    check_parts(record, files, folder.path)
    found = manifest_of(recipe.name, files, folder.path)
    (target / MANIFEST).write_bytes(found.data)
    return found


def copy(source: Path, target: Path) -> None:
    """Copies a regular file. Raises RunError where it is none."""
    with opened(source, source.parent) as file, target.open("xb") as beside:
        shutil.copyfileobj(file, beside)


def written_card(folder: RunDir, recipe: Recipe, license: str) -> bytes:
    """The run's own README.md, else a model card. Raises RunError where a license is given for what is written."""
    path = folder.path / CARD
    if not path.exists():
        return card(recipe, folder.read(), license).encode()
    if license:
        raise RunError.of(
            "this run has a model card, which is taken as it is", "write `license:` at its head instead", str(path)
        )
    return small(path, folder.path)
