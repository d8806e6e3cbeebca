"""References to packs, runs and recipes: paths, shelves, git, W&B, the Hugging Face hub.

Each kind of reference downloads and uploads by the client of its service.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from pydantic import TypeAdapter

from composer.atomic_io import atomic_write, lock_of, read_text
from composer.errors import RunError, one_line_error, shorten_list
from composer.hub.listing import check_limit, choose, members_under
from composer.hub.pack import copy_pack
from composer.hub.pack_format import NAMES, Member, copy_file, refuse
from composer.processes.git import ANSWER_SECONDS, checkout, clone, list_files, push_files, run_git
from composer.processes.python import secure_children
from composer.processes.wandb import load_wandb_settings
from composer.suggest import did_you_mean

MAX_ADDRESS = 1000
MAX_UPLOAD_BYTES = 1 << 50
EXTRA_BYTES = 1 << 27
"""Bytes that the rest of a repository may have beside what is wanted."""
LFS_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/.*\nsize (?P<size>\d{1,18})\n", re.DOTALL
)
LFS_FILTER = "filter.lfs.clean=git-lfs clean -- %f"
"""Without it `git lfs pull` says that LFS is not installed, and leaves the files as they are."""
ALIASES, LATEST = "aliases.json", "latest"
COMMIT_MESSAGE = "Pack of seqcomposer"
FORMS = "write a path, `FOLDER/NAME@ALIAS`, `git+URL`, `wandb:NAME` or `hub:NAME`"
NAMING = "use letters, digits, `.`, `_` and `-`; `v1` is a version"
LOG_IN_TO_HUB = "check the name and the network; what is private needs `hf auth login`"
LOG_IN_TO_WANDB = "check the name and the network; run `wandb login`, or set WANDB_API_KEY"
WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
HOST = rf"({WORD}|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?"
URL = rf"(https://{HOST}|ssh://({WORD}@)?{HOST}|file://)/[^@#]+"
"""Without a password or an option of ssh."""
# git would read other texts as ranges or options
REVISION = r"(@(?P<revision>(?!.*(\.\.|//))[A-Za-z0-9_][A-Za-z0-9._/+-]*))?"
STEP = r"(?!(\.{0,2}|\.git)(/|$))[^/\\#]+"
PATH = rf"(#(?P<path>{STEP}(/{STEP})*)/?)?"


class Download(NamedTuple):
    """What a reference has led to.

    path: The file or the folder. pinned: A reference to the same, whatever becomes of branches and
    aliases. top: The folder with all that was downloaded; None for a path of this machine.
    """

    path: Path
    pinned: str
    top: Path | None = None


class Upload(NamedTuple):
    """A reference to what was uploaded, and what else its author should know."""

    reference: str
    note: str = ""


@dataclass(frozen=True)
class Reference(ABC):
    """A place of packs, runs and recipes.

    revision: A branch, a tag, a commit or an alias; "" for the default. path: A path inside; "" for
    the root.
    """

    name: str
    revision: str = ""
    path: str = ""
    scheme: ClassVar[str] = ""
    form: ClassVar[str] = ""
    pattern: ClassVar[str] = ""
    mark: ClassVar[str] = "@"
    """What stands before a revision."""

    def __str__(self) -> str:
        revision = f"{self.mark}{self.revision}" if self.revision else ""
        return f"{self.scheme}{self.name}{revision}" + (f"#{self.path}" if self.path else "")

    @abstractmethod
    def download(self, folder: Path, max_bytes: int) -> Download:
        """Download a pack, a run or a recipe into an empty folder. Raises RunError."""

    @abstractmethod
    def upload(self, pack: Path) -> Upload:
        """Write the files of a pack there. Raises RunError."""

    def pinned(self, revision: str) -> Self:
        """Return a reference to a revision."""
        return replace(self, revision=revision)

    def check_place(self, members: Mapping[str, Member]) -> None:
        """Raise RunError where there are other files than a pack's: it could not be pulled."""
        for name in members_under(self.path, members).keys() - NAMES:
            fix = "name a place where nothing but a pack is"
            raise RunError.of(f"there are other files here, such as {name!a}", fix, str(self))

    @contextmanager
    def errors_of(self, service: str, fix: str) -> Iterator[None]:
        """Raise any error of a service as RunError, except that of a full disk."""
        try:
            yield
        except RunError:
            raise
        except Exception as error:  # errors of networks have many classes
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = one_line_error(error.__cause__ or error)
            raise RunError.of(f"{service} says: {reason}", fix, str(self)) from None


class LocalReference(Reference):
    """A path of this machine; if nothing has that very name, `FOLDER/NAME[@ALIAS]` of a shelf."""

    def download(self, folder: Path, max_bytes: int) -> Download:
        """Return the path itself: a recipe there may extend another one."""
        path = Path(self.name)
        if not path.exists() or (path / ALIASES).is_file():
            path = find_version(path)
        return Download(path, os.path.abspath(path))

    def upload(self, pack: Path) -> Upload:
        """Copy a pack to a new folder, or as a new version onto a shelf."""
        path = Path(self.name)
        if "@" in path.name or (path / ALIASES).is_file():
            path = add_version(pack, *split_alias(path))
        else:
            copy_pack(pack, path)
        return Upload(str(path))


class GitReference(Reference):
    """A git repository, over https, ssh or file."""

    scheme, form = "git+", "git+https://HOST/OWNER/NAME@REVISION#PATH"
    pattern = f"(?P<name>{URL}){REVISION}{PATH}"

    def download(self, folder: Path, max_bytes: int) -> Download:
        """Clone one commit, and check out only the files that are pulled."""
        commit, members = self.clone(folder, max_bytes)
        path, names = choose(members, self.path, max_bytes, str(self))
        checkout(str(self), folder, names)
        pointers = lfs_pointers(folder, names)
        if pointers:
            check_limit(pointers, max_bytes, str(self))
            include = ",".join(pointer.name for pointer in pointers)
            words = ("-c", LFS_FILTER, "lfs", "pull", f"--include={include}")
            run_git(str(self), folder, *words, max_bytes=max_bytes)
        for name, *_ in lfs_pointers(folder, names):
            refuse(str(self), f"`{name}` is not in the repository's Git LFS", "ask its author")
        return Download(folder / path, str(self.pinned(commit)), folder)

    def clone(self, folder: Path, max_bytes: int) -> tuple[str, dict[str, Member]]:
        """Clone the commit into an empty folder; return its name and its files."""
        clone(str(self), folder, self.name, self.revision, max_bytes + EXTRA_BYTES)
        commit, files = list_files(str(self), folder)
        return commit, {file[0]: Member(*file) for file in files}

    def upload(self, pack: Path) -> Upload:
        """Commit a pack to a branch, and push it; nothing is forced."""
        with tempfile.TemporaryDirectory(prefix="seqcomposer-") as name:
            folder = Path(name)
            _, members = self.clone(folder, MAX_UPLOAD_BYTES)
            self.check_place(members)
            (folder / self.path).mkdir(parents=True, exist_ok=True)
            for file in sorted(NAMES):
                copy_file(pack / file, folder / self.path / file)
            names = [str(Path(self.path, file)) for file in sorted(NAMES)]
            commit = push_files(str(self), folder, names, COMMIT_MESSAGE)
        return Upload(str(self.pinned(commit)))


class HubReference(Reference):
    """A repository on the Hugging Face hub."""

    scheme, form = "hub:", "hub:OWNER/NAME@REVISION#PATH"
    pattern = f"(?P<name>(?!.*\\.\\.){WORD}/{WORD}){REVISION}{PATH}"

    def download(self, folder: Path, max_bytes: int) -> Download:
        """Download the files of a pack, a run or a recipe at one commit."""
        from huggingface_hub import snapshot_download

        commit, members = self.listed()
        path, names = choose(members, self.path, max_bytes, str(self))
        patterns = [escape(name) for name in names]
        with self.errors_of("the hub", LOG_IN_TO_HUB):
            snapshot_download(self.name, revision=commit, local_dir=folder, allow_patterns=patterns)
        return Download(folder / path, str(self.pinned(commit)), folder)

    def listed(self) -> tuple[str, dict[str, Member]]:
        """Return the commit and its files."""
        from huggingface_hub import HfApi

        with self.errors_of("the hub", LOG_IN_TO_HUB):
            info = HfApi().model_info(
                self.name,
                revision=self.revision or None,
                files_metadata=True,
                timeout=ANSWER_SECONDS,
            )
        files = [Member(file.rfilename, file.size or 0) for file in info.siblings or []]
        return str(info.sha), {file.name: file for file in files}

    def upload(self, pack: Path) -> Upload:
        """Commit a pack to a branch of the repository, which is created as a private one."""
        from huggingface_hub import CommitOperationAdd, HfApi

        api, branch = HfApi(), self.revision or None
        with self.errors_of("the hub", LOG_IN_TO_HUB):
            api.create_repo(self.name, private=True, exist_ok=True)
            if branch:
                api.create_branch(self.name, branch=branch, exist_ok=True)
        parent, members = self.listed()
        self.check_place(members)
        files = []
        for file in sorted(filter(Path.is_file, pack.rglob("*"))):
            name = Path(self.path, file.relative_to(pack)).as_posix()
            files.append(CommitOperationAdd(name, file))
        with self.errors_of("the hub", LOG_IN_TO_HUB):
            commit = api.create_commit(
                self.name,
                files,
                commit_message=COMMIT_MESSAGE,
                revision=branch,
                parent_commit=parent,
            )
        return Upload(
            str(self.pinned(commit.oid)), "a new repository is private until you change that"
        )


class WandbReference(Reference):
    """An artifact of Weights & Biases."""

    scheme, form, mark = "wandb:", "wandb:ENTITY/PROJECT/NAME:ALIAS", ":"
    pattern = f"(?P<name>({WORD}/){{1,2}}{WORD})(:(?P<revision>{WORD}))?"

    def download(self, folder: Path, max_bytes: int) -> Download:
        """Download the files of a version."""
        self.require_login()
        import wandb

        load_wandb_settings()
        with self.errors_of("Weights & Biases", LOG_IN_TO_WANDB):
            name = f"{self.name}:{self.revision or LATEST}"
            artifact = wandb.Api(timeout=ANSWER_SECONDS).artifact(name)
            entries = artifact.manifest.entries
        # W&B would follow a reference to a file elsewhere, even on this machine: not regular
        members = {
            str(name): Member(str(name), entry.size or 0, entry.ref is None)
            for name, entry in entries.items()
        }
        path, names = choose(members, "", max_bytes, str(self))
        with self.errors_of("Weights & Biases", LOG_IN_TO_WANDB):
            for name in names:
                entries[name].download(root=str(folder), skip_cache=True)
        return Download(folder / path, str(self.pinned(artifact.version)), folder)

    def upload(self, pack: Path) -> Upload:
        """Log a pack as a new version of the artifact; with WANDB_MODE=offline, to W&B's files."""
        from composer.training.wandb_logger import WANDB_MODES  # imported late: it imports torch

        mode = WANDB_MODES.get(os.environ.get("WANDB_MODE", "").lower(), "online")
        if mode == "disabled":
            raise RunError.of("WANDB_MODE switches Weights & Biases off", "unset it", str(self))
        if mode == "online":
            self.require_login()
        import wandb

        load_wandb_settings()
        *owner, project, name = self.name.split("/")
        settings = wandb.Settings(
            silent=True, console="off", disable_git=True, init_timeout=ANSWER_SECONDS
        )
        artifact = wandb.Artifact(name, type="model")
        with self.errors_of("Weights & Biases", LOG_IN_TO_WANDB):
            artifact.add_dir(str(pack))
            with (
                secure_children(),
                wandb.init(
                    entity=owner[0] if owner else None,
                    project=project,
                    job_type="push",
                    mode=mode,
                    settings=settings,
                ) as run,
            ):
                aliases = [LATEST, self.revision or LATEST]
                run.log_artifact(artifact, aliases=sorted(set(aliases)))
                if mode == "online":
                    artifact.wait()
                    return Upload(str(self.pinned(artifact.version)))
                note = f"send it by `wandb sync {Path(run.dir).parent}`"
        return Upload(str(self), f"nothing was sent yet: {note}")

    def require_login(self) -> None:
        """Raise RunError without a key, for which W&B would prompt."""
        from composer.training.wandb_logger import is_logged_in  # imported late: it imports torch

        if not is_logged_in(os.environ):
            raise RunError.of(
                "you are not logged in to Weights & Biases", LOG_IN_TO_WANDB, str(self)
            )


def parse_reference(text: str) -> Reference:
    """Parse a path, or a reference in one of the forms; fetch nothing. Raises RunError."""
    if not text.strip() or not text.isprintable() or text[0] == "-" or len(text) > MAX_ADDRESS:
        raise RunError.of("this is not a reference", FORMS, without_password(text))
    for kind in (GitReference, HubReference, WandbReference):
        if text.startswith(kind.scheme):
            parts = re.fullmatch(kind.pattern, text.removeprefix(kind.scheme))
            if parts is None:
                fix = f"write `{kind.form}`, without a password; git speaks https, ssh and file"
                raise RunError.of("this reference is malformed", fix, without_password(text))
            return kind(**parts.groupdict(default=""))
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)", text):
        raise RunError.of("a bare URL is ambiguous", FORMS, without_password(text))
    return LocalReference(text)


def without_password(text: str) -> str:
    """Return a malformed reference as it may be printed."""
    text = re.sub(r"://([^/@:]*):[^/@]*@", r"://\1@", text[:MAX_ADDRESS])
    return re.sub(r"(https?)://[^/@]*@", r"\1://", text)  # there, a name alone may be a token


def lfs_pointers(folder: Path, names: Iterable[str]) -> list[Member]:
    """Return the files that stand for others in Git LFS, with the sizes of those."""
    pointers = []
    for name in names:
        with (folder / name).open("rb") as file:
            if match := LFS_POINTER.match(file.read(1000)):
                pointers.append(Member(name, int(match["size"])))
    return pointers


def split_alias(path: Path) -> tuple[Path, str]:
    """Return a path without `@ALIAS`, and the alias; `latest` if there is none."""
    name, _, alias = path.name.partition("@")
    return path.with_name(name) if name else path, alias or LATEST


def read_aliases(entry: Path) -> dict[str, str]:
    """Return the versions of the aliases of a shelf's entry. Raises RunError."""
    try:
        return TypeAdapter(dict[str, str]).validate_json(read_text(entry / ALIASES, 1 << 20))
    except ValueError as error:
        message = f"the aliases cannot be read: {one_line_error(error)}"
        fix = 'write versions by alias: {"latest": "v1"}'
        raise RunError.of(message, fix, str(entry / ALIASES)) from None


def find_version(path: Path) -> Path:
    """Return the folder of `FOLDER/NAME[@ALIAS]`. Raises RunError if there is none."""
    entry, alias = split_alias(path)
    if not (entry / ALIASES).is_file():
        names = os.listdir(entry.parent) if entry.parent.is_dir() else []
        raise RunError.of(f"this does not exist{did_you_mean(entry.name, names)}", FORMS, str(path))
    aliases = read_aliases(entry)
    version = entry / aliases.get(alias, alias)
    if version.parent != entry or not version.is_dir():
        message = f"there is no `{alias}`{did_you_mean(alias, aliases)}"
        raise RunError.of(message, f"write one of: {shorten_list([*aliases])}", str(path))
    return version


def add_version(pack: Path, entry: Path, alias: str) -> Path:
    """Copy a pack to a new version of a shelf's entry; move `latest` and an alias to it.

    Raises RunError, with all versions and aliases as they were.
    """
    if not re.fullmatch(WORD, entry.name) or not re.fullmatch(f"(?!v[0-9]){WORD}", alias):
        raise RunError.of("this is not `FOLDER/NAME@ALIAS`", NAMING, f"{entry}@{alias}")
    entry.parent.mkdir(parents=True, exist_ok=True)
    for name in os.listdir(entry.parent):
        if name != entry.name and name.casefold() == entry.name.casefold():
            raise RunError.of(f"`{name}` is here, in another case", "write it so", str(entry))
    if entry.exists() and not (entry / ALIASES).is_file():
        message = "this is a folder without versions; nothing was written"
        raise RunError.of(message, "choose another name", str(entry))
    entry.mkdir(exist_ok=True)
    with lock_of(entry) as is_free:
        if not is_free:
            raise RunError.of("another push is writing here", "wait, and push again", str(entry))
        if not (entry / ALIASES).is_file():
            atomic_write(entry / ALIASES, b"{}")
        version = f"v{1 + len(list(entry.glob('v*')))}"
        copy_pack(pack, entry / version)
        aliases = {**read_aliases(entry), LATEST: version, alias: version}
        atomic_write(entry / ALIASES, json.dumps(aliases, indent=1).encode())
    return entry / version
