"""All subprocess calls of git.

Git runs programs that a repository's configuration, attributes and hooks name.

Of a folder that somebody else may have written, only the name of its commit is read: that starts
nothing. No command reads its files through its own configuration, as `status` and `diff` do. What
is pulled is fetched into a bare repository of ours, and blobs are read out of it. So git checks
nothing out: no hook, no filter (LFS is one), no submodule and no link of the repository ever comes
to act.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from composer.errors import MAX_LIBRARY_MESSAGE, RunError
from composer.processes.python import absolute_elements

PROTOCOLS = ("https", "ssh", "file")
"""What git may speak: other protocols are unencrypted, or run a program that the URL names."""
NO_PROGRAMS = ("core.hooksPath=/dev/null", "core.fsmonitor=false")
FETCHING = (
    *NO_PROGRAMS,
    *("core.askPass=", "credential.interactive=false"),
    *("protocol.allow=never", *(f"protocol.{scheme}.allow=always" for scheme in PROTOCOLS)),
    *("submodule.recurse=false", "fetch.recurseSubmodules=false", "http.followRedirects=initial"),
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
    command = git_command(FETCHING, "ls-remote", "--quiet", "--", url, "HEAD")
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
    max_bytes: int | None = None,
    output: IO[Any] | int = subprocess.PIPE,
) -> bytes:
    """Run a command in the bare repository `work` of ours, and return its output. Raises RunError.

    max_bytes: Largest file that it may write.
    """
    streams: dict[str, Any] = {**NO_STREAMS, "stdout": output, "stderr": subprocess.PIPE}
    limit = None
    if max_bytes and sys.platform != "win32":  # Windows has no such limit
        import resource

        limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    command, environment = git_command(FETCHING, *words), git_environment(INHERITED)
    try:
        done = subprocess.run(
            command, cwd=work, env=environment, preexec_fn=limit, check=False, **streams
        )
    except FileNotFoundError:
        raise RunError.of("git is not installed", "install git", origin) from None
    if done.returncode:
        raise git_error(origin, done.returncode, done.stderr.decode("utf-8", "replace"))
    return done.stdout or b""


def first_bytes(origin: str, work: Path, *words: str, count: int) -> bytes:
    """Run a command in `work` and return at most `count` bytes of its output. Raises RunError."""
    streams: dict[str, Any] = {**NO_STREAMS, "stdout": subprocess.PIPE}
    command, environment = git_command(FETCHING, *words), git_environment(INHERITED)
    with subprocess.Popen(command, cwd=work, env=environment, **streams) as process:
        output: bytes = process.stdout.read(count) if process.stdout else b""
        process.kill() if len(output) == count else process.wait()
    if process.returncode and len(output) < count:
        raise git_error(origin, process.returncode, f"fatal: `git {words[0]}` failed")
    return output


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
        status < 0
        or "File too large" in output
        or ("index-pack" in output and not OTHER_CAUSE.search(output))
    ):
        fix = "if you trust it, allow more: `--max-gib N`"
        return RunError.of("this repository is larger than the limit", fix, origin)
    if "couldn't find remote ref HEAD" in output:
        return RunError.of(
            "this repository is empty, or has no default branch", "name one: `@REVISION`", origin
        )
    if "couldn't find remote ref" in output:
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
