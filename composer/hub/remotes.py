"""References to packs, runs and recipes: paths, shelves, git, W&B, the Hugging Face hub.

Each kind of reference downloads and uploads by the client of its service.
"""

from __future__ import annotations

import errno
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path, PurePosixPath
from socket import gaierror
from typing import Any, ClassVar, NamedTuple

from composer.errors import RunError, one_line_error
from composer.hub.listing import check_limit, choose, members_under
from composer.hub.pack import copy_pack
from composer.hub.pack_format import NAMES, Member, copy_file, refuse
from composer.hub.shelf import (
    FORMS,
    LATEST,
    WORD,
    add_version,
    check_neighbours,
    check_parents,
    find_version,
    is_shelved,
)
from composer.processes.git import ANSWER_SECONDS, Git
from composer.processes.python import secure_children
from composer.processes.wandb import load_wandb_settings

MAX_ADDRESS = 1000
UNREACHABLE = (errno.ENETUNREACH, errno.EHOSTUNREACH)
MAX_UPLOAD_BYTES = 1 << 50
EXTRA_BYTES = 1 << 27
"""Bytes that the rest of a repository may have beside what is wanted."""
LFS_POINTER = re.compile(
    rb"version https://git-lfs\.github\.com/spec/.*\nsize (?P<size>\d{1,18})\n", re.DOTALL
)
LFS_NAME = re.compile(r"[\w./ -]+")
"""In others LFS would read a list or a pattern, say of every file."""
LFS_FILTER = "filter.lfs.clean=git-lfs clean -- %f"
"""Without it `git lfs pull` says that LFS is not installed, and leaves the files as they are."""
COMMIT_MESSAGE = "Pack of seqcomposer"
HOST = rf"({WORD}|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?"
URL = rf"(https://{HOST}|ssh://({WORD}@)?{HOST}|file://)/[^@#?]+"
"""Without a password, a query that may have a token, or an option of ssh."""
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


class LocalReference(Reference):
    """A path of this machine; if nothing has that very name, `FOLDER/NAME[@ALIAS]` of a shelf."""

    def download(self, folder: Path, max_bytes: int) -> Download:
        """Return the path itself: a recipe there may extend another one."""
        path = find_version(Path(self.name))
        return Download(path, os.path.abspath(path))

    def upload(self, pack: Path) -> Upload:
        """Copy a pack to a new folder, or as a new version onto a shelf."""
        path = Path(self.name)
        check_parents(path)
        if is_shelved(path):
            return Upload(str(add_version(pack, path)))
        check_neighbours(path, has_versions=False)
        copy_pack(pack, path)
        return Upload(str(path))


class Remote(Reference):
    """A place on another machine, which lists its files before it sends any."""

    form: ClassVar[str]
    form_note: ClassVar[str] = ""
    pattern: ClassVar[str]
    service: ClassVar[str]
    fix: ClassVar[str]
    """What to do where the service cannot be reached, or refuses."""

    @abstractmethod
    def listed(self, folder: Path, max_bytes: int) -> tuple[str, dict[str, Member]]:
        """Return the commit or the version, and its files. Raises RunError."""

    @abstractmethod
    def fetch(self, names: Sequence[str], folder: Path, max_bytes: int) -> None:
        """Download files at the revision. Raises RunError."""

    def download(self, folder: Path, max_bytes: int) -> Download:
        """Download only the files of a pack, a run or a recipe, at one commit or version."""
        with self.service_errors():
            revision, members = self.listed(folder, max_bytes)
            path, names = choose(members, self.path, max_bytes, str(self))
            pinned = replace(self, revision=revision)
            pinned.fetch(names, folder, max_bytes)
        return Download(folder / path, str(pinned), folder)

    def check_place(self, members: Mapping[str, Member]) -> None:
        """Raise RunError where there are other files than a pack's: it could not be pulled."""
        parents = map(str, PurePosixPath(self.path).parents)
        for name in members.keys() & {self.path, *parents}:
            raise RunError.of(f"{name!a} is a file here", "name a folder, old or new", str(self))
        for name in members_under(self.path, members).keys() - NAMES:
            fix = "name a place where nothing but a pack is"
            raise RunError.of(f"there are other files here, such as {name!a}", fix, str(self))

    @contextmanager
    def service_errors(self) -> Iterator[None]:
        """Raise any error of the service as RunError, except that of a full disk."""
        try:
            yield
        except RunError:
            raise
        except Exception as error:  # errors of networks have many classes
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            reason = one_line_error(error.__cause__ or error)
            reason = re.sub(r"(://[^\s?]*\?)\S*", r"\1...", reason)  # of signed URLs
            verb = "was not reached" if is_of_network(error) else "says"
            raise RunError.of(f"{self.service} {verb}: {reason}", self.fix, str(self)) from None


class GitReference(Remote):
    """A git repository, over https, ssh or file."""

    scheme, form = "git+", "git+https://HOST/OWNER/NAME@REVISION#PATH"
    form_note = ", no password and no `?`; git speaks https, ssh and file"
    pattern = f"(?P<name>{URL}){REVISION}{PATH}"
    service, fix = "git", "check the network"

    def listed(self, folder: Path, max_bytes: int) -> tuple[str, dict[str, Member]]:
        """Clone the commit, without a checkout."""
        git = Git(folder, str(self))
        git.clone(self.name, self.revision, max_bytes + EXTRA_BYTES)
        commit, files = git.list_files()
        return commit, {file[0]: Member(*file) for file in files}

    def fetch(self, names: Sequence[str], folder: Path, max_bytes: int) -> None:
        """Check the files out; those in LFS are asked for by a second command."""
        git = Git(folder, str(self))
        git.checkout(names)
        if pointers := lfs_pointers(folder, names):
            check_limit(pointers, max_bytes, str(self))
            for pointer in pointers:
                if not LFS_NAME.fullmatch(pointer.name):
                    message = f"Git LFS would take the name {pointer.name!a} for a pattern"
                    refuse(str(self), message, "rename it: letters, digits, `.`, `_`, `-`")
            include = ",".join(pointer.name for pointer in pointers)
            git.run("-c", LFS_FILTER, "lfs", "pull", f"--include={include}", max_bytes=max_bytes)
        for pointer in lfs_pointers(folder, names):
            refuse(str(self), f"`{pointer.name}` is not in its Git LFS", "ask its author")

    def upload(self, pack: Path) -> Upload:
        """Commit a pack to a branch, and push it; nothing is forced."""
        with tempfile.TemporaryDirectory(prefix="seqcomposer-") as name:
            folder = Path(name)
            self.check_place(self.listed(folder, MAX_UPLOAD_BYTES)[1])
            (folder / self.path).mkdir(parents=True, exist_ok=True)
            for file in NAMES:
                copy_file(pack / file, folder / self.path / file)
            names = [str(Path(self.path, file)) for file in NAMES]
            commit = Git(folder, str(self)).push_files(names, COMMIT_MESSAGE)
        return Upload(str(replace(self, revision=commit)))


class HubReference(Remote):
    """A repository on the Hugging Face hub."""

    scheme, form = "hub:", "hub:OWNER/NAME@REVISION#PATH"
    pattern = rf"(?P<name>(?!.*\.\.){WORD}/{WORD}){REVISION}{PATH}"
    service = "the hub"
    fix = "check the name and the network; what is private needs `hf auth login`"

    def listed(self, folder: Path, max_bytes: int) -> tuple[str, dict[str, Member]]:
        """Return the commit and its files."""
        from huggingface_hub import HfApi

        revision = self.revision or None
        info = HfApi().model_info(
            self.name, revision=revision, files_metadata=True, timeout=ANSWER_SECONDS
        )
        files = info.siblings or []
        members = {file.rfilename: Member(file.rfilename, file.size or 0) for file in files}
        return str(info.sha), members

    def fetch(self, names: Sequence[str], folder: Path, max_bytes: int) -> None:
        """Download the files."""
        from huggingface_hub import snapshot_download

        patterns = [escape(name) for name in names]
        snapshot_download(
            self.name, revision=self.revision, local_dir=folder, allow_patterns=patterns
        )

    def upload(self, pack: Path) -> Upload:
        """Commit a pack to a branch of the repository, which is created as a private one."""
        from huggingface_hub import CommitOperationAdd, HfApi

        api, branch = HfApi(), self.revision or "main"
        with self.service_errors():
            api.create_repo(self.name, private=True, exist_ok=True)
            api.create_branch(self.name, branch=branch, exist_ok=True)
            parent, files = self.listed(pack, MAX_UPLOAD_BYTES)
            self.check_place(files)
            added = []
            for file in filter(Path.is_file, pack.rglob("*")):
                name = Path(self.path, file.relative_to(pack)).as_posix()
                added.append(CommitOperationAdd(name, file))
            commit = api.create_commit(
                self.name,
                added,
                commit_message=COMMIT_MESSAGE,
                revision=branch,
                parent_commit=parent,
            )
        pinned = replace(self, revision=commit.oid)
        return Upload(str(pinned), "a new repository is private until you change that")


class WandbReference(Remote):
    """An artifact of Weights & Biases."""

    scheme, form, mark = "wandb:", "wandb:ENTITY/PROJECT/NAME:ALIAS", ":"
    pattern = f"(?P<name>({WORD}/){{1,2}}{WORD})(:(?P<revision>{WORD}))?"
    service = "Weights & Biases"
    fix = "check the name and the network; run `wandb login`, or set WANDB_API_KEY"

    def artifact(self) -> Any:
        """Return W&B's artifact. Raises RunError without a key, for which W&B would prompt."""
        self.require_login()
        import wandb

        load_wandb_settings()
        return wandb.Api(timeout=ANSWER_SECONDS).artifact(f"{self.name}:{self.revision or LATEST}")

    def listed(self, folder: Path, max_bytes: int) -> tuple[str, dict[str, Member]]:
        """Return the version and its files."""
        artifact = self.artifact()
        # W&B would follow a reference to a file elsewhere, even on this machine: not regular
        return artifact.version, {
            str(name): Member(str(name), entry.size or 0, entry.ref is None)
            for name, entry in artifact.manifest.entries.items()
        }

    def fetch(self, names: Sequence[str], folder: Path, max_bytes: int) -> None:
        """Download the files."""
        entries = self.artifact().manifest.entries
        for name in names:
            entries[name].download(root=str(folder), skip_cache=True)

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
        quiet = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            init_timeout=ANSWER_SECONDS,
            # by default the folder that was current when W&B was first used
            root_dir=os.environ.get("WANDB_DIR") or os.getcwd(),
        )
        with self.service_errors(), secure_children():
            artifact = wandb.Artifact(name, type="model")
            artifact.add_dir(str(pack))
            aliases = sorted({LATEST, self.revision or LATEST})
            entity = owner[0] if owner else None
            with wandb.init(entity=entity, project=project, mode=mode, settings=quiet) as run:
                run.log_artifact(artifact, aliases=aliases)
                if mode == "offline":
                    note = f"nothing was sent yet: run `wandb sync {Path(run.dir).parent}`"
                    return Upload(str(self), note)
                artifact.wait()
        return Upload(str(replace(self, revision=artifact.version)))

    def require_login(self) -> None:
        """Raise RunError without a key, for which W&B would prompt."""
        from composer.training.wandb_logger import is_logged_in  # imported late: it imports torch

        if not is_logged_in(os.environ):
            message = "you are not logged in to Weights & Biases"
            raise RunError.of(message, self.fix, str(self))


def parse_reference(text: str) -> Reference:
    """Parse a path, or a reference in one of the forms; fetch nothing. Raises RunError."""
    if not text.strip() or not text.isprintable() or text[0] == "-" or len(text) > MAX_ADDRESS:
        raise RunError.of("this is not a reference", FORMS, without_password(text))
    public = without_password(text)
    for kind in (GitReference, HubReference, WandbReference):
        if text.startswith(kind.scheme):
            parts = re.fullmatch(kind.pattern, text.removeprefix(kind.scheme))
            if parts is None:
                fix = f"write `{kind.form}`{kind.form_note}"
                raise RunError.of("this reference is malformed", fix, public)
            return kind(**parts.groupdict(default=""))
        if text.lower().startswith(kind.scheme) and not os.path.lexists(text):
            fix = f"write `{kind.scheme}{public[len(kind.scheme) :]}`"
            raise RunError.of(f"`{kind.scheme}` is written in small letters", fix, public)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)|[^/\\:]{2,}:[^\\]*@", text):
        raise RunError.of("a bare URL is ambiguous", FORMS, public)
    # of one letter it is a drive
    host, colon, path = public.partition(":")
    if colon and re.fullmatch(r"[^/\\]{2,}", host) and not os.path.lexists(text):
        fix = f"write `git+ssh://{host}/{path.lstrip('/')}`; a folder is `./{public}`"
        raise RunError.of("this may be a path on another host", fix, public)
    return LocalReference(text)


def without_password(text: str) -> str:
    """Return a malformed reference as it may be printed."""
    text = re.sub(r"(:(//)?).*@", r"\1...@", text, flags=re.DOTALL)  # passwords may have any sign
    return re.sub(r"\?.*", "?...", text, flags=re.DOTALL)[:MAX_ADDRESS]


def is_of_network(error: BaseException | None) -> bool:
    """True if an error, or a cause of it, is that no host was found or none answered."""
    while error is not None:
        is_unreachable = isinstance(error, OSError) and error.errno in UNREACHABLE
        if is_unreachable or isinstance(error, ConnectionError | TimeoutError | gaierror):
            return True
        error = error.__cause__ or error.__context__
    return False


def lfs_pointers(folder: Path, names: Sequence[str]) -> list[Member]:
    """Return the files that stand for others in Git LFS, with the sizes of those."""
    pointers = []
    for name in names:
        with (folder / name).open("rb") as file:
            if match := LFS_POINTER.match(file.read(1000)):
                pointers.append(Member(name, int(match["size"])))
    return pointers
