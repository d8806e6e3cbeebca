"""Texts of data, vocabularies, recipes, runs and packs are printed without control characters."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from composer.cli import main
from composer.errors import RunFailed
from composer.inference import lines as inference_lines
from composer.recipe.sections import WandB
from composer.run_dir import RunDir
from composer.training import launch
from composer.training.wandb_logger import WandbLogger
from tests.hub.packs import update_manifest
from tests.inference import untrained
from tests.run_records import write_record
from tests.sweeps.leaderboard_dirs import begun, trial

HOSTILE = "a\x1b]0;owned\x07\x9b31m\x7f\u202eb"
WORDS = [f"{HOSTILE}{number}" for number in range(10)]
PLANTED = re.compile("\x1b\\]|[\x07\x9b\x7f\u202e]")
"""What of HOSTILE rich never writes itself, unlike other escape sequences."""
Printed = Callable[..., str]


class Terminal(io.BytesIO):
    """A terminal that remembers what it was sent."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Printed:
    """Run a command on a terminal, and return what that is sent; nothing of it is as it was
    planted.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("WANDB_MODE", "disabled")  # what it is sent is looked at below

    def on_terminal(
        *arguments: Any, status: int = 0, function: Callable[[], Any] | None = None
    ) -> str:
        terminal = Terminal()
        with monkeypatch.context() as patch:
            for name in ("stdout", "stderr"):
                patch.setattr(
                    sys, name, io.TextIOWrapper(terminal, encoding="utf-8", write_through=True)
                )
            with pytest.raises(SystemExit) as ended:
                raise SystemExit(function() or 0) if function else main.main([*map(str, arguments)])
            text = terminal.getvalue().decode()
            sys.stdout.detach()
            sys.stderr.detach()
        assert not PLANTED.search(text), text
        assert ended.value.code == status, text
        return text

    return on_terminal


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A recipe with control characters in every text that may have them, beside its files."""
    splits: dict[str, dict[str, str]] = {"train": {}, "val": {}, "test": {}}
    for side, part in itertools.product(("source", "target"), splits):
        lines = [
            " ".join(f"{HOSTILE}{(at + n) % 5}" for n in range(1 + at % 3)) for at in range(20)
        ]
        lines = lines if part == "train" else lines[::-1]
        (tmp_path / f"{HOSTILE}.{part}.{side}").write_text(
            "\n".join(lines) + "\n", encoding="utf-8"
        )
        splits[part][side] = f"{HOSTILE}.{part}.{side}"
    texts = {
        "project": HOSTILE,
        "name": HOSTILE,
        "entity": HOSTILE,
        "group": HOSTILE,
        "tags": [HOSTILE],
    }
    data = {
        "recipe": 1,
        "name": "planted",
        "description": HOSTILE,
        "data": {
            "parallel": splits,
            "tokenizer": {"word": {"split": "spaces"}},
        },
        "model": {
            "width": 8,
            "encoder": [{"rnn": {"cell": "gru"}}],
            "decoder": ["rnn", "cross_attention"],
        },
        "training": {"max_steps": 2, "validate_every": 2, "tokens_per_batch": 100},
        "decoding": {"greedy": {"max_length": 5}},
        "logging": {"wandb": {"mode": "offline", **texts}},
    }
    file = tmp_path / "planted.yaml"
    file.write_text(json.dumps(data), encoding="utf-8")
    return file


@pytest.fixture
def untrained_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that reads and writes such words."""
    monkeypatch.setattr(untrained, "WORDS", WORDS)
    return untrained.made(tmp_path / "run", tokenizer="{word: {split: spaces}}")


def with_hostile_texts(record: dict[str, Any]) -> dict[str, Any]:
    """Return a run.json with control characters in all texts that no hash vouches for."""
    return record | {
        **dict.fromkeys(("name", "started_at", "ended_at", "wandb", "start_from", "note"), HOSTILE),
        "versions": {HOSTILE: HOSTILE, "torch": HOSTILE},
        "plug_ins": {HOSTILE: {"distribution": HOSTILE, "version": HOSTILE}},
        "machine": {HOSTILE: HOSTILE, "gpus": [HOSTILE]},
        "git": {"commit": HOSTILE, "dirty": False, "branch": HOSTILE},
        "resumed_with": [HOSTILE],
        "checkpoints_used": {"how": HOSTILE, "checkpoints": [HOSTILE]},
        "scores": {**record.get("scores", {}), HOSTILE: 1.0, f"test/{HOSTILE}": 2.0},
        "by_length": {HOSTILE: [{HOSTILE: HOSTILE, "words": 3, "lines": 3}]},
        HOSTILE: HOSTILE,
    }


def test_texts_of_a_recipe_and_its_data(printed: Printed, planted: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(f"{HOSTILE}1 {HOSTILE}2\n", encoding="utf-8")
    (tmp_path / HOSTILE).write_bytes(b"a\n\xff\n")
    run = tmp_path / f"run{HOSTILE}"
    for command in ("check", "plan", "draw", "fingerprints"):
        printed(command, planted)
    assert "       = a\ufffd]0;owned" in printed("train", planted, "--run", run), (
        "no sample is shown"
    )
    printed("train", planted, "--run", run, status=2)
    printed("train", planted, "--run", run, "--resume")
    printed("translate", run, "--input", "in", "--scores")
    printed("translate", run, "--input", HOSTILE, status=2)
    printed("translate", run, "--input", "in", "--output", f"out{HOSTILE}")
    for command in ("evaluate", "report", "draw", "fingerprints"):
        printed(command, run)
    printed("diff", planted, run)
    write_record(
        RunDir(run), with_hostile_texts(json.loads((run / "run.json").read_text(encoding="utf-8")))
    )
    for command in ("evaluate", "report", "draw", "fingerprints"):
        printed(command, run)
    printed("diff", planted, run)


FAULTS = {
    "a key": {HOSTILE: 1},
    "a name": {"name": HOSTILE},
    "a variable": {"description": f"${{{HOSTILE}}}"},
    "a variable that nothing reads": {"vars": {HOSTILE: HOSTILE}},
    "a base": {"extends": f"{HOSTILE}.yaml"},
    "a pin": {"extends": {"pull": HOSTILE, "sha256": "0" * 64}},
    "a block": {"model": {"width": 8, "decoder": [HOSTILE]}},
    "a stack": {
        "model": {"width": 8, "decoder": [{"use": HOSTILE}], "stacks": {HOSTILE: ["norm"]}}
    },
    "an output": {"model": {"width": 8, "decoder": ["rnn", {"add": HOSTILE}]}},
    "an encoder": {"model": {"width": 8, "encoders": {HOSTILE: ["rnn"]}, "decoder": ["rnn"]}},
    "a choice": {"training": {"optimizer": {HOSTILE: {HOSTILE: HOSTILE}}}},
    "a file": {"data": {"parallel": {"train": {HOSTILE: HOSTILE, "target": HOSTILE}}}},
    "a folder": {"data": {"babi": {"folder": HOSTILE, "tasks": [1]}}},
    "a token": {
        "data": {"parallel": {"train": {"source": "t", "target": "t"}}, "tokenizer": "bits"}
    },
}


@pytest.mark.parametrize("case", FAULTS)
def test_faults_of_a_recipe(case: str, printed: Printed, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(f"{HOSTILE}\n", encoding="utf-8")
    model = {"width": 8, "encoder": ["rnn"], "decoder": ["rnn", "cross_attention"]}
    data = {"recipe": 1, "data": {"generate": "copy"}, "model": model} | FAULTS[case]
    (tmp_path / f"{HOSTILE}.yml").write_text(json.dumps(data), encoding="utf-8")
    printed("check", f"{HOSTILE}.yml", status=2)
    printed("train", f"{HOSTILE}.yml", f"{HOSTILE}={HOSTILE}", status=2)


def test_texts_of_a_pack(printed: Printed, untrained_run: Path, tmp_path: Path) -> None:
    packed, pulled = tmp_path / "packed", tmp_path / f"pulled{HOSTILE}"
    printed("pack", untrained_run, "--output", packed)
    printed("pull", packed, "--output", pulled)
    for card in (untrained_run / "README.md", packed / "README.md"):
        card.write_text(f"# {HOSTILE}\n", encoding="utf-8")
    update_manifest(packed)
    assert "README.md has control characters" in printed(
        "pull", packed, "--output", tmp_path / "other", status=2
    )
    assert "README.md has control characters" in printed(
        "pack", untrained_run, "--output", tmp_path / "a", status=2
    )
    record = json.loads((packed / "run.json").read_text(encoding="utf-8"))
    (packed / "run.json").write_text(json.dumps(with_hostile_texts(record)), encoding="utf-8")
    update_manifest(packed)
    printed("pull", packed, "--output", tmp_path / HOSTILE, status=2)
    manifest = json.loads((packed / "pack.json").read_text(encoding="utf-8"))
    for name in ("format", "name", "files", HOSTILE):
        (packed / "pack.json").write_text(
            json.dumps(manifest | {name: {HOSTILE: HOSTILE}}), encoding="utf-8"
        )
        printed("pull", packed, "--output", tmp_path / HOSTILE, status=2)
    (packed / HOSTILE).write_text("", encoding="utf-8")
    printed("pull", packed, "--output", tmp_path / HOSTILE, status=2)
    printed("pull", f"git+file:///{HOSTILE}", status=2)
    for name in ("tokenizer.json", "recipe.yaml", "run.json"):
        (pulled / name).write_text(f'{{"{HOSTILE}": "{HOSTILE}"}}', encoding="utf-8")
        printed("evaluate", pulled, status=2)


def test_texts_that_a_model_writes(
    printed: Printed, untrained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / HOSTILE).write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    assert "owned" in printed("translate", untrained_run, "--input", HOSTILE)
    monkeypatch.setattr(inference_lines, "MAX_TOKENS", 0)
    assert "only its first 0 are read" in printed("translate", untrained_run, "--input", HOSTILE)


def test_texts_of_a_sweep(printed: Printed, planted: Path, tmp_path: Path) -> None:
    folder = begun(tmp_path / f"sweep{HOSTILE}", axes={HOSTILE: {HOSTILE: HOSTILE}, "other": {}})
    (folder / "sweep.json").write_text(json.dumps({"name": HOSTILE}), encoding="utf-8")
    for number in (1, 2, 3):
        trial(
            folder,
            number,
            [30.0 + number, 32.0],
            point={HOSTILE: f"{HOSTILE}{number}", "other": HOSTILE},
        )
    trial(
        folder,
        4,
        status="failed",
        error=f"{HOSTILE}\n{HOSTILE}",
        point={HOSTILE: HOSTILE, "other": 1},
    )
    printed("leaderboard", folder)
    printed("diff", f"{folder}#1", f"{folder}#{HOSTILE}", status=2)
    axes = {
        "a": {"set": "training.max_steps", "values": [1, 2]},
        "b": {"set": "description", "values": [HOSTILE, "x"]},
    }
    sweep = {
        "sweep": 1,
        "name": "s",
        "base": planted.name,
        "axes": axes,
        "where": "parameters < 100K",
    }
    (tmp_path / "s.yaml").write_text(json.dumps(sweep), encoding="utf-8")
    printed("sweep", "s.yaml", "--dry-run")
    (tmp_path / "s.yaml").write_text(
        json.dumps(sweep | {"axes": {HOSTILE: axes["a"]}}), encoding="utf-8"
    )
    printed("sweep", "s.yaml", "--dry-run", status=2)


def test_texts_in_errors_of_libraries(
    printed: Printed, planted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError(HOSTILE)

    monkeypatch.setattr("composer.sweeps.point_arguments.load", fail)
    assert "Traceback" in printed("plan", planted, status=1)
    report = {"message": HOSTILE, "extraInfo": {"py_callstack": HOSTILE}}
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "error.json").write_text(json.dumps({"message": report}), encoding="utf-8")

    def report() -> int:
        with pytest.raises(RunFailed) as failed:
            launch.raise_reported_error(tmp_path, 1)
        sys.stderr.write(failed.value.render())
        return failed.value.status

    assert "owned" in printed(function=report, status=1)


def test_names_at_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    received: dict[str, Any] = {}
    monkeypatch.setattr("wandb.init", lambda **settings: received.update(settings))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))  # or the logger sets it until its run ends
    WandbLogger("offline", WandB(project=HOSTILE, tags=[HOSTILE]), tmp_path, "name", "id")
    assert "owned" in received["project"]
    assert not PLANTED.search(f"{received['project']} {received['tags'][0]}")
