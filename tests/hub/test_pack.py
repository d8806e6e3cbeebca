"""Contents of packs; the same run gives the same bytes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from composer.errors import RunError
from composer.hub.pack import pack, pack_with_hash, redact_record
from composer.hub.pack_format import FILES, MANIFEST
from composer.inference.run import open_run
from composer.run_dir import RunDir
from tests.hub.packs import archive_names, contents, names_in
from tests.run_records import change_record, record_of


def test_a_pack_has_seven_files_with_their_hashes(folder: Path, run: Path) -> None:
    result = contents(folder)
    message = json.loads(result.pop(MANIFEST))
    assert sorted(result) == sorted(FILES)
    assert {name: item["sha256"] for name, item in message["files"].items()} == {
        name: hashlib.sha256(data).hexdigest() for name, data in result.items()
    }
    assert {name: item["size"] for name, item in message["files"].items()} == {
        name: len(d) for name, d in result.items()
    }
    same = ("recipe.yaml", "tokenizer.json", "model.safetensors", "metrics.jsonl")
    assert all(result[name] == (run / name).read_bytes() for name in same)


def test_an_archive_has_the_same_files_in_one_folder(
    run: Path, archive: Path, folder: Path, tmp_path: Path
) -> None:
    assert archive_names(archive.read_bytes()) == [
        f"untrained/{name}" for name in (MANIFEST, *FILES)
    ]
    expected = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    for name in ("x", "x.tar"):
        assert pack_with_hash(run, tmp_path / name, "mit") == (tmp_path / name, expected)


def test_the_same_run_elsewhere_gives_the_same_bytes(
    run: Path, archive: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(run, tmp_path / "another name")
    os.utime(moved / "recipe.yaml", (0, 0))
    (moved / "report.html").write_text("not of the pack", encoding="utf-8")
    assert pack(moved, tmp_path / "again.tar", "mit").read_bytes() == archive.read_bytes()


def test_run_json_is_packed_without_local_paths(folder: Path, run: Path) -> None:
    text = (folder / "run.json").read_text(encoding="utf-8")
    assert str(run.parent) not in text
    assert str(Path.home()) + "/" not in text
    assert not re.search(r"\bann\b", text)
    message = json.loads(text)
    assert message["data"]["folders"] == []
    assert message["start_from"] == "base"
    assert message["scores"] == json.loads((run / "run.json").read_text(encoding="utf-8"))["scores"]
    assert redact_record(record_of(**message)).decode() == text


def test_data_may_have_the_names_of_private_keys() -> None:
    record = json.loads(redact_record(record_of(vocabularies={"user": 8, "target": 9}, user="ann")))
    assert record["vocabularies"] == {"user": 8, "target": 9}
    assert "user" not in record


@pytest.mark.parametrize(
    ("path", "cached"),
    [
        ("/a/b", "b"),
        ("C:\\Users\\ann\\x", "x"),
        ("~/x", "x"),
        ("../up/x", "x"),
        ("\\\\host\\share\\x", "x"),
        ("a/b", "a/b"),
        ("2.6.0", "2.6.0"),
        ("/", ""),
    ],
)
def test_a_local_path_is_redacted_to_its_last_name(path: str, cached: str) -> None:
    assert json.loads(redact_record(record_of(resumed_with=[path])))["resumed_with"] == [cached]


def test_an_existing_output_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there.tar").symlink_to("nowhere")
    for name in ("there", "there.tar"):
        with pytest.raises(RunError, match="exists already"):
            pack(run, tmp_path / name)
    assert names_in(tmp_path) == ["there", "there.tar"]
    assert not any((tmp_path / "there").iterdir())


@pytest.mark.parametrize(
    "missing", ["recipe.yaml", "tokenizer.json", "model.safetensors", "run.json"]
)
def test_an_incomplete_run_is_not_packed(missing: str, run: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(run, tmp_path / "broken")
    (broken / missing).unlink()
    for output in ("x", "x.tar"):
        with pytest.raises((RunError, Exception)) as error:
            pack(broken, tmp_path / output)
        assert hasattr(error.value, "faults")
    assert names_in(tmp_path) == ["broken"]


def test_a_run_that_was_killed_after_its_weights_is_not_packed_and_translates_with_a_note(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = shutil.copytree(run, tmp_path / "killed")
    change_record(RunDir(killed), status="running")
    with pytest.raises(RunError, match=r"has not finished(.|\n)*--resume"):
        pack(killed, tmp_path / "x")
    assert names_in(tmp_path) == ["killed"]
    translations = [open_run(folder).translate(["eins zwei"]) for folder in (run, killed)]
    assert translations[0] == translations[1]
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith(
        f"{killed}: these weights are whole, but their training has not finished"
    )


def test_a_link_is_not_packed(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "linked")
    (copy / "model.safetensors").rename(tmp_path / "elsewhere")
    (copy / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"symbolic links(.|\n)*replace it by the file itself"):
        pack(copy, tmp_path / "x")
    assert names_in(tmp_path) == ["elsewhere", "linked"]


def test_the_user_s_own_card_is_packed(run: Path, tmp_path: Path) -> None:
    mine = shutil.copytree(run, tmp_path / "mine")
    (mine / "README.md").write_text("# Mine\n", encoding="utf-8")
    assert (pack(mine, tmp_path / "x") / "README.md").read_text(encoding="utf-8") == "# Mine\n"
    with pytest.raises(RunError, match="model card"):
        pack(mine, tmp_path / "y", "mit")


def test_a_pack_can_be_opened_as_a_run(folder: Path, run: Path) -> None:
    lines = ["eins zwei", "", "drei vier fünf"]
    assert open_run(folder).translate(lines) == open_run(run).translate(lines)
