"""Pulling from git, the hub and Weights & Biases: git for real, the others by clients over a
folder.
"""

from __future__ import annotations

import inspect
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import wandb
from wandb.sdk.artifacts.artifact_manifest_entry import ArtifactManifestEntry

from composer.errors import ComposerError, RunError
from composer.hub import remotes
from composer.hub.pack import pack
from composer.hub.pull import pull, pull_reference
from composer.inference.run import open_run
from composer.processes.git import git_error
from tests.hub.packs import contents, names_in

COMMIT = "0123456789abcdef0123456789abcdef01234567"
API, ARTIFACT = inspect.signature(wandb.Api), inspect.signature(wandb.Api.artifact)
DOWNLOAD = inspect.signature(ArtifactManifestEntry.download)
INFO, DOWNLOADS = (
    inspect.signature(huggingface_hub.HfApi.model_info),
    inspect.signature(huggingface_hub.hf_hub_download),
)
LINES = ["eins zwei", "drei vier fünf"]


def git(folder: Path, *words: str) -> str:
    who = (
        "-c",
        "user.name=ann",
        "-c",
        "user.email=ann@example.org",
        "-c",
        "init.defaultBranch=main",
    )
    return subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit_all(folder: Path) -> str:
    git(folder, "init", "-q")
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-q", "-m", "all")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def models(folder: Path, archive: Path, tmp_path: Path) -> Path:
    """A repository with packs and recipes."""
    place = tmp_path / "bad"
    shutil.copytree(folder, place / "packs/mine")
    shutil.copy(archive, place / "mine.tar.gz")
    (place / "recipes/parts").mkdir(parents=True)
    (place / "recipes/own.yaml").write_text(
        "extends: parts/base.yaml\nname: own\n", encoding="utf-8"
    )
    (place / "recipes/parts/base.yaml").write_text(
        "recipe: 1\nmodel: {width: 8}\n", encoding="utf-8"
    )
    commit_all(place)
    return place


def test_a_pack_in_git_equals_the_run(
    models: Path, run: Path, folder: Path, archive: Path, tmp_path: Path
) -> None:
    lines = open_run(run).translate(LINES)
    for path in ("packs/mine", "mine.tar.gz"):
        result = pull(f"git+file://{models}#{path}", tmp_path / f"x {path.replace('/', ' ')}")
        assert contents(result) == contents(folder)
        assert open_run(result).translate(LINES) == lines
        assert pack(result, tmp_path / "again.tar.gz").read_bytes() == archive.read_bytes()
        (tmp_path / "again.tar.gz").unlink()


def test_a_recipe_in_git_comes_with_what_it_extends_and_is_pinned(
    models: Path, tmp_path: Path
) -> None:
    first = pull_reference(f"git+file://{models}@main#recipes/own.yaml")
    commit = git(models, "rev-parse", "HEAD")
    assert first.ref == f"git+file://{models}@{commit}#recipes/own.yaml"
    assert "width: 8" in first.path.read_text(encoding="utf-8")
    (models / "recipes/own.yaml").write_text("name: other\n", encoding="utf-8")
    git(models, "commit", "-q", "-a", "-m", "changed")
    assert pull_reference(first.ref).sha256 == first.sha256
    assert pull_reference(f"git+file://{models}#recipes/own.yaml").sha256 != first.sha256


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        ("", "there are `mine.tar.gz`, `packs/mine`"),
        ("#packs/mien", "did you mean `packs/mine`"),
        ("#packs", "not a pack, a run folder or a recipe"),
        ("#packs/mine/metrics.jsonl", "neither a recipe nor an archive"),
        ("@none#packs/mine", "no such branch or tag"),
        (f"@{COMMIT}#packs/mine", "error"),
    ],
)
def test_a_path_that_is_not_in_the_repository_is_refused(
    rest: str, message: str, models: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunError) as error:
        pull(f"git+file://{models}{rest}", tmp_path / "x")
    assert message in error.value.render()
    assert names_in(tmp_path) == []


def test_faults_of_a_recipe_in_git_name_the_repository(models: Path, tmp_path: Path) -> None:
    (models / "recipes/own.yaml").write_text("extends: ../../../etc/x.yaml\n", encoding="utf-8")
    git(models, "commit", "-q", "-a", "-m", "changed")
    with pytest.raises(ComposerError) as error:
        pull(f"git+file://{models}#recipes/own.yaml")
    (fault,) = error.value.faults
    assert fault.file.endswith("#recipes/own.yaml")
    assert fault.file.startswith("git+file://")
    assert "leads out" in fault.message


def replace_by_link(place: Path) -> None:
    (place / "packs/mine/recipe.yaml").unlink()
    (place / "packs/mine/recipe.yaml").symlink_to("/etc/passwd")


def add_submodule(place: Path) -> None:
    git(place, "update-index", "--add", "--cacheinfo", f"160000,{COMMIT},packs/mine/inner")


def add_code(place: Path) -> None:
    (place / "packs/mine/setup.py").write_text("import os\n", encoding="utf-8")


def in_lfs(place: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1\n"
    (place / "packs/mine/model.safetensors").write_text(pointer, encoding="utf-8")


def change_metrics(place: Path) -> None:
    (place / "packs/mine/metrics.jsonl").write_text('{"step": 2}\n', encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (replace_by_link, "is not a regular file"),
        (add_submodule, "is not part of a pack"),
        (add_code, "no code"),
        (in_lfs, "Git LFS"),
        (change_metrics, "SHA-256 differs"),
    ],
)
def test_a_malformed_pack_in_git_is_refused(
    change: Callable[[Path], None], message: str, models: Path, tmp_path: Path
) -> None:
    change(models)
    git(models, "add", "-A", "packs") if change is not add_submodule else None
    git(models, "commit", "-q", "-m", "changed")
    with pytest.raises(RunError) as error:
        pull(f"git+file://{models}#packs/mine", tmp_path / "x")
    assert message in error.value.render()
    assert names_in(tmp_path) == []


def test_no_code_of_a_repository_is_run(
    models: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hook and no filter of the user's own settings runs, as it would in a clone."""
    (models / "packs/mine/.gitattributes").write_text("* filter=evil\n", encoding="utf-8")
    git(models, "add", "-A")
    git(models, "commit", "-q", "-m", "attributes")
    evil = tmp_path / "store"
    evil.mkdir()
    for name in ("post-checkout", "reference-transaction"):
        (evil / name).write_text(f"#!/bin/sh\ntouch {evil}/{name}-has-run\n", encoding="utf-8")
        (evil / name).chmod(0o755)
    smudge = f"sh -c 'cat; touch {evil}/smudge-has-run'"
    (evil / "config").write_text(
        f'[core]\nhooksPath = {evil}\n[filter "evil"]\nsmudge = "{smudge}"\n', encoding="utf-8"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(evil / "config"))
    assert contents(pull(f"git+file://{models}#packs/mine", tmp_path / "x")) == contents(folder)
    assert not list(evil.glob("*-has-run"))
    git(tmp_path, "clone", "-q", str(models), str(tmp_path / "clone"))
    assert len(list(evil.glob("*-has-run"))) == 3


def test_a_repository_that_is_too_large_is_refused(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match="--max-gib"):
        pull(f"git+file://{models}#mine.tar.gz", tmp_path / "x", max_gib=1e-6)
    monkeypatch.setattr(remotes, "EXTRA_BYTES", 0)
    with pytest.raises(RunError, match="this repository is larger"):
        pull(f"git+file://{models}#mine.tar.gz", tmp_path / "x", max_gib=1e-6)
    assert names_in(tmp_path) == []


def test_an_annotated_tag_is_pulled(models: Path, tmp_path: Path) -> None:
    git(models, "tag", "-a", "v1", "-m", "first")
    result = pull_reference(f"git+file://{models}@v1#recipes/own.yaml")
    assert result.ref == f"git+file://{models}@{git(models, 'rev-parse', 'HEAD')}#recipes/own.yaml"
    git(models, "tag", "no-commit", git(models, "rev-parse", "HEAD^{tree}"))
    with pytest.raises(RunError, match="git says"):
        pull(f"git+file://{models}@no-commit", tmp_path / "x")


def write_object(place: Path, kind: str, text: str) -> str:
    """Write a tree or a blob of a repository and return its hash."""
    words = ["git", "mktree"] if kind == "tree" else ["git", "hash-object", "-w", "--stdin"]
    return subprocess.run(
        words, cwd=place, input=text, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_tree_bomb_is_refused(models: Path, tmp_path: Path) -> None:
    """Ten objects that stand for ten thousand million files."""
    kind, sha1 = "100644 blob", write_object(models, "blob", "recipe: 1")
    for name in "abcdefghij":
        lines = (f"{kind} {sha1}\t{name}{n}.yaml\n" for n in range(10))
        kind, sha1 = "040000 tree", write_object(models, "tree", "".join(lines))
    commit = git(models, "commit-tree", "-m", "all", sha1)
    with pytest.raises(RunError, match="there are too many files to list"):
        pull(f"git+file://{models}@{commit}#x.yaml", tmp_path / "x")
    assert names_in(tmp_path) == []


def test_a_silent_host_is_refused_after_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.processes.git.ANSWER_SECONDS", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(RunError, match="nothing answers within"),
    ):
        pull(f"git+https://127.0.0.1:{silent.getsockname()[1]}/x", tmp_path / "x")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("output", "message", "fix"),
    [
        (
            "warning: x\nfatal: unable to access 'u': Could not resolve host: h",
            "unable to access",
            "network",
        ),
        (
            "ssh: connect to host h port 22: Connection refused\nfatal: Could not read",
            "ssh: connect",
            "network",
        ),
        ("Host key verification failed.\nfatal: Could not read", "Host key", "needs a key"),
        ("a@h: Permission denied (publickey).\nfatal: Could not read", "publickey", "needs a key"),
        (
            "fatal: write error: No space left on device\nfatal: index-pack failed",
            "No space",
            "TMPDIR",
        ),
        ("fatal: something else\nhint: y", "something else", "URL and the revision"),
        ("", "exit 128", "URL and the revision"),
        ("fatal: couldn't find remote ref HEAD", "is empty", "@REVISION"),
        ("fatal: couldn't find remote ref v1", "no such branch", "40 digits"),
        (
            "curl 18 transfer closed\nearly EOF\nfatal: fetch-pack: invalid index-pack output",
            "early EOF",
            "network",
        ),
    ],
)
def test_git_errors_come_with_a_hint(output: str, message: str, fix: str) -> None:
    (fault,) = git_error("git+https://h/x", 128, output).faults
    assert message in fault.message
    assert fix in fault.hint


def test_a_missing_git_is_reported(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="install git"):
        pull(f"git+file://{models}#packs/mine", tmp_path / "x")


# ------------------------------------------------------------------------------------------- the
# hub


class Hub:
    """The hub's client over a folder; each call is checked against the real one."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place, self.fetched = place, []
        self.revisions: list[Any] = []

        def model_info(*args: Any, **kwargs: Any) -> SimpleNamespace:
            self.revisions.append(INFO.bind(self, *args, **kwargs).arguments["revision"])
            names = sorted(
                item.relative_to(place).as_posix() for item in place.rglob("*") if item.is_file()
            )
            sizes = [
                SimpleNamespace(rfilename=name, size=(place / name).stat().st_size)
                for name in names
            ]
            return SimpleNamespace(sha=COMMIT, siblings=sizes)

        def download(*args: Any, **kwargs: Any) -> str:
            bound = DOWNLOADS.bind(*args, **kwargs).arguments
            assert bound["revision"] == COMMIT
            self.fetched.append(bound["filename"])
            target = Path(bound["local_dir"]) / bound["filename"]
            target.parent.mkdir(parents=True, exist_ok=True)
            return str(shutil.copy(place / bound["filename"], target))

        monkeypatch.setattr(
            huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=model_info)
        )
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)


def test_a_pack_is_pulled_from_the_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shutil.copytree(folder, tmp_path / "bad")
    (place / ".gitattributes").write_text("*.safetensors filter=lfs\n", encoding="utf-8")
    hub = Hub(place, monkeypatch)
    result = pull_reference("hub:ann/mine@v1", tmp_path / "x")
    assert contents(result.path) == contents(folder)
    assert result.ref == f"hub:ann/mine@{COMMIT}"
    assert hub.revisions == ["v1"]
    assert ".gitattributes" not in hub.fetched


def test_nothing_of_a_refused_pack_is_downloaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = shutil.copytree(folder, tmp_path / "bad")
    (place / "pytorch_model.bin").write_bytes(b"pickle")
    hub = Hub(place, monkeypatch)
    with pytest.raises(RunError, match="no code"):
        pull("hub:ann/mine", tmp_path / "x")
    (place / "pytorch_model.bin").unlink()
    with pytest.raises(RunError, match="--max-gib"):
        pull("hub:ann/mine", tmp_path / "x", max_gib=1e-6)
    assert hub.fetched == []


def test_a_recipe_is_pulled_from_the_hub(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(models / ".git")
    hub = Hub(models, monkeypatch)
    assert "width: 8" in pull("hub:ann/mine#recipes/own.yaml").read_text(encoding="utf-8")
    assert all(name.endswith(".yaml") for name in hub.fetched)


def test_an_unreachable_hub_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any, **__: Any) -> None:
        raise OSError("no\nnetwork")

    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: SimpleNamespace(model_info=nothing))
    with pytest.raises(RunError, match="cannot be read: no network"):
        pull("hub:ann/mine", tmp_path / "x")


# -------------------------------------------------------------------------------------------
# Weights & Biases


def log_in(
    monkeypatch: pytest.MonkeyPatch, place: Path, references: tuple[str, ...] = ()
) -> list[str]:
    """Replace W&B's client by one over a folder; return the names that are requested."""
    requested: list[str] = []

    def entry(path: Path) -> SimpleNamespace:
        def fetch(*args: Any, **kwargs: Any) -> str:
            bound = DOWNLOAD.bind(None, *args, **kwargs).arguments
            assert bound["skip_cache"]
            return str(shutil.copy(path, Path(bound["root"]) / path.name))

        ref = "file:///etc/passwd" if path.name in references else None
        return SimpleNamespace(size=path.stat().st_size, ref=ref, download=fetch)

    def open_api(*args: Any, **kwargs: Any) -> SimpleNamespace:
        API.bind(*args, **kwargs)

        def of(*args: Any, **kwargs: Any) -> SimpleNamespace:
            requested.append(ARTIFACT.bind(None, *args, **kwargs).arguments["name"])
            entries = {item.name: entry(item) for item in place.iterdir()}
            return SimpleNamespace(manifest=SimpleNamespace(entries=entries), version="v3")

        return SimpleNamespace(artifact=of)

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb, "Api", open_api)
    return requested


def test_a_pack_is_pulled_from_a_wandb_artifact(
    folder: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = log_in(monkeypatch, folder)
    assert contents(pull("wandb:ann/translation/mine:v3", tmp_path / "x")) == contents(folder)
    assert requested == ["ann/translation/mine:v3"]
    log_in(monkeypatch, archive.parent)
    assert contents(pull("wandb:translation/mine:latest", tmp_path / "y")) == contents(folder)
    latest = "wandb:translation/mine:latest"
    assert (
        remotes.wandb_remote(remotes.parse_reference(latest), latest).pinned
        == "wandb:translation/mine:v3"
    )


def test_a_logged_recipe_is_pulled_from_a_wandb_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/recipe.yaml").write_text("recipe: 1\nname: own\n", encoding="utf-8")
    log_in(monkeypatch, tmp_path / "bad")
    assert "name: own" in pull("wandb:ann/seqcomposer/recipe-1d52ecce:v0").read_text(
        encoding="utf-8"
    )


def test_a_reference_in_an_artifact_is_not_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch, folder, ("recipe.yaml",))
    with pytest.raises(RunError, match="is not a regular file"):
        pull("wandb:ann/translation/mine:v3", tmp_path / "x")
    assert names_in(tmp_path) == []


def test_nobody_is_prompted_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(RunError, match="wandb login"):
        pull("wandb:ann/translation/mine:v3", tmp_path / "x")


def test_a_wandb_entry_has_the_fields_that_are_read() -> None:
    assert {"size", "ref"} <= set(ArtifactManifestEntry.model_fields)
    assert "manifest" in dir(wandb.Artifact)
