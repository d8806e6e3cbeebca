"""A model of the hub is imported: what is read is downloaded, at one commit, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from composer.errors import RunError
from composer.importers.import_run import import_model
from tests.hub.hub_server import Hub
from tests.hub.test_hub import hub, publish  # noqa: F401, a fixture
from tests.importers.published import PUBLISHED, save


def test_a_model_of_the_hub_is_imported(hub: Hub, tmp_path: Path) -> None:  # noqa: F811
    folder = tmp_path / "theirs"
    save(PUBLISHED["llama"].make(0), folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nA model.\n")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "modeling.py").write_text("raise SystemExit")
    commit = publish(hub, folder).branches["main"]
    run = import_model("hub:ann/mine", tmp_path / "ours")
    imported = json.loads((run / "run.json").read_text())["imported"]
    assert imported["source"] == f"hub:ann/mine@{commit}"
    assert imported["license"] == "apache-2.0"
    assert "(apache-2.0)" in (run / "recipe.yaml").read_text().splitlines()[0]
    asked = " ".join(map(str, hub.requests))
    assert "model-00001-of" in asked
    assert "pytorch_model.bin" not in asked
    assert "modeling.py" not in asked


def test_a_large_model_is_refused_before_it_is_downloaded(hub: Hub, tmp_path: Path) -> None:  # noqa: F811
    save(PUBLISHED["llama"].make(0), tmp_path / "theirs")
    publish(hub, tmp_path / "theirs")
    with pytest.raises(RunError, match="GiB"):
        import_model("hub:ann/mine", tmp_path / "ours", max_gib=1e-6)
    assert not (tmp_path / "ours").exists()
    assert "safetensors" not in " ".join(map(str, hub.requests))
