"""What a training starts from: the weights and the tokenizer of another run, or its own last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from composer.data.encoding import Data
from composer.data.sources import side_names
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError, first_few
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir, latest_checkpoint
from composer.training import checkpointing
from composer.training.module import read_texts
from composer.training.reproduce import ReproducedRun


def existing_tokenizers(recipe: Recipe, folder: RunDir, start_from: Path | None) -> Tokenizers | None:
    """The tokenizers that are there already: this run's, or those of the run to start from. Raises RunError."""
    if folder.tokenizer.exists():
        return Tokenizers.load(folder.tokenizer)
    if start_from is None or "integers" in recipe.dataset["tokenizer"]:
        return None  # integers are known without any text, and a machine may go on with more of them
    other = RunDir(start_from)
    other.read()
    found = Tokenizers.load(other.tokenizer)
    wanted = recipe.dataset["tokenizer"], set(side_names(recipe))
    if (found.settings, set(found.sides)) != wanted:
        raise RunError.of(
            f"this run reads {', '.join(found.sides)} with the tokenizer {found.settings}, and the recipe wants "
            f"{', '.join(side_names(recipe))} with {recipe.dataset['tokenizer']}",
            "give the recipe the same `data.tokenizer` and the same encoders, or train without `--from`",
            str(start_from),
        )
    return found


def resolve_initial_run(
    asked: str | Path | None, record: Mapping[str, Any], folder: RunDir, origin: ReproducedRun | None = None
) -> Path | None:
    """The run whose weights this one begins with; none of its own accord. Raises RunError where it began with others.

    A run that was killed before its first checkpoint begins again, from the same weights; a repeat of `origin` begins
    with those that `origin` began with.
    """
    given = Path(asked).absolute() if asked is not None else None
    if not record:
        return given if given is not None or origin is None else origin.beginning()
    known = Path(record["start_from"]) if record.get("start_from") else None
    if given is not None and given != known:
        began = f"with the weights of {known}" if known else "with random weights"
        raise RunError.of(
            f"this run began {began}, not with those of {given}",
            "leave `--from` away, or begin a new run with `--run DIR`",
            str(folder.path),
        )
    return known


def checkpoint_to_resume(folder: RunDir, say: Callable[[str], None]) -> Path | None:
    """The checkpoint to go on from; None where the run has not come so far."""
    return latest_checkpoint(folder.checkpoints, say) if folder.checkpoints.is_dir() else None


def check_same_recipe(recipe: Recipe, folder: RunDir, record: Mapping[str, Any]) -> None:
    """Raises RunError where the recipe is not the one that the run was begun with."""
    says = recipe.fingerprints["run"]
    if says == record["fingerprints"].get("says"):
        return
    begun = load(folder.recipe)
    if "says" not in record["fingerprints"] and begun.fingerprints["run"] == says:
        return  # a run of an older version, whose fingerprints are others
    told = recipe_difference_text(begun, recipe) or "its recipe.yaml has been changed"
    raise RunError.of(
        f"this run was begun with another recipe: {told}",
        "undo the change, or begin a new run with `--run DIR`; `--from` takes the weights along",
        str(folder.path),
    )


def check_checkpoint(recipe: Recipe, tokenizers: Tokenizers, path: Path) -> None:
    """Raises RunError where a checkpoint was made with another recipe or tokenizer: it comes from another run."""
    texts = checkpointing.read_hyper_parameters(path)
    if texts == (recipe.dump(), tokenizers.text()):
        return
    old, others = read_texts(*texts)
    remove = "remove this file: the run goes on from the checkpoint before it"
    if old.fingerprints["run"] != recipe.fingerprints["run"]:
        told = recipe_difference_text(old, recipe)
        raise RunError.of(f"this checkpoint was made with another recipe: {told}", remove, str(path))
    if others.sha256 != tokenizers.sha256:
        raise RunError.of(
            "this checkpoint was made with another tokenizer than the run folder's tokenizer.json",
            f"restore tokenizer.json as it was, or {remove}",
            str(path),
        )


def recipe_difference_text(old: Recipe, new: Recipe) -> str:
    """The first differences of two recipes, and how many more there are."""
    return first_few(setting_differences(old.frozen, new.frozen))


def setting_differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Where two frozen recipes differ, in words."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            text
            for key in keys
            for text in setting_differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            text
            for at, pair in enumerate(zip(old, new, strict=True))
            for text in setting_differences(*pair, f"{path}[{at}]")
        ]
    return [] if old == new else [f"`{path}` was {shorten(old)} and is {shorten(new)}"]


def shorten(value: Any) -> str:
    """A value, cut where it is long."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_same_data(data: Data, record: Mapping[str, Any], folder: RunDir) -> None:
    """Raises RunError where the data that decide a run, or the tokenizer, are not those that it was begun with."""
    if data.tokenizers.sha256 != record["tokenizer"]:
        raise RunError.of(
            "this tokenizer has changed since the run was begun",
            "restore tokenizer.json as it was",
            str(folder.tokenizer),
        )
    began = record["data"]
    parts = {"training": (data.train, began["sha256"]), "validation": (data.val, began.get("val_sha256"))}
    for name, (encoded, was) in parts.items():
        if was is not None and (encoded is None or encoded.sha256 != was):
            raise RunError.of(
                f"the {name} data have changed since this run was begun, so it cannot go on as it would have",
                "restore the files, or begin a new run with `--run DIR`; `--from` takes the weights along",
                str(folder.path),
            )
