"""What an offline run of W&B has recorded, read back from its file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_recipes import Tiny

from composer.training.metrics_log import read_rows
from composer.training.train import train
from composer.training.wandb_log import WandbLog


def records(file: Path) -> list[dict[str, Any]]:
    """The records of a .wandb file, by W&B's own reader."""
    command = [str(Path(sys.executable).with_name("wandb")), "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_an_offline_run_is_recorded(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = tmp_path / "run"
    recipe = tiny("training.max_steps=4", "training.validate_every=2", "logging={wandb: {project: p, tags: [a, b]}}")
    train(recipe, run)
    first = capsys.readouterr().out.splitlines()[0]
    assert "offline" in first
    assert str(run / "wandb") in first
    assert not (tmp_path / ".local").exists()
    assert "WANDB_DATA_DIR" not in os.environ
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    text = json.dumps(found := records(file))
    rows = [row for row in found if row["type"] == "history"]
    for row in read_rows(run / "metrics.jsonl"):
        name = next(key for key in row if "/" in key)
        assert name in text
        assert str(row[name])[:8] in text
    assert len(rows) >= 5
    assert '"samples._type": "table-file"' in text
    assert '"label_smoothing"' in text  # the recipe, as config
    assert "recipe.yaml" in text  # and as an artifact
    assert '"project": "p"' in text


def test_trouble_with_wandb_does_not_stop_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    def is_down(**_: Any) -> None:
        raise RuntimeError("W&B is\ndown")

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "init", is_down)
    log = WandbLog("offline", None, tmp_path, "name", "id")
    assert log.trouble == "W&B is down"
    log.write({"step": 1})
    log.samples(1, [])
    log.describe(tmp_path / "recipe.yaml", {})
    log.finish(0)
