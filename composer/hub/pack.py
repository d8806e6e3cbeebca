"""Packs: a finished run as a folder with checksums, or as one archive of that folder."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path

from composer.atomic_io import (
    atomic_directory,
    atomic_new_file,
    os_errors_as_run_errors,
    require_absent,
    sha256_of_file,
)
from composer.errors import RunError
from composer.formatting import map_scalars
from composer.hub.archive import ARCHIVE_SUFFIX, write_archive
from composer.hub.model_card import model_card
from composer.hub.pack_format import (
    MANIFEST,
    NAMES,
    Manifest,
    basename,
    check_card,
    check_finished,
    check_record,
    copy_file,
    digest_files,
    is_local_path,
)
from composer.recipe.recipe import Recipe
from composer.recipe.yaml_reader import strings_in
from composer.run_dir import RunDir, find_run
from composer.runs.record import RunRecord
from composer.viz.architecture import Drawing


def pack(run: str | PathLike[str], output: str | Path | None = None, license: str = "") -> Path:
    """Pack a finished run into a new folder, or an archive if `output` ends in .tar.

    Returns the path. Equal runs give equal bytes.

    Args:
        run: A run folder, or an opened run. Its README.md, if any, is the model card.
        output: The new folder or file; `NAME.tar` by default, with the recipe's name.
        license: License for a generated model card, by its identifier on the hub, such as `mit`.

    Raises:
        RunError: With nothing written.
    """
    return pack_with_hash(run, output, license)[0]


def pack_with_hash(
    run: str | PathLike[str], output: str | Path | None = None, license: str = ""
) -> tuple[Path, str]:
    """Like `pack`, but also return the fingerprint: the SHA-256 of the pack's pack.json."""
    if output is not None:
        require_absent(Path(output))
    folder, recipe = finished_run(run)
    target = Path(output if output is not None else f"{recipe.name}{ARCHIVE_SUFFIX}")
    if target.suffix in (".gz", ".tgz", ".zip"):
        fix = f"name a file that ends in {ARCHIVE_SUFFIX}: weights do not compress"
        raise RunError.of("an archive of a pack is a plain tar", fix, str(target))
    with os_errors_as_run_errors(target), packed_temporarily(folder, recipe, license) as inside:
        if target.suffix == ARCHIVE_SUFFIX:
            with atomic_new_file(target) as file:
                write_archive(file, recipe.name, inside)
        else:
            copy_pack(inside, target)
        return target, sha256_of_file(inside / MANIFEST)


def finished_run(run: str | PathLike[str]) -> tuple[RunDir, Recipe]:
    """Return a finished run whose files fit, and its recipe. Raises RunError."""
    folder = RunDir(find_run(run))
    check_finished(folder.read(), folder.path)
    from composer.inference.run import open_run  # imported late, since it imports torch

    return folder, open_run(folder.path).recipe


def copy_pack(pack: Path, target: Path) -> None:
    """Copy the files of a pack into a new folder that is complete, or absent. Raises RunError."""
    with atomic_directory(target) as draft:
        for name in sorted(NAMES):
            copy_file(pack / name, draft / name)


@contextmanager
def packed_temporarily(
    folder: RunDir, recipe: Recipe, license: str, drawing: Drawing | None = None
) -> Iterator[Path]:
    """Pack a run into a temporary folder, and yield that folder."""
    with tempfile.TemporaryDirectory(prefix="seqcomposer-") as draft:
        write_pack(Path(draft), folder, recipe, license, drawing)
        yield Path(draft)


def write_pack(
    target: Path, run: RunDir, recipe: Recipe, license: str, drawing: Drawing | None = None
) -> None:
    """Write the files of a pack and its pack.json into an empty folder. Raises RunError."""
    card, record = run.path / "README.md", run.read()
    if card.exists() and license:
        message = "this run has a README.md, which is packed as its model card"
        raise RunError.of(message, "write `license:` at its head instead", str(card))
    (target / run.record.name).write_bytes(redact_record(record))
    for path in (run.recipe, run.tokenizer, run.weights, run.metrics, card):
        if path.exists() or path not in (run.metrics, card):
            copy_file(path, target / path.name)
    (target / run.metrics.name).touch()
    if not card.exists():
        text = model_card(recipe, record, license, drawing)
        (target / card.name).write_text(text, encoding="utf-8")
    check_card((target / card.name).read_bytes(), card)
    manifest = Manifest(name=recipe.name, files=digest_files(target))
    check_record(record, manifest.files, run.path)
    text = json.dumps(manifest.model_dump(), indent=1, sort_keys=True)
    (target / MANIFEST).write_text(f"{text}\n", encoding="utf-8")


def redact_record(record: RunRecord) -> bytes:
    """Return run.json without this machine's folders and users. Idempotent."""
    # these folders do not exist where the pack is pulled
    public = replace(record, data=replace(record.data, folders=()))
    local = {text.rstrip("\\/") for text in strings_in(record.as_data()) if is_local_path(text)}
    paths = "|".join(map(re.escape, sorted(filter(None, local), key=len, reverse=True)))
    home = str(Path.home())

    def redact(value: object) -> object:
        """Replace local paths by their last names, also inside texts."""
        if not isinstance(value, str) or is_local_path(value):
            return basename(value) if isinstance(value, str) else value
        if paths:
            value = re.sub(rf"(?<![\w/\\])({paths})(?!\w)", lambda match: basename(match[0]), value)
        return value.replace(home, "~") if len(home) > 1 else value

    redacted = map_scalars(public.as_data(), redact)
    return (json.dumps(redacted, indent=2, ensure_ascii=False) + "\n").encode()
