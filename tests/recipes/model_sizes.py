"""Overrides that make the model of a recipe small."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from composer.recipe.extends_and_overrides import extend
from composer.recipe.yaml_reader import to_data

FIRST_SETTINGS = {
    "grid": "columns",
    "self_attention": "heads",
    "feed_forward": "hidden",
    "linear": "width",
}
"""The setting that a block's scalar sets, where that is a size."""


def size_overrides(path: Path, sizes: Mapping[str, int]) -> list[str]:
    """Return what sets each size: the recipe's variable of that name, or else every larger setting
    of that name.

    `rnn.width` is the setting of one block only, and comes before `width`.
    """
    # variables are still open, so that no setting is changed beside its variable
    data = to_data(extend(path))
    variables = data.get("vars") or {}
    settings = {name: size for name, size in sizes.items() if name not in variables}
    return [
        *(f"vars.{name}={size}" for name, size in sizes.items() if name in variables),
        *(f"model.{setting}" for setting in _settings("model", data["model"], settings)),
    ]


def _settings(block: str, value: Any, sizes: Mapping[str, int]) -> Iterator[str]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        name = FIRST_SETTINGS.get(str(key), str(key))
        size = sizes.get(f"{block}.{name}" if name == key else f"{key}.{name}", sizes.get(name))
        if isinstance(inner, int) and not isinstance(inner, bool):
            if size is not None and inner > size:
                yield f"{key}={size}"
        else:
            yield from (f"{key}.{setting}" for setting in _settings(str(key), inner, sizes))
