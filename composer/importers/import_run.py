"""`import`: a published checkpoint as a run, whose recipe is made of this project's blocks."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from composer.atomic_io import (
    atomic_directory,
    os_errors_as_run_errors,
    require_absent,
    sha256_of_file,
)
from composer.errors import RunError
from composer.hub.listing import DEFAULT_MAX_GIB, GIB, check_limit
from composer.hub.remotes import HubReference, LocalReference, parse_reference
from composer.importers.bart import Bart
from composer.importers.bert import Bert
from composer.importers.checkpoint import TOKENIZER, Checkpoint, Tensors, is_read
from composer.importers.family import Family
from composer.importers.gpt2 import Gpt2
from composer.importers.llama import Llama
from composer.importers.t5 import T5
from composer.importers.vocabulary import read_vocabulary
from composer.importers.whisper import Whisper
from composer.inference.encoders import ENCODER, open_encoder
from composer.model.builder import build
from composer.model.weights import count_parameters, save_weights, set_weights, unique_tensors
from composer.recipe.recipe import Recipe, load, load_text
from composer.run_dir import RUNS, RunDir, utc_now
from composer.runs.record import Imported, RunRecord

FAMILIES: Mapping[str, type[Family]] = {
    kind: family for family in (Llama, Bart, T5, Gpt2, Bert, Whisper) for kind in family.model_types
}
"""The family of a model by `model_type` of its configuration."""
FIX = "write `hub:OWNER/NAME[@REVISION]`, or the path of a folder with config.json"
RECIPE = """\
# {name}, a {kind} model{license}. To train it further, or to evaluate it, name your files here.
recipe: 1
name: {name}

data:
{data}  tokenizer: {{file: {{path: {tokenizer}}}}}
{prefix}
{model}
training:
  optimizer: {{adamw: {{learning_rate: 1e-5}}}}
  max_epochs: 1
"""


def import_model(
    ref: str | Path, output: str | Path | None = None, max_gib: float = DEFAULT_MAX_GIB
) -> Path:
    """Import a published model as a run of this project's blocks; return the new folder.

    Args:
        ref: A folder with config.json, safetensors and a tokenizer, or `hub:OWNER/NAME[@REVISION]`.
        output: By default `runs/NAME`.
        max_gib: Largest download, in GiB.

    No code of the model is run. Raises RunError for what is damaged, and for what no block can say;
    nothing is written then.
    """
    target = None if output is None else Path(output)
    reference = parse_reference(str(ref))
    if isinstance(reference, LocalReference):
        return import_run(Path(ref), target, os.path.abspath(ref))
    if not isinstance(reference, HubReference):
        raise RunError.of("a model is imported from a folder or the hub", FIX, str(reference))
    name = reference.name.rpartition("/")[2]
    with (
        os_errors_as_run_errors(str(reference)),
        tempfile.TemporaryDirectory(prefix="seqcomposer-") as temporary,
    ):
        folder = Path(temporary, name)
        pinned = download(reference, folder, int(max_gib * GIB))
        return import_run(folder, target, pinned)


def download(reference: HubReference, folder: Path, max_bytes: int) -> str:
    """Download what is read of a checkpoint; return the reference to this commit."""
    with reference.service_errors():
        revision, members = reference.listed(folder, max_bytes)
        names = [name for name in members if is_read(name)]
        check_limit([members[name] for name in names], max_bytes, str(reference))
        pinned = replace(reference, revision=revision)
        pinned.fetch(names, folder, max_bytes)
    return str(pinned)


def import_run(folder: Path, output: Path | None = None, source: str = "") -> Path:
    """Write a run with the weights of a checkpoint, and return its folder.

    folder: With config.json, safetensors and a tokenizer. output: By default `runs/NAME`. source:
    Where it is from, for run.json.

    Raises RunError for a checkpoint that is damaged, or that no block can say. Nothing is written
    then.
    """
    checkpoint = Checkpoint(folder)
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "imported"
    target = RUNS / name if output is None else output
    require_absent(target)
    family = family_of(checkpoint)
    rows = checkpoint.config.count("vocab_size")
    vocabulary = read_vocabulary(checkpoint, rows, family.roles(checkpoint))
    theirs = Tensors(checkpoint)
    weights = family.weights(theirs, vocabulary, rows)
    theirs.finish(family.constants, family.left_out)
    tokenizers = vocabulary.tokenizers(family.sides, family.prefixes())
    record = RunRecord(
        name=name,
        status="finished",
        started_at=utc_now(),
        ended_at=utc_now(),
        imported=Imported(source or str(folder), checkpoint.sha256, checkpoint.license),
        tokenizer_sha256=tokenizers.sha256,
        vocabularies=tokenizers.sizes,
    )
    with atomic_directory(target) as draft:
        run = RunDir(draft)
        tokenizers.save(run.tokenizer)
        if family.is_encoder_alone:
            (draft / ENCODER).write_text(encoder_text(checkpoint, family, name), encoding="utf-8")
            save_file(weights, run.weights)
        else:
            record = write_model(run, recipe_text(checkpoint, family, name), weights, record)
        run.write(replace(record, weights_sha256=sha256_of_file(run.weights)))
        if family.is_encoder_alone:
            open_encoder(draft)  # which compares weights and recipe
    return target


def write_model(
    run: RunDir, text: str, weights: Mapping[str, Tensor], record: RunRecord
) -> RunRecord:
    """Write recipe and weights of a run; return run.json with what they say."""
    run.recipe.write_text(text, encoding="utf-8")
    recipe = load(run.recipe)
    model = build(recipe, record.vocabularies)
    set_weights(model, weights, unique_tensors(model), run.weights)
    save_weights(model, run.weights)
    return replace(
        record,
        canonical=recipe.canonical,
        seed=recipe.training.seed,
        recipe_sha256=hashlib.sha256(text.encode()).hexdigest(),
        parameters=count_parameters(model),
    )


def family_of(checkpoint: Checkpoint) -> Family:
    """Return what a configuration says, read by its family. Raises RunError."""
    config = checkpoint.config
    kind = config.value("model_type", "")
    if kind not in FAMILIES:
        config.refuse("model_type", f"`{kind}` is none of {', '.join(sorted(FAMILIES))}")
    family = FAMILIES[kind].read(config)
    config.finish()
    return family


def recipe_of(family: Family, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe with the model of a family."""
    return load_text(filled(family, "model", "", ""), overrides=overrides)


def recipe_text(checkpoint: Checkpoint, family: Family, name: str) -> str:
    """Return the recipe of a checkpoint as YAML."""
    kind = checkpoint.config.value("model_type", "")
    license_ = f" ({checkpoint.license})" if checkpoint.license else ""
    return filled(family, name, kind, license_)


def encoder_text(checkpoint: Checkpoint, family: Family, name: str) -> str:
    """Return the fragment of an encoder as YAML."""
    license_ = f" ({checkpoint.license})" if checkpoint.license else ""
    head = f"# The encoder {name}{license_}: extend it, and train with `--from` this folder.\n"
    data = f"data:\n  tokenizer: {{file: {{path: {TOKENIZER}}}}}\n{prefix_line(family)}\n"
    return f"{head}{data}{family.recipe()}"


def prefix_line(family: Family) -> str:
    """Return the line of the section `data` that says what lines begin with; "" for none."""
    listed = ", ".join(f'{side}: "{text}"' for side, text in family.prefixes().items())
    return f"  prefix: {{{listed}}}\n" if listed else ""


def filled(family: Family, name: str, kind: str, license_: str) -> str:
    """Return the template of a recipe, filled in."""
    return RECIPE.format(
        name=name,
        kind=kind,
        license=license_,
        data=family.data(),
        tokenizer=TOKENIZER,
        prefix=prefix_line(family),
        model=family.recipe(),
    )
