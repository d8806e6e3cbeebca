"""A finished run with random weights, packed as a folder and as an archive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from composer.atomic_io import sha256_of_file
from composer.hub.pack import pack
from tests.inference.untrained import made

SCORES = {
    "val/loss": 1e-5,
    "val/bleu": 31.5,
    "test/bleu": 30.25,
    "test/chrf": 55.125,
    "test/exact_match": 0.5,
}


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of this test's own; and git without the settings of whoever runs it."""
    torch.set_num_threads(1)
    monkeypatch.setenv("SEQCOMPOSER_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    return tmp_path / "store"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder as a training leaves it, with what it says of this machine."""
    folder = made(tmp_path_factory.mktemp("sharing") / "run")
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    record |= {
        "scores": SCORES,
        "parameters": 1234,
        "start_from": "/home/ann/runs/base",
        "versions": {"seqcomposer": "0.1.0"},
        "checkpoints_used": {"how": "best", "checkpoints": ["step-00000020.ckpt"]},
        "hostname": "ann-laptop",
        "note": f"see {Path.home()}/notes",
        "plug_ins": {},
        "tokenizer_sha256": sha256_of_file(folder / "tokenizer.json"),
    }
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n', encoding="utf-8")
    (folder / "checkpoints").mkdir()
    return folder


@pytest.fixture(scope="session")
def folder(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as a pack that is a folder."""
    return pack(run, tmp_path_factory.mktemp("packed") / "folder", "mit")


@pytest.fixture(scope="session")
def archive(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run as a pack that is an archive."""
    return pack(run, tmp_path_factory.mktemp("packed") / "run.tar", "mit")
