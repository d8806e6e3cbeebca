"""What a resumed run must have kept, and the run whose weights it starts from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer.data.encoding import Data
from composer.data.pairs import text_names
from composer.data.sources import DataSource
from composer.data.text_files import named_files
from composer.data.tokenizer import Tokenizers, side_prefixes
from composer.errors import MAX_LISTED, RunError
from composer.fingerprint import (
    describe_differences,
    differ_in_budget_alone,
    is_recorded,
    read_verified,
    result_differences,
)
from composer.recipe.canonical_form import (
    BUDGET_KEYS,
    TRAINER_WITH_EFFECT,
    TRAINING_WITHOUT_EFFECT,
)
from composer.recipe.earlier_versions import without_removed_settings
from composer.recipe.own_blocks import check_recorded_blocks
from composer.recipe.recipe import Recipe, as_trained, load, load_node, stored_by
from composer.recipe.yaml_reader import read
from composer.run_dir import OTHER_RUN, START_FROM, RunDir, is_verifying
from composer.runs.record import RunRecord
from composer.training.reproduce import ReproducedRun

NEW_RUN = f"begin a new run with {OTHER_RUN}; {START_FROM} starts it from these weights"


def existing_tokenizers(
    recipe: Recipe, run_dir: RunDir, start_from: Path | None
) -> Tokenizers | None:
    """Return the tokenizers of this run or of the run to start from; None if they must be trained.

    Those of a run with another kind of tokenizer, or with other encoders, are of no use. Prefixes
    are those of the recipe.
    """
    if run_dir.tokenizer.exists():
        return Tokenizers.load(run_dir.tokenizer)
    if start_from is None or recipe.tokenizer.is_extendable:
        return None
    source = RunDir(start_from)
    read_verified(source)
    tokenizers = Tokenizers.load(source.tokenizer)
    has_same_settings = tokenizers.settings == recipe.canonical["data"]["tokenizer"]
    has_same_sides = {*tokenizers.sides} == {*text_names(recipe)}
    if not has_same_settings or not has_same_sides:
        return None
    return tokenizers.with_prefixes(side_prefixes(recipe.canonical["data"], tokenizers.sides))


def resolve_initial_run(
    requested: str | Path | None,
    record: RunRecord | None,
    run_dir: RunDir,
    original: ReproducedRun | None = None,
) -> Path | None:
    """Return the run whose weights this run starts from, or None for random weights.

    A resumed run keeps the one that run.json records, even if it was killed before its first
    checkpoint; a reproduction keeps its original's. Raises RunError if `requested` differs from the
    recorded run.
    """
    path = Path(requested).absolute() if requested is not None else None
    if record is None:
        return original.initial_run() if path is None and original is not None else path
    recorded = Path(record.start_from) if record.start_from else None
    if path is not None and path != recorded:
        began = f"from the weights of {recorded}" if recorded else "from random weights"
        fix = f"omit {START_FROM}, or begin a new run with {OTHER_RUN}"
        raise RunError.of(
            f"this run started {began}, not from those of {path}", fix, str(run_dir.path)
        )
    return recorded


def keep_meaning(recipe: Recipe, run_dir: RunDir, record: RunRecord) -> Recipe:
    """Return a recipe with the meaning that it had when a run was begun with it.

    It must say the same as the run's own recipe; else it is returned unchanged. So a command that
    is repeated resumes a run of an earlier version, which had other defaults. The budget and
    `logging` may differ; a setting that the run's recipe leaves out differs even at its default.
    """
    is_own = recipe.file.resolve() == run_dir.recipe.resolve()
    if is_own or not run_dir.recipe.is_file() or is_recorded(recipe, record):
        return recipe
    root = without_removed_settings(read(run_dir.recipe, str(run_dir.recipe)))
    own = literal_settings(load_node(run_dir.recipe, root))  # read as the file of no run
    if own == literal_settings(recipe):
        return as_trained(recipe, stored_by(run_dir) or {})
    # a run of an earlier version that was resumed before: its recipe spells out the old defaults
    trained = as_trained(recipe, {})
    return trained if own == literal_settings(trained) else recipe


def literal_settings(recipe: Recipe) -> Mapping[str, Any]:
    """Return the settings written in a recipe that decide a result: no defaults, no budget."""
    sections = dict(recipe.explicit)
    for key in ("name", "description", "logging"):
        sections.pop(key, None)
    training = dict(sections.get("training", {}))
    for key in (*BUDGET_KEYS, *TRAINING_WITHOUT_EFFECT):
        training.pop(key, None)
    settings = sections.get("trainer", {})
    trainer = {key: value for key, value in settings.items() if key in TRAINER_WITH_EFFECT}
    return sections | {"training": training, "trainer": trainer}


def check_same_recipe(recipe: Recipe, run_dir: RunDir, record: RunRecord) -> None:
    """Raise RunError if own blocks or the recipe, but for its budget, have changed."""
    check_recorded_blocks(record, run_dir.path, is_verifying())
    if is_recorded(recipe, record):
        return
    begun = load(run_dir.recipe)
    if not is_recorded(begun, record) and is_verifying():
        message = "this recipe is not the one that the run was started with"
        raise RunError.of(message, f"put it back as it was, or {NEW_RUN}", str(run_dir.recipe))
    if differ_in_budget_alone(begun, recipe):
        return
    differences = [*result_differences(begun, recipe)]
    settings = []
    for path, old, _ in differences:
        if "[" not in path:
            settings.append(shlex.quote(f"{path}={json.dumps(old)}"))
    repeat = ""
    # overrides of the first command, settings edited since, or other defaults of this version
    if 0 < len(settings) <= MAX_LISTED:
        repeat = f"give {' '.join(settings)} on the command line or in the recipe, or "
    fix = f"{repeat}resume with its own recipe, {run_dir.recipe}; or {NEW_RUN}"
    cause = describe_differences(differences)
    raise RunError.of(f"this run was started with another recipe: {cause}", fix, str(run_dir.path))


def check_same_data(source: DataSource, data: Data, record: RunRecord, run_dir: RunDir) -> None:
    """Raise RunError if the tokenizer, training or validation data have changed since the start."""
    if data.tokenizers.sha256 != record.tokenizer_sha256:
        message = "this tokenizer has changed since the run was started"
        raise RunError.of(message, "restore tokenizer.json as it was", str(run_dir.tokenizer))
    recorded = record.data
    hashes = ("training", "train", recorded.sha256), ("validation", "val", recorded.val_sha256)
    for name, split, sha256 in hashes:
        encoded = data.splits.get(split)
        if sha256 is not None and (encoded is None or encoded.sha256 != sha256):
            message = (
                f"the {name} data have changed since this run was started, so it cannot be resumed"
                " exactly"
            )
            fix = f"restore {_files_of(source, split)}, or {NEW_RUN}"
            raise RunError.of(message, fix, str(run_dir.path))


def _files_of(source: DataSource, split: str) -> str:
    """Return the files of a split for a message; `the files` if they are unknown or many."""
    data = source.recipe.canonical["data"]
    settings = data["parallel"] or data["table"] or data["text"] or {}
    held_out = isinstance(settings.get(split), int)
    files = sorted(named_files(settings.get("train" if held_out else split), source.folders))
    if not 0 < len(files) <= MAX_LISTED:
        return "the files"
    return " and ".join(f"`{file}`" for file in files)
