"""Pulling artifacts of Weights & Biases by a client over a folder, and pushing to its offline files."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
from wandb.sdk.artifacts.artifact_manifest_entry import ArtifactManifestEntry

from composer.errors import RunError
from composer.hub.pull import pull, pull_reference
from tests.hub.packs import contents, names_in

API, ARTIFACT = inspect.signature(wandb.Api), inspect.signature(wandb.Api.artifact)
DOWNLOAD = inspect.signature(ArtifactManifestEntry.download)


def log_in(
    monkeypatch: pytest.MonkeyPatch, place: Path, references: tuple[str, ...] = ()
) -> list[str]:
    """Replace W&B's client by one over a folder; return the names that are requested."""
    requested: list[str] = []

    def entry(path: Path) -> SimpleNamespace:
        def fetch(*args: Any, **kwargs: Any) -> str:
            bound = DOWNLOAD.bind(None, *args, **kwargs).arguments
            assert bound["skip_cache"]
            return str(shutil.copy(path, Path(bound["root"]) / path.name))

        ref = "file:///etc/passwd" if path.name in references else None
        return SimpleNamespace(size=path.stat().st_size, ref=ref, download=fetch)

    def open_api(*args: Any, **kwargs: Any) -> SimpleNamespace:
        API.bind(*args, **kwargs)

        def of(*args: Any, **kwargs: Any) -> SimpleNamespace:
            requested.append(ARTIFACT.bind(None, *args, **kwargs).arguments["name"])
            entries = {item.name: entry(item) for item in place.iterdir()}
            return SimpleNamespace(manifest=SimpleNamespace(entries=entries), version="v3")

        return SimpleNamespace(artifact=of)

    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setattr(wandb, "Api", open_api)
    return requested


def test_a_pack_is_pulled_from_a_wandb_artifact(
    folder: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = log_in(monkeypatch, folder)
    assert contents(pull("wandb:ann/translation/mine:v3", tmp_path / "x")) == contents(folder)
    assert set(requested) == {"ann/translation/mine:v3"}
    requested = log_in(monkeypatch, archive.parent)
    assert contents(pull("wandb:translation/mine:latest", tmp_path / "y")) == contents(folder)
    again = pull_reference("wandb:translation/mine", tmp_path / "z")
    assert requested[-2:] == ["translation/mine:latest", "translation/mine:v3"]
    assert again.ref == "wandb:translation/mine:v3"


def test_a_logged_recipe_is_pulled_from_a_wandb_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/recipe.yaml").write_text("recipe: 1\nname: own\n", encoding="utf-8")
    log_in(monkeypatch, tmp_path / "bad")
    assert "name: own" in pull("wandb:ann/seqcomposer/recipe-1d52ecce:v0").read_text(
        encoding="utf-8"
    )


def test_a_reference_in_an_artifact_is_not_followed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in(monkeypatch, folder, ("recipe.yaml",))
    with pytest.raises(RunError, match="is not a regular file"):
        pull("wandb:ann/translation/mine:v3", tmp_path / "x")
    assert names_in(tmp_path) == []


def test_nobody_is_prompted_for_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(RunError, match="wandb login"):
        pull("wandb:ann/translation/mine:v3", tmp_path / "x")


def test_a_wandb_entry_has_the_fields_that_are_read() -> None:
    assert {"size", "ref"} <= set(ArtifactManifestEntry.model_fields)
    assert "manifest" in dir(wandb.Artifact)
