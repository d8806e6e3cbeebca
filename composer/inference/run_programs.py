"""The programs of a run: in a folder, or in the user's cache, where they are made once."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import os
import shutil
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

import blocks
import composer.model
import composer.programs
from composer.atomic_io import (
    atomic_directory,
    cache_dir,
    parse_json,
    read_text,
    sha256_of_file,
)
from composer.data.cache_entries import locked_entry
from composer.errors import RecipeError, RunError
from composer.inference.lines import write_note
from composer.inference.methods import Beam, Greedy
from composer.inference.run import Run
from composer.model.ctc import JointModel
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.machine import PROGRAMS
from composer.programs.files import write_programs
from composer.programs.graphs import NotExportable
from composer.programs.parts import Signature
from composer.recipe.choices import Decoder
from composer.recipe.registry import OWN

FOLDER = "programs"
"""The folder of the cache."""
HASHES = "hashes.json"
"""SHA-256 of the other files of a folder."""


def cached_programs(run: Run, decoding: Decoder) -> Path:
    """Return the folder of a run's programs in the cache. Raises RunError and RecipeError."""
    folder = cache_dir() / FOLDER / program_key(run, weighted(run.model, decoding))
    if not is_whole(folder):
        with locked_entry(folder):
            if not is_whole(folder):  # nor has the process that was waited for made them
                shutil.rmtree(folder, ignore_errors=True)
                write_note("making the programs of this model for onnxruntime, once ...")
                with atomic_directory(folder) as draft:
                    write_run_programs(run, decoding, draft)
                    hashes = {file.name: sha256_of_file(file) for file in draft.iterdir()}
                    (draft / HASHES).write_text(json.dumps(hashes), encoding="utf-8")
    with suppress(OSError):  # of a cache that others made
        os.utime(folder)
    return folder


def is_whole(folder: Path) -> bool:
    """Return whether a folder of the cache has its files as they were written."""
    try:
        hashes = parse_json(read_text(folder / HASHES))
        return all(sha256_of_file(folder / name) == sha256 for name, sha256 in hashes.items())
    except (OSError, RunError, ValueError, AttributeError):
        return False


def write_run_programs(
    run: Run, decoding: Decoder, folder: Path, int8: bool = False, attention: bool = False
) -> dict[str, Signature]:
    """Write the programs of a run's model. Raises RecipeError, or RunError without a place."""
    model = copy.deepcopy(weighted(run.model, decoding)).cpu().float().eval()
    try:
        return write_programs(model, folder, int8, attention)
    except NotExportable as problem:
        message = f"this cannot be exported: {problem}"
        fix = "export a model without it, or decode with this project and `engine: torch`"
        if not problem.path:
            raise RunError.of(message, fix, str(run.run_dir.path)) from problem
        fault = run.recipe.fault("export", problem.path, message, fix)
        raise RecipeError([fault]) from problem


def weighted(model: EncoderDecoder, decoding: Decoder) -> EncoderDecoder:
    """Return the model with the weight of CTC that a decoding has."""
    if isinstance(decoding, Greedy | Beam) and decoding.ctc_weight is not None:
        return model.with_ctc_weight(decoding.ctc_weight)
    return model


def program_key(run: Run, model: EncoderDecoder) -> str:
    """Return the hash of what decides the programs of a model: its recipe, weights and code."""
    decides = {
        "model": run.recipe.canonical["model"],
        "ctc": model.weight if isinstance(model, JointModel) else type(model).__name__,
        "begins_after_end": model.begins_after_end,
        "code": [*code_identity(), *hashes_of_classes(model)],
    }
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode())
    tensors = {**model.state_dict(), **dict(model.named_buffers())}
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {[*tensor.shape]}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


@cache
def code_identity() -> list[str]:
    """Return the hash of the code of blocks, models and programs, and versions of libraries."""
    digest = hashlib.sha256()
    for package in (blocks, composer.model, composer.programs):
        for file in sorted(Path(package.__path__[0]).rglob("*.py")):
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return [digest.hexdigest(), *map(version, ("torch", *PROGRAMS))]


def hashes_of_classes(model: EncoderDecoder) -> list[str]:
    """Return the hashes of the files of a model's classes, and of the blocks of this process."""
    files = {inspect.getsourcefile(kind) for kind in set(map(type, model.modules()))}
    libraries = Path(torch.__file__).parent
    hashes = sorted(own.sha256 for own in OWN.values())
    for name in sorted(filter(None, files)):
        file = Path(name)
        if file.is_file() and not file.is_relative_to(libraries):
            hashes.append(hashlib.sha256(file.read_bytes()).hexdigest())
    return hashes
