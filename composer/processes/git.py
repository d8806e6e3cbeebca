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
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from composer.errors import MAX_LIBRARY_MESSAGE, RunError
from composer.processes.python import absolute_elements

SETTINGS = Path(__file__).with_name("git.config")
ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    # others are not encrypted, or run a program that the URL names
    "GIT_ALLOW_PROTOCOL": "https:ssh:file",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "LC_ALL": "C",
}
NO_SETTINGS = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
"""Without the user's settings git knows no filter that an attribute of a file could name."""
ATTRIBUTES = "* filter=lfs -text -ident -working-tree-encoding\n"
"""Instead of a repository's own: files are what they are, and no filter but LFS is asked for."""
INHERITED = re.compile(
    "(?!GIT_)|GIT_(SSH|SSH_COMMAND|SSL_CAINFO|EXEC_PATH|CONFIG_GLOBAL|CONFIG_NOSYSTEM)$"
)
"""What users say of how git reaches a host; the other variables of git are about some other
repository.
"""
SSH = "ssh -oBatchMode=yes -oConnectTimeout=30 -oServerAliveInterval=15"
ANSWER_SECONDS = 30
"""Seconds in which a remote has to answer."""
COMMIT_SECONDS = 10
"""Seconds in which git has to name a commit of this machine."""
MAX_LISTING_BYTES = 1 << 25
"""Longest listing of a repository's files: a tree of trees can have more of them than a disk has
room for.
"""
FILE_TOO_LARGE = 25
"""The signal SIGXFSZ."""
HINTS = {
    "is not a git command": "install git-lfs; or pull it from the Hugging Face hub",
    "Needed a single revision": "name a branch that has a commit: `@REVISION`",
    "Remote branch": "write a branch, a tag, or all 40 digits of a commit",
    "not our ref": "write a branch, a tag, or all 40 digits of a commit",
    "No space left": "make room for temporary files, or set TMPDIR to a folder that has it",
}
"""What to do, by what git says."""
OTHER_CAUSE = re.compile("No space|early EOF|curl|RPC failed|disconnect")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def commit_around(folder: Path) -> str | None:
    """Return the commit of the work tree around `folder`; None without one, or if git refuses."""
    try:
        output = Git(folder).run("rev-parse", "--show-toplevel", "HEAD", seconds=COMMIT_SECONDS)
    except (OSError, RunError):
        return None
    commit = output.rpartition("\n")[2]
    return commit if COMMIT.fullmatch(commit) else None


@dataclass(frozen=True)
class Git:
    """Git in a folder. Its methods raise RunError. origin: Where errors are said to be."""

    work: Path
    origin: str = ""

    def run(
        self,
        *words: str,
        is_local: bool = False,
        max_bytes: int | None = None,
        seconds: int | None = None,
    ) -> str:
        """Run a command, and return its output.

        is_local: Without the user's settings. max_bytes: Largest file, or output, that it may
        write. seconds: In which it has to end.
        """
        limit = None
        if max_bytes and sys.platform != "win32":  # Windows has no such limit
            import resource

            limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
        command = ["git", "--no-pager", "-c", f"include.path={SETTINGS}", *words]
        environment = git_environment() | (NO_SETTINGS if is_local else {})
        # no pipes: a grandchild (ssh) that holds one open would outlast the timeout
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                done = subprocess.run(
                    command,
                    cwd=self.work,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    preexec_fn=limit,
                    timeout=seconds,
                    check=False,
                )
            except FileNotFoundError:
                raise RunError.of("git is not installed", "install git", self.origin) from None
            except subprocess.TimeoutExpired:
                hint = "check the network and the name of the host"
                message = f"nothing answers in {seconds} seconds"
                raise RunError.of(message, hint, self.origin) from None
            output.seek(0)
            errors.seek(0)
            if done.returncode:
                reason = errors.read().decode("utf-8", "replace")
                raise git_error(self.origin, done.returncode, reason)
            return output.read().decode("utf-8", "backslashreplace").removesuffix("\n")

    def clone(self, url: str, revision: str, max_bytes: int) -> None:
        """Clone the last commit of a branch or a tag, or one commit, without a checkout."""
        # git itself would wait for minutes
        self.run("ls-remote", "--quiet", "--", url, "HEAD", seconds=ANSWER_SECONDS)
        if COMMIT.fullmatch(revision):
            self.run("init", "--quiet", "--template=", ".")
            self.run("remote", "add", "origin", url)
            fetch = ("fetch", "--quiet", "--depth=1", "--no-tags", "origin", revision)
            self.run(*fetch, max_bytes=max_bytes)
            self.run("update-ref", "--no-deref", "HEAD", revision)
        else:
            options = ["--depth=1", "--no-checkout", "--no-tags", "--template=", "--origin=origin"]
            branch = [f"--branch={revision}"] if revision else []
            words = ("clone", "--quiet", *options, *branch, "--", url, ".")
            self.run(*words, max_bytes=max_bytes)
        (self.work / ".git" / "info").mkdir(exist_ok=True)
        (self.work / ".git" / "info" / "attributes").write_text(ATTRIBUTES)
        (self.work / ".lfsconfig").touch()  # LFS reads it instead of that of the repository

    def list_files(self) -> tuple[str, list[tuple[str, int, bool]]]:
        """Return the commit of a clone, and of its files name, size and whether each is regular."""
        commit = self.run("rev-parse", "--verify", "HEAD^{commit}", is_local=True)
        words = ("ls-tree", "-r", "-l", "-z", "--full-tree", "HEAD")
        files = []
        listing = self.run(*words, is_local=True, max_bytes=MAX_LISTING_BYTES)
        for line in listing.split("\0")[:-1]:
            head, _, name = line.partition("\t")
            mode, _, _, size = head.split()
            files.append((name, int(size) if size.isdigit() else 0, mode in ("100644", "100755")))
        return commit, files

    def checkout(self, names: Sequence[str]) -> None:
        """Check out files of a clone."""
        (self.work / ".git" / "wanted").write_bytes("\0".join(names).encode())
        paths = ("--pathspec-from-file=.git/wanted", "--pathspec-file-nul")
        self.run("--literal-pathspecs", "checkout", "HEAD", *paths, is_local=True)

    def push_files(self, names: Sequence[str], message: str) -> str:
        """Commit files in a clone to its branch, and push it; return the commit.

        Where the branch has the same files already, nothing is committed.
        """
        local = partial(self.run, is_local=True)
        branch = local("symbolic-ref", "HEAD")
        local("read-tree", "HEAD")
        local("add", "--force", "--", *names)
        tree = local("write-tree")
        if tree == local("rev-parse", "HEAD^{tree}"):
            return local("rev-parse", "HEAD")
        # the user's settings have the author's name
        words = ("commit-tree", tree, "-p", "HEAD", "-m", message)
        commit = self.run(*words)
        is_here = local("remote", "get-url", "origin").startswith("file:")
        server = ["--receive-pack=git -c core.hooksPath=/dev/null receive-pack"] if is_here else []
        self.run("push", "--quiet", *server, "origin", f"{commit}:{branch}")
        return commit


def git_environment() -> dict[str, str]:
    """Return this process's environment without variables of git, except those INHERITED."""
    inherited = {key: value for key, value in os.environ.items() if INHERITED.match(key)}
    # of an empty PATH one element is the current folder
    path = absolute_elements(os.environ.get("PATH", os.defpath)) or os.defpath
    return {"GIT_SSH_COMMAND": SSH, **inherited, "PATH": path, **ENVIRONMENT}


def git_error(origin: str, status: int, output: str) -> RunError:
    """Return git's error in its words, with a hint."""
    # a signal ends git, or what it started, of which it says no more than that; a lost connection
    # says more
    is_cut = "File too large" in output or status == -FILE_TOO_LARGE
    if is_cut or ("index-pack" in output and not OTHER_CAUSE.search(output)):
        fix = "if you trust it, allow more: `--max-gib N`"
        return RunError.of("this repository is larger than the limit", fix, origin)
    hint = "check the network, the URL and the revision; what is private needs a key or a helper"
    for text, better in HINTS.items():
        if text in output:
            hint = better
    # the user's settings may put a token into the URL
    text = re.sub(r"//[^/@\s]*@", "//", " ".join(output.split())) or f"exit {status}"
    message = f"git says: {text.removeprefix('fatal: ')[:MAX_LIBRARY_MESSAGE]}"
    return RunError.of(message, hint, origin)
