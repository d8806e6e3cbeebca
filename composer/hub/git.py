"""Git: a place in a repository, read through the git command without a working tree.

One commit is fetched into a bare repository, and blobs are read out of it. So nothing is checked out: no hook, no
filter (LFS is one), no submodule and no link of the repository ever comes to act.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from composer.errors import MAX_LIBRARY_MESSAGE, RunError
from composer.hub.fetch import ANSWERS, Place
from composer.hub.pack_contents import FOLDER, REGULAR, Entry, refuse
from composer.hub.urls import Repository, pinned

SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.askPass=",
    "credential.interactive=false",
    "protocol.allow=never",
    "protocol.https.allow=always",
    "protocol.ssh.allow=always",
    "protocol.file.allow=always",
    "submodule.recurse=false",
    "fetch.recurseSubmodules=false",
    "http.followRedirects=initial",
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.unpackLimit=1",
)
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ALLOW_PROTOCOL": "https:ssh:file",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
KEPT = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM", "GIT_EXEC_PATH")
"""What users say of how git reaches a host; the rest of git's environment is about some other repository."""
SSH = "ssh -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=15"
LOOK = "look at the URL and the revision; a private repository needs a key or a credential helper"
ROOMIER = "make room for temporary files, or set TMPDIR to a folder that has it"
NETWORK = "look at the network, and at how the host is written"
CURES = {
    **dict.fromkeys(("No space left on device", "unable to stream"), ROOMIER),
    **dict.fromkeys(
        (
            "Could not resolve",
            "Failed to connect",
            "Connection refused",
            "Connection timed out",
            "Network is unreachable",
            "No route to host",
            "Operation too slow",
        ),
        NETWORK,
    ),
    "Host key verification failed": "connect to the host once with ssh, and look at its key",
    "Permission denied": "a private repository needs a key or a credential helper",
}
"""What helps where git says something that has these words."""
MODES = {"100644": REGULAR, "100755": REGULAR, "120000": "symbolic link", "160000": "submodule", "040000": FOLDER}
POINTER = b"version https://git-lfs.github.com/spec/"
PULLED = "refs/pulled/this"
"""Where git notes what was fetched: no branch, since a tag with a text of its own cannot stand where one does."""
MOST_TOLD = 1 << 25
"""Bytes of the list of a repository's files: a tree of trees can have more of them than a disk has room for."""
ROOM = 1 << 27
"""Bytes that the rest of a repository may have beside what is wanted."""


def repository_place(ref: Repository, origin: str, work: Path, limit: int) -> Place:
    """A commit of a repository, fetched into the folder `work`. Raises RunError."""
    git(origin, work, "init", "--quiet", "--bare", "--template=", ".")
    wanted = ref.revision or "HEAD"
    must_answer(origin, work, ref.url)
    git(
        origin,
        work,
        "fetch",
        "--quiet",
        "--depth=1",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-recurse-submodules",
        "--",
        ref.url,
        f"{wanted}:{PULLED}",
        limit=limit + ROOM,
    )
    commit = git(origin, work, "rev-parse", f"{PULLED}^{{commit}}").decode().strip()
    entries, blobs = listed(tree(origin, work, commit))
    return Place(origin, pinned(ref, commit), entries, partial(fetch, origin, work, blobs))


def must_answer(origin: str, work: Path, url: str) -> None:
    """Raises RunError where a host takes a connection and then says nothing: git itself would wait for minutes.

    What else goes wrong git says when it fetches.
    """
    words = ("ls-remote", "--quiet", "--", url, "HEAD")
    try:
        subprocess.run(
            command(words),
            cwd=work,
            env=environment(),
            timeout=ANSWERS,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RunError.of(f"nothing answers within {ANSWERS} seconds", NETWORK, origin) from None
    except FileNotFoundError:
        raise no_git(origin) from None


def tree(origin: str, work: Path, commit: str) -> bytes:
    """What `git ls-tree -l -z` tells of a commit. Raises RunError where it does not come to an end."""
    words = ("ls-tree", "-r", "-l", "-z", "--full-tree", commit)
    with subprocess.Popen(
        command(words),
        cwd=work,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as running:
        told = running.stdout.read(MOST_TOLD + 1) if running.stdout else b""
        running.kill() if len(told) > MOST_TOLD else running.wait()
    if len(told) > MOST_TOLD:
        refuse(origin, "more files are there than can be listed", "ask for a smaller repository")
    if running.returncode:
        raise failed(origin, running.returncode, "fatal: the list of its files cannot be read")
    return told


def listed(told: bytes) -> tuple[dict[str, Entry], dict[str, str]]:
    """What `git ls-tree -l -z` tells: every path with what it is, and its blob."""
    entries, blobs = {}, {}
    for line in filter(None, told.split(b"\0")):
        head, _, raw = line.partition(b"\t")
        mode, _, blob, size = head.decode().split()
        name = raw.decode("utf-8", "backslashreplace")
        entries[name] = Entry(name, MODES.get(mode, "thing of an unknown kind"), int(size) if size.isdigit() else 0)
        blobs[name] = blob
    return entries, blobs


def fetch(origin: str, work: Path, blobs: Mapping[str, str], name: str, target: Path) -> None:
    """Writes a file of the commit. Raises RunError where it is kept in LFS."""
    with target.open("xb") as file:
        git(origin, work, "cat-file", "blob", blobs[name], output=file)
    with target.open("rb") as written:
        if written.read(len(POINTER)) == POINTER:
            refuse(
                origin,
                f"`{name}` is kept in Git LFS, which is not asked",
                "of the Hugging Face hub, write hub:OWNER/NAME",
            )


def git(
    origin: str, work: Path, *words: str, limit: int | None = None, output: IO[Any] | int = subprocess.PIPE
) -> bytes:
    """What a git command prints. `limit`: the most bytes of a file that it writes. Raises RunError."""
    try:
        done = subprocess.run(
            command(words),
            cwd=work,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            preexec_fn=bounded(limit),
            check=False,
        )
    except FileNotFoundError:
        raise no_git(origin) from None
    if done.returncode:
        raise failed(origin, done.returncode, done.stderr.decode("utf-8", "replace"))
    return done.stdout or b""


def no_git(origin: str) -> RunError:
    """That there is no git."""
    return RunError.of("the git command is not there", "install git", origin)


def command(words: Sequence[str]) -> list[str]:
    """A git command, with all that keeps it from running what a repository brings."""
    return ["git", *(word for setting in SETTINGS for word in ("-c", setting)), *words]


def environment() -> dict[str, str]:
    """This process's environment, without what it says of another repository."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or name in KEPT}
    return {"GIT_SSH_COMMAND": SSH, **inherited, **ENVIRONMENT}


def bounded(limit: int | None) -> Callable[[], None] | None:
    """Keeps a process from writing a larger file, where the system can."""
    try:
        import resource
    except ImportError:
        return None
    return partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit)) if limit else None


def failed(origin: str, status: int, told: str) -> RunError:
    """Why git could not, in words."""
    if status < 0 or "File too large" in told or ("index-pack" in told and "No space" not in told):
        return RunError.of(
            "this repository is larger than what is taken", "if you trust it, take more: `--max_gib N`", origin
        )
    if "couldn't find remote ref HEAD" in told:
        return RunError.of("this repository is empty, or has no default branch", "name one: `@REVISION`", origin)
    if "couldn't find remote ref" in told:
        return RunError.of(
            "no such branch or tag is there", "write a branch, a tag, or all 40 digits of a commit", origin
        )
    lines = [line.strip() for line in told.splitlines() if line.strip()] or [f"exit {status}"]
    known = next(((line, cure) for line in lines for sign, cure in CURES.items() if sign in line), None)
    if known is None:
        known = next((line for line in lines if line.startswith(("fatal:", "error:"))), lines[-1]), LOOK
    return RunError.of(f"git says: {known[0].removeprefix('fatal: ')[:MAX_LIBRARY_MESSAGE]}", known[1], origin)
