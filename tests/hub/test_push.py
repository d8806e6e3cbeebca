"""`push` to folders, shelves, git repositories and W&B's offline files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from composer.api import push as push_it
from composer.atomic_io import lock_of
from composer.errors import RunError
from composer.hub.pull import pull, pull_reference
from composer.processes.wandb import load_wandb_settings
from composer.run_dir import RunDir
from tests.hub.packs import contents, names_in
from tests.hub.test_git import commit_all, git
from tests.run_records import change_record
from tests.training.test_wandb import records


def push(run: Path, ref: str, name: str = "", license: str = "") -> str:
    """Push a run; return the reference alone."""
    return push_it(run, ref, name, license).ref


def test_a_new_folder_is_written_and_an_old_one_is_not(
    run: Path, folder: Path, tmp_path: Path
) -> None:
    ref = push(run, str(tmp_path / "packs/x"), license="mit")
    assert contents(pull(ref, tmp_path / "y")) == contents(folder)
    for there in ("packs", "packs/x"):
        with pytest.raises(RunError, match="is not overwritten"):
            push(run, str(tmp_path / there))
    assert contents(tmp_path / "packs/x") == contents(folder)


def test_a_shelf_keeps_versions_and_moves_aliases(run: Path, folder: Path, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    first = push(run, str(shelf), name="mine@best", license="mit")
    second = push(run, f"{shelf}/mine")
    third = push(run, f"{shelf}/mine@other")
    assert [Path(ref).name for ref in (first, second, third)] == ["v1", "v2", "v3"]
    aliases = json.loads((shelf / "mine/aliases.json").read_text(encoding="utf-8"))
    assert aliases == {"latest": "v3", "best": "v1", "other": "v3"}
    assert contents(Path(first)) == contents(folder)
    for text, version in (("", "v3"), ("@best", "v1"), ("@v2", "v2")):
        result = pull_reference(f"{shelf}/mine{text}", tmp_path / f"x{text}")
        assert result.ref == str(shelf / "mine" / version)
        assert contents(result.path) == contents(shelf / "mine" / version)


def test_the_number_of_a_version_is_not_given_twice(run: Path, tmp_path: Path) -> None:
    push(run, str(tmp_path / "shelf"), name="mine")
    second = Path(push(run, str(tmp_path / "shelf"), name="mine"))
    shutil.rmtree(second.with_name("v1"))
    assert Path(push(run, str(tmp_path / "shelf"), name="mine")) == second.with_name("v3")


def test_a_folder_of_that_very_name_wins(run: Path, folder: Path, tmp_path: Path) -> None:
    push(run, str(tmp_path / "shelf"), name="mine@best")
    shutil.copytree(folder, tmp_path / "shelf/mine@best")
    result = pull_reference(str(tmp_path / "shelf/mine@best"), tmp_path / "x")
    assert result.ref == str(tmp_path / "shelf/mine@best")


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("shelf/mine@bset", "did you mean `best`"),
        ("shelf/mine@v9", "`shelf/mine@ALIAS` with one of: best; latest; v1"),
        ("shelf/mien@best", "did you mean `mine`"),
        ("shelf/mine@../mine/v1", "does not exist"),
        ("shelf/Mine", "does not exist"),
    ],
)
def test_what_is_not_on_a_shelf_is_one_error(
    ref: str, message: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    push(run, "shelf", name="mine@best")
    with pytest.raises(RunError) as error:
        pull(ref, "x")
    assert message in error.value.render()
    assert len(error.value.faults) == 1
    assert names_in(tmp_path) == ["shelf"]


@pytest.mark.parametrize("name", ["Mine", "mine@v2", "../x", "mine@", "@best", "mine/x", "run"])
def test_a_wrong_place_on_a_shelf_changes_nothing(name: str, run: Path, tmp_path: Path) -> None:
    push(run, str(tmp_path / "shelf"), name="mine@best")
    shutil.copytree(run, tmp_path / "shelf/run")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError):
        push(run, str(tmp_path / "shelf"), name=name)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("ref", "name", "message"),
    [
        ("shelf/Mine", "", "`shelf/mine` is here, which differs only in case"),
        ("shelf", "Mine", "`shelf/mine` is here, which differs only in case"),
        ("shelf", "plain", "`shelf/plain` is here, which has no versions"),
        ("shelf/mine@best", "x", "a shelf is a folder, without `@`"),
        ("shelf/mine@../x", "", "`shelf/mine@..` does not exist"),
    ],
)
def test_a_refused_place_on_a_shelf_is_named(
    ref: str, name: str, message: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    push(run, "shelf", name="mine@best")
    push(run, "shelf/plain")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RunError) as error:
        push(run, ref, name)
    assert message in error.value.render()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_with_a_sign_of_aliases_may_be_a_shelf(run: Path, tmp_path: Path) -> None:
    (tmp_path / "ann@home").mkdir()
    assert Path(push(run, str(tmp_path / "ann@home"), name="mine")).name == "v1"
    assert push(run, str(tmp_path / "ann@home/plain"))


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"best": "../../run"}', '{"best": ".."}', '{"best": 1}']
)
def test_foreign_aliases_lead_nowhere(text: str, run: Path, tmp_path: Path) -> None:
    push(run, str(tmp_path / "shelf"), name="mine@best")
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "shelf/mine/aliases.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunError):
        pull(str(tmp_path / "shelf/mine@best"), tmp_path / "x")
    assert names_in(tmp_path) == ["run", "shelf"]


def test_one_pushes_to_a_shelf_at_a_time(run: Path, tmp_path: Path) -> None:
    push(run, str(tmp_path / "shelf"), name="mine")
    with lock_of(tmp_path / "shelf/mine"), pytest.raises(RunError, match="another push"):
        push(run, str(tmp_path / "shelf"), name="mine")
    assert len(list((tmp_path / "shelf/mine").glob("v*"))) == 1


def test_a_shelf_of_a_file_system_without_locks_is_pushed_to(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer.atomic_io.try_lock", lambda *_, **__: False)
    assert Path(push(run, str(tmp_path / "shelf"), name="mine")).name == "v1"


def test_an_unfinished_run_is_not_pushed(run: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(run, tmp_path / "bad")
    change_record(RunDir(bad), status="running")
    with pytest.raises(RunError, match="has not finished"):
        push(bad, str(tmp_path / "x"))
    assert names_in(tmp_path) == []


def test_a_name_is_for_shelves_only(run: Path) -> None:
    with pytest.raises(RunError, match="only a folder takes a name"):
        push(run, "hub:ann/mine", name="other")


@pytest.mark.parametrize(
    "ref",
    [
        f"hub:ann/mine@{'a' * 40}",
        f"git+https://example.org/a@{'0' * 64}",
        "wandb:translation/mine:v3",
    ],
)
def test_what_never_changes_is_not_pushed_to(ref: str, run: Path) -> None:
    with pytest.raises(RunError, match="a version never changes"):
        push(run, ref)


# ------------------------------------------------------------------------------------------- git


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bare repository with one commit, and git that knows who commits."""
    first = tmp_path / "store/first"
    first.mkdir(parents=True)
    (first / "notes.txt").write_text("mine", encoding="utf-8")
    commit_all(first)
    git(tmp_path / "store", "clone", "-q", "--bare", "first", "remote.git")
    settings = tmp_path / "store/gitconfig"
    text = "[user]\nname = ann\nemail = ann@example.org\n"
    evil = f'[core]\nhooksPath = {tmp_path}/store\n[filter "lfs"]\nclean = touch {tmp_path}/evil\n'
    settings.write_text(text + evil, encoding="utf-8")
    for name in ("pre-push", "pre-commit", "reference-transaction"):
        (tmp_path / "store" / name).write_text(
            f"#!/bin/sh\ntouch {tmp_path}/evil\n", encoding="utf-8"
        )
        (tmp_path / "store" / name).chmod(0o755)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    return tmp_path / "store/remote.git"


def test_a_pack_is_committed_to_a_branch(
    remote: Path, run: Path, folder: Path, tmp_path: Path
) -> None:
    ref = push(run, f"git+file://{remote}#packs/mine", license="mit")
    assert contents(pull(ref, tmp_path / "x")) == contents(folder)
    assert git(remote, "show", "HEAD:notes.txt") == "mine"  # what was there stays
    assert git(remote, "log", "-1", "--format=%an", "HEAD") == "ann"
    again = push(run, f"git+file://{remote}#packs/mine")
    assert again != ref
    assert contents(pull(ref, tmp_path / "y")) == contents(folder)  # so does every version
    assert not (tmp_path / "evil").exists()


def test_the_same_pack_is_not_committed_twice(remote: Path, run: Path) -> None:
    ref = push(run, f"git+file://{remote}#packs/mine")
    before = git(remote, "show-ref")
    assert push(run, f"git+file://{remote}#packs/mine") == ref
    assert git(remote, "show-ref") == before


@pytest.mark.parametrize("path", ["notes.txt", "notes.txt/x/y"])
def test_a_file_of_a_repository_is_not_replaced_by_a_pack(
    path: str, remote: Path, run: Path
) -> None:
    before = git(remote, "show-ref")
    with pytest.raises(RunError, match=r"'notes.txt' is a file here"):
        push(run, f"git+file://{remote}#{path}")
    assert git(remote, "show-ref") == before


@pytest.mark.parametrize("rest", ["", "@none#x", "@tag#x", "@COMMIT#x"])
def test_git_refuses_what_is_no_branch_or_no_place_of_its_own(
    rest: str, remote: Path, run: Path, tmp_path: Path
) -> None:
    git(remote, "tag", "tag")
    before = git(remote, "show-ref")
    rest = rest.replace("COMMIT", git(remote, "rev-parse", "HEAD"))
    with pytest.raises(RunError) as error:
        push(run, f"git+file://{remote}{rest}")
    assert len(error.value.faults) == 1
    assert git(remote, "show-ref") == before


# -------------------------------------------------------------------------------------------
# Weights & Biases


def test_an_artifact_is_written_to_the_offline_files_of_wandb(
    run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_wandb_settings()  # in another folder, as an earlier run of W&B in this process would
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "store"))
    pushed = push_it(run, "wandb:ann/translation/mine:best", license="mit")
    assert pushed.ref == "wandb:ann/translation/mine:best"
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert str(file.parent) in pushed.note
    assert "wandb sync" in pushed.note
    text = json.dumps(records(file))
    for word in ("best", "latest", "model.safetensors", "translation", *contents(folder)):
        assert word in text
    staged = {item.read_bytes() for item in (tmp_path / "store").rglob("*") if item.is_file()}
    assert staged >= set(contents(folder).values())


@pytest.mark.parametrize("mode", ["online", "disabled"])
def test_nothing_is_pushed_to_wandb_without_a_key_or_when_it_is_off(
    mode: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(RunError):
        push(run, "wandb:ann/translation/mine")
    assert names_in(tmp_path) == []
