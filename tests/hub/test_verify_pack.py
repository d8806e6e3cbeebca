"""Packs whose hashes are right, and whose contents are not what a training writes: refused where they come in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer.errors import RunError
from composer.exporters.script import export_script
from composer.hub import pull as pulling
from composer.hub.manifest import MANIFEST, MAX_BYTES_OF, redact_record
from composer.hub.pack import pack
from composer.hub.pull import pull, pull_reference
from tests.hub.packs import contents, left, update_manifest

HASH = "0" * 64


def refused(bad: Path, target: Path, message: str) -> None:
    with pytest.raises(RunError) as error:
        pull(str(bad), target)
    assert message in error.value.render()
    assert left(target.parent) == []


def changed(path: Path, *keys: str | int, value: Any) -> None:
    """Sets one value in a file of JSON."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    *way, last = keys
    inner = whole
    for key in way:
        inner = inner[key]
    inner[last] = value
    path.write_text(json.dumps(whole), encoding="utf-8")


RECORDS: dict[str, tuple[tuple[str, ...], Any]] = {
    "a fingerprint that is code": (("fingerprints",), {"model": '"""\nimport os\n"""'}),
    "fingerprints of which one is missing": (("fingerprints",), {"model": HASH, "data": HASH, "recipe": HASH}),
    "half a beginning": (("initial_weights",), {"tokenizer": HASH}),
    "fingerprints that are none": (("fingerprints",), "x"),
    "colours for the terminal": (("versions",), {"torch": "\x1b[31m2"}),
    "lines for the terminal": (("note",), "one\ntwo"),
    "a name that hides": (("versions",), {"to\u202erch": "2"}),
    "a number without end": (("parameters",), 10**100),
    "a number below zero": (("parameters",), -1),
    "a truth for a number": (("steps",), True),
    "a text without end": (("status",), "finished" * 1000),
    "data that are a list": (("data",), []),
    "counts that are texts": (("data", "pairs"), {"train": "many"}),
    "scores that are lists": (("scores",), {"test/bleu": [1]}),
    "a repeat of nothing": (("repeat_of",), {"run": ["x"]}),
    "something that is nested without end": (("more",), json.loads("[" * 50 + "]" * 50)),
}


@pytest.mark.parametrize("lie", RECORDS)
def test_a_malformed_run_json_is_refused(lie: str, folder: Path, run: Path, tmp_path: Path) -> None:
    """Neither of a pack, nor of a run folder on its way, nor of one that is packed."""
    keys, value = RECORDS[lie]
    bad = shutil.copytree(folder, tmp_path / "bad")
    changed(bad / "run.json", *keys, value=value)
    update_manifest(bad)
    refused(bad, tmp_path / "x", "is not what")
    (bad / MANIFEST).unlink()
    refused(bad, tmp_path / "x", "is not what")
    if lie != "a text without end":
        with pytest.raises(RunError, match="is not what a training writes"):
            pack(bad, tmp_path / "x")
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("data", "folders"), ["/etc"]),
        (("data", "folders"), ["etc"]),
        (("start_from",), "/home/ann/run"),
        (("note",), "../../x"),
        (("note",), "~ann"),
    ],
)
def test_a_run_json_with_local_paths_is_refused(
    keys: tuple[str, ...], value: Any, folder: Path, tmp_path: Path
) -> None:
    """`evaluate` would look there for data, and a repeat for weights."""
    bad = shutil.copytree(folder, tmp_path / "bad")
    changed(bad / "run.json", *keys, value=value)
    update_manifest(bad)
    refused(bad, tmp_path / "x", "names a path of a machine")


@pytest.mark.parametrize(("key", "name"), [("weights", "model.safetensors"), ("tokenizer", "tokenizer.json")])
def test_a_run_json_of_another_run_is_refused(key: str, name: str, folder: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    changed(bad / "run.json", key, value=HASH)
    update_manifest(bad)
    refused(bad, tmp_path / "x", f"run.json knows another `{name}`")
    (bad / MANIFEST).unlink()
    with pytest.raises(RunError, match="knows another"):
        pack(bad, tmp_path / "x")
    assert left(tmp_path) == []


REPLACE = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 1000}
PATTERN = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
FILL = {
    "strategy": {"Fixed": 10**9},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "x",
}
TOKENIZERS: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "fills up each text": (("parts", 0, "padding"), FILL),
    "makes texts longer": (("parts", 0, "normalizer"), REPLACE),
    "looks for ever": (("parts", 0, "pre_tokenizer"), PATTERN),
    "has words of its own": (("parts", 0, "added_tokens"), [{"id": 5, "content": "eins"}]),
    "is of another kind": (("parts", 0, "model", "type"), "WordPiece"),
    "has settings of another kind": (("settings",), {"bpe": {}}),
    "has no settings": (("settings",), {"word": None}),
    "has settings that are no mapping": (("settings",), []),
    "has no parts": (("parts",), []),
    "has sides of parts that are not there": (("sides",), {"source": 7, "target": 0}),
    "counts from the end": (("sides",), {"source": -1, "target": 0}),
    "says no format": (("format",), 1),
}


@pytest.mark.parametrize("lie", TOKENIZERS)
def test_a_foreign_tokenizer_is_refused(lie: str, folder: Path, tmp_path: Path) -> None:
    keys, value = TOKENIZERS[lie]
    bad = shutil.copytree(folder, tmp_path / "bad")
    changed(bad / "tokenizer.json", *keys, value=value)
    unknown(bad / "run.json", "tokenizer")
    update_manifest(bad)
    refused(bad, tmp_path / "x", "tokenizer.json is not what")


def unknown(path: Path, key: str) -> None:
    """Removes a key of a file of JSON."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    del whole[key]
    path.write_text(json.dumps(whole), encoding="utf-8")


LINES = (f'{{"step": 1{"0" * 4000}}}', "[" * 10000, '{"step": [[[[1]]]]}', '{"\\u001b[31mstep": 1}', '{"a": "b\\n"}')


@pytest.mark.parametrize("line", LINES)
def test_malformed_metrics_are_refused(line: str, folder: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n', encoding="utf-8")
    update_manifest(bad)
    refused(bad, tmp_path / "x", "metrics.jsonl")


def test_metrics_with_a_truncated_line_are_accepted(folder: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / "metrics.jsonl").write_bytes(b'{"step": 1, "val/loss": NaN}\n{"ste\n\xff\n\n{"st')
    update_manifest(bad)
    assert contents(pull(str(bad), tmp_path / "x")) == contents(bad)


@pytest.mark.parametrize("name", MAX_BYTES_OF)
def test_files_read_into_memory_have_a_size_limit(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MAX_BYTES_OF, name, (folder / name).stat().st_size - 1)
    bad = shutil.copytree(folder, tmp_path / "bad")
    refused(bad, tmp_path / "x", f"`{name}` has")


def test_a_manifest_exchanged_after_its_check_changes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fingerprint that was asked for is that of what is placed, whatever happens to the folder meanwhile."""
    bad = shutil.copytree(folder, tmp_path / "bad")
    wanted = pull_reference(str(folder), tmp_path / "good").sha256
    read: Callable[..., Any] = pulling.read_manifest

    def then_exchanged(*words: Any) -> Any:
        result = read(*words)
        (bad / "README.md").write_text("of somebody else", encoding="utf-8")
        update_manifest(bad)
        return result

    monkeypatch.setattr(pulling, "read_manifest", then_exchanged)
    with pytest.raises(RunError, match=r"README.md"):
        pull(str(bad), tmp_path / "x", wanted)
    assert left(tmp_path) == ["good"]
    assert contents(tmp_path / "good") == contents(folder)


def test_side_effects_of_a_recipe_are_noted(folder: Path, tmp_path: Path) -> None:
    assert pull_reference(str(folder), tmp_path / "y").notes == ()
    bad = shutil.copytree(folder, tmp_path / "bad")
    text = (bad / "recipe.yaml").read_text(encoding="utf-8").replace("test.1", '"/etc/pass\\ewd"')
    (bad / "recipe.yaml").write_text(f"{text}logging: {{wandb: {{entity: eve}}}}\n", encoding="utf-8")
    update_manifest(bad)
    message = pull_reference(str(bad), tmp_path / "x").text()
    assert "note: its recipe reads '/etc/pass\\x1bwd'" in message
    assert "note: its recipe logs to 'eve'" in message


def test_local_paths_inside_texts_are_redacted() -> None:
    """A repeat tells in a sentence of which run."""
    repeat = {"run": "/srv/ann/runs/first", "message": "the same weights as /srv/ann/runs/first, to the last bit"}
    text = redact_record({"repeat_of": repeat, "other": "x/srv/ann/runs/first /srv/ann/runs/first2"})
    assert json.loads(text)["repeat_of"] == {"run": "first", "message": "the same weights as first, to the last bit"}
    assert json.loads(text)["other"] == "x/srv/ann/runs/first /srv/ann/runs/first2"
    assert redact_record(json.loads(text)) == text


def test_a_record_cannot_write_text_into_an_exported_folder(run: Path, tmp_path: Path) -> None:
    """A run folder can come by other ways than a pull."""
    bad = shutil.copytree(run, tmp_path / "bad")
    changed(bad / "run.json", "fingerprints", value={"model": '"""\nimport os\n"""', "run": HASH})
    folder = export_script(bad, tmp_path / "exported")
    assert not any(b'import os\n"""' in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "import os" not in text
    assert HASH in text
