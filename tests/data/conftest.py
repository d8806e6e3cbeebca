"""Recipes over data, as short as they can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from composer.recipe.recipe import Recipe, load

ONE = {"encoder": ["rnn"], "decoder": ["rnn"]}
Make = Callable[..., Recipe]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a recipe with this `data:` section beside its files, and loads it."""

    def _make(data: Mapping[str, Any], model: Mapping[str, Any] = ONE) -> Recipe:
        sections = {"recipe": 1, "name": "t", "data": dict(data), "model": {"width": 8, **model}}
        (tmp_path / "t.yaml").write_text(
            yaml.safe_dump(sections, sort_keys=False), encoding="utf-8"
        )
        return load(tmp_path / "t.yaml")

    return _make


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps what `datasets` writes out of the user's cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def texts(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Writes line-aligned files; returns the split that names them."""

    def _texts(name: str = "train", **sides: Sequence[str]) -> dict[str, str]:
        for side, lines in sides.items():
            (tmp_path / f"{name}.{side}").write_text(
                "".join(f"{line}\n" for line in lines), encoding="utf-8"
            )
        return {side: f"{name}.{side}" for side in sides}

    return _texts
