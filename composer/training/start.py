"""What a training starts from: the weights and the tokenizer of another run, or its own last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from composer.data.encoded import Encoded
from composer.data.pairs import sides
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.recipe import Recipe, load
from composer.training import checkpoint
from composer.training.run_folder import RunFolder

SHOWN = 5
"""Differences that are listed; the rest is counted."""


def tokenizers_of(recipe: Recipe, folder: RunFolder, start_from: Path | None) -> Tokenizers | None:
    """The tokenizers that are there already: this run's, or those of the run to start from. Raises RunError."""
    if folder.tokenizer.exists():
        return Tokenizers.load(folder.tokenizer)
    if start_from is None or "integers" in recipe.dataset["tokenizer"]:
        return None  # integers are known without any text, and a machine may go on with more of them
    other = RunFolder(start_from)
    other.read()
    found = Tokenizers.load(other.tokenizer)
    wanted = recipe.dataset["tokenizer"], set(sides(recipe))
    if (found.settings, set(found.sides)) != wanted:
        raise RunError.of(
            f"this run reads {', '.join(found.sides)} with the tokenizer {found.settings}, and the recipe wants "
            f"{', '.join(sides(recipe))} with {recipe.dataset['tokenizer']}",
            "give the recipe the same `data.tokenizer` and the same encoders, or train without `--from`",
            str(start_from),
        )
    return found


def last_checkpoint(folder: RunFolder, say: Callable[[str], None]) -> Path | None:
    """The checkpoint to go on from; None where the run has not come so far."""
    return checkpoint.latest(folder.checkpoints, say) if folder.checkpoints.is_dir() else None


def must_be_same(recipe: Recipe, folder: RunFolder, record: Mapping[str, Any]) -> None:
    """Raises RunError where the recipe is not the one that the run was begun with."""
    if recipe.fingerprints["run"] == record["fingerprints"]["run"]:
        return
    differing = list(differences(load(folder.recipe).frozen, recipe.frozen))
    listed = "; ".join(differing[:SHOWN]) + (f"; and {len(differing) - SHOWN} more" if len(differing) > SHOWN else "")
    raise RunError.of(
        f"this run was begun with another recipe: {listed or 'its recipe.yaml has been changed'}",
        "undo the change, or begin a new run with `--run DIR`; `--from` takes the weights along",
        str(folder.path),
    )


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Where two frozen recipes differ, in words."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        return [text for key in keys for text in differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            text for at, pair in enumerate(zip(old, new, strict=True)) for text in differences(*pair, f"{path}[{at}]")
        ]
    return [] if old == new else [f"`{path}` was {brief(old)} and is {brief(new)}"]


def brief(value: Any) -> str:
    """A value, cut where it is long."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def must_be_same_data(encoded: Encoded, record: Mapping[str, Any], folder: RunFolder) -> None:
    """Raises RunError where the training data are not those that the run was begun with."""
    if encoded.sha256 != record["data"]["sha256"]:
        raise RunError.of(
            "the training data have changed since this run was begun, so it cannot go on as it would have",
            "restore the files, or begin a new run with `--run DIR`; `--from` takes the weights along",
            str(folder.path),
        )
