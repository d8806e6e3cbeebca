"""Fingerprints: SHA-256 of a recipe's model, its data, and all that decides a training's result.

`Recipe.fingerprints` is of the recipe's text, in which a data file counts by its name. Here it
counts by the lines that are read from it, whatever it is called, wherever it lies and however its
lines end; generated pairs, tables and data sets of the hub count as files with the same lines do.
An image, a sound or vectors count by what is in their files.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any

from composer.atomic_io import os_errors_as_run_errors, sha256_of_file
from composer.data.columns import chunks_of
from composer.data.documents import Documents
from composer.data.line_hashes import sha256_of_files, sha256_of_hashes
from composer.data.pairs import Pairs, text_names
from composer.data.sources import DataSource, is_endless
from composer.data.teacher import find_teacher
from composer.data.tokenizer import Tokenizers, side_prefixes
from composer.errors import DataError, RunError, os_error_reason, shorten_list
from composer.model.features import feature_settings
from composer.recipe import canonical_form
from composer.recipe import fingerprints as of_recipes
from composer.recipe.earlier_versions import counts_removed_settings
from composer.recipe.fingerprints import FINGERPRINT_VERSION, sha256_of, without_defaults
from composer.recipe.own_blocks import check_recorded_blocks
from composer.recipe.recipe import Recipe, load, load_text
from composer.run_dir import (
    RESUME,
    UNVERIFIED,
    RunDir,
    invalid_checkpoint,
    is_verifying,
    read_checkpoint,
)
from composer.runs.record import (
    HASHED,
    FingerprintParts,
    InitialWeights,
    RunRecord,
    TeacherRun,
)

PACKAGES = (
    "seqcomposer torch pytorch-lightning numpy tokenizers datasets num2words safetensors sacrebleu"
    " wandb"
)
"""Packages that affect a run's result."""

FILTERS = ("max_ratio", "deduplicate", "decontaminate")
"""Settings of `parallel` that decide which of its pairs are trained on."""


def fingerprints(
    recipe_or_run: Recipe | str | Path, data: str | Path | None = None
) -> dict[str, str]:
    """Return the fingerprints of a recipe, or of a run with that of its `weights`, in hexadecimal.

    `model`, `data` and `run` are of what is trained, `recipe` is of the recipe's text, `version` is
    that of fingerprints. Those of a run were recorded when it started; where they are of another
    version they are computed anew, and `data` and `run` are missing where its data are. data: see
    `composer.fingerprints`. Raises RecipeError and DataError, and RunError if a run's files have
    changed since.
    """
    if not isinstance(recipe_or_run, Recipe):
        if Path(recipe_or_run).is_dir():
            return run_fingerprints(RunDir(Path(recipe_or_run)), data)
        recipe_or_run = load(recipe_or_run)
    prints = fingerprint_data(recipe_or_run, recipe_or_run.folders(data))
    return {**prints, "recipe": recipe_or_run.fingerprints["run"], "version": FINGERPRINT_VERSION}


def fingerprint_data(recipe: Recipe, folders: Sequence[Path]) -> dict[str, str]:
    """Return the fingerprints `model`, `data` and `run` of a recipe, with data from these folders.

    Raises DataError with every fault of the files.
    """
    recipe = replace(recipe, data_dir=folders[0])
    pairs = DataSource(recipe, folders).all_pairs()
    data, teacher = data_sha256(recipe, lines_sha256(recipe, pairs)), teacher_run(recipe, folders)
    known = teacher_facts(teacher)
    return of_recipes.fingerprints(recipe.canonical, recipe.rules, data, teacher=known)


def data_sha256(recipe: Recipe, lines: str) -> str:
    """Return the SHA-256 of data: of `lines_sha256`, and of settings that make ids of lines."""
    data = without_defaults(recipe.canonical, recipe.rules)["data"]
    tokenizer = recipe.tokenizer.identity() or data.get("tokenizer")
    columns = {
        side: column
        for side, column in data.get("table", {}).items()
        if feature_settings(recipe.data, side)
    }
    settings = {
        **{key: data.get(key) for key in ("max_length", "lowercase")},
        "tokenizer": tokenizer,
        "prefix": side_prefixes(data, text_names(recipe)),
        # how much of a story is read matters, what else `babi` says does not once the lines are
        # known
        "stories": {
            key: value
            for key, value in data.get("babi", {}).items()
            if key in ("words", "sentences")
        },
        # the lines are those of the first epoch alone
        "endless": data["generate"] if is_endless(recipe) else None,
        "features": {side: {**column, "column": None} for side, column in columns.items()},
        "filters": {
            key: value for key, value in data.get("parallel", {}).items() if key in FILTERS
        },
    }
    return sha256_of(
        {
            "lines": lines,
            **{key: value for key, value in settings.items() if value not in (None, {})},
        }
    )


def lines_sha256(recipe: Recipe, pairs: Mapping[str, Pairs]) -> str:
    """Return the SHA-256 of every line, and every image, of every split, with the weights of lines.

    Raises DataError if a file of an image, a sound or vectors cannot be read.
    """
    digest = hashlib.sha256()
    for split in sorted(pairs):
        for side, lines in pairs[split].columns.items():
            digest.update(f"\n{split} {side} {len(lines)}\n".encode())
            own = lines.content_sha256 if isinstance(lines, Documents) else sha256_of_hashes(lines)
            digest.update(own.encode())
        digest.update(
            json.dumps([list(map(int, facts)) for facts in pairs[split].facts or ()]).encode()
        )
        if (weights := pairs[split].weights) is not None:
            digest.update(weights.data)
    return digest.hexdigest()


def sha256_of_columns(recipe: Recipe, pairs: Pairs) -> dict[str, str]:
    """Return the SHA-256 of each column of pairs: of its lines, or of the files that they name.

    Raises DataError if such a file cannot be read.
    """
    features = {side for side in pairs.sides if feature_settings(recipe.data, side)}
    hashes = {}
    for side, lines in pairs.columns.items():
        hashes[side] = sha256_of_files(lines) if side in features else sha256_of_lines(lines)
    return hashes


def sha256_of_lines(lines: Sequence[str]) -> str:
    """Return the SHA-256 of lines: that of a text file with them, whatever ends its lines.

    Of documents it is that of their texts, whatever file they are in.
    """
    if isinstance(lines, Documents):
        return lines.content_sha256
    digest = hashlib.sha256()
    for chunk in chunks_of(lines):
        text = "".join(f"{line}\n" for line in chunk)
        # JSON can hold lone surrogates, UTF-8 cannot
        digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def initial_weights(run: RunDir) -> InitialWeights:
    """Return the SHA-256 of a run's weights and tokenizer. Raises RunError if it has none."""
    with os_errors_as_run_errors(
        run.path, "cannot start from this run", "name a run that has finished"
    ):
        return InitialWeights(sha256_of_file(run.weights), sha256_of_file(run.tokenizer))


def teacher_run(recipe: Recipe, folders: Sequence[Path]) -> TeacherRun | None:
    """Return the teacher of a recipe; None without one. Raises RunError if it has no weights."""
    folder = find_teacher(recipe, folders)
    if folder is None:
        return None
    known = initial_weights(RunDir(folder))
    return TeacherRun(str(folder), known.weights, known.tokenizer)


def teacher_facts(teacher: TeacherRun | None) -> dict[str, str] | None:
    """Return what a fingerprint counts of a teacher: not where it lies."""
    return {"weights": teacher.weights, "tokenizer": teacher.tokenizer} if teacher else None


def read_verified(run: RunDir) -> RunRecord:
    """Return run.json of a run whose files are those that the training wrote.

    So are own blocks, whose sources were hashed. A file that is not there yet is missed by who
    reads it. Raises RunError.
    """
    record = run.read()
    check_recorded_blocks(record, run.path, is_verifying())
    if is_verifying():
        hashes = {name: (key, getattr(record, key)) for key, name in HASHED.items()}
        hashes |= {
            name: ("hypotheses_sha256", sha256) for name, sha256 in record.hypotheses_sha256.items()
        }
        for name, (key, sha256) in hashes.items():
            path = run.path / Path(name).name
            if os.path.lexists(path) and (difference := _difference(path, key, sha256)):
                resume = f", finish the training with {RESUME}" if not record.is_finished else ""
                fix = (
                    f"take the file from the run again{resume}, or set {UNVERIFIED}=1 to use it as"
                    " it is"
                )
                raise RunError.of(difference, fix, str(path))
    return record


def _difference(path: Path, key: str, sha256: str | None) -> str:
    """Return the difference of a file from the one that `key` of run.json describes, "" if none."""
    try:
        if sha256_of_file(path) == sha256:
            return ""
    except OSError as error:
        return f"this file cannot be read: {os_error_reason(error)}"
    if sha256 is not None:
        return (
            f"this file is not the one that the training wrote: its SHA-256 is not `{key}` of"
            " run.json"
        )
    return (
        f"run.json has no SHA-256 of this file, `{key}`, so nobody can say whether the training"
        " wrote it"
    )


def check_checkpoint(recipe: Recipe, tokenizers: Tokenizers, path: Path) -> None:
    """Raise RunError if a checkpoint is damaged, or has another recipe or tokenizer."""
    content = read_checkpoint(path, mmap=True)
    texts = content.get("hyper_parameters")
    needed = {"state_dict", "optimizer_states", "callbacks", "loops"}
    if (
        not isinstance(texts, dict)
        or not {"recipe", "tokenizer"} <= texts.keys()
        or not content.keys() >= needed
    ):
        raise invalid_checkpoint(path, "it is not what `seqcomposer train` writes")
    if (texts["recipe"], texts["tokenizer"]) == (recipe.dump(), tokenizers.text):
        return
    # both as if they were of the first version: what neither of them says was the same, whatever it
    # was
    other, own = (load_text(text, stored={}) for text in (str(texts["recipe"]), recipe.dump()))
    other_tokenizers = Tokenizers.from_text(str(texts["tokenizer"]))
    remove = "remove this file: the run resumes from the checkpoint before it"
    if not differ_in_budget_alone(other, own):
        differences = describe_differences(result_differences(other, own))
        raise RunError.of(
            f"this checkpoint was made with another recipe: {differences}", remove, str(path)
        )
    if other_tokenizers.sha256 != tokenizers.sha256:
        message = (
            "this checkpoint was made with another tokenizer than the run folder's tokenizer.json"
        )
        raise RunError.of(message, f"restore tokenizer.json as it was, or {remove}", str(path))


def differ_in_budget_alone(one: Recipe, other: Recipe) -> bool:
    """True if two recipes mean the same training, but for its budget."""
    training = {**one.canonical["training"], **other.training.limits}
    prints = of_recipes.fingerprints({**one.canonical, "training": training}, one.rules)
    return prints["run"] == other.fingerprints["run"]


def setting_differences(
    old: object, new: object, path: str = ""
) -> Iterator[tuple[str, object, object]]:
    """Yield path, old and new value of each setting that differs, defaults filled in."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            yield from setting_differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, pair in enumerate(zip(old, new, strict=True)):
            yield from setting_differences(*pair, f"{path}[{at}]")
    elif old != new:
        yield path, old, new


def result_differences(one: Recipe, other: Recipe) -> Iterator[tuple[str, Any, Any]]:
    """Yield those differences of two recipes that forbid to resume: all but the budget."""
    free = (*canonical_form.BUDGET_KEYS, *canonical_form.TRAINING_WITHOUT_EFFECT)
    sections = []
    for recipe in (one, other):
        training = {
            key: value for key, value in recipe.canonical["training"].items() if key not in free
        }
        trainer = {
            key: recipe.canonical["trainer"][key] for key in canonical_form.TRAINER_WITH_EFFECT
        }
        sections.append(
            {
                **recipe.canonical,
                "training": training,
                "trainer": trainer,
                "name": "",
                "logging": {},
            }
        )
    return setting_differences(sections[0], sections[1])


def describe_differences(differences: Iterable[tuple[str, object, object]]) -> str:
    """Return the first few differences in words: `training.seed` was 1 and is 2."""

    def text(value: object) -> str:
        return "unset" if value is None else shorten(str(value), 60, placeholder="...")

    return shorten_list(
        [f"`{path}` was {text(old)} and is {text(new)}" for path, old, new in differences]
    )


def has_current_fingerprints(record: RunRecord) -> bool:
    """True if the fingerprints of a run.json are of this version, and of settings that it has."""
    is_current = (
        record.fingerprints is not None
        and record.fingerprints.get("version") == FINGERPRINT_VERSION
    )
    return is_current and not counts_removed_settings(record.canonical)


def is_recorded(recipe: Recipe, record: RunRecord) -> bool:
    """True if a recipe means the training that a run.json records.

    Where its fingerprints are of another version, only the run's own file does, unchanged and
    without overrides.
    """
    if record.fingerprints is None or not has_current_fingerprints(record):
        is_file = recipe.unchanged is None and recipe.file.is_file()
        return is_file and sha256_of_file(recipe.file) == record.recipe_sha256
    prints = of_recipes.fingerprints(recipe.canonical, recipe.rules, changes=known_changes(record))
    return prints["run"] == record.fingerprints["recipe"]


def known_changes(record: RunRecord) -> list[str]:
    """Return the names of the TRAINING_CHANGES with which a run began; [] if it has none."""
    return [*record.fingerprint_parts.training_changes] if record.fingerprint_parts else []


def run_fingerprints(run: RunDir, data: str | Path | None = None) -> dict[str, str]:
    """Return the fingerprints of a run and its weights. Raises RunError if a file has changed."""
    record = read_verified(run)
    if record.fingerprints is None:
        fix = (
            f"use `seqcomposer fingerprints {run.recipe}`, with `--data DIR` if its files are"
            " elsewhere"
        )
        raise RunError.of(
            "its run.json has no `fingerprints` as a training writes it", fix, str(run.path)
        )
    recipe = load(run.recipe)
    if not is_recorded(recipe, record):
        message = "this recipe is not the one that the run was started with"
        raise RunError.of(message, "put it back as it was", str(run.recipe))
    prints = {**current_fingerprints(recipe, record, data), "version": FINGERPRINT_VERSION}
    if record.weights_sha256 is None:
        return prints
    if not run.weights.is_file():
        raise RunError.of(
            "these weights are not there", "take the file from the run again", str(run.weights)
        )
    return {**prints, "weights": record.weights_sha256}


def current_fingerprints(
    recipe: Recipe, record: RunRecord, data: str | Path | None = None
) -> dict[str, str]:
    """Return a run's fingerprints by this version: the recorded ones, or computed from its record.

    Those of the first version need the data; where these are not there, or several processes
    trained, `data` and `run` are missing. data: where its files are looked up first, by default
    where they were.
    """
    if record.fingerprints is not None and has_current_fingerprints(record):
        return {key: str(value) for key, value in record.fingerprints.items() if key != "version"}
    parts, is_known = record.fingerprint_parts, True
    if parts is None:
        lines = _lines_of_run(recipe, record, data)
        parts = FingerprintParts(lines or "", record.processes)
        is_known = lines is not None and record.processes == 1
    prints = make_fingerprints(recipe, parts, record)
    if record.averaged:
        prints["run"] = averaged_sha256(prints["run"], record)
    return prints if is_known else {key: prints[key] for key in ("model", "recipe")}


def make_fingerprints(recipe: Recipe, parts: FingerprintParts, record: RunRecord) -> dict[str, str]:
    """Return the fingerprints of a run, from its recipe, data lines, and what its record has.

    That is the initial weights, the teacher and the budgets.

    `lines` of the parts are the SHA-256 of the data's lines, "" if unknown, `processes` those that
    count.
    """
    changes, budgets, began = parts.training_changes, record.budgets, record.initial_weights
    is_plain = len(budgets) < 2 and all(budget.until_step is None for budget in budgets)
    data = data_sha256(recipe, parts.lines) if parts.lines else None
    weights = asdict(began) if began else None
    spent = [] if is_plain else [budget.as_dict() for budget in budgets]
    prints = of_recipes.fingerprints(
        recipe.canonical,
        recipe.rules,
        data,
        weights,
        parts.processes,
        spent,
        changes,
        teacher_facts(record.teacher),
    )
    alone = of_recipes.fingerprints(recipe.canonical, recipe.rules, changes=changes)
    return {**prints, "recipe": alone["run"]}


def averaged_sha256(run: str, record: RunRecord) -> str:
    """Return the fingerprint `run` of an average, from that of its training and its checkpoints.

    Nobody trains its weights: it is no training's fingerprint, and that of every average of the
    same checkpoints.
    """
    used = record.checkpoints_used
    return sha256_of({"run": run, "averaged": [*used.checkpoints] if used else None})


def _lines_of_run(recipe: Recipe, record: RunRecord, data: str | Path | None) -> str | None:
    """Return the SHA-256 of the lines that a run was trained on; None if they are gone."""
    recorded = () if data is not None else record.data.folders
    folders = [*map(Path, recorded), *recipe.folders(data)]
    with suppress(DataError):
        pairs = DataSource(replace(recipe, data_dir=folders[0]), folders).all_pairs()
        counts = {split: len(lines) for split, lines in pairs.items()}
        if counts == (record.data.pairs or counts):
            return lines_sha256(recipe, pairs)
    return None


@cache
def versions() -> Mapping[str, str]:
    """Return the versions of Python and of the PACKAGES that this process has imported."""
    known = {"python": platform.python_version()}
    for package in PACKAGES.split():
        with suppress(importlib.metadata.PackageNotFoundError):
            known[package] = importlib.metadata.version(package)
    return known
