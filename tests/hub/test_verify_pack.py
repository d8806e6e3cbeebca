"""Packs with valid hashes whose contents no training writes are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer.atomic_io import sha256_of_file
from composer.errors import RunError
from composer.hub import pull as pulling
from composer.hub.pack import pack, redact_record
from composer.hub.pack_format import MANIFEST, MAX_BYTES_OF
from composer.hub.pull import pull, pull_reference
from tests.hub.packs import contents, names_in, update_manifest
from tests.run_records import record_of

HASH = "0" * 64


def assert_refused(bad: Path, target: Path, message: str) -> None:
    with pytest.raises(RunError) as error:
        pull(str(bad), target)
    assert message in error.value.render()
    assert names_in(target.parent) == []


def set_value(path: Path, *keys: str | int, value: Any) -> None:
    """Set one value in a JSON file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    *way, last = keys
    inner = content
    for key in way:
        inner = inner[key]
    inner[last] = value
    path.write_text(json.dumps(content), encoding="utf-8")


RECORDS: dict[str, tuple[tuple[str, ...], Any]] = {
    "a fingerprint that is code": (("fingerprints",), {"model": '"""\nimport os\n"""'}),
    "fingerprints of which one is missing": (
        ("fingerprints",),
        {"model": HASH, "data": HASH, "recipe": HASH},
    ),
    "half a beginning": (("initial_weights",), {"tokenizer": HASH}),
    "fingerprints that are none": (("fingerprints",), "x"),
    "colours for the terminal": (("versions",), {"torch": "\x1b[31m2"}),
    "lines for the terminal": (("name",), "one\ntwo"),
    "a name that hides": (("versions",), {"to\u202erch": "2"}),
    "a number without end": (("parameters",), 10**100),
    "a number below zero": (("parameters",), -1),
    "a truth for a number": (("steps",), True),
    "a text without end": (("status",), "finished" * 1000),
    "data that are a list": (("data",), []),
    "counts that are texts": (("data", "pairs"), {"train": "many"}),
    "scores that are lists": (("scores",), {"test/bleu": [1]}),
    "scores by length without lines": (("by_length",), {"test": [{"words": 3}]}),
    "scores by length that are texts": (
        ("by_length",),
        {"test": [{"words": 3, "lines": 1, "bleu": "x"}]},
    ),
    "a reproduction of nothing": (("reproduces",), {"run": ["x"]}),
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_malformed_run_json_is_refused(
    case: str, folder: Path, run: Path, tmp_path: Path
) -> None:
    """In a pack, in a run folder that is pulled, and in one that is packed."""
    keys, value = RECORDS[case]
    bad = shutil.copytree(folder, tmp_path / "bad")
    set_value(bad / "run.json", *keys, value=value)
    update_manifest(bad)
    assert_refused(bad, tmp_path / "x", "is not what")
    (bad / MANIFEST).unlink()
    assert_refused(bad, tmp_path / "x", "is not what")
    if case != "a text without end":
        with pytest.raises(RunError, match="is not what a training writes"):
            pack(bad, tmp_path / "x")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("data", "folders"), ["/etc"]),
        (("data", "folders"), ["etc"]),
        (("start_from",), "/home/ann/run"),
        (("resumed_with",), ["../../x"]),
        (("resumed_with",), ["~ann"]),
    ],
)
def test_a_run_json_with_local_paths_is_refused(
    keys: tuple[str, ...], value: Any, folder: Path, tmp_path: Path
) -> None:
    """`evaluate` would look there for data, and a reproduction for weights."""
    bad = shutil.copytree(folder, tmp_path / "bad")
    set_value(bad / "run.json", *keys, value=value)
    update_manifest(bad)
    assert_refused(bad, tmp_path / "x", "contains a local path")


@pytest.mark.parametrize(
    ("key", "name"),
    [("weights_sha256", "model.safetensors"), ("tokenizer_sha256", "tokenizer.json")],
)
def test_a_run_json_of_another_run_is_refused(
    key: str, name: str, folder: Path, tmp_path: Path
) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    set_value(bad / "run.json", key, value=HASH)
    update_manifest(bad)
    assert_refused(bad, tmp_path / "x", f"run.json was recorded with another `{name}`")
    (bad / MANIFEST).unlink()
    with pytest.raises(RunError, match="not the one that the training wrote"):
        pack(bad, tmp_path / "x")
    assert names_in(tmp_path) == []


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


@pytest.mark.parametrize("case", TOKENIZERS)
def test_a_foreign_tokenizer_is_refused(case: str, folder: Path, tmp_path: Path) -> None:
    keys, value = TOKENIZERS[case]
    bad = shutil.copytree(folder, tmp_path / "bad")
    set_value(bad / "tokenizer.json", *keys, value=value)
    sha256 = sha256_of_file(bad / "tokenizer.json")
    set_value(bad / "run.json", "tokenizer_sha256", value=sha256)
    update_manifest(bad)
    assert_refused(bad, tmp_path / "x", "cannot be opened here")


LINES = (
    f'{{"step": 1{"0" * 4000}}}',
    "[" * 10000,
    '{"step": [[[[1]]]]}',
    '{"\\u001b[31mstep": 1}',
    '{"a": "b\\n"}',
)


@pytest.mark.parametrize("line", LINES)
def test_malformed_metrics_are_refused(line: str, folder: Path, tmp_path: Path) -> None:
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n', encoding="utf-8")
    update_manifest(bad)
    assert_refused(bad, tmp_path / "x", "metrics.jsonl")


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
    assert_refused(bad, tmp_path / "x", f"`{name}` has")


def test_a_folder_exchanged_after_it_was_copied_changes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is checked is what is installed, whatever happens to the folder meanwhile."""
    bad = shutil.copytree(folder, tmp_path / "bad")
    expected = pull_reference(str(folder), tmp_path / "good").sha256
    verify: Callable[..., Any] = pulling.verify_pack

    def exchange_and_verify(*words: Any) -> Any:
        (bad / "README.md").write_text("of somebody else", encoding="utf-8")
        update_manifest(bad)
        return verify(*words)

    monkeypatch.setattr(pulling, "verify_pack", exchange_and_verify)
    assert contents(pull(str(bad), tmp_path / "x", expected)) == contents(folder)


def test_side_effects_of_a_recipe_are_noted(folder: Path, tmp_path: Path) -> None:
    assert pull_reference(str(folder), tmp_path / "y").notes == ()
    bad = shutil.copytree(folder, tmp_path / "bad")
    text = (bad / "recipe.yaml").read_text(encoding="utf-8").replace("test.1", '"/etc/pass\\ewd"')
    (bad / "recipe.yaml").write_text(
        f"{text}logging: {{wandb: {{entity: eve}}}}\n", encoding="utf-8"
    )
    record = json.loads((bad / "run.json").read_text(encoding="utf-8"))
    record["recipe_sha256"] = sha256_of_file(bad / "recipe.yaml")
    (bad / "run.json").write_text(json.dumps(record), encoding="utf-8")
    update_manifest(bad)
    message = pull_reference(str(bad), tmp_path / "x").text()
    assert "note: its recipe reads '/etc/pass\\x1bwd'" in message
    assert "note: its recipe logs to 'eve'" in message


def test_local_paths_inside_texts_are_redacted() -> None:
    """`reproduces` names the other run in a sentence."""
    message = "the same weights as /srv/ann/runs/first, to the last bit"
    repeat = {
        "run": "/srv/ann/runs/first",
        "weights_sha256": None,
        "differs": [],
        "message": message,
    }
    other = "x/srv/ann/runs/first /srv/ann/runs/first2"
    text = redact_record(record_of(reproduces=repeat, resumed_with=[other]))
    redacted = json.loads(text)
    assert redacted["reproduces"]["run"] == "first"
    assert redacted["reproduces"]["message"] == "the same weights as first, to the last bit"
    assert redacted["resumed_with"] == [other]
    assert redact_record(record_of(**redacted)) == text
