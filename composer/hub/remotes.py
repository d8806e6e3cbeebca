"""Remotes of packs and recipes: references, git, W&B artifacts, the Hugging Face hub."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

from composer.errors import RunError, one_line_error
from composer.hub.pack_format import Member, refuse
from composer.processes.git import ANSWER_SECONDS, PROTOCOLS, does_answer, first_bytes, run_git
from composer.processes.wandb import load_wandb_settings

Scheme = Literal["", "git+", "wandb:", "hub:"]
_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_HOST = rf"({_WORD}|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?"
HOSTS = dict(zip(PROTOCOLS, (_HOST, rf"({_WORD}@)?{_HOST}", ""), strict=True))
"""The host in a URL of each protocol, without a password or an option of ssh."""
FORMS: dict[Scheme, str] = {
    "git+": "git+https://HOST/OWNER/NAME@REVISION#PATH",
    "wandb:": "wandb:ENTITY/PROJECT/NAME:VERSION",
    "hub:": "hub:OWNER/NAME@REVISION#PATH",
}
MAX_ADDRESS = 1000
DEFAULT_MAX_GIB = 10.0

_GIT = re.compile(
    r"(?P<name>(?P<protocol>[a-z0-9+.-]+)://(?P<host>[^/]*)/(?=.).*?)(@(?P<revision>[^@]*))?"
)
_MODEL = re.compile(rf"(?P<name>{_WORD}/{_WORD})(@(?P<revision>.*))?")
_ARTIFACT = re.compile(rf"({_WORD}/){{1,2}}{_WORD}:{_WORD}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*")
_LOOKS_LIKE_A_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)")


@dataclass(frozen=True)
class Reference:
    """A local path, a git URL, a W&B artifact, or a repository on the Hugging Face hub.

    `path` lies inside a repository, "" for its root; `revision` is "" for the default branch.
    """

    scheme: Scheme
    name: str
    revision: str = ""
    path: str = ""

    def pinned(self, commit: str) -> str:
        """Return a reference to `commit`, independent of branches and tags."""
        return f"{self.scheme}{self.name}@{commit}" + (f"#{self.path}" if self.path else "")


@dataclass(frozen=True)
class Remote:
    """Listing of a remote: its members by path, and a function that downloads one of them.

    `origin` is the reference as the user wrote it, `pinned` one to this commit.
    """

    origin: str
    pinned: str
    members: Mapping[str, Member]
    fetch: Callable[[str, Path], None]


def parse_reference(text: str) -> Reference:
    """Parse a path, or a reference in one of FORMS; fetch nothing. Raises RunError."""
    is_printable = bool(text.strip()) and text.isprintable()
    if not is_printable or text.startswith("-") or len(text) > MAX_ADDRESS:
        fix = "write a path, `git+URL`, `wandb:NAME` or `hub:NAME`"
        _refuse_reference(text, "this is not a reference", fix)
    scheme = next((scheme for scheme in FORMS if text.startswith(scheme)), None)
    if scheme == "wandb:":
        name = text.removeprefix(scheme)
        if _ARTIFACT.fullmatch(name) is None:
            fix = f"write `{FORMS[scheme]}`; a version is `v3` or `latest`"
            _refuse_reference(text, "this is not a Weights & Biases artifact", fix)
        return Reference(scheme, name)
    if scheme is not None:
        return _parse_repository(scheme, text)
    if _LOOKS_LIKE_A_URL.match(text):
        fix = f"of a git repository, write `{FORMS['git+']}`"
        _refuse_reference(text, "a bare URL is ambiguous", fix)
    return Reference("", text)


def _parse_repository(scheme: Scheme, text: str) -> Reference:
    """Parse the reference of a git repository, or of one on the hub. Raises RunError."""
    repository, _, path = text.removeprefix(scheme).partition("#")
    if scheme == "git+":
        parts = _GIT.fullmatch(repository)
        if parts is None or parts["protocol"] not in HOSTS:
            fix = f"write `{FORMS[scheme]}`, or git+ssh://git@HOST/..."
            _refuse_reference(
                text, "git repositories are pulled over https, ssh and file only", fix
            )
        if re.fullmatch(HOSTS[parts["protocol"]], parts["host"]) is None:
            fix = "a password belongs to git's credential helper, not to a URL"
            _refuse_reference(text, "the host is not valid", fix)
    else:
        parts = _MODEL.fullmatch(repository)
        if parts is None or ".." in parts["name"]:
            _refuse_reference(
                text, "this is not a repository on the Hugging Face hub", f"write `{FORMS[scheme]}`"
            )
    revision = parts["revision"]
    # git would read other texts as ranges or options
    if revision is not None and (
        _REVISION.fullmatch(revision) is None or ".." in revision or "//" in revision
    ):
        _refuse_reference(
            text, f"`{revision}` is not a branch, tag or commit", f"write `{FORMS[scheme]}`"
        )
    steps = path.removesuffix("/").split("/") if path else []
    if "\\" in path or any(step in ("", ".", "..", ".git") for step in steps):
        fix = "write it from the repository's root, without `..`"
        _refuse_reference(text, f"`{path}` is not a path inside a repository", fix)
    return Reference(scheme, parts["name"], revision or "", "/".join(steps))


def _refuse_reference(text: str, message: str, fix: str) -> NoReturn:
    raise RunError.of(message, fix, without_password(text))


def without_password(text: str) -> str:
    """Return a reference as it may be printed."""
    text = re.sub(r"://([^/@:]*):[^/@]*@", r"://\1@", text[:MAX_ADDRESS])
    return re.sub(r"(https?)://[^/@]*@", r"\1://", text)  # there, a name alone may be a token


REGULAR_MODES = ("100644", "100755")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
PULLED_REF = "refs/pulled/this"
"""Where the fetched commit is noted: no branch, since a tag object cannot be one."""
MAX_LISTING_BYTES = 1 << 25
"""Longest listing of a repository's files: a tree of trees can have more of them than a disk has
room for.
"""
EXTRA_BYTES = 1 << 27
"""Bytes that the rest of a repository may have beside what is wanted."""


def git_remote(ref: Reference, origin: str, work: Path, max_bytes: int) -> Remote:
    """Fetch a commit into a bare repository in `work` and list it. Raises RunError."""
    run_git(origin, work, "init", "--quiet", "--bare", "--template=", ".")
    if not does_answer(work, ref.name):
        hint = "check the network and the name of the host"
        raise RunError.of(f"nothing answers within {ANSWER_SECONDS} seconds", hint, origin)
    options = (
        "--quiet",
        "--depth=1",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
    )
    refspec = f"{ref.revision or 'HEAD'}:{PULLED_REF}"
    run_git(
        origin, work, "fetch", *options, "--", ref.name, refspec, max_bytes=max_bytes + EXTRA_BYTES
    )
    commit = run_git(origin, work, "rev-parse", f"{PULLED_REF}^{{commit}}").decode().strip()
    members, blobs = list_tree(origin, work, commit)

    def fetch(name: str, target: Path) -> None:
        with target.open("xb") as file:
            run_git(origin, work, "cat-file", "blob", blobs[name], output=file)
        with target.open("rb") as copy:
            if copy.read(len(LFS_POINTER)) == LFS_POINTER:
                fix = "of the Hugging Face hub, write hub:OWNER/NAME"
                refuse(
                    origin, f"`{name}` is stored in Git LFS, which `pull` does not download", fix
                )

    return Remote(origin, ref.pinned(commit), members, fetch)


def list_tree(origin: str, work: Path, commit: str) -> tuple[dict[str, Member], dict[str, str]]:
    """Return the members and blobs of a commit by path, up to MAX_LISTING_BYTES.

    Raises RunError.
    """
    words = ("ls-tree", "-r", "-l", "-z", "--full-tree", commit)
    listing = first_bytes(origin, work, *words, count=MAX_LISTING_BYTES + 1)
    if len(listing) > MAX_LISTING_BYTES:
        refuse(origin, "there are too many files to list", "ask for a smaller repository")
    members, blobs = {}, {}
    for line in filter(None, listing.split(b"\0")):
        head, _, raw = line.partition(b"\t")
        mode, _, blob, size = head.decode().split()
        name = raw.decode("utf-8", "backslashreplace")
        members[name] = Member(name, int(size) if size.isdigit() else 0, mode in REGULAR_MODES)
        blobs[name] = blob
    return members, blobs


def open_remote(ref: Reference, origin: str, work: Path, max_bytes: int) -> Remote:
    """List the files of a reference; git needs an empty folder `work`. Raises RunError."""
    if ref.scheme == "git+":
        return git_remote(ref, origin, work, max_bytes)
    return wandb_remote(ref, origin) if ref.scheme == "wandb:" else hub_remote(ref, origin)


def wandb_remote(ref: Reference, origin: str) -> Remote:
    """List an artifact of W&B. Raises RunError, also without a key, for which W&B would prompt."""
    from composer.training.wandb_logger import is_logged_in  # imported late: it imports torch

    if not is_logged_in(os.environ):
        hint = "run `wandb login`, or set WANDB_API_KEY"
        raise RunError.of("you are not logged in to Weights & Biases", hint, origin)
    import wandb

    fix = "check the network, the name and the version"
    errors = partial(_service_errors, "Weights & Biases", fix, origin)
    with errors():
        load_wandb_settings()
        artifact = wandb.Api(timeout=ANSWER_SECONDS).artifact(ref.name)
        files = dict(artifact.manifest.entries)
    # W&B would follow a reference to a file elsewhere, even on this machine: not regular
    members = {
        str(name): Member(str(name), file.size or 0, file.ref is None)
        for name, file in files.items()
    }

    def fetch(name: str, target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".wandb-", dir=target.parent) as folder, errors():
            shutil.move(files[name].download(root=folder, skip_cache=True), target)

    return Remote(origin, f"wandb:{ref.name.rpartition(':')[0]}:{artifact.version}", members, fetch)


def hub_remote(ref: Reference, origin: str) -> Remote:
    """List a revision of a repository on the Hugging Face hub. Raises RunError."""
    from huggingface_hub import HfApi, hf_hub_download

    fix = "check the name, the revision and the network; what is private needs `hf auth login`"
    errors = partial(_service_errors, "the hub", fix, origin)
    revision = ref.revision or None
    with errors():
        info = HfApi().model_info(
            ref.name, revision=revision, files_metadata=True, timeout=ANSWER_SECONDS
        )
    files = info.siblings or []
    members = {file.rfilename: Member(file.rfilename, file.size or 0) for file in files}
    commit = str(info.sha or ref.revision)

    def fetch(name: str, target: Path) -> None:
        with tempfile.TemporaryDirectory(prefix=".hub-", dir=target.parent) as folder, errors():
            shutil.move(hf_hub_download(ref.name, name, revision=commit, local_dir=folder), target)

    return Remote(origin, ref.pinned(commit), members, fetch)


@contextmanager
def _service_errors(service: str, fix: str, origin: str) -> Iterator[None]:
    """Raise any error of a service as RunError."""
    try:
        yield
    except Exception as error:  # errors of networks have many classes
        message = f"{service} cannot be read: {one_line_error(error)}"
        raise RunError.of(message, fix, origin) from None
