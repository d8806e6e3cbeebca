"""Parsing of references, and which are refused before any connection is made."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from socket import gaierror

import pytest

from composer.errors import RunError
from composer.hub.remotes import (
    GitReference,
    HubReference,
    LocalReference,
    Reference,
    WandbReference,
    parse_reference,
    without_password,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("runs/mine", LocalReference("runs/mine")),
        ("git+https://example.org/a/b", GitReference("https://example.org/a/b", "", "")),
        (
            "git+https://example.org:8443/a/b.git@v1.0#packs/x",
            GitReference("https://example.org:8443/a/b.git", "v1.0", "packs/x"),
        ),
        (
            "git+ssh://git@example.org/a/b@feature/x",
            GitReference("ssh://git@example.org/a/b", "feature/x", ""),
        ),
        ("git+file:///srv/r#x.yaml", GitReference("file:///srv/r", "", "x.yaml")),
        ("wandb:ann/translation/mine:v3", WandbReference("ann/translation/mine", "v3")),
        ("wandb:translation/mine:latest", WandbReference("translation/mine", "latest")),
        ("wandb:ann/translation/mine", WandbReference("ann/translation/mine")),
        ("shelf/mine@best", LocalReference("shelf/mine@best")),
        ("C:/shelf/mine@best", LocalReference("C:/shelf/mine@best")),
        ("C:\\shelf\\mine@best", LocalReference("C:\\shelf\\mine@best")),
        ("hub:ann/mine", HubReference("ann/mine", "", "")),
        ("hub:ann/mine@main#packs/x/", HubReference("ann/mine", "main", "packs/x")),
    ],
)
def test_each_form_of_a_reference_is_parsed(text: str, meant: Reference) -> None:
    assert parse_reference(text) == meant
    assert str(meant) == text.removesuffix("/")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-x",
        "--upload-pack=sh",
        "a\nb",
        "a\u202eb",
        "x" * 1001,
        "https://example.org/a",
        "ext::sh -c id",
        "git+ext::sh -c id",
        "git+http://example.org/a",
        "git+git://example.org/a",
        "git+-uhttps://example.org/a",
        "git+https://-oProxyCommand=id/a",
        "git+ssh://-oProxyCommand=id/a",
        "git+ssh://-l@example.org/a",
        "git+https:///a",
        "git+https://example.org",
        "git+git@example.org:a/b",
        "git+file://host/a",
        "git+ssh:///a",
        "git+https://ann:secret@example.org/a",
        "git+https://token@example.org/a",
        "git+ssh://ann:secret@example.org/a",
        "git+https://example.org/a?private_token=secret",
        "git+https://example.org/a@--exec=id",
        "git+https://example.org/a@a..b",
        "git+https://example.org/a@",
        "git+https://example.org/a@a:b",
        "git+https://example.org/a@a b",
        "git+https://example.org/a@^x",
        "git+https://example.org/a#../x",
        "git+https://example.org/a#/x",
        "git+https://example.org/a#x//y",
        "git+https://example.org/a#.git/config",
        "git+https://example.org/a#x\\y",
        "wandb:mine",
        "wandb:a/b/c/d:v1",
        "wandb:a/../b:v1",
        "wandb:a/b:",
        "wandb:a/b:v1/x",
        "hub:mine",
        "hub:a/b/c",
        "hub:../b",
        "hub:a/..",
        "hub:a/b@",
        "hub:a/b@-x",
        "hub:a/b#../c",
        "hub:a..b/c",
    ],
)
def test_malformed_references_are_refused(text: str) -> None:
    with pytest.raises(RunError):
        parse_reference(text)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("HUB:ann/mine", "`hub:ann/mine`"),
        ("Wandb:p/mine", "`wandb:p/mine`"),
        ("Git+https://example.org/a", "`git+https://example.org/a`"),
        ("git@example.org:ann/models.git", "`git+ssh://git@example.org/ann/models.git`"),
        ("example.org:/srv/models", "`git+ssh://example.org/srv/models`"),
        ("example.org:models?token=secret", "`git+ssh://example.org/models?...`"),
    ],
)
def test_what_is_nearly_a_reference_is_refused_unless_a_path_has_that_name(
    text: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError) as error:
        parse_reference(text)
    assert f"write {fix}" in error.value.render()
    if "//" not in text:
        (tmp_path / text).mkdir(parents=True)
        assert parse_reference(text) == LocalReference(text)
    assert parse_reference(f"./{text}") == LocalReference(f"./{text}")


def test_only_of_a_git_reference_its_protocols_are_said() -> None:
    for text, is_git in (("git+x", True), ("hub:mine", False), ("wandb:mine", False)):
        with pytest.raises(RunError) as error:
            parse_reference(text)
        assert ("git speaks" in error.value.render()) is is_git


@pytest.mark.parametrize(
    "text",
    [
        "git+https://ann:secret@example.org/a",
        "git+https://ann:x/secret@example.org/a",
        "https://ann:x@secret@example.org/a",
        "git+ann:secret@example.org/a",
        "ann:secret@example.org/a",
        "ann:x/secret@example.org",
        "hub:ann:secret@example.org/a",
        "https://example.org/a?access_token=secret",
        "git+https://example.org/a?private_token=secret#x",
        "git+https://example.org/a@main?access_token=secret",
        f"git+https://ann:secret{'x' * 1000}@example.org/a",
        "git+https://ann:a\nsecret@example.org/a",
    ],
)
def test_a_password_is_not_printed(text: str) -> None:
    with pytest.raises(RunError) as error:
        parse_reference(text)
    assert "secret" not in error.value.render()


@pytest.mark.parametrize(
    ("text", "public"),
    [
        ("git+ssh://ann:secret@example.org/a", "git+ssh://...@example.org/a"),
        ("git+https://secret@example.org/a", "git+https://...@example.org/a"),
        ("ann:secret@example.org/a", "ann:...@example.org/a"),
        ("https://example.org/a?token=secret", "https://example.org/a?..."),
        ("https://example.org:8443/a", "https://example.org:8443/a"),
    ],
)
def test_a_reference_is_printed_without_its_password(text: str, public: str) -> None:
    assert without_password(text) == public


@pytest.mark.parametrize(
    "text", ["git+ssh://git@example.org/a/b@main#x/y", "git+file:///srv/r", "hub:ann/mine#x.yaml"]
)
def test_a_pinned_reference_names_the_same_path(text: str) -> None:
    first = parse_reference(text)
    pinned = replace(first, revision=COMMIT)
    assert parse_reference(str(pinned)) == pinned
    assert pinned.path == first.path


@pytest.mark.parametrize(
    "cause",
    [
        gaierror(-2, "Name or service not known"),
        TimeoutError("timed out"),
        OSError(errno.ENETUNREACH, "Network is unreachable"),
    ],
)
def test_a_service_that_is_not_reached_says_nothing(cause: OSError) -> None:
    hub, message = HubReference("ann/mine"), "the hub was not reached: "
    with pytest.raises(RunError, match=message), hub.service_errors():
        raise ValueError("no connection") from cause


def test_an_error_of_a_service_is_printed_without_the_queries_of_its_urls() -> None:
    said = "403 for url: https://example.org/a?signature=secret&x=secret (see https://x.org/b)"
    with pytest.raises(RunError) as error, HubReference("ann/mine").service_errors():
        raise OSError(said)
    (fault,) = error.value.faults
    assert fault.message.startswith("the hub says: ")
    assert fault.message.endswith("https://example.org/a?... (see https://x.org/b)")
