"""`pull`: a pack, a run or a recipe of somebody else, verified before anything of it is in place, and never run."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from composer.atomic_io import atomic_directory, atomic_new_file, os_errors_as_run_errors
from composer.errors import ComposerError, RecipeError, RunError
from composer.hub.archive import opened_archive
from composer.hub.checksums import copy_verified, described, opened, small
from composer.hub.fetch import GIB, LEFT, RECIPES, RECIPES_IN, RECORD, Place, taken, within
from composer.hub.git import repository_place
from composer.hub.huggingface import hub_place
from composer.hub.manifest import Manifest, manifest
from composer.hub.pack_contents import FILES, FOLDER, MANIFEST, REGULAR, Entry, check_entries, refuse
from composer.hub.urls import MOST_GIB, Artifact, HubModel, LocalPath, Reference, Repository, parsed, shown
from composer.hub.verify_pack import accept, reaches, recipe_of, record_of
from composer.hub.wandb_artifacts import artifact_place
from composer.recipe.cache import get, put, require_hash
from composer.recipe.inheritance import portable_text
from composer.recipe.yaml_reader import dump
from composer.run_dir import RUNS, RunDir

MOST_ASKED = 1 << 20
"""GiB that a user can allow."""
AROUND = (*LEFT, ".git")
"""What may lie beside a pack in a clone, and is not taken."""

Fill = Callable[[Path], None]


@dataclass(frozen=True)
class Pulled:
    """What was pulled: where it is, its fingerprint, and under which hash the store has its recipe.

    `was_there` says that this very pack lay there already; `notes` what its recipe does with this machine.
    """

    ref: str
    path: Path
    sha256: str
    recipe: str
    was_there: bool = False
    notes: tuple[str, ...] = ()

    def told(self) -> str:
        """What happened, in two lines; then what to look at."""
        if self.sha256 == self.recipe:
            return f"kept {self.path}"
        happened = f"{'was' if self.was_there else 'is'} here, every hash verified"
        notes = (f"note: its recipe {each}; look at it before you train or evaluate" for each in self.notes)
        use = f"{self.path} {happened}; try it: seqcomposer translate {shlex.quote(str(self.path))}"
        return "\n".join([use, f"sha256 {self.sha256}", *notes])

    def extends(self) -> str:
        """The lines by which a recipe extends what was pulled."""
        return dump({"extends": {"pull": self.ref, "sha256": self.recipe}}).rstrip("\n")


@dataclass(frozen=True)
class Asked:
    """What is asked for: from where, as it may be printed; to where, with which fingerprint, of how many bytes."""

    ref: str
    target: Path | None
    sha256: str | None
    limit: int


@dataclass(frozen=True)
class Source:
    """What is to be pulled, on this machine; `top` is the folder of what was fetched, None of a path of the user.

    `ref` names it for ever, where that can be.
    """

    path: Path
    ref: str
    top: Path | None = None


def pull(
    ref: str | Path, output: str | Path | None = None, sha256: str | None = None, max_gib: float = MOST_GIB
) -> Path:
    """Brings what `ref` names: a pack or a run into a new folder (`runs/NAME`), a recipe into the store.

    A path; `git+URL[@REVISION][#PATH]`; `wandb:[ENTITY/]PROJECT/NAME:VERSION`; `hub:OWNER/NAME[@REVISION][#PATH]`.
    sha256: the fingerprint that must come. max_gib: what is larger is refused. Returns the run folder, or the recipe's
    file (`output`, else that in the store). Raises RunError or RecipeError, with nothing put in place.
    """
    return pull_reference(str(ref), output, sha256, max_gib).path


def pull_reference(
    ref: str, output: str | Path | None = None, sha256: str | None = None, max_gib: float = MOST_GIB
) -> Pulled:
    """As `pull`, and says what it was."""
    reference = parsed(ref)
    if sha256 is not None:
        require_hash(sha256)
    if not 0 < max_gib <= MOST_ASKED:
        raise RunError.of(f"{max_gib} GiB is no size", f"write a number up to {MOST_ASKED:,}, such as 20")
    asked = Asked(shown(ref), None if output is None else Path(output), sha256, int(max_gib * GIB))
    with os_errors_as_run_errors(asked.ref), located(reference, asked) as source:
        asked = replace(asked, ref=source.ref)
        if source.path.suffix in RECIPES and not source.path.is_dir():
            return pulled_recipe(source, asked)
        if source.path.is_dir():
            return pulled_folder(source.path, asked)
        with opened_archive(source.path, asked.ref) as archive:
            return placed(archive.manifest, archive.unpack, asked)


@contextmanager
def located(reference: Reference, asked: Asked) -> Iterator[Source]:
    """What a reference names, fetched where it is not on this machine. Raises RunError."""
    if isinstance(reference, LocalPath):
        if not os.path.exists(reference.path):
            raise RunError.of("this does not exist", "write a path, `git+URL`, `wandb:NAME` or `hub:NAME`", asked.ref)
        yield Source(reference.path, os.path.abspath(reference.path))  # it is read in other folders too
        return
    with tempfile.TemporaryDirectory(prefix="seqcomposer-") as name:
        top = Path(name, "taken")
        top.mkdir()
        path = "" if isinstance(reference, Artifact) else reference.path
        place = place_of(reference, asked, Path(name, "work"))
        yield Source(taken(place, path, top, asked.limit), place.pinned, top)


def place_of(reference: Repository | Artifact | HubModel, asked: Asked, work: Path) -> Place:
    """The place far away that a reference names; `work` is a folder for what has to be kept of it. Raises RunError."""
    if isinstance(reference, HubModel):
        return hub_place(reference, asked.ref)
    if isinstance(reference, Artifact):
        return artifact_place(reference, asked.ref)
    work.mkdir()
    return repository_place(reference, asked.ref, work, asked.limit)


# ------------------------------------------------------------------------------------------- recipes


def pulled_recipe(source: Source, asked: Asked) -> Pulled:
    """Keeps a recipe, with all that it extends inside it. Raises RecipeError, RunError."""
    try:
        text = portable_text(source.path, None if source.top is None else source.top / RECIPES_IN)
    except RecipeError as error:
        raise named(error, source, asked.ref) from None
    found = hashlib.sha256(text.encode()).hexdigest()
    must_match(found, asked)
    if asked.target is not None:
        with atomic_new_file(asked.target) as file:
            file.write(text.encode())
    file_kept = store_file(put(text))
    return Pulled(asked.ref, asked.target or file_kept, found, found)


def named(error: RecipeError, source: Source, origin: str) -> RecipeError:
    """Faults with the name of where a recipe came from, in place of the folder that it was fetched into."""
    if source.top is None:
        return error
    start, begun = f"{source.top / RECIPES_IN}{os.sep}", f"{origin.partition('#')[0]}#"
    return RecipeError(replace(each, file=each.file.replace(start, begun)) for each in error.faults)


def store_file(sha256: str) -> Path:
    """Where a recipe lies that was just kept. Raises RunError where it is gone again."""
    path = get(sha256)
    if path is None:
        raise RunError.of("the store has lost what was just kept in it", "pull again")
    return path


def must_match(found: str, asked: Asked) -> None:
    """Raises RunError where a fingerprint is not the one that was asked for."""
    if asked.sha256 is not None and found != asked.sha256:
        message = f"what is there has the fingerprint {found}, and not the one asked for; nothing was taken"
        fix = "look at where you have it from; that of a pack is the SHA-256 of its pack.json"
        raise RunError.of(message, fix, asked.ref)


# ------------------------------------------------------------------------------------------- packs and runs


def pulled_folder(path: Path, asked: Asked) -> Pulled:
    """Places a pack that is a folder, or a run folder, packed. Raises RunError."""
    if (path / MANIFEST).exists():
        found = manifest_in(path, asked.ref)
        return placed(found, partial(copied, path, found, asked.ref), asked)
    if not (path / RECORD).exists():
        message = "this is no pack, run folder or recipe"
        refuse(asked.ref, message, "name a folder that has pack.json or run.json, an archive or a recipe")
    # torch is needed only here: what a run comes to is looked at to write its card
    from composer.hub.pack import gathered

    recipe = recipe_of(path / "recipe.yaml", record_of(path, asked.ref), asked.ref)
    within(sum((path / name).stat().st_size for name in FILES if (path / name).is_file()), asked.limit, asked.ref)
    with gathered(RunDir(path), recipe, "") as (found, inside):
        return placed(found, partial(copied, inside, found, asked.ref), asked)


def manifest_in(folder: Path, origin: str) -> Manifest:
    """The pack.json of a folder that holds nothing but a pack. Raises RunError."""
    check_entries((entry_of(each) for each in os.scandir(folder) if each.name not in AROUND), origin)
    return manifest(small(folder / MANIFEST, origin), origin)


def entry_of(found: os.DirEntry[str]) -> Entry:
    """Something in a folder, links not followed."""
    told = found.stat(follow_symlinks=False)
    kinds = {stat.S_IFREG: REGULAR, stat.S_IFDIR: FOLDER, stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "FIFO"}
    return Entry(found.name, kinds.get(stat.S_IFMT(told.st_mode), "device"), told.st_size)


def copied(folder: Path, found: Manifest, origin: str, draft: Path) -> None:
    """Copies the files of a pack into `draft`, and verifies what is written. Raises RunError."""
    for name, wanted in found.files.items():
        with opened(folder / name, origin) as file:
            copy_verified(file, draft / name, wanted, origin)
            if file.read(1):
                refuse(origin, f"`{name}` has more bytes than {MANIFEST} says; nothing was taken")


def placed(found: Manifest, fill: Fill, asked: Asked) -> Pulled:
    """Fills a run folder and verifies it, keeps its recipe, and gives the folder its name. Raises RunError."""
    must_match(found.sha256, asked)
    within(found.size, asked.limit, asked.ref)
    folder = asked.target or RUNS / found.name
    if is_there(found, folder):
        return Pulled(
            asked.ref, folder, found.sha256, put(portable_text(folder / "recipe.yaml", folder)), was_there=True
        )
    with atomic_directory(folder) as draft:
        fill(draft)
        notes = tuple(reaches(accept(draft, found, asked.ref)))
        (draft / MANIFEST).write_bytes(found.data)
        recipe = put(portable_text(draft / "recipe.yaml", draft))
    return Pulled(asked.ref, folder, found.sha256, recipe, notes=notes)


def is_there(found: Manifest, folder: Path) -> bool:
    """Whether a folder holds this very pack, unchanged."""
    if not (folder / MANIFEST).is_file() or (folder / MANIFEST).read_bytes() != found.data:
        return False
    try:
        return all(described(folder / name, folder) == wanted for name, wanted in found.files.items())
    except ComposerError:
        return False
