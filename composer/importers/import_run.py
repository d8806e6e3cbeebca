"""`import`: a published checkpoint as a run, whose recipe is made of this project's blocks."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import torch

from composer.atomic_io import atomic_directory, require_absent, sha256_of_file
from composer.errors import RunError
from composer.importers.checkpoint import CONFIG, TOKENIZER, Checkpoint, Config, Tensors
from composer.importers.llama import MODEL_TYPES, Llama
from composer.importers.vocabulary import Roles, Vocabulary, read_vocabulary
from composer.model.builder import build
from composer.model.weights import count_parameters, save_weights, set_weights, unique_tensors
from composer.recipe.recipe import load
from composer.run_dir import RUNS, RunDir, utc_now
from composer.runs.record import Imported, RunRecord

FAMILIES = dict.fromkeys(MODEL_TYPES, Llama)
"""The family of a model by `model_type` of its configuration."""
CONSTANTS = r".*\.rotary_emb\.inv_freq"
"""Tensors that some checkpoints store, and that follow from config.json."""
RECIPE = """\
# {name}, imported{license}.
# To train it further, or to evaluate it, name your files under `data`; `tokenizer` is a file of this folder.
recipe: 1
name: {name}

data:
  text: {{train: train.txt, val: val.txt, test: test.txt}}
  tokenizer: {{file: {{path: {tokenizer}}}}}

{model}
training:
  optimizer: {{adamw: {{learning_rate: 1e-5}}}}
  max_epochs: 1
"""


def import_run(folder: Path, output: Path | None = None, source: str = "") -> Path:
    """Write a run with the weights of a checkpoint, and return its folder.

    folder: With config.json, safetensors and a tokenizer. output: By default `runs/NAME`. source:
    Where it is from, for run.json.

    Raises RunError for a checkpoint that is damaged, or that no block can say. Nothing is written
    then.
    """
    checkpoint = Checkpoint(folder)
    config = checkpoint.config
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "imported"
    target = RUNS / name if output is None else output
    require_absent(target)
    family = family_of(config)
    roles = roles_of(checkpoint)
    config.finish()
    rows = config.count("vocab_size")
    vocabulary = read_vocabulary(checkpoint, rows, roles)
    theirs = Tensors(checkpoint)
    weights = family.weights(theirs, vocabulary, rows)
    theirs.finish(CONSTANTS)
    license_ = f" ({checkpoint.license})" if checkpoint.license else ""
    text = RECIPE.format(
        name=name, license=license_, tokenizer=TOKENIZER, model=family.recipe()
    )
    tokenizers = vocabulary.tokenizers(["target"])
    with atomic_directory(target) as draft:
        run = RunDir(draft)
        run.recipe.write_text(text, encoding="utf-8")
        tokenizers.save(run.tokenizer)
        recipe = load(run.recipe)
        model = build(recipe, tokenizers.sizes)
        set_weights(model, weights, unique_tensors(model), folder)
        save_weights(model, run.weights)
        run.write(
            RunRecord(
                name=recipe.name,
                status="finished",
                canonical=recipe.canonical,
                seed=recipe.training.seed,
                started_at=utc_now(),
                ended_at=utc_now(),
                imported=Imported(source or str(folder), checkpoint.sha256, checkpoint.license),
                recipe_sha256=hashlib.sha256(text.encode()).hexdigest(),
                tokenizer_sha256=tokenizers.sha256,
                weights_sha256=sha256_of_file(run.weights),
                vocabularies=tokenizers.sizes,
                parameters=count_parameters(model),
            )
        )
    return target


def family_of(config: Config) -> Llama:
    """Return what a configuration says, read by its family. Raises RunError."""
    kind = config.value("model_type", "")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        config.refuse("model_type", f"no family of these is `{kind}`: {known}")
    return FAMILIES[kind].read(config)


def roles_of(checkpoint: Checkpoint) -> Roles:
    """Return the special ids of a language model. Raises RunError if nothing ends a text."""
    config = checkpoint.config
    generation = checkpoint.optional("generation_config.json")
    values = {**config.values, **{key: value for key, value in generation.items() if value is not None}}
    end = first_id(values, "eos_token_id")
    if end is None:
        config.refuse("eos_token_id", "nothing ends a text")
    start = first_id(values, "bos_token_id")
    return Roles(end if start is None else start, end)


def first_id(values: Mapping[str, object], key: str) -> int | None:
    """Return an id, or the first of several; None if there is none."""
    value = values.get(key)
    if isinstance(value, list) and value:
        value = value[0]
    return value if type(value) is int else None
