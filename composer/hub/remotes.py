"""Where packs and recipes are pulled from: references and their syntax, git repositories, W&B artifacts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from composer.errors import MAX_LIBRARY_MESSAGE, RunError, one_line_error
from composer.hub.manifest import FOLDER, REGULAR, Entry, refuse

SCHEMES = ("https", "ssh", "file")
"""What git may speak: other protocols are unencrypted, or run a program that the URL names."""
FORMS = {
    "git+": "git+https://HOST/OWNER/NAME@REVISION#PATH",
    "wandb:": "wandb:ENTITY/PROJECT/NAME:VERSION",
    "hub:": "hub:OWNER/NAME@REVISION#PATH",
}
MAX_CHARACTERS = 1000
DEFAULT_MAX_GIB = 10.0
ANSWER_SECONDS = 30
"""Seconds in which a remote has to answer."""

_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_URL = re.compile(r"(?P<scheme>[a-z0-9+.-]+)://(?P<authority>[^/]*)(?P<path>/.+)")
_AUTHORITY = re.compile(rf"((?P<user>{_WORD})@)?(?P<host>{_WORD}|\[[0-9A-Fa-f:.]+\])?(:[0-9]{{1,5}})?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*")
_ARTIFACT = re.compile(rf"({_WORD}/){{1,2}}{_WORD}:{_WORD}")
_MODEL = re.compile(rf"{_WORD}/{_WORD}")
_LOOKS_LIKE_A_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)")


@dataclass(frozen=True)
class LocalPath:
    """Reference to a file or a folder of this machine."""

    path: Path


@dataclass(frozen=True)
class Repository:
    """Reference to a path in a revision of a git repository; "" for its root, and for the default branch."""

    url: str
    revision: str
    path: str


@dataclass(frozen=True)
class Artifact:
    """Reference to an artifact of Weights & Biases: ENTITY/PROJECT/NAME:VERSION."""

    name: str


@dataclass(frozen=True)
class HubModel:
    """Reference to a path in a revision of a repository on the Hugging Face hub; "" as in Repository."""

    repository: str
    revision: str
    path: str


Reference = LocalPath | Repository | Artifact | HubModel


@dataclass(frozen=True)
class Remote:
    """Listing of a remote: its members by path, and a function that downloads one of them to a local path.

    `origin` is the reference as the user wrote it, `pinned` one that names the same commit for ever.
    """

    origin: str
    pinned: str
    entries: Mapping[str, Entry]
    fetch: Callable[[str, Path], None]

    @property
    def path_form(self) -> str:
        """How to refer to a path in it."""
        return f"{self.origin.partition('#')[0]}#PATH"


# ------------------------------------------------------------------------------------------- references


def parse_reference(text: str) -> Reference:
    """Parse a path, `git+URL[@REVISION][#PATH]`, `wandb:[ENTITY/]PROJECT/NAME:VERSION` or `hub:OWNER/NAME[...]`.

    Nothing is fetched. Raises RunError.
    """
    if not text.strip() or not text.isprintable() or text.startswith("-") or len(text) > MAX_CHARACTERS:
        _refuse_reference(text, "this is no reference", "write a path, `git+URL`, `wandb:NAME` or `hub:NAME`")
    if text.startswith("git+"):
        return _parse_git(text)
    if text.startswith("wandb:"):
        name = text.removeprefix("wandb:")
        if _ARTIFACT.fullmatch(name) is None:
            fix = f"write `{FORMS['wandb:']}`; a version is `v3` or `latest`"
            _refuse_reference(text, "this is no artifact of Weights & Biases", fix)
        return Artifact(name)
    if text.startswith("hub:"):
        return _parse_hub(text)
    if _LOOKS_LIKE_A_URL.match(text):
        fix = f"of a git repository, write `{FORMS['git+']}`"
        _refuse_reference(text, "a bare URL does not say what lies there", fix)
    return LocalPath(Path(text))


def _parse_git(text: str) -> Repository:
    url, _, path = text.removeprefix("git+").partition("#")
    parts = _URL.fullmatch(url)
    if parts is None or parts["scheme"] not in SCHEMES:
        fix = f"write `{FORMS['git+']}`, or git+ssh://git@HOST/..."
        _refuse_reference(text, "git is asked over https, ssh and file only", fix)
    inside, at, revision = parts["path"].rpartition("@") if "@" in parts["path"] else (parts["path"], "", "")
    if not _is_safe_host(parts["scheme"], parts["authority"]):
        fix = "a password belongs to git's credential helper, not to a URL"
        _refuse_reference(text, "this is not how a host is written", fix)
    if at and not _is_revision(revision):
        _refuse_reference(text, f"`{revision}` is no branch, tag or commit", f"write `{FORMS['git+']}`")
    return Repository(f"{parts['scheme']}://{parts['authority']}{inside}", revision, _inner_path(text, path))


def _is_safe_host(scheme: str, authority: str) -> bool:
    """Return whether a URL's authority is a host: nothing that ssh reads as an option, and no password."""
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        return False
    if scheme == "file":
        return not authority
    return bool(parts["host"]) and (scheme == "ssh" or not parts["user"])


def _is_revision(text: str) -> bool:
    """Return whether a text names a branch, a tag or a commit; git would read others as ranges or options."""
    return _REVISION.fullmatch(text) is not None and ".." not in text and "//" not in text


def _parse_hub(text: str) -> HubModel:
    repository, _, path = text.removeprefix("hub:").partition("#")
    name, at, revision = repository.partition("@")
    if _MODEL.fullmatch(name) is None or ".." in name or (at and not _is_revision(revision)):
        _refuse_reference(text, "this is no repository of the Hugging Face hub", f"write `{FORMS['hub:']}`")
    return HubModel(name, revision, _inner_path(text, path))


def _inner_path(text: str, path: str) -> str:
    """Return a path inside a repository, as git writes it. Raises RunError where it leads out."""
    steps = path.removesuffix("/").split("/") if path else []
    if "\\" in path or any(step in ("", ".", "..", ".git") for step in steps):
        fix = "write it from the repository's root, without `..`"
        _refuse_reference(text, f"`{path}` is no path inside a repository", fix)
    return "/".join(steps)


def _refuse_reference(text: str, message: str, fix: str) -> NoReturn:
    raise RunError.of(message, fix, without_password(text))


def without_password(text: str) -> str:
    """Return a reference as it may be printed."""
    return re.sub(r"://[^/@]*@", "://", text[:MAX_CHARACTERS])


def pinned(reference: Repository | HubModel, commit: str) -> str:
    """Return a reference to `commit`, whatever its branch or tag will mean later."""
    start = f"git+{reference.url}" if isinstance(reference, Repository) else f"hub:{reference.repository}"
    return f"{start}@{commit}" + (f"#{reference.path}" if reference.path else "")


# ------------------------------------------------------------------------------------------- git
#
# One commit is fetched into a bare repository, and blobs are read out of it. So nothing is checked out: no hook, no
# filter (LFS is one), no submodule and no link of the repository ever comes to act.

SETTINGS = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.askPass=", "credential.interactive=false"),
    *("protocol.allow=never", *(f"protocol.{scheme}.allow=always" for scheme in SCHEMES)),
    *("submodule.recurse=false", "fetch.recurseSubmodules=false", "http.followRedirects=initial"),
    *("http.lowSpeedLimit=1000", "http.lowSpeedTime=60", "gc.auto=0", "maintenance.auto=false", "fetch.unpackLimit=1"),
)
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "https:ssh:file",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
INHERITED: tuple[str, ...] = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_EXEC_PATH")
INHERITED += ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM")
"""What users say of how git reaches a host; the other variables of git are about some other repository."""
SSH = "ssh -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=15"
CHECK_URL = "look at the URL and the revision; a private repository needs a key or a credential helper"
CHECK_NETWORK = "look at the network, and at how the host is written"
MAKE_ROOM = "make room for temporary files, or set TMPDIR to a folder that has it"
HINTS = {
    "No space left on device": MAKE_ROOM,
    "unable to stream": MAKE_ROOM,
    "Could not resolve": CHECK_NETWORK,
    "Failed to connect": CHECK_NETWORK,
    "Connection refused": CHECK_NETWORK,
    "Connection timed out": CHECK_NETWORK,
    "Network is unreachable": CHECK_NETWORK,
    "No route to host": CHECK_NETWORK,
    "Operation too slow": CHECK_NETWORK,
    "Host key verification failed": "connect to the host once with ssh, and look at its key",
    "Permission denied": "a private repository needs a key or a credential helper",
}
"""Hints by what git's error message contains."""
MODES = {"100644": REGULAR, "100755": REGULAR, "120000": "symbolic link", "160000": "submodule", "040000": FOLDER}
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
PULLED_REF = "refs/pulled/this"
"""Where the fetched commit is noted: no branch, since a tag object cannot be one."""
MAX_LISTING_BYTES = 1 << 25
"""Longest listing of a repository's files: a tree of trees can have more of them than a disk has room for."""
EXTRA_BYTES = 1 << 27
"""Bytes that the rest of a repository may have beside what is wanted."""


def git_remote(ref: Repository, origin: str, work: Path, max_bytes: int) -> Remote:
    """Fetch a commit into a bare repository in `work` and list it. Raises RunError."""
    run_git(origin, work, "init", "--quiet", "--bare", "--template=", ".")
    check_answers(origin, work, ref.url)
    options = ("--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
    refspec = f"{ref.revision or 'HEAD'}:{PULLED_REF}"
    run_git(origin, work, "fetch", *options, "--", ref.url, refspec, max_bytes=max_bytes + EXTRA_BYTES)
    commit = run_git(origin, work, "rev-parse", f"{PULLED_REF}^{{commit}}").decode().strip()
    entries, blobs = parse_tree(list_tree(origin, work, commit))
    return Remote(origin, pinned(ref, commit), entries, partial(_fetch_blob, origin, work, blobs))


def check_answers(origin: str, work: Path, url: str) -> None:
    """Raise RunError where a host accepts a connection and then says nothing: git itself would wait for minutes.

    Other errors are left to the fetch, whose messages say more.
    """
    command = git_command("ls-remote", "--quiet", "--", url, "HEAD")
    try:
        # no pipes: a grandchild (ssh) that holds one open would outlast the timeout
        subprocess.run(command, cwd=work, env=git_environment(), timeout=ANSWER_SECONDS, check=False, **NO_STREAMS)
    except subprocess.TimeoutExpired:
        raise RunError.of(f"nothing answers within {ANSWER_SECONDS} seconds", CHECK_NETWORK, origin) from None
    except FileNotFoundError:
        raise RunError.of("the git command is not there", "install git", origin) from None


NO_STREAMS: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


def list_tree(origin: str, work: Path, commit: str) -> bytes:
    """Return the output of `git ls-tree -r -l -z`. Raises RunError where it exceeds MAX_LISTING_BYTES."""
    command = git_command("ls-tree", "-r", "-l", "-z", "--full-tree", commit)
    streams = {**NO_STREAMS, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=work, env=git_environment(), **streams) as process:
        listing: bytes = process.stdout.read(MAX_LISTING_BYTES + 1) if process.stdout else b""
        process.kill() if len(listing) > MAX_LISTING_BYTES else process.wait()
    if len(listing) > MAX_LISTING_BYTES:
        refuse(origin, "more files are there than can be listed", "ask for a smaller repository")
    if process.returncode:
        raise git_error(origin, process.returncode, "fatal: the list of its files cannot be read")
    return listing


def parse_tree(listing: bytes) -> tuple[dict[str, Entry], dict[str, str]]:
    """Return the members and the blobs of a listing, both by path."""
    entries, blobs = {}, {}
    for line in filter(None, listing.split(b"\0")):
        head, _, raw = line.partition(b"\t")
        mode, _, blob, size = head.decode().split()
        name = raw.decode("utf-8", "backslashreplace")
        entries[name] = Entry(name, MODES.get(mode, "thing of an unknown kind"), int(size) if size.isdigit() else 0)
        blobs[name] = blob
    return entries, blobs


def _fetch_blob(origin: str, work: Path, blobs: Mapping[str, str], name: str, target: Path) -> None:
    """Write a file of the commit. Raises RunError where it is a pointer of Git LFS."""
    with target.open("xb") as file:
        run_git(origin, work, "cat-file", "blob", blobs[name], output=file)
    with target.open("rb") as copy:
        if copy.read(len(LFS_POINTER)) == LFS_POINTER:
            fix = "of the Hugging Face hub, write hub:OWNER/NAME"
            refuse(origin, f"`{name}` is kept in Git LFS, which `pull` does not download", fix)


def run_git(
    origin: str, work: Path, *words: str, max_bytes: int | None = None, output: IO[Any] | int = subprocess.PIPE
) -> bytes:
    """Run a git command and return its output. max_bytes: largest file that it may write. Raises RunError."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.PIPE}
    limit = _file_size_limit(max_bytes)
    command = git_command(*words)
    try:
        done = subprocess.run(command, cwd=work, env=git_environment(), preexec_fn=limit, check=False, **streams)
    except FileNotFoundError:
        raise RunError.of("the git command is not there", "install git", origin) from None
    if done.returncode:
        raise git_error(origin, done.returncode, done.stderr.decode("utf-8", "replace"))
    return done.stdout or b""


def git_command(*words: str) -> list[str]:
    """Return a git command with SETTINGS, which keep it from running what a repository brings."""
    return ["git", *(word for setting in SETTINGS for word in ("-c", setting)), *words]


def git_environment() -> dict[str, str]:
    """Return this process's environment without what it says of another repository."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or key in INHERITED}
    return {"GIT_SSH_COMMAND": SSH, **inherited, **ENVIRONMENT}


def _file_size_limit(max_bytes: int | None) -> Callable[[], None] | None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return None
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (max_bytes, max_bytes)) if max_bytes else None


def git_error(origin: str, status: int, output: str) -> RunError:
    """Return git's error in words, with a hint."""
    if status < 0 or "File too large" in output or ("index-pack" in output and "No space" not in output):
        fix = "if you trust it, allow more: `--max-gib N`"
        return RunError.of("this repository is larger than the limit", fix, origin)
    if "couldn't find remote ref HEAD" in output:
        return RunError.of("this repository is empty, or has no default branch", "name one: `@REVISION`", origin)
    if "couldn't find remote ref" in output:
        fix = "write a branch, a tag, or all 40 digits of a commit"
        return RunError.of("no such branch or tag is there", fix, origin)
    lines = [line.strip() for line in output.splitlines() if line.strip()] or [f"exit {status}"]
    known = next(((line, hint) for line in lines for sign, hint in HINTS.items() if sign in line), None)
    line, hint = known or (next((x for x in lines if x.startswith(("fatal:", "error:"))), lines[-1]), CHECK_URL)
    return RunError.of(f"git says: {line.removeprefix('fatal: ')[:MAX_LIBRARY_MESSAGE]}", hint, origin)


# ------------------------------------------------------------------------------------------- Weights & Biases


def wandb_remote(ref: Artifact, origin: str) -> Remote:
    """List an artifact. Raises RunError, also where no key is configured: W&B would prompt for one."""
    from composer.training.loggers import is_logged_in  # imported late: it imports torch

    if not is_logged_in(os.environ):
        raise RunError.of("Weights & Biases knows nobody here", "say `wandb login`, or set WANDB_API_KEY", origin)
    import wandb

    try:
        members = dict(wandb.Api(timeout=ANSWER_SECONDS).artifact(ref.name).manifest.entries)
    except Exception as error:  # what goes wrong on the way here has many classes, and one answer
        raise _wandb_error(origin, error) from None
    # a reference's file lies elsewhere: W&B would take it from there, be it this very machine
    kinds = {name: REGULAR if member.ref is None else "reference to another place" for name, member in members.items()}
    entries = {str(name): Entry(str(name), kinds[name], member.size or 0) for name, member in members.items()}
    return Remote(origin, origin, entries, partial(_fetch_member, members, origin))


def _fetch_member(members: Mapping[str, Any], origin: str, name: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".wandb-", dir=target.parent) as folder:
        try:
            shutil.move(members[name].download(root=folder, skip_cache=True), target)
        except Exception as error:  # as above
            raise _wandb_error(origin, error) from None


def _wandb_error(origin: str, error: Exception) -> RunError:
    fix = "look at the network, the name and the version, as its page has them"
    return RunError.of(f"Weights & Biases does not give it: {one_line_error(error)}", fix, origin)
