"""Verification of a pulled pack: run.json, metrics, tokenizer, recipe and weights have the form that a training writes.

Commands trust the files of a run folder, which a training has written. So files from elsewhere are checked once, before
they are put in place: a hash is a hash, printed text is one visible line, and the tokenizer is one of ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from composer.errors import ComposerError, RunError
from composer.hub.manifest import FileDigest, Manifest, check_size, is_local_path, local_paths_in, refuse
from composer.recipe.recipe import Recipe, load
from composer.recipe.registry import plug_ins
from composer.recipe.yaml_reader import read, strings_in
from composer.run_dir import HASHED, RunDir, is_count, is_plain_data, is_text, mapping_of, versions


def verify_pack(folder: Path, manifest: Manifest, origin: str) -> Recipe:
    """Return the recipe of a pack whose hashes are verified. Raises RunError where a file is not what it should be."""
    try:
        with safe_open(folder / "model.safetensors", "numpy"):
            pass  # its header is read and checked
    except SafetensorError:
        refuse(origin, "`model.safetensors` are no safetensors, and other formats can run code")
    record = read_record(folder, origin)
    # data would be looked up under these paths
    folders = record.get("data", {}).get("folders")
    path = next(filter(is_local_path, strings_in(record)), None)
    if folders or path is not None:
        refuse(origin, f"run.json contains a local path, {path or folders[0]!a}")
    with (folder / "metrics.jsonl").open("rb") as metrics:
        if not all(map(is_metrics_row, metrics)):
            refuse(origin, "`metrics.jsonl` is not what a training writes")
    check_digests(record, manifest.files, origin)
    recipe = read_recipe(folder / "recipe.yaml", record, origin)
    if recipe.name != manifest.name:
        refuse(origin, f"this pack is called `{manifest.name}`, and its recipe `{recipe.name}`")
    (kind,) = recipe.dataset["tokenizer"]
    if not is_our_tokenizer((folder / "tokenizer.json").read_bytes(), kind):
        message = f"tokenizer.json is not what a training with the tokenizer `{kind}` writes"
        refuse(origin, message, "take recipe.yaml and tokenizer.json from the same run")
    return recipe


def side_effects(recipe: Recipe) -> Iterator[str]:
    """Yield what training with a recipe would read or write elsewhere: local paths, a W&B entity."""
    for path in local_paths_in(recipe.dataset):
        yield f"reads {path!r}"
    wandb = recipe.logging["wandb"]
    if isinstance(wandb, Mapping) and wandb.get("entity"):
        yield f"logs to {wandb['entity']!r} at Weights & Biases, where you are logged in"


def check_digests(record: Mapping[str, Any], files: Mapping[str, FileDigest], origin: str | Path) -> None:
    """Raise RunError where run.json belongs to another recipe, another tokenizer or other weights."""
    for key, name in HASHED.items():
        if record.get(key) not in (None, files[name].sha256):
            message = f"run.json was recorded with another `{name}`"
            refuse(origin, message, "take all files from the same run again")


def read_record(folder: Path, origin: str) -> dict[str, Any]:
    """Return run.json. Raises RunError where it is not that of a finished run."""
    run = RunDir(folder)
    if run.record.is_file():
        check_size(run.record.name, run.record.stat().st_size, origin)
    try:
        record = run.read()
    except RunError as error:
        refuse(origin, error.faults[0].message)
    check_record(record, origin)
    if record.get("status") != "finished":
        refuse(origin, "this run has not finished, so it has no weights", "pull it when it has")
    return record


def is_metrics_row(line: bytes) -> bool:
    """Return whether a line of metrics.jsonl holds values that a training logs."""
    try:
        row = json.loads(line)
    except RecursionError:
        return False
    except ValueError:
        return True  # it was cut off, and readers skip it
    return is_plain_data(row, depth=2) and is_visible(row)


def is_visible(data: Any) -> bool:
    """Return whether the keys and texts of plain data are on one line, of characters that can all be seen."""
    if isinstance(data, dict):
        return is_visible(list(data)) and is_visible(list(data.values()))
    return all(map(is_visible, data)) if isinstance(data, list) else not isinstance(data, str) or data.isprintable()


def read_recipe(path: Path, record: dict[str, Any], origin: str) -> Recipe:
    """Load the recipe of a pack, which must not extend another. Raises RunError with its first fault."""
    try:
        if "extends" in read(path, path.name).value:
            refuse(origin, "the recipe of a pack is complete, and this one extends another")
        return load(path)
    except RunError:
        raise
    except ComposerError as error:
        first = error.faults[0]
        theirs, ours = (record.get("versions") or {}).get("seqcomposer"), versions().get("seqcomposer")
        is_other = theirs and theirs != ours
        maker = f"it was made by seqcomposer {theirs}, and this is {ours}" if is_other else "ask its author"
        place = f"recipe.yaml:{first.line}:{first.column}: " if first.line else ""
        message = f"its recipe cannot be read here: {place}{first.message}"
        refuse(origin, message, missing_plug_ins(record) or first.hint or maker)


def missing_plug_ins(record: dict[str, Any]) -> str:
    """Return what to install where a pack uses blocks of plug-ins that are not installed; "" if all are.

    `record` has passed `check_record`.
    """
    installed = {point.name for point in plug_ins()}
    names = []
    for name, source in (record.get("plug_ins") or {}).items():
        package, number = source.get("distribution"), source.get("version")
        unpinned = package or source.get("from") or "an unknown package"
        if name not in installed:
            names.append(f"`{name}` from {f'{package}=={number}' if package and number else unpinned}")
    return f"review and install the plug-in with the block {', '.join(names)}" if names else ""


def check_record(record: Mapping[str, Any], origin: str | Path) -> None:
    """Raise RunError where a text in a run.json has characters that cannot be seen."""
    for key, value in record.items():
        if not is_visible([key, value]):
            message = f"in run.json `{key[:100]}` is not what a training writes"
            refuse(origin, message, "ask for the run again, with run.json as the training has left it")


MAX_SIDES = 16
MODELS = {**dict.fromkeys(("word", "char", "bits", "integers"), "WordLevel"), "bpe": "BPE", "unigram": "Unigram"}
"""The model of the library `tokenizers` for each tokenizer of a recipe."""
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
STEPS: Mapping[str, tuple[Any, ...]] = {
    "normalizer": (None, {"type": "Prepend", "prepend": " "}),
    "pre_tokenizer": (
        None,
        {"type": "WhitespaceSplit"},
        {"type": "ByteLevel"},
        {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated"},
    ),
    "decoder": (
        None,
        {"type": "Fuse"},
        {"type": "Sequence", "decoders": [{"type": "ByteLevel"}, STRIP]},
    ),
    **dict.fromkeys(("post_processor", "truncation", "padding"), (None,)),
    "added_tokens": (None, []),
}
"""All that may surround the model. The library can do more: pad every text to a length, replace short texts by long
ones, search for patterns in exponential time. None of it is needed, so none of it is accepted."""
FLAGS = ("add_prefix_space", "trim_offsets", "use_regex", "invert")
"""Boolean options of a step, which may have either value."""


def is_our_tokenizer(data: bytes, kind: str) -> bool:
    """Return whether a tokenizer.json holds tokenizers of a kind, in the form in which a run saves them."""
    try:
        content = json.loads(data.decode())
    except (ValueError, RecursionError):
        return False
    if (
        not isinstance(content, dict)
        or not is_text(content.get("format"))
        or type(content.get("lowercase")) is not bool
    ):
        return False
    settings, parts, sides = content.get("settings"), content.get("parts"), content.get("sides")
    if not isinstance(settings, dict) or set(settings) != {kind} or not isinstance(settings[kind], dict):
        return False
    if not isinstance(parts, list) or len(parts) > MAX_SIDES or not sides or not mapping_of(is_count)(sides):
        return False
    for part in parts:
        model = part.get("model") if isinstance(part, dict) else None
        if not isinstance(model, dict) or model.get("type") != MODELS.get(kind):
            return False
        if any(_without_flags(part.get(step)) not in accepted for step, accepted in STEPS.items()):
            return False
    return all(index < len(parts) for index in sides.values())


def _without_flags(step: Any) -> Any:
    if isinstance(step, list):
        return [_without_flags(item) for item in step]
    if isinstance(step, dict):
        return {key: _without_flags(item) for key, item in step.items() if key not in FLAGS or type(item) is not bool}
    return step
