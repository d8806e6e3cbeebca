"""What a pack must be beside whole: readable here, by the language and the blocks that there are, and weights only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from composer.errors import ComposerError, RunError
from composer.hub.manifest import Described, Manifest
from composer.hub.pack_contents import check_size, refuse
from composer.hub.redact import places_in
from composer.hub.run_schema import check_handed_on, check_metrics, check_record
from composer.hub.tokenizer_schema import check_tokenizer
from composer.recipe.recipe import Recipe, load
from composer.recipe.registry import plug_ins
from composer.recipe.yaml_reader import read
from composer.run_dir import RunDir, versions

MOST_HEADER = 1 << 24
"""Bytes of a safetensors header: a hundred thousand tensors have as many."""


def accept(folder: Path, found: Manifest, origin: str) -> Recipe:
    """The recipe of a pack whose hashes are verified. Raises RunError where it is not what a pack should be."""
    check_weights(folder / "model.safetensors", origin)
    record = record_of(folder, origin)
    check_handed_on(record, origin)
    check_metrics(folder / "metrics.jsonl", origin)
    check_parts(record, found.files, origin)
    recipe = recipe_of(folder / "recipe.yaml", record, origin)
    if recipe.name != found.name:
        refuse(origin, f"this pack is called `{found.name}`, and its recipe `{recipe.name}`; nothing was taken")
    check_tokenizer((folder / "tokenizer.json").read_bytes(), recipe.dataset["tokenizer"], origin)
    return recipe


def reaches(recipe: Recipe) -> Iterator[str]:
    """What a recipe does with a machine beside computing on it: paths that it reads, and where it would log."""
    for place in places_in(recipe.dataset):
        yield f"reads {place!r}"
    wandb = recipe.logging["wandb"]
    if isinstance(wandb, Mapping) and wandb.get("entity"):
        yield f"logs to {wandb['entity']!r} at Weights & Biases, where you are logged in"


def check_parts(record: Mapping[str, Any], files: Mapping[str, Described], origin: str | Path) -> None:
    """Raises RunError where run.json is that of other weights, or of another tokenizer, than lie beside it."""
    for key, name in (("weights", "model.safetensors"), ("tokenizer", "tokenizer.json")):
        if record.get(key) not in (None, files[name].sha256):
            refuse(
                origin,
                f"run.json knows another `{name}` than the one that is there; nothing was taken",
                "take all files from the same run again",
            )


def record_of(folder: Path, origin: str) -> dict[str, Any]:
    """run.json. Raises RunError where it is none of a finished run."""
    run = RunDir(folder)
    if run.record.is_file():
        check_size(run.record.name, run.record.stat().st_size, origin)
    try:
        record = run.read()
    except (RunError, RecursionError):
        refuse(origin, "run.json is not what a training writes; nothing was taken")
    check_record(record, origin)
    if record.get("status") != "finished":
        refuse(origin, "this run has not finished, so it has no weights; nothing was taken", "ask for it when it has")
    return record


def recipe_of(path: Path, record: dict[str, Any], origin: str) -> Recipe:
    """The recipe of a pack, which must stand alone. Raises RunError with one reason."""
    try:
        if "extends" in read(path, path.name).value:
            refuse(origin, "the recipe of a pack stands alone, and this one extends another; nothing was taken")
        return load(path)
    except RunError:
        raise
    except ComposerError as error:
        first = error.faults[0]
        place = f"recipe.yaml:{first.line}:{first.column}: " if first.line else ""
        message = f"its recipe cannot be read here: {place}{first.message}; nothing was taken"
        raise RunError.of(message, missing_plug_ins(record) or first.hint or made_by(record), origin) from None


def missing_plug_ins(record: dict[str, Any]) -> str:
    """What to install where a pack's blocks come with plug-ins that are not here; "" where all are."""
    used = record.get("plug_ins")
    here = {point.name for point in plug_ins()}
    missing = {block: told for block, told in used.items() if block not in here} if isinstance(used, dict) else {}
    told = [f"`{block}` from {package(each)}" for block, each in missing.items()]
    return f"look at and install the plug-in that has the block {', '.join(told)}" if told else ""


def package(told: Any) -> str:
    """The package of a plug-in as pip takes it, as far as run.json knows it."""
    known = told if isinstance(told, dict) else {}
    name, number = known.get("distribution"), known.get("version")
    return f"{name}=={number}" if name and number else str(name or known.get("from") or "a package that is not told")


def made_by(record: dict[str, Any]) -> str:
    """With which version of this project a run was made, where it is another than this one."""
    known = record.get("versions")
    theirs, ours = known.get("seqcomposer") if isinstance(known, dict) else None, versions().get("seqcomposer")
    return (
        f"it was made by seqcomposer {theirs}, and this is {ours}" if theirs and theirs != ours else "ask who made it"
    )


def check_weights(path: Path, origin: str) -> None:
    """Raises RunError where a file does not begin as safetensors do: a pickle under their name, say."""
    with path.open("rb") as file:
        if not is_safetensors(file, path.stat().st_size):
            refuse(origin, f"`{path.name}` are no safetensors, and other forms can run code; nothing was taken")


def is_safetensors(file: BinaryIO, size: int) -> bool:
    """Whether a file begins with the length of a header and a header, a JSON object."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(size - 8, MOST_HEADER):
        return False
    try:
        return isinstance(json.loads(file.read(length)), dict)
    except (ValueError, RecursionError):
        return False
