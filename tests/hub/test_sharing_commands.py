"""`pack` and `pull` as they are typed: what is printed, and the exit status."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from composer.cli.main import main
from composer.hub.pack_format import MANIFEST, local_paths_in
from tests.hub.packs import names_in
from tests.inference.untrained import record_hashes


def status(*words: str) -> object:
    with pytest.raises(SystemExit) as end:
        main(words)
    return end.value.code


def test_pack_and_pull_print_the_fingerprint(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    assert status("pack", str(run), "--output", str(tmp_path / "x"), "--license", "mit") == 0
    sha256 = hashlib.sha256((tmp_path / "x" / MANIFEST).read_bytes()).hexdigest()
    assert capsys.readouterr().out == f"wrote {tmp_path / 'x'}\nsha256 {sha256}\n"
    assert (
        status("pull", str(tmp_path / "x"), "--output", str(tmp_path / "y"), "--sha256", sha256)
        == 0
    )
    message = capsys.readouterr()
    (recipe,) = (store / "recipes").iterdir()
    assert (
        message.out.split() == f"extends: {{pull: {tmp_path / 'x'}, sha256: {recipe.stem}}}".split()
    )
    assert sha256 in message.err


def test_pack_notes_local_paths_in_a_recipe(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    text = (mine / "recipe.yaml").read_text(encoding="utf-8")
    (mine / "recipe.yaml").write_text(text.replace("test.1", "/srv/ann/test.1"), encoding="utf-8")
    record_hashes(mine)
    assert status("pack", str(mine), "--output", str(tmp_path / "x")) == 0
    assert "/srv/ann/test.1" in capsys.readouterr().err
    assert status("pack", str(run), "--output", str(tmp_path / "y")) == 0
    assert "note" not in capsys.readouterr().err


def test_local_paths_are_found_in_the_data_section() -> None:
    data = {
        "parallel": {"train": {"source": "/srv/a", "target": "b"}},
        "tokenizer": {"bits": {"marks": ["/"]}},
    }
    assert local_paths_in(data) == ["/srv/a"]
    assert local_paths_in({**data, "tokenizer": {"file": {"path": "/srv/x.model"}}}) == [
        "/srv/a",
        "/srv/x.model",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("pull", "git+ext::sh -c id"),
        ("pull", "none"),
        ("pull", "x" * 400),
        ("pull", "a/" * 400),
        ("pack", "none"),
        ("pull", "."),
        ("pull", "\0"),
    ],
)
def test_a_refusal_exits_with_2_and_a_fix(
    words: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(*words) == 2
    assert "   fix: " in capsys.readouterr().err
    assert names_in(tmp_path) == []


def test_an_impossible_output_path_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x" * 300, "there/x"):
        (tmp_path / "there").touch()
        assert status("pull", str(folder), "--output", str(tmp_path / name)) == 2
        assert "error[run]" in capsys.readouterr().err
        assert names_in(tmp_path) == ["there"]
