"""References: how `pull`, and `extends` in a recipe, name what somebody else has made. Nothing is fetched here.

A path; `git+URL[@REVISION][#PATH]`; `wandb:[ENTITY/]PROJECT/NAME:VERSION`; `hub:OWNER/NAME[@REVISION][#PATH]`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from composer.errors import RunError

SCHEMES = ("https", "ssh", "file")
"""What git may speak: the rest is unencrypted, or runs a program that the URL names."""
FORMS = {
    "git+": "git+https://HOST/OWNER/NAME@REVISION#PATH",
    "wandb:": "wandb:ENTITY/PROJECT/NAME:VERSION",
    "hub:": "hub:OWNER/NAME@REVISION#PATH",
}
MOST_CHARACTERS = 1000
MOST_GIB = 10.0
"""What is larger is refused, if nobody says otherwise."""

_WORD = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_URL = re.compile(r"(?P<scheme>[a-z0-9+.-]+)://(?P<authority>[^/]*)(?P<path>/.+)")
_AUTHORITY = re.compile(rf"((?P<user>{_WORD})@)?(?P<host>{_WORD}|\[[0-9A-Fa-f:.]+\])?(:[0-9]{{1,5}})?")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]*")
_ARTIFACT = re.compile(rf"({_WORD}/){{1,2}}{_WORD}:{_WORD}")
_MODEL = re.compile(rf"{_WORD}/{_WORD}")
_LOOKS_LIKE_A_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(//|:)")


@dataclass(frozen=True)
class LocalPath:
    """A file or a folder of this machine."""

    path: Path


@dataclass(frozen=True)
class Repository:
    """A path of a revision of a git repository; the default branch, and the root, where these are empty."""

    url: str
    revision: str
    path: str


@dataclass(frozen=True)
class Artifact:
    """An artifact of Weights & Biases: ENTITY/PROJECT/NAME:VERSION."""

    name: str


@dataclass(frozen=True)
class HubModel:
    """A path of a revision of a repository on the Hugging Face hub."""

    repository: str
    revision: str
    path: str


def pinned(reference: Repository | HubModel, commit: str) -> str:
    """The reference to what is there now, whatever a branch or a tag will mean later."""
    start = f"git+{reference.url}" if isinstance(reference, Repository) else f"hub:{reference.repository}"
    return f"{start}@{commit}" + (f"#{reference.path}" if reference.path else "")


Reference = LocalPath | Repository | Artifact | HubModel


def parsed(text: str) -> Reference:
    """What a reference names. Raises RunError."""
    if not text.strip() or not text.isprintable() or text.startswith("-") or len(text) > MOST_CHARACTERS:
        refuse(text, "this is no reference", "write a path, `git+URL`, `wandb:NAME` or `hub:NAME`")
    if text.startswith("git+"):
        return repository(text)
    if text.startswith("wandb:"):
        return artifact(text)
    if text.startswith("hub:"):
        return hub_model(text)
    if _LOOKS_LIKE_A_URL.match(text):
        refuse(text, "a bare URL does not say what lies there", f"of a git repository, write `{FORMS['git+']}`")
    return LocalPath(Path(text))


def repository(text: str) -> Repository:
    """What `git+URL[@REVISION][#PATH]` names. Raises RunError."""
    whole, _, path = text.removeprefix("git+").partition("#")
    found = _URL.fullmatch(whole)
    if found is None or found["scheme"] not in SCHEMES:
        refuse(
            text, "git is asked over https, ssh and file only", f"write `{FORMS['git+']}`, or git+ssh://git@HOST/..."
        )
    inside, at, revision = found["path"].rpartition("@") if "@" in found["path"] else (found["path"], "", "")
    if not trusted(found["scheme"], found["authority"]):
        refuse(text, "this is not how a host is written", "a password belongs to git's credential helper, not to a URL")
    if at and not right_revision(revision):
        refuse(text, f"`{revision}` is no branch, tag or commit", f"write `{FORMS['git+']}`")
    return Repository(f"{found['scheme']}://{found['authority']}{inside}", revision, inner_path(text, path))


def trusted(scheme: str, authority: str) -> bool:
    """Whether a URL's authority is a host: nothing that ssh reads as an option, and no password."""
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        return False
    if scheme == "file":
        return not authority
    return bool(found["host"]) and (scheme == "ssh" or not found["user"])


def right_revision(text: str) -> bool:
    """Whether a branch, a tag or a commit can be called so; git would read some other texts as ranges or options."""
    return _REVISION.fullmatch(text) is not None and ".." not in text and "//" not in text


def artifact(text: str) -> Artifact:
    """What `wandb:[ENTITY/]PROJECT/NAME:VERSION` names. Raises RunError."""
    name = text.removeprefix("wandb:")
    if _ARTIFACT.fullmatch(name) is None:
        refuse(
            text, "this is no artifact of Weights & Biases", f"write `{FORMS['wandb:']}`; a version is `v3` or `latest`"
        )
    return Artifact(name)


def hub_model(text: str) -> HubModel:
    """What `hub:OWNER/NAME[@REVISION][#PATH]` names. Raises RunError."""
    whole, _, path = text.removeprefix("hub:").partition("#")
    name, at, revision = whole.partition("@")
    if _MODEL.fullmatch(name) is None or ".." in name or (at and not right_revision(revision)):
        refuse(text, "this is no repository of the Hugging Face hub", f"write `{FORMS['hub:']}`")
    return HubModel(name, revision, inner_path(text, path))


def inner_path(text: str, path: str) -> str:
    """A path inside a repository, as git writes it. Raises RunError where it leads out."""
    steps = path.removesuffix("/").split("/") if path else []
    if "\\" in path or any(step in ("", ".", "..", ".git") for step in steps):
        refuse(text, f"`{path}` is no path inside a repository", "write it from the repository's root, without `..`")
    return "/".join(steps)


def refuse(text: str, message: str, fix: str) -> NoReturn:
    """Raises RunError about a reference."""
    raise RunError.of(message, fix, shown(text))


def shown(text: str) -> str:
    """A reference as it may be printed: without what could be a password."""
    return re.sub(r"://[^/@]*@", "://", text[:MOST_CHARACTERS])
