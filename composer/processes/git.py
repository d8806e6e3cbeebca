"""All subprocess calls of git.

Git runs programs that a repository's configuration, attributes and hooks name.

Of a folder that somebody else may have written, only the name of its commit is read: that starts
nothing. What is pulled is cloned without a checkout, and only the files that are wanted are checked
out: without hooks, submodules and links, and without the user's settings, so that no filter is
known. Git LFS is called by its name, and takes no settings of the repository.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from composer.errors import MAX_LIBRARY_MESSAGE, RunError
from composer.processes.python import absolute_elements

PROTOCOLS = ("https", "ssh", "file")
"""What git may speak: other protocols are unencrypted, or run a program that the URL names."""
NO_PROGRAMS = ("core.hooksPath=/dev/null", "core.fsmonitor=false")
SAFE = (
    *NO_PROGRAMS,
    *("core.askPass=", "credential.interactive=false"),
    *("protocol.allow=never", *(f"protocol.{scheme}.allow=always" for scheme in PROTOCOLS)),
    *("submodule.recurse=false", "core.symlinks=false", "http.followRedirects=initial"),
    *(
        "http.lowSpeedLimit=1000",
        "http.lowSpeedTime=60",
        "gc.auto=0",
        "maintenance.auto=false",
        "fetch.unpackLimit=1",
    ),
)
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": ":".join(PROTOCOLS),
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
NO_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
"""Without the user's settings git knows no filter that an attribute of a file could name."""
ATTRIBUTES = "* filter=lfs -text -ident -working-tree-encoding\n"
"""Instead of a repository's own: files are what they are, and no filter but LFS is asked for."""
INHERITED: tuple[str, ...] = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_EXEC_PATH")
INHERITED += ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_NOSYSTEM")
"""What users say of how git reaches a host; the other variables of git are about some other
repository.
"""
SSH = "ssh -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=15"
ANSWER_SECONDS = 30
"""Seconds in which a remote has to answer."""
COMMIT_SECONDS = 10
"""Seconds in which git has to name a commit of this machine."""
MAX_OUTPUT_BYTES = 1 << 25
"""Longest listing of a repository's files: a tree of trees can have more of them than a disk has
room for.
"""
FILE_TOO_LARGE = 25
"""The signal SIGXFSZ."""
REGULAR_MODES = ("100644", "100755")
OTHER_CAUSE = re.compile("No space|early EOF|curl|RPC failed|disconnect")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
NO_STREAMS: dict[str, object] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)


def commit_around(folder: Path) -> str | None:
    """Return the commit of the work tree around `folder`; None without one, or if git refuses."""
    command = git_command(
        ["safe.bareRepository=explicit", *NO_PROGRAMS], "rev-parse", "--show-toplevel", "HEAD"
    )
    options: dict[str, Any] = {
        **NO_STREAMS,
        "stdout": subprocess.PIPE,
        "timeout": COMMIT_SECONDS,
        "check": True,
    }
    try:
        output = subprocess.run(command, cwd=folder, env=git_environment(()), **options).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    commit = output.decode("ascii", "replace").rpartition("\n")[0].rpartition("\n")[2]
    return commit if COMMIT.fullmatch(commit) else None


def does_answer(work: Path, url: str) -> bool:
    """True if a remote answers within ANSWER_SECONDS, be it by an error; git waits for minutes."""
    # without pipes: a grandchild (ssh) that holds one open would outlast the timeout
    command = git_command(SAFE, "ls-remote", "--quiet", "--", url, "HEAD")
    options: dict[str, Any] = {**NO_STREAMS, "timeout": ANSWER_SECONDS, "check": False}
    try:
        subprocess.run(command, cwd=work, env=git_environment(INHERITED), **options)
    except subprocess.TimeoutExpired:
        return False
    except FileNotFoundError:
        pass  # `run_git` says it
    return True


def run_git(
    origin: str,
    work: Path,
    *words: str,
    is_local: bool = False,
    max_bytes: int | None = None,
    max_output: int = MAX_OUTPUT_BYTES,
) -> bytes:
    """Run a command in the repository `work` of ours, and return its output. Raises RunError.

    is_local: Without the user's settings. max_bytes: Largest file that it may write.
    """
    limit = None
    if max_bytes and sys.platform != "win32":  # Windows has no such limit
        import resource

        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    environment = git_environment(INHERITED) | (NO_SETTINGS if is_local else {})
    with tempfile.TemporaryFile() as errors:
        streams: dict[str, Any] = {**NO_STREAMS, "stdout": subprocess.PIPE, "stderr": errors}
        command = git_command(SAFE, *words)
        try:
            process = subprocess.Popen(
                command, cwd=work, env=environment, preexec_fn=limit, **streams
            )
        except FileNotFoundError:
            raise RunError.of("git is not installed", "install git", origin) from None
        with process:
            output: bytes = process.stdout.read(max_output + 1) if process.stdout else b""
            if len(output) > max_output:
                process.kill()
        if len(output) > max_output:
            fix = "ask for a smaller repository"
            raise RunError.of("there are too many files to list", fix, origin)
        if process.returncode:
            errors.seek(0)
            raise git_error(origin, process.returncode, errors.read().decode("utf-8", "replace"))
    return output


def clone(origin: str, work: Path, url: str, revision: str, max_bytes: int) -> None:
    """Clone the last commit of a branch or a tag, or one commit, without a checkout.

    Raises RunError.
    """
    if not does_answer(work, url):
        hint = "check the network and the name of the host"
        raise RunError.of(f"nothing answers within {ANSWER_SECONDS} seconds", hint, origin)
    if COMMIT.fullmatch(revision):
        run_git(origin, work, "init", "--quiet", "--template=", ".")
        run_git(origin, work, "remote", "add", "origin", url)
        fetch = ("fetch", "--quiet", "--depth=1", "--no-tags", "origin", revision)
        run_git(origin, work, *fetch, max_bytes=max_bytes)
        run_git(origin, work, "update-ref", "--no-deref", "HEAD", revision)
    else:
        options = ["--depth=1", "--no-checkout", "--no-tags", "--template=", "--origin=origin"]
        if revision:
            options.append(f"--branch={revision}")
        words = ("clone", "--quiet", *options, "--", url, ".")
        run_git(origin, work, *words, max_bytes=max_bytes)
    (work / ".git" / "info").mkdir(exist_ok=True)
    (work / ".git" / "info" / "attributes").write_text(ATTRIBUTES)
    (work / ".lfsconfig").touch()  # LFS reads it instead of that of the repository


def list_files(origin: str, work: Path) -> tuple[str, list[tuple[str, int, bool]]]:
    """Return the commit of a clone, and name, size and kind of its files: whether it is regular.

    Raises RunError.
    """
    commit = run_git(origin, work, "rev-parse", "--verify", "HEAD^{commit}", is_local=True)
    words = ("ls-tree", "-r", "-l", "-z", "--full-tree", "HEAD")
    files = []
    for line in run_git(origin, work, *words, is_local=True).split(b"\0")[:-1]:
        head, _, name = line.partition(b"\t")
        mode, _, _, size = head.decode().split()
        is_regular = mode in REGULAR_MODES
        text = name.decode("utf-8", "backslashreplace")
        files.append((text, int(size) if is_regular else 0, is_regular))
    return commit.decode().strip(), files


def checkout(origin: str, work: Path, names: Sequence[str]) -> None:
    """Check out files of a clone. Raises RunError."""
    (work / ".git" / "wanted").write_bytes("\0".join(names).encode())
    paths = ("--pathspec-from-file=.git/wanted", "--pathspec-file-nul")
    run_git(origin, work, "--literal-pathspecs", "checkout", "HEAD", *paths, is_local=True)


def push_files(origin: str, work: Path, names: Sequence[str], message: str) -> str:
    """Commit files in a clone to its branch, and push it; return the commit. Raises RunError."""

    def local(*words: str) -> str:
        return run_git(origin, work, *words, is_local=True).decode().strip()

    branch = local("symbolic-ref", "HEAD")
    local("read-tree", "HEAD")
    local("add", "--force", "--", *names)
    # the user's settings have the author's name
    words = ("commit-tree", local("write-tree"), "-p", "HEAD", "-m", message)
    commit = run_git(origin, work, *words).decode().strip()
    is_here = local("remote", "get-url", "origin").startswith("file:")
    server = ("--receive-pack=git -c core.hooksPath=/dev/null receive-pack",) if is_here else ()
    run_git(origin, work, "push", "--quiet", *server, "origin", f"{commit}:{branch}")
    return commit


def git_command(settings: Sequence[str], *words: str) -> list[str]:
    """Return a git command with settings that come before those of files."""
    command = ["git", "--no-pager"]
    for setting in settings:
        command += ["-c", setting]
    return [*command, *words]


def git_environment(inherited: Sequence[str]) -> dict[str, str]:
    """Return this process's environment without variables of git, except those `inherited`."""
    environment = dict(os.environ)
    for key in os.environ:
        if key.startswith("GIT_") and key not in inherited:
            del environment[key]
    environment.setdefault("GIT_SSH_COMMAND", SSH)
    # of an empty PATH one element is the current folder
    path = absolute_elements(os.environ.get("PATH", os.defpath)) or os.defpath
    return {**environment, "PATH": path, **ENVIRONMENT}


def git_error(origin: str, status: int, output: str) -> RunError:
    """Return git's error in its words, with a hint."""
    # a signal ends git, or what it started, of which it says no more than that; a lost connection
    # says more
    if (
        status == -FILE_TOO_LARGE
        or "File too large" in output
        or ("index-pack" in output and not OTHER_CAUSE.search(output))
    ):
        fix = "if you trust it, allow more: `--max-gib N`"
        return RunError.of("this repository is larger than the limit", fix, origin)
    if "is not a git command" in output:
        fix = "install git-lfs; or pull it from the Hugging Face hub, `hub:OWNER/NAME`"
        return RunError.of("a file of it is stored in Git LFS", fix, origin)
    if "Needed a single revision" in output:
        return RunError.of(
            "this repository is empty, or has no default branch", "name one: `@REVISION`", origin
        )
    if "Remote branch" in output or "not our ref" in output:
        fix = "write a branch, a tag, or all 40 digits of a commit"
        return RunError.of("no such branch or tag is in the repository", fix, origin)
    hint = (
        "check the network, the URL and the revision; a private repository needs a key or a"
        " credential helper"
    )
    if "No space left" in output or "unable to stream" in output:
        hint = "make room for temporary files, or set TMPDIR to a folder that has it"
    text = " ".join(output.split()) or f"exit {status}"
    return RunError.of(
        f"git says: {text.removeprefix('fatal: ')[:MAX_LIBRARY_MESSAGE]}", hint, origin
    )
