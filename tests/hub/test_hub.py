"""The Hugging Face hub: huggingface_hub's own client against a server on this machine."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import yaml
from huggingface_hub import constants, parse_eval_result_entries

from composer.api import push as push_it
from composer.errors import RunError
from composer.hub.pack_format import FILES, MANIFEST
from composer.hub.pull import pull, pull_reference
from composer.processes.python import seqcomposer_command
from tests.hub.hub_server import TOKEN, Hub, Repository, running_hub
from tests.hub.packs import contents, names_in
from tests.inference.untrained import record_hashes

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")
"""huggingface_hub 2.4 itself sends large files in a way that its client calls old."""


def push(run: Path, ref: str, name: str = "", license: str = "") -> str:
    """Push a run; return the reference alone."""
    return push_it(run, ref, name, license).ref


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub, and a user of it who is logged in."""
    with running_hub() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield server


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files in and under a folder by their paths."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def publish(hub: Hub, folder: Path) -> Repository:
    """Make a repository of a folder."""
    repository = hub.repositories["ann/mine"] = Repository()
    repository.commit("main", files_of(folder))
    return repository


def test_a_pushed_run_is_the_pulled_one(
    hub: Hub, run: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = push_it(run, "hub:ann/mine", license="mit")
    repository = hub.repositories["ann/mine"]
    commit = repository.branches["main"]
    assert pushed.ref == f"hub:ann/mine@{commit}"
    assert repository.is_private
    assert "private" in pushed.note
    assert repository.commits[commit] == contents(folder)
    result = pull_reference(pushed.ref, tmp_path / "x", pushed.sha256)
    assert contents(result.path) == contents(folder)
    assert result.ref == pushed.ref
    assert push_it(run, "hub:ann/mine", license="mit").ref == pushed.ref  # no empty commit
    assert push(run, "hub:ann/mine@try").startswith("hub:ann/mine@")
    assert {*repository.branches} == {"main", "try"}
    assert repository.branches["main"] == commit


def test_scores_on_a_data_set_of_the_hub_are_pushed_beside_the_card(
    hub: Hub, run: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    text = (mine / "recipe.yaml").read_text(encoding="utf-8")
    start = text.index("data:")
    end = text.index("tokenizer:") if "tokenizer:" in text else text.index("model:")
    data = "data:\n  hub: {id: ann/pairs, source: de, target: en}\n  "
    (mine / "recipe.yaml").write_text(text[:start] + data + text[end:], encoding="utf-8")
    record_hashes(mine)
    ref = push(mine, "hub:ann/mine")
    files = hub.repositories["ann/mine"].commits[ref.partition("@")[2]]
    entries = parse_eval_result_entries(yaml.safe_load(files[".eval_results/seqcomposer.yaml"]))
    assert {(entry.dataset_id, entry.task_id, entry.value) for entry in entries} == {
        ("ann/pairs", "bleu", 30.25),
        ("ann/pairs", "chrf", 55.125),
        ("ann/pairs", "exact_match", 0.5),
    }
    assert b"model-index" in files["README.md"]
    assert sorted(contents(pull(ref, tmp_path / "x"))) == sorted([*FILES, MANIFEST])


def test_nothing_of_a_refused_pack_is_downloaded(hub: Hub, folder: Path, tmp_path: Path) -> None:
    place = shutil.copytree(folder, tmp_path / "bad")
    (place / "pytorch_model.bin").write_bytes(b"pickle")
    publish(hub, place)
    with pytest.raises(RunError, match="no code"):
        pull("hub:ann/mine", tmp_path / "x")
    publish(hub, folder)
    with pytest.raises(RunError, match="--max-gib"):
        pull("hub:ann/mine", tmp_path / "x", max_gib=1e-6)
    assert hub.downloads == []
    assert names_in(tmp_path) == []


def test_a_recipe_is_pulled_with_what_it_extends(hub: Hub, folder: Path, tmp_path: Path) -> None:
    place = shutil.copytree(folder, tmp_path / "bad/packs/mine").parents[1]
    (place / "parts").mkdir()
    (place / "own.yaml").write_text("extends: parts/base.yaml\nname: own\n", encoding="utf-8")
    (place / "parts/base.yaml").write_text("recipe: 1\nmodel: {width: 8}\n", encoding="utf-8")
    publish(hub, place)
    assert "width: 8" in pull("hub:ann/mine#own.yaml").read_text(encoding="utf-8")
    assert all(name.endswith(".yaml") for name in hub.downloads)
    assert contents(pull("hub:ann/mine#packs/mine", tmp_path / "x")) == contents(folder)


def test_a_repository_with_other_files_is_not_pushed_to(
    hub: Hub, run: Path, folder: Path, tmp_path: Path
) -> None:
    place = shutil.copytree(folder, tmp_path / "bad")
    (place / "train.py").write_text("import os\n", encoding="utf-8")
    repository = publish(hub, place)
    before = dict(repository.branches)
    with pytest.raises(RunError, match=r"other files here, such as 'train.py'"):
        push(run, "hub:ann/mine")
    assert repository.branches == before
    assert contents(pull(push(run, "hub:ann/mine#packs/x"), tmp_path / "x"))


@pytest.mark.parametrize("command", ["push", "pull"])
@pytest.mark.parametrize("trouble", ["unreachable", "wrong token", "no token"])
def test_trouble_with_the_hub_is_one_error_and_loses_nothing(
    trouble: str,
    command: str,
    hub: Hub,
    run: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = publish(hub, folder)
    repository.is_private = True
    if trouble == "unreachable":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_TOKEN", "hf_secret" if trouble == "wrong token" else "")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "store"))
    before = contents(run) if not (run / "checkpoints").is_dir() else None
    with pytest.raises(RunError) as error:
        push(run, "hub:ann/mine") if command == "push" else pull("hub:ann/mine", tmp_path / "x")
    (fault,) = error.value.faults
    verb = "was not reached" if trouble == "unreachable" else "says"
    assert fault.message.startswith(f"the hub {verb}: ")
    assert "hf auth login" in fault.hint
    assert "secret" not in error.value.render()
    assert names_in(tmp_path) == []
    assert before is None or contents(run) == before


def test_a_name_in_another_case_is_one_error(hub: Hub, folder: Path, tmp_path: Path) -> None:
    publish(hub, folder)
    with pytest.raises(RunError, match="the hub says"):
        pull("hub:Ann/Mine", tmp_path / "x")
    assert names_in(tmp_path) == []


def test_a_full_disk_is_one_error(
    hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(RunError, match="set TMPDIR to another disk"):
        pull("hub:ann/mine", tmp_path / "x")
    assert hub.downloads == []
    assert names_in(tmp_path) == []


def test_a_disk_that_is_full_at_last_is_one_error(
    hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, folder)

    def fill_disk(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fill_disk)
    with pytest.raises(RunError, match=r"(?s)no space left.*make room"):
        pull("hub:ann/mine", tmp_path / "x")
    assert names_in(tmp_path) == []


def test_a_commit_is_not_pushed_to(hub: Hub, run: Path) -> None:
    ref = push(run, "hub:ann/mine")
    with pytest.raises(RunError, match="never changes"):
        push(run, ref)
    assert {*hub.repositories["ann/mine"].branches} == {"main"}


def test_the_endpoint_of_the_environment_is_asked(hub: Hub, run: Path, tmp_path: Path) -> None:
    """As typed, in processes of their own: HF_ENDPOINT is read when the client is imported."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}

    def typed(*words: str) -> str:
        done = subprocess.run(
            seqcomposer_command(*words),
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    ref = typed("push", str(run), "hub:ann/mine").splitlines()[0]
    assert ref.startswith("hub:ann/mine@")
    typed("pull", ref, "--output", "x")
    assert json.loads((tmp_path / "x" / MANIFEST).read_bytes())["name"] == "untrained"
