"""Initial state of a training: its own last checkpoint, the weights of another run (`--from`), or random weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from composer.data.encoding import Data
from composer.data.sources import side_names
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError, first_few
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir, latest_checkpoint
from composer.training.checkpointing import read_hyper_parameters
from composer.training.module import parse_texts
from composer.training.reproduce import ReproducedRun

NEW_RUN = "begin a new run with `--run DIR`; `--from` takes the weights along"


def existing_tokenizers(recipe: Recipe, folder: RunDir, start_from: Path | None) -> Tokenizers | None:
    """Return the tokenizers of this run or of the run to start from, or None if they are to be trained.

    Raises RunError if the run to start from has another kind of tokenizer, or other encoders.
    """
    if folder.tokenizer.exists():
        return Tokenizers.load(folder.tokenizer)
    if start_from is None or "integers" in recipe.dataset["tokenizer"]:
        return None  # `integers` needs no text, and a run may start from one that knows fewer of them
    other = RunDir(start_from)
    other.read()  # raises if it is not a run
    tokenizers = Tokenizers.load(other.tokenizer)
    sides, settings = side_names(recipe), recipe.dataset["tokenizer"]
    if tokenizers.settings != settings or set(tokenizers.sides) != set(sides):
        raise RunError.of(
            f"this run reads {', '.join(tokenizers.sides)} with the tokenizer {tokenizers.settings}, and the recipe "
            f"wants {', '.join(sides)} with {settings}",
            "give the recipe the same `data.tokenizer` and the same encoders, or train without `--from`",
            str(start_from),
        )
    return tokenizers


def resolve_initial_run(
    requested: str | Path | None, record: Mapping[str, Any], folder: RunDir, original: ReproducedRun | None = None
) -> Path | None:
    """Return the run whose weights this run starts from, or None for random weights.

    A resumed run keeps the one that run.json records, even if it was killed before its first checkpoint; a
    reproduction keeps its original's.

    Raises:
        RunError: If `requested` differs from the recorded run.
    """
    path = Path(requested).absolute() if requested is not None else None
    if not record:
        return original.initial_run() if path is None and original is not None else path
    recorded = Path(record["start_from"]) if record.get("start_from") else None
    if path is not None and path != recorded:
        began = f"from the weights of {recorded}" if recorded else "from random weights"
        fix = "leave `--from` away, or begin a new run with `--run DIR`"
        raise RunError.of(f"this run started {began}, not from those of {path}", fix, str(folder.path))
    return recorded


def checkpoint_to_resume(folder: RunDir, warn: Callable[[str], None]) -> Path | None:
    """Return the newest intact checkpoint, or None if the run has none yet; warn of damaged ones."""
    return latest_checkpoint(folder.checkpoints, warn) if folder.checkpoints.is_dir() else None


def check_same_recipe(recipe: Recipe, folder: RunDir, record: Mapping[str, Any]) -> None:
    """Raise RunError if the recipe is not the one that the run was started with."""
    if recipe.fingerprints["run"] == record["fingerprints"].get("recipe"):
        return
    differences = _differences_text(load(folder.recipe), recipe) or "its recipe.yaml has been changed"
    message = f"this run was started with another recipe: {differences}"
    raise RunError.of(message, f"undo the change, or {NEW_RUN}", str(folder.path))


def check_same_data(data: Data, record: Mapping[str, Any], folder: RunDir) -> None:
    """Raise RunError if the tokenizer, or the training or validation data, are not those of the run's start."""
    if data.tokenizers.sha256 != record["tokenizer"]:
        message = "this tokenizer has changed since the run was started"
        raise RunError.of(message, "restore tokenizer.json as it was", str(folder.tokenizer))
    recorded = record["data"]
    parts = {"training": (data.train, recorded["sha256"]), "validation": (data.val, recorded.get("val_sha256"))}
    for name, (encoded, sha256) in parts.items():
        if sha256 is not None and (encoded is None or encoded.sha256 != sha256):
            message = f"the {name} data have changed since this run was started, so it cannot be resumed exactly"
            raise RunError.of(message, f"restore the files, or {NEW_RUN}", str(folder.path))


def check_checkpoint(recipe: Recipe, tokenizers: Tokenizers, path: Path) -> None:
    """Raise RunError if a checkpoint was made with another recipe or tokenizer: it comes from another run."""
    texts = read_hyper_parameters(path)
    if texts == (recipe.dump(), tokenizers.text()):
        return
    other, other_tokenizers = parse_texts(*texts)
    remove = "remove this file: the run goes on from the checkpoint before it"
    if other.fingerprints["run"] != recipe.fingerprints["run"]:
        message = f"this checkpoint was made with another recipe: {_differences_text(other, recipe)}"
        raise RunError.of(message, remove, str(path))
    if other_tokenizers.sha256 != tokenizers.sha256:
        message = "this checkpoint was made with another tokenizer than the run folder's tokenizer.json"
        raise RunError.of(message, f"restore tokenizer.json as it was, or {remove}", str(path))


def _differences_text(old: Recipe, new: Recipe) -> str:
    return first_few(list(setting_differences(old.frozen, new.frozen)))


def setting_differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Describe every setting in which two recipes differ, defaults filled in."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from setting_differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, pair in enumerate(zip(old, new, strict=True)):
            yield from setting_differences(*pair, f"{path}[{at}]")
    elif old != new:
        values = [text if len(text) <= 60 else f"{text[:57]}..." for text in (str(old), str(new))]
        yield f"`{path}` was {values[0]} and is {values[1]}"
