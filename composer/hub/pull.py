"""`pull`: download a packed run or a recipe, and verify it before it is put in place."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError, safe_open

from composer.atomic_io import atomic_directory, atomic_new_file, os_errors_as_run_errors
from composer.errors import ComposerError, RecipeError, RunError, shorten_list
from composer.hub import pack_format
from composer.hub.pack import SUFFIX, open_archive, packed_temporarily
from composer.hub.remotes import (
    DEFAULT_MAX_GIB,
    Reference,
    Remote,
    open_remote,
    parse_reference,
    without_password,
)
from composer.recipe.cache import get, put, require_hash
from composer.recipe.extends_and_overrides import portable_text
from composer.recipe.recipe import Recipe, load
from composer.recipe.yaml_reader import MAX_BYTES, dump, strings_in
from composer.run_dir import RUNS, RunDir
from composer.suggest import did_you_mean

GIB = 1 << 30
LARGEST_MAX_GIB = 1 << 20
RECIPE_SUFFIXES = (".yaml", ".yml")
RECIPE_PATH = re.compile(r"([^./\\:][^/\\:]*/)*[^./\\:][^/\\:]*\.ya?ml")
"""A relative path that means the same on every system."""
RECORD = "run.json"
RECIPES = "recipes"
"""Folder into which recipes are fetched; they cannot extend a file outside it."""
GIT_FILES = (".gitattributes", ".gitignore")
"""Files that git and the hub put beside a pack."""
MAX_FILES = 100_000
MAX_RECIPES = 2_000
MAX_CANDIDATES = 5


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


@dataclass(frozen=True)
class Request:
    """A pull: reference without password, target, expected SHA-256, size limit."""

    ref: str
    target: Path | None
    sha256: str | None
    max_bytes: int


def pull(
    ref: str | Path,
    output: str | Path | None = None,
    sha256: str | None = None,
    max_gib: float = DEFAULT_MAX_GIB,
) -> Path:
    """Download a pack or a run into a new folder (`runs/NAME`), or a recipe into the recipe cache.

    Args:
        ref: A path; `git+URL[@REVISION][#PATH]`; `wandb:[ENTITY/]PROJECT/NAME:VERSION`;
            `hub:OWNER/NAME[@REVISION][#PATH]`.
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
    request = Request(without_password(ref), target, sha256, int(max_gib * GIB))
    with (
        os_errors_as_run_errors(request.ref),
        downloaded(reference, request) as (path, pinned, top),
    ):
        request = replace(request, ref=pinned)
        if path.is_dir():
            return _pull_folder(path, request)
        if path.suffix in RECIPE_SUFFIXES:
            return _pull_recipe(path, top, request)
        with open_archive(path, request.ref) as archive:
            return _install(archive.manifest, archive.unpack, request)


@contextmanager
def downloaded(reference: Reference, request: Request) -> Iterator[tuple[Path, str, Path | None]]:
    """Download a reference; yield its path, a reference to this commit, and a temporary folder.

    A local path is not downloaded, and has no temporary folder. Raises RunError.
    """
    if not reference.scheme:
        path = Path(reference.name)
        if not path.exists():
            hint = "write a path, `git+URL`, `wandb:NAME` or `hub:NAME`"
            raise RunError.of("this does not exist", hint, request.ref)
        yield path, os.path.abspath(path), None  # a recipe elsewhere may extend it
        return
    with tempfile.TemporaryDirectory(prefix="seqcomposer-") as name:
        top, work = Path(name, "download"), Path(name, "work")
        top.mkdir()
        work.mkdir()
        remote = open_remote(reference, request.ref, work, request.max_bytes)
        yield fetch(remote, reference.path, top, request.max_bytes), remote.pinned, top


def fetch(remote: Remote, path: str, into: Path, max_bytes: int) -> Path:
    """Download the recipe, archive, pack or run folder at a path; return its local path.

    Names and sizes are checked first, and only needed files are downloaded. Raises RunError.
    """
    if len(remote.members) > MAX_FILES:
        message = f"there are more than {MAX_FILES:,} files"
        pack_format.refuse(remote.origin, message, "pull from a smaller repository")
    if not path and not {pack_format.MANIFEST, RECORD} & remote.members.keys():
        candidates = pull_candidates(remote)
        path = candidates[0] if len(candidates) == 1 else ""
    if path in remote.members:
        return _fetch_file(remote, path, into, max_bytes)
    start = f"{path}/" if path else ""
    inside = {}
    for name, member in remote.members.items():
        if name.startswith(start):
            inside[name.removeprefix(start)] = member
    # a pack may hold nothing but its files; of a run folder only those are downloaded
    if pack_format.MANIFEST in inside:
        names = [name for name in inside if name not in GIT_FILES]
    elif RECORD in inside:
        names = sorted(pack_format.NAMES & set(inside))
    else:
        _refuse_path(remote, path, is_folder=bool(inside))
    pack_format.check_members((inside[name]._replace(name=name) for name in names), remote.origin)
    check_limit(sum(inside[name].size for name in names), max_bytes, remote.origin)
    folder = into / "pulled"
    folder.mkdir()
    for name in names:
        remote.fetch(start + name, folder / name)
    return folder


def pull_candidates(remote: Remote) -> list[str]:
    """Return the paths of all archives, recipes and packs in a remote."""
    end = f"/{pack_format.MANIFEST}"
    folders = [name.removesuffix(end) for name in remote.members if name.endswith(end)]
    files = [name for name in remote.members if name.endswith((SUFFIX, *RECIPE_SUFFIXES))]
    return sorted([*folders, *(name for name in files if name.rpartition("/")[0] not in folders)])


def _refuse_path(remote: Remote, path: str, is_folder: bool) -> NoReturn:
    """Raise RunError for a path that cannot be pulled, with the paths that can."""
    candidates = pull_candidates(remote)
    message = f"{f'`{path}`' if path else 'this'} is not a pack, a run folder or a recipe"
    if path and not is_folder:
        message = f"there is no `{path}`{did_you_mean(path, candidates)}"
    listing = ", ".join(f"`{name}`" for name in candidates[:MAX_CANDIDATES])
    more = ", ..." if len(candidates) > MAX_CANDIDATES else ""
    fix = f"there are {listing}{more}; write `{remote.origin.partition('#')[0]}#PATH`"
    raise RunError.of(message, fix if candidates else "ask its author for the path", remote.origin)


def _fetch_file(remote: Remote, path: str, into: Path, max_bytes: int) -> Path:
    """Download an archive, or a recipe with those around it."""
    member = remote.members[path]
    if not member.is_regular:
        message = f"`{path}` is not a regular file"
        pack_format.refuse(remote.origin, message, "name the file itself")
    if path.endswith(SUFFIX):
        check_limit(member.size, max_bytes, remote.origin)
        remote.fetch(path, into / f"pulled{SUFFIX}")
        return into / f"pulled{SUFFIX}"
    if not path.endswith(RECIPE_SUFFIXES):
        message = f"`{path}` is neither a recipe nor an archive"
        pack_format.refuse(remote.origin, message, f"name a file that ends in .yaml or {SUFFIX}")
    # download all recipes: which of them it extends is known only when it is read
    recipes = [name for name, member in remote.members.items() if is_recipe(name, member)]
    folder = into / RECIPES
    for name in recipes if len(recipes) <= MAX_RECIPES else [path]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        remote.fetch(name, folder / name)
    if not (folder / path).is_file():
        message = f"`{path}` is larger than 1 MiB, or its path is hidden"
        pack_format.refuse(remote.origin, message, "a recipe is a few kilobytes of text")
    return folder / path


def is_recipe(name: str, member: pack_format.Member) -> bool:
    """True if a member of a remote can be a recipe that another extends."""
    is_small = member.is_regular and member.size <= MAX_BYTES
    return is_small and name.isprintable() and RECIPE_PATH.fullmatch(name) is not None


def check_limit(size: int, max_bytes: int, origin: str) -> None:
    """Raise RunError if a download is larger than the user allows."""
    if size > max_bytes:
        message = f"this has {size / GIB:.3g} GiB, and the limit is {max_bytes / GIB:.3g}"
        hint = f"if you trust it, allow more: `--max-gib {max(1, -(-size // GIB))}`"
        pack_format.refuse(origin, message, hint)


def _pull_recipe(path: Path, top: Path | None, request: Request) -> Pulled:
    """Cache a recipe together with all that it extends. Raises RecipeError, RunError."""
    try:
        text = portable_text(path, None if top is None else top / RECIPES)
    except RecipeError as error:
        if top is None:
            raise
        # faults name the remote instead of the temporary folder
        start, remote = f"{top / RECIPES}{os.sep}", f"{request.ref.partition('#')[0]}#"
        faults = [replace(fault, file=fault.file.replace(start, remote)) for fault in error.faults]
        raise RecipeError(faults) from None
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    check_fingerprint(sha256, request)
    if request.target is not None:
        with atomic_new_file(request.target) as file:
            file.write(text.encode())
    cached = get(put(text))
    if cached is None:  # another process has cleared the cache since
        raise RunError.of("another process has removed the recipe from the cache", "pull again")
    path = request.target or cached
    return Pulled(request.ref, path, sha256, sha256, notes=tuple(model_faults(cached)))


def model_faults(recipe: Path) -> Iterator[str]:
    """Yield the first error of a recipe by itself, other than a missing section."""
    from composer.checks.planner import plan  # imported late, since it imports torch

    try:
        plan(load(recipe))
    except ComposerError as error:
        faults = [fault for fault in error.faults if fault.code != "missing"]
        yield from (f"`check` refuses it: {fault.message}" for fault in faults[:1])


def check_fingerprint(sha256: str, request: Request) -> None:
    """Raise RunError if a fingerprint is not the expected one."""
    if request.sha256 is not None and sha256 != request.sha256:
        message = f"the download has the fingerprint {sha256}, which is not the expected one"
        fix = "compare it with the published one: of pack.json, or of a recipe with all that it"
        pack_format.refuse(request.ref, message, f"{fix} extends")


def _pull_folder(path: Path, request: Request) -> Pulled:
    """Install a folder: a pack, or a run folder, which is packed first. Raises RunError."""
    if (path / pack_format.MANIFEST).exists():
        manifest = read_manifest(path, request.ref)
        return _install(manifest, partial(copy_files, path, manifest, request.ref), request)
    if not (path / RECORD).exists():
        fix = "name a folder that has pack.json or run.json, an archive or a recipe"
        pack_format.refuse(request.ref, "this is not a pack, a run folder or a recipe", fix)
    record = pack_format.read_record(path, request.ref)
    recipe = pack_format.read_recipe(path / "recipe.yaml", record, request.ref)
    sizes = [(path / name).stat().st_size for name in pack_format.FILES if (path / name).is_file()]
    check_limit(sum(sizes), request.max_bytes, request.ref)
    with packed_temporarily(RunDir(path), recipe, "") as (manifest, inside):
        return _install(manifest, partial(copy_files, inside, manifest, request.ref), request)


def read_manifest(folder: Path, origin: str) -> pack_format.Manifest:
    """Return the manifest of a folder that holds only a pack. Raises RunError."""
    files = [file for file in os.scandir(folder) if file.name not in (*GIT_FILES, ".git")]
    members = (
        pack_format.Member(file.name, 0, file.is_file(follow_symlinks=False)) for file in files
    )
    pack_format.check_members(members, origin)
    text = pack_format.read_small(folder / pack_format.MANIFEST, origin)
    return pack_format.parse_manifest(text, origin)


def copy_files(folder: Path, manifest: pack_format.Manifest, origin: str, draft: Path) -> None:
    """Copy the files of a pack into `draft`, and verify the copies. Raises RunError."""
    for name, expected in manifest.files.items():
        with pack_format.open_file(folder / name, origin) as file:
            pack_format.copy_verified(file.read, draft / name, expected, origin)
            if file.read(1):
                message = f"`{name}` has more bytes than {pack_format.MANIFEST} says"
                pack_format.refuse(origin, message)


def verify_pack(folder: Path, manifest: pack_format.Manifest, origin: str) -> Recipe:
    """Check the files of a pack whose hashes are verified; return its recipe. Raises RunError."""
    try:
        with safe_open(folder / "model.safetensors", "pt") as weights:
            names = list(weights.keys())
            not_finite = [name for name in names if not weights.get_tensor(name).isfinite().all()]
    except SafetensorError:
        message = "`model.safetensors` is not in the safetensors format"
        pack_format.refuse(origin, f"{message}, and other formats can run code")
    if not_finite:
        message = f"these weights are not finite: {shorten_list(not_finite)}"
        pack_format.refuse(origin, message, "no training writes such weights; ask its author")
    record = pack_format.read_record(folder, origin)
    # data would be looked up under these paths
    folders = record.data.folders
    path = next(filter(pack_format.is_local_path, strings_in(record.as_data())), None)
    if folders or path is not None:
        pack_format.refuse(origin, f"run.json contains a local path, {path or folders[0]!a}")
    with (folder / "metrics.jsonl").open("rb") as metrics:
        if not all(map(pack_format.is_visible_row, metrics)):
            pack_format.refuse(origin, "`metrics.jsonl` was not written by a training")
    pack_format.check_card((folder / "README.md").read_bytes(), origin)
    pack_format.check_digests(record, manifest.files, origin)
    recipe = pack_format.read_recipe(folder / "recipe.yaml", record, origin)
    if recipe.name != manifest.name:
        message = f"this pack is called `{manifest.name}`, and its recipe `{recipe.name}`"
        pack_format.refuse(origin, message)
    from composer.data.tokenizer import Tokenizers  # imported late, since it imports torch

    kind = recipe.data.tokenizer.word
    settings = None
    with suppress(RunError):
        settings = Tokenizers.load(folder / "tokenizer.json").settings
    if not settings or kind not in settings:
        message = f"tokenizer.json was not written by a training with the tokenizer `{kind}`"
        pack_format.refuse(origin, message, "take recipe.yaml and tokenizer.json from the same run")
    check_model(folder, origin)
    return recipe


def check_model(folder: Path, origin: str) -> None:
    """Raise RunError if the model cannot be built, or the weights do not fit it."""
    from composer.inference.run import open_run  # imported late, since it imports torch

    try:
        open_run(folder)
    except ComposerError as error:
        message = f"its model cannot be opened here: {error.faults[0].message}"
        pack_format.refuse(origin, message, "take all files from the same run, or ask its author")


def side_effects(recipe: Recipe) -> Iterator[str]:
    """Yield the side effects of training a recipe: local paths that it reads, a W&B entity."""
    for path in pack_format.local_paths_in(recipe.canonical["data"]):
        yield f"reads {path!r}"
    wandb = recipe.logging.wandb
    if wandb and wandb.entity:
        yield f"logs to {wandb.entity!r} at Weights & Biases, where you are logged in"


def _install(
    manifest: pack_format.Manifest, fill: Callable[[Path], None], request: Request
) -> Pulled:
    """Fill a new run folder, verify it, cache its recipe, and only then give it its name."""
    check_fingerprint(manifest.sha256, request)
    check_limit(manifest.size, request.max_bytes, request.ref)
    folder = request.target or RUNS / manifest.name
    if is_installed(manifest, folder):
        recipe = put(portable_text(folder / "recipe.yaml", folder))
        return Pulled(request.ref, folder, manifest.sha256, recipe, was_there=True)
    with atomic_directory(folder) as draft:
        fill(draft)
        notes = tuple(side_effects(verify_pack(draft, manifest, request.ref)))
        (draft / pack_format.MANIFEST).write_bytes(manifest.data)
        recipe = put(portable_text(draft / "recipe.yaml", draft))
    return Pulled(request.ref, folder, manifest.sha256, recipe, notes=notes)


def is_installed(manifest: pack_format.Manifest, folder: Path) -> bool:
    """True if a folder holds exactly this pack."""
    file = folder / pack_format.MANIFEST
    if not file.is_file() or file.read_bytes() != manifest.data:
        return False
    try:
        for name, digest in manifest.files.items():
            if pack_format.digest_file(folder / name, folder) != digest:
                return False
    except ComposerError:
        return False
    return True
