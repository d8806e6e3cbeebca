"""What is trained, in three numbers: fingerprints of a recipe's model, of its data, and of all that decides a run.

A recipe says which files it reads (`Recipe.fingerprints`); what is trained are the lines in them. So here a file counts
by what is read from it, whatever it is called, wherever it lies and however its lines end, and generated pairs, tables
and data sets of the hub count as files with the same lines do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.atomic_io import sha256_of_file
from composer.data.sources import DataSource, Pairs, is_endless
from composer.errors import RunError, os_error_reason
from composer.recipe import defaults
from composer.recipe.recipe import Recipe, load
from composer.run_dir import RunDir

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK = 10_000  # lines that are hashed at once
DATA_SETTINGS = ("tokenizer", "max_length", "lowercase")
"""What of `data` decides whatever the lines are."""

InitialWeights = Mapping[str, str]
"""What a run begins with: SHA-256 of `weights` and of `tokenizer`."""


def fingerprints(what: Recipe | str | Path, data: str | Path | None = None) -> dict[str, str]:
    """The fingerprints of a recipe, or of a run with those of its `weights`, in hexadecimal.

    `model`, `data` and `run` are of what is trained, its data read from `data` or from beside the recipe; `says` is of
    what the recipe says, in which a file counts by its name. Those of a run are the ones it was begun with.

    Raises RecipeError, DataError, or RunError where a run's files are not what it has left.
    """
    if not isinstance(what, Recipe):
        if Path(what).is_dir():
            return run_fingerprints(RunDir(Path(what)))
        what = load(what)
    return fingerprint_data(what, what.folders(data)) | {"says": what.fingerprints["run"]}


def fingerprint_data(recipe: Recipe, folders: Sequence[Path], began: InitialWeights | None = None) -> dict[str, str]:
    """The fingerprints `model`, `data` and `run` of what a recipe trains, with data files from these folders.

    Raises DataError with all that is wrong with the files.
    """
    return fingerprint_pairs(recipe, DataSource(recipe, folders).all_pairs(), began)


def fingerprint_pairs(
    recipe: Recipe, pairs: Mapping[str, Pairs], began: InitialWeights | None = None
) -> dict[str, str]:
    """As `identity`, of pairs that are open."""
    return defaults.fingerprints(recipe.frozen, data_sha256(recipe, pairs), dict(began) if began else None)


def data_sha256(recipe: Recipe, pairs: Mapping[str, Pairs]) -> str:
    """The fingerprint of the lines of every side of every split, and of how they become ids."""
    found = hashlib.sha256(json.dumps(data_settings(recipe), sort_keys=True).encode())
    for split in sorted(pairs):
        for side, lines in pairs[split].sides.items():
            found.update(f"\n{split} {side} {len(lines)}\n".encode())
            for at in range(0, len(lines), CHUNK):
                # JSON can write halves of characters, which UTF-8 cannot
                found.update("".join(f"{line}\n" for line in lines[at : at + CHUNK]).encode("utf-8", "surrogatepass"))
        found.update(json.dumps([list(map(int, each)) for each in pairs[split].facts or ()]).encode())
    return found.hexdigest()


def data_settings(recipe: Recipe) -> dict[str, Any]:
    """What of the section `data` decides, once the lines are known.

    Of an endless task only the first epoch's lines are known, and of a story not how much of it is read.
    """
    data = recipe.dataset
    stories = {key: data["babi"][key] for key in ("words", "sentences")} if data.get("babi") else None
    return {
        **{key: data[key] for key in DATA_SETTINGS},
        "stories": stories,
        "endless": data["generate"] if is_endless(recipe) else None,
    }


# ------------------------------------------------------------------------------------------- runs


def initial_weights(run: RunDir) -> InitialWeights:
    """What a run begins with that starts from this one. Raises RunError where it has no weights or no tokenizer."""
    try:
        return {"weights": sha256_of_file(run.weights), "tokenizer": sha256_of_file(run.tokenizer)}
    except OSError as error:
        raise RunError.of(
            f"this cannot be started from: {os_error_reason(error)}",
            "name a run that has finished",
            str(error.filename or run.path),
        ) from None


def run_fingerprints(run: RunDir) -> dict[str, str]:
    """The fingerprints in a run.json, and that of the weights. Raises RunError where the files are others by now."""
    record = run.read()
    known = record.get("fingerprints")
    if not isinstance(known, dict) or "says" not in known:
        fix = f"say `seqcomposer fingerprints {run.recipe}`, with `--data DIR` if its files are elsewhere"
        raise RunError.of(
            "its run.json is of an older version and knows nothing of what is in its data", fix, str(run.path)
        )
    if known["says"] != load(run.recipe).fingerprints["run"]:
        made_by = (record.get("versions") or {}).get("seqcomposer")
        raise RunError.of(
            "this recipe is not the one that the run was begun with, or this version reads it otherwise",
            f"put it back as it was, or use seqcomposer {made_by}",
            str(run.recipe),
        )
    if record.get("weights") is None:
        return dict(known)
    if not run.weights.is_file() or sha256_of_file(run.weights) != record["weights"]:
        raise RunError.of(
            "these weights are not those that the training has left",
            "take the file from the run again",
            str(run.weights),
        )
    return {**known, "weights": record["weights"]}
