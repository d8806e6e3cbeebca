"""`pull`: download a packed run or a recipe, and verify it before it is put in place."""

from __future__ import annotations

import filecmp
import hashlib
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open

from composer.atomic_io import atomic_new_file, os_errors_as_run_errors, sha256_of_file
from composer.errors import ComposerError, RecipeError, RunError, shorten_list
from composer.hub.archive import unpack
from composer.hub.listing import BESIDE, DEFAULT_MAX_GIB, GIB, RECIPE_SUFFIXES, RECORD, check_limit
from composer.hub.pack import copy_pack, write_pack
from composer.hub.pack_format import (
    MANIFEST,
    NAMES,
    REPACK,
    Member,
    check_card,
    check_members,
    check_record,
    copy_file,
    digest_files,
    is_local_path,
    is_visible_row,
    local_paths_in,
    missing_plug_in,
    read_manifest,
    refuse,
)
from composer.hub.remotes import Download, parse_reference
from composer.recipe.cache import get, put, require_hash
from composer.recipe.extends_and_overrides import portable_text
from composer.recipe.recipe import Recipe, load
from composer.recipe.yaml_reader import dump, read, strings_in
from composer.run_dir import RUNS, RunDir

LARGEST_MAX_GIB = 1 << 20


@dataclass(frozen=True)
class Pulled:
    """Result of a pull: the path, its fingerprint, and the hash of its recipe in the cache.

    `was_there`: the same pack was installed already. `notes`: side effects of training its recipe.
    """

    ref: str
    path: Path
    sha256: str
    recipe: str
    was_there: bool = False
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """Return the result, the fingerprint, and notes to read before training."""
        if self.sha256 == self.recipe:
            return "\n".join([f"cached {self.path}", *(f"note: {note}" for note in self.notes)])
        status = f"{'was there already' if self.was_there else 'is pulled'}, every hash verified"
        command = f"seqcomposer translate {shlex.quote(str(self.path))}"
        lines = [f"{self.path} {status}; try it: {command}", f"sha256 {self.sha256}"]
        end = "look at it before you train or evaluate"
        lines += [f"note: its recipe {note}; {end}" for note in self.notes]
        return "\n".join(lines)

    def extends(self) -> str:
        """Return the lines with which a recipe extends the pulled one."""
        return dump({"extends": {"pull": self.ref, "sha256": self.recipe}}).rstrip("\n")


def pull(
    ref: str | Path,
    output: str | Path | None = None,
    sha256: str | None = None,
    max_gib: float = DEFAULT_MAX_GIB,
) -> Path:
    """Download a pack or a run into a new folder (`runs/NAME`), or a recipe into the recipe cache.

    Args:
        ref: A path; `FOLDER/NAME[@ALIAS]` of a shelf; `git+URL[@REV][#PATH]`;
            `wandb:[ENTITY/]PROJECT/NAME[:ALIAS]`; `hub:OWNER/NAME[@REV][#PATH]`.
        output: The new run folder, or a new file for a recipe.
        sha256: Expected SHA-256 of a pack's pack.json, or of a recipe.
        max_gib: Largest download, in GiB.

    Returns:
        The run folder, or the recipe's file.

    Raises:
        RunError, RecipeError: With nothing put in place.
    """
    return pull_reference(str(ref), output, sha256, max_gib).path


def pull_reference(
    ref: str,
    output: str | Path | None = None,
    sha256: str | None = None,
    max_gib: float = DEFAULT_MAX_GIB,
) -> Pulled:
    """Like `pull`, but return the whole result."""
    reference = parse_reference(ref)
    if sha256 is not None:
        require_hash(sha256)
    if not 0 < max_gib <= LARGEST_MAX_GIB:
        hint = f"write a number up to {LARGEST_MAX_GIB:,}, such as 20"
        raise RunError.of(f"{max_gib} GiB is not a limit", hint)
    target = None if output is None else Path(output)
    max_bytes = int(max_gib * GIB)
    with (
        os_errors_as_run_errors(str(reference)),
        tempfile.TemporaryDirectory(prefix="seqcomposer-") as temporary,
    ):
        top, files = Path(temporary, "download"), Path(temporary, "pack")
        top.mkdir()
        files.mkdir()
        download = reference.download(top, max_bytes)
        if download.path.suffix in RECIPE_SUFFIXES and not download.path.is_dir():
            return _pull_recipe(download, target, sha256)
        read_pack(download, files, max_bytes)
        sha256_here = sha256_of_file(files / MANIFEST)
        check_fingerprint(sha256_here, sha256, download.pinned)
        recipe = verify_pack(files, download.pinned)
        folder = target or RUNS / recipe.name
        same, *_ = filecmp.cmpfiles(files, folder, NAMES, shallow=False)
        if len(same) < len(NAMES):
            copy_pack(files, folder)
        cached = put(portable_text(files / "recipe.yaml", files))
        notes = tuple(side_effects(recipe))
        return Pulled(download.pinned, folder, sha256_here, cached, len(same) == len(NAMES), notes)


def read_pack(download: Download, folder: Path, max_bytes: int) -> None:
    """Copy a pack, or pack a run, from a folder or an archive into `folder`. Raises RunError."""
    path, origin = download.path, download.pinned
    if not path.is_dir():
        path = unpack(path, folder.with_name("unpacked"), max_bytes, origin)
    names = set(os.listdir(path))
    is_pack = MANIFEST in names
    if not is_pack and RECORD not in names:
        fix = "name a folder that has pack.json or run.json, an archive or a recipe"
        refuse(origin, "this is not a pack, a run folder or a recipe", fix)
    taken = []
    for name in names - BESIDE if is_pack else names & NAMES:
        status = (path / name).lstat()
        taken.append(Member(name, status.st_size, stat.S_ISREG(status.st_mode)))
    check_members(taken, origin)
    check_limit(taken, max_bytes, origin)
    if is_pack:
        for name in NAMES - names:
            refuse(origin, f"`{name}` is missing")
        for member in taken:
            copy_file(path / member.name, folder / member.name)
    else:
        with refused_if_invalid(origin):
            recipe = load_alone(path / "recipe.yaml")
        write_pack(folder, RunDir(path), recipe, "")


def _pull_recipe(download: Download, target: Path | None, expected: str | None) -> Pulled:
    """Cache a recipe together with all that it extends. Raises RecipeError, RunError."""
    try:
        text = portable_text(download.path, download.top)
    except RecipeError as error:
        if download.top is None:
            raise
        # faults name the remote instead of the temporary folder
        start, remote = f"{download.top}{os.sep}", f"{download.pinned.partition('#')[0]}#"
        faults = [replace(fault, file=fault.file.replace(start, remote)) for fault in error.faults]
        raise RecipeError(faults) from None
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    check_fingerprint(sha256, expected, download.pinned)
    if target is not None:
        with atomic_new_file(target) as file:
            file.write(text.encode())
    cached = get(put(text))
    if cached is None:  # another process has cleared the cache since
        raise RunError.of("another process has removed the recipe from the cache", "pull again")
    notes = tuple(model_faults(cached))
    return Pulled(download.pinned, target or cached, sha256, sha256, notes=notes)


def model_faults(recipe: Path) -> Iterator[str]:
    """Yield the first error of a recipe by itself, other than a missing section."""
    from composer.checks.planner import plan  # imported late, since it imports torch

    try:
        plan(load(recipe))
    except ComposerError as error:
        faults = [fault for fault in error.faults if fault.code != "missing"]
        yield from (f"`check` refuses it: {fault.message}" for fault in faults[:1])


def check_fingerprint(sha256: str, expected: str | None, origin: str) -> None:
    """Raise RunError if a fingerprint is not the expected one."""
    if expected not in (None, sha256):
        message = f"the download has the fingerprint {sha256}, which is not the expected one"
        fix = "compare it with the published one: of pack.json, or of a recipe with all that it"
        refuse(origin, message, f"{fix} extends")


def verify_pack(folder: Path, origin: str) -> Recipe:
    """Check a pack in a folder of ours; return its recipe. Raises RunError."""
    manifest = read_manifest(folder, origin)
    digests = digest_files(folder)
    for name, expected in manifest.files.items():
        if digests[name] != expected:
            message = f"`{name}` does not match {MANIFEST}: its size or SHA-256 differs"
            refuse(origin, message, "it was changed or damaged: ask for the pack again")
    check_weights(folder / "model.safetensors", origin)
    with refused_if_invalid(origin):
        record = RunDir(folder).read()
    check_record(record, digests, origin)
    # data would be looked up under these paths
    for path in (*filter(is_local_path, strings_in(record.as_data())), *record.data.folders):
        refuse(origin, f"run.json contains a local path, {path!a}")
    with (folder / "metrics.jsonl").open("rb") as metrics:
        if not all(map(is_visible_row, metrics)):
            refuse(origin, "`metrics.jsonl` was not written by a training")
    check_card((folder / "README.md").read_bytes(), origin)
    from composer.inference.run import open_run  # imported late, since it imports torch

    with refused_if_invalid(origin, missing_plug_in(record)):
        recipe = load_alone(folder / "recipe.yaml")
        open_run(folder)
    if recipe.name != manifest.name:
        message = f"this pack is called `{manifest.name}`, and its recipe `{recipe.name}`"
        refuse(origin, message)
    return recipe


def load_alone(file: Path) -> Recipe:
    """Load a recipe that extends no other. Raises ComposerError."""
    if "extends" in read(file, file.name).value:
        raise RunError.of("the recipe of a pack must not extend another", REPACK)
    return load(file)


@contextmanager
def refused_if_invalid(origin: str, hint: str = "") -> Iterator[None]:
    """Raise the first fault of a file as that of a refused pack. hint: Instead of the fault's."""
    try:
        yield
    except ComposerError as error:
        first = error.faults[0]
        refuse(origin, f"this cannot be opened here: {first.message}", hint or first.hint)


def check_weights(file: Path, origin: str) -> None:
    """Raise RunError if a file is not one of safetensors, or has a number that is not finite."""
    try:
        with safe_open(file, "pt") as weights:
            names = list(weights.keys())
            not_finite = [name for name in names if not weights.get_tensor(name).isfinite().all()]
    except SafetensorError:
        message = "`model.safetensors` is not in the safetensors format"
        refuse(origin, f"{message}, and other formats can run code")
    if not_finite:
        message = f"these weights are not finite: {shorten_list(not_finite)}"
        refuse(origin, message, "no training writes such weights; ask its author")


def side_effects(recipe: Recipe) -> Iterator[str]:
    """Yield the side effects of training a recipe: local paths that it reads, a W&B entity."""
    for path in local_paths_in(recipe.canonical["data"]):
        yield f"reads {path!r}"
    wandb = recipe.logging.wandb
    if wandb and wandb.entity:
        yield f"logs to {wandb.entity!r} at Weights & Biases, where you are logged in"
