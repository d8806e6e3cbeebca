"""Pulling from and pushing to git repositories of this machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from composer.errors import ComposerError, RunError
from composer.hub import remotes
from composer.hub.pack import pack
from composer.hub.pull import pull, pull_reference
from composer.inference.run import open_run
from composer.processes.git import git_error
from tests.hub.packs import contents, names_in

COMMIT = "0123456789abcdef0123456789abcdef01234567"
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
    shutil.copy(archive, place / "mine.tar")
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
    for path in ("packs/mine", "mine.tar"):
        result = pull(f"git+file://{models}#{path}", tmp_path / f"x {path.replace('/', ' ')}")
        assert contents(result) == contents(folder)
        assert open_run(result).translate(LINES) == lines
        assert pack(result, tmp_path / "again.tar").read_bytes() == archive.read_bytes()
        (tmp_path / "again.tar").unlink()


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
        ("", "with one of: mine.tar; packs/mine; recipes/own.yaml"),
        ("#packs/mien", "did you mean `packs/mine`"),
        ("#packs", "not a pack, a run folder or a recipe"),
        ("#packs/mine/metrics.jsonl", "neither a recipe nor an archive"),
        ("@none#packs/mine", "write a branch, a tag"),
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
        (in_lfs, "error[run]"),
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
        pull(f"git+file://{models}#mine.tar", tmp_path / "x", max_gib=1e-6)
    monkeypatch.setattr(remotes, "EXTRA_BYTES", 0)
    with pytest.raises(RunError, match="this repository is larger"):
        pull(f"git+file://{models}#mine.tar", tmp_path / "x", max_gib=1e-6)
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
    with pytest.raises(RunError, match="is larger than the limit"):
        pull(f"git+file://{models}@{commit}#x.yaml", tmp_path / "x")
    assert names_in(tmp_path) == []


def test_a_silent_host_is_refused_after_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.processes.git.ANSWER_SECONDS", 0.5)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(RunError, match="nothing answers in"),
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
        ("fatal: unable to access 'https://secret@h/x'", "'https://h/x'", "network"),
        ("fatal: something else\nhint: y", "something else", "URL and the revision"),
        ("", "exit 128", "URL and the revision"),
        ("fatal: Needed a single revision", "single revision", "@REVISION"),
        (
            "fatal: Remote branch v1 not found in upstream origin",
            "not found in upstream",
            "40 digits",
        ),
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


# ------------------------------------------------------------------------------------------- LFS


def store_in_lfs(models: Path, size: int | None = None) -> bytes:
    """Replace the weights by a pointer, and put them where LFS looks; return the weights."""
    file = models / "packs/mine/model.safetensors"
    weights = file.read_bytes()
    sha256 = hashlib.sha256(weights).hexdigest()
    stored = models / ".git/lfs/objects" / sha256[:2] / sha256[2:4] / sha256
    stored.parent.mkdir(parents=True)
    stored.write_bytes(weights)
    oid = f"oid sha256:{sha256}\nsize {len(weights) if size is None else size}\n"
    file.write_text(f"version https://git-lfs.github.com/spec/v1\n{oid}", encoding="utf-8")
    (models / ".gitattributes").write_text("*.safetensors filter=lfs\n", encoding="utf-8")
    (models / ".lfsconfig").write_text("[lfs]\nurl = https://evil.example\n", encoding="utf-8")
    commit_all(models)
    return weights


LFS = """#!/bin/sh
test "$1" = pull || exit 1
echo "$PWD $* $(cat .lfsconfig)" >> {log}
for name in packs/mine/model.safetensors; do
    oid=$(sed -n 's/oid sha256://p' $name)
    cp {models}/.git/lfs/objects/$(echo $oid | cut -c1-2)/$(echo $oid | cut -c3-4)/$oid $name
done
"""


def install_lfs(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a `git-lfs` before all others; return the file in which it writes what it was told."""
    (tmp_path / "store").mkdir()
    log, program = tmp_path / "store/log", tmp_path / "store/git-lfs"
    program.write_text(LFS.format(log=log, models=models), encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return log


def test_weights_in_lfs_are_pulled_by_a_second_command_without_the_repository_s_settings(
    models: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_in_lfs(models)
    log = install_lfs(models, tmp_path, monkeypatch)
    assert contents(pull(f"git+file://{models}#packs/mine", tmp_path / "x")) == contents(folder)
    (line,) = log.read_text(encoding="utf-8").splitlines()
    assert line.strip().endswith("pull --include=packs/mine/model.safetensors")
    assert "evil" not in line


def test_large_weights_in_lfs_are_refused_before_they_are_asked_for(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_in_lfs(models, size=1 << 40)
    log = install_lfs(models, tmp_path, monkeypatch)
    with pytest.raises(RunError, match="--max-gib 1024"):
        pull(f"git+file://{models}#packs/mine", tmp_path / "x")
    assert not log.exists()


def test_a_name_that_is_a_pattern_of_lfs_is_refused_before_anything_is_asked_for(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 1\n"
    (models / "x,*,y.yaml").write_text(pointer, encoding="utf-8")
    commit_all(models)
    log = install_lfs(models, tmp_path, monkeypatch)
    with pytest.raises(RunError, match="for a pattern"):
        pull(f"git+file://{models}#x,*,y.yaml", tmp_path / "x")
    assert not log.exists()


@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")
def test_weights_in_lfs_are_pulled_by_the_real_program(
    models: Path, folder: Path, tmp_path: Path
) -> None:
    store_in_lfs(models)
    assert contents(pull(f"git+file://{models}#packs/mine", tmp_path / "x")) == contents(folder)
