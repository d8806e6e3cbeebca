"""`pull` of local packs, runs and recipes: the result is complete, or there is none."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from composer import atomic_io
from composer.atomic_io import require_absent
from composer.errors import RecipeError, RunError
from composer.evaluation.scores import evaluate
from composer.hub.pack import pack, pack_with_hash
from composer.hub.pack_format import FILES, MANIFEST
from composer.hub.pull import pull, pull_reference
from composer.inference.run import open_run
from composer.recipe import cache as recipe_cache
from composer.recipe.recipe import load
from tests.hub.packs import contents, names_in
from tests.inference.untrained import made

LINES = ["eins zwei", "", "drei vier fünf"]
KILLED = """
import os, signal, sys
from composer.hub import pack
from composer.hub import pull as pulling
copy_file = pack.copy_file
def killed(source, target):
    if target.name == sys.argv[3]:
        target.write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    copy_file(source, target)
pack.copy_file = killed
pulling.pull(sys.argv[1], sys.argv[2])
"""


def test_a_pulled_pack_equals_the_run(
    run: Path, folder: Path, archive: Path, tmp_path: Path
) -> None:
    """Translations, scores, and the bytes of packing it again are the same."""
    data = run.parent / "data"
    lines, scores = open_run(run).translate(LINES), evaluate(run, data=data)
    for place in (folder, archive):
        result = pull(str(place), tmp_path / place.name)
        assert contents(result) == contents(folder)
        assert open_run(result).translate(LINES) == lines
        assert (
            pack(result, tmp_path / f"{place.name}.again.tar").read_bytes() == archive.read_bytes()
        )
    assert evaluate(tmp_path / "folder", data=data) == scores


def test_a_run_folder_is_packed_while_pulling(run: Path, tmp_path: Path) -> None:
    result = pull_reference(str(run), tmp_path / "x")
    path, sha256 = pack_with_hash(run, tmp_path / "y")
    assert contents(result.path) == contents(path)
    assert result.sha256 == sha256
    assert open_run(result.path).translate(LINES) == open_run(run).translate(LINES)


def test_the_default_output_is_runs_and_the_recipe_s_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pull(str(folder)) == Path("runs/untrained")
    assert pull_reference(str(folder)).was_there
    (tmp_path / "runs/untrained/recipe.yaml").write_text("recipe: 1\n", encoding="utf-8")
    with pytest.raises(RunError, match="is not overwritten"):
        pull(str(folder))
    assert (tmp_path / "runs/untrained/recipe.yaml").read_text(encoding="utf-8") == "recipe: 1\n"


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_an_existing_target_is_never_changed(there: str, archive: Path, tmp_path: Path) -> None:
    target = tmp_path / "x"
    if there == "folder":
        target.mkdir()
    elif there == "file":
        target.write_text("mine", encoding="utf-8")
    else:
        target.symlink_to("nowhere")
    with pytest.raises(RunError, match="is not overwritten"):
        pull(str(archive), target)
    assert names_in(tmp_path) == ["x"]
    assert there != "file" or target.read_text(encoding="utf-8") == "mine"


def test_an_expected_sha256_is_checked(folder: Path, archive: Path, tmp_path: Path) -> None:
    expected = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    other = hashlib.sha256(b"").hexdigest()
    for place in (folder, archive):
        pull(str(place), tmp_path / f"good {place.name}", expected)
        with pytest.raises(RunError, match=expected):
            pull(str(place), tmp_path / f"bad {place.name}", other)
    with pytest.raises(RunError, match="64 digits"):
        pull(str(folder), tmp_path / "x", expected[:-1])
    assert names_in(tmp_path) == ["good folder", "good run.tar"]


@pytest.mark.parametrize("size", [float("nan"), float("inf"), 0.0, -1.0, 1e300])
def test_an_invalid_size_limit_is_refused(size: float, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a limit"):
        pull(str(folder), tmp_path / "x", max_gib=size)


def test_a_local_path_is_pinned_as_an_absolute_path(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "a/mine")
    (tmp_path / "a/own.yaml").write_text(BASE, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "a")
    assert pull_reference("mine", "../x").ref == str(tmp_path / "a/mine")
    assert pull_reference("./own.yaml").ref == str(tmp_path / "a/own.yaml")


def test_a_target_created_meanwhile_is_not_overwritten(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pull may end between the last check and the renaming."""
    looked = iter([None, None])

    def create_first(target: Path) -> None:
        if next(looked, target) is target:
            require_absent(target)
        elif not target.exists() and any(
            item.name.endswith(".part") for item in target.parent.iterdir()
        ):
            target.mkdir()
            (target / "mine").touch()

    monkeypatch.setattr(atomic_io, "require_absent", create_first)
    with pytest.raises(RunError, match="is not overwritten"):
        pull(str(folder), tmp_path / "x")
    assert [item.name for item in (tmp_path / "x").iterdir()] == ["mine"]
    assert names_in(tmp_path) == ["x"]


def test_a_killed_pull_leaves_no_run_folder(folder: Path, archive: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "SEQCOMPOSER_STORE": str(tmp_path / "store")}
    arguments = [sys.executable, "-c", KILLED, str(folder), str(tmp_path / "x"), "tokenizer.json"]
    assert subprocess.run(arguments, env=environment, timeout=300).returncode == -signal.SIGKILL
    assert all(item.startswith(".x.") and item.endswith(".part") for item in names_in(tmp_path))
    assert len(names_in(tmp_path)) == 1
    assert contents(pull(str(archive), tmp_path / "x")) == contents(folder)


def test_an_interrupt_leaves_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("composer.hub.pull.verify_pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pull(str(folder), tmp_path / "x")
    assert names_in(tmp_path) == []


def test_git_files_around_a_pack_stay_where_they_are(folder: Path, tmp_path: Path) -> None:
    clone = shutil.copytree(folder, tmp_path / "bad")
    (clone / ".git").mkdir()
    (clone / ".gitattributes").write_text("* filter=evil\n", encoding="utf-8")
    assert sorted(contents(pull(str(clone), tmp_path / "x"))) == sorted([*FILES, MANIFEST])


def test_the_recipe_of_a_pack_is_cached(folder: Path, tmp_path: Path) -> None:
    result = pull_reference(str(folder), tmp_path / "x")
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        f"recipe: 1\nname: mine\n{result.extends()}\nmodel: {{width: 32}}\n", encoding="utf-8"
    )
    message = load(mine)
    assert message.model.width == 32
    assert message.data == load(folder / "recipe.yaml").data


# -------------------------------------------------------------------------------------------
# recipes


BASE = "recipe: 1\nname: base\nvars: {width: 8}\nmodel:\n  width: ${width}\n"


def test_a_recipe_is_cached_with_all_that_it_extends(tmp_path: Path, store: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/base.yaml").write_text(BASE, encoding="utf-8")
    (tmp_path / "bad/own.yaml").write_text("extends: base.yaml\nname: own\n", encoding="utf-8")
    result = pull_reference(str(tmp_path / "bad/own.yaml"))
    assert result.path == recipe_cache.get(result.sha256)
    assert result.path.is_relative_to(store)
    text = result.path.read_text(encoding="utf-8")
    assert "extends" not in text
    assert "${width}" in text
    assert "name: own" in text
    assert hashlib.sha256(text.encode()).hexdigest() == result.sha256
    again = pull(str(tmp_path / "bad/own.yaml"), tmp_path / "copy.yaml", result.sha256)
    assert again.read_text(encoding="utf-8") == text


def test_a_recipe_that_check_refuses_is_noted(tmp_path: Path, store: Path) -> None:
    """It is taken, since another may extend it."""
    file = tmp_path / "own.yaml"
    file.write_text(BASE, encoding="utf-8")
    assert "note" not in pull_reference(str(file)).text()
    text = "recipe: 1\ndata: {generate: copy}\nmodel: {width: 8, encoder: [rnn], decoder: [rnn]}\n"
    file.write_text(text, encoding="utf-8")
    result = pull_reference(str(file))
    (note,) = result.notes
    assert note.startswith("`check` refuses it: nothing reads `encoder`")
    assert result.text() == f"cached {result.path}\nnote: {note}"


def test_an_invalid_recipe_is_not_cached(tmp_path: Path, store: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/own.yaml").write_text("extends: none.yaml\n", encoding="utf-8")
    with pytest.raises(RecipeError):
        pull(str(tmp_path / "bad/own.yaml"), tmp_path / "x.yaml")
    assert names_in(tmp_path) == []
    assert not store.exists()


@pytest.mark.parametrize("name", ["nothing", "bad", "bad.tar"])
def test_other_files_and_folders_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad.tar").write_text("not a gzipped file", encoding="utf-8")
    with pytest.raises(RunError):
        pull(str(tmp_path / name), tmp_path / "x")
    assert names_in(tmp_path) == []


def test_an_unfinished_run_is_refused(run: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(run, tmp_path / "bad")
    record = json.loads((bad / "run.json").read_text(encoding="utf-8"))
    (bad / "run.json").write_text(json.dumps({**record, "status": "running"}), encoding="utf-8")
    with pytest.raises(
        RunError, match="the training of this run has not finished; nothing was written"
    ):
        pull(str(bad), tmp_path / "x")


def test_a_run_on_generated_data_is_evaluated_anywhere(tmp_path: Path) -> None:
    task = "{copy: {train: 20, val: 4, test: 6}}"
    first = made(tmp_path / "bad", task=task)
    result = pull(str(pack(first, tmp_path / "x.tar")), tmp_path / "y")
    assert evaluate(result) == evaluate(first)
