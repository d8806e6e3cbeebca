"""`pack`: a finished run as one folder, or one archive, that somebody else can verify and use."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from composer.errors import RunError
from composer.recipe import Recipe, load
from composer.runs import open_run
from composer.sharing.accepting import check_parts
from composer.sharing.archive import ENDING, opened_archive, write_archive
from composer.sharing.card import card
from composer.sharing.contents import FILES, MANIFEST
from composer.sharing.forms import check_record
from composer.sharing.manifest import Manifest, manifest, manifest_of
from composer.sharing.record import places_in, portable_record
from composer.sharing.verifying import described, opened, small
from composer.training.run_folder import RunFolder
from composer.whole import in_words, must_be_new, new_file, new_folder

CARD = "README.md"
COPIED = ("recipe.yaml", "tokenizer.json", "model.safetensors")


def pack(run: str | PathLike[str], output: str | Path | None = None, license: str = "") -> Path:
    """Packs a finished run into a new folder or, where `output` ends in .tar.gz, an archive; returns where it is.

    Without `output` it is `NAME.tar.gz` here. A README.md in the run folder is taken as it is; else a model card is
    written, with `license` (a word of the hub's such as `mit`) if it is given. Raises RunError, with nothing written.
    """
    folder = RunFolder(Path(run))
    if output is not None:
        must_be_new(Path(output))
    recipe = open_run(folder.path).recipe  # its parts belong together, or this says what does not
    target = Path(output) if output is not None else Path(f"{recipe.name}{ENDING}")
    if not target.name.endswith(ENDING):
        with new_folder(target) as draft:
            fill(draft, folder, recipe, license)
        return target
    with in_words(target), gathered(folder, recipe, license) as (found, inside), new_file(target) as file:
        write_archive(file, found, inside)
    return target


def places(run: str | Path) -> list[str]:
    """Folders and files of this machine that the recipe of a run names: others do not have them."""
    return places_in(load(RunFolder(Path(run)).recipe).dataset)


def fingerprint(pack: Path) -> str:
    """The SHA-256 of a pack's pack.json: of a folder or an archive that was just written."""
    if pack.is_dir():
        return manifest((pack / MANIFEST).read_bytes(), pack).sha256
    with opened_archive(pack, str(pack)) as archive:
        return archive.manifest.sha256


@contextmanager
def gathered(folder: RunFolder, recipe: Recipe, license: str) -> Iterator[tuple[Manifest, Path]]:
    """The files of a pack in a folder for the time being, and its pack.json."""
    with tempfile.TemporaryDirectory(prefix="seqcomposer-") as place:
        yield fill(Path(place), folder, recipe, license), Path(place)


def fill(target: Path, folder: RunFolder, recipe: Recipe, license: str) -> Manifest:
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


def written_card(folder: RunFolder, recipe: Recipe, license: str) -> bytes:
    """The run's own README.md, else a model card. Raises RunError where a license is given for what is written."""
    path = folder.path / CARD
    if not path.exists():
        return card(recipe, folder.read(), license).encode()
    if license:
        raise RunError.of("this run has a model card, which is taken as it is", "write `license:` at its head instead",
                          str(path))  # fmt: skip
    return small(path, folder.path)
