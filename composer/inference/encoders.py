"""An imported encoder: a folder with a fragment of a recipe, weights and a tokenizer.

It is no run, since nothing reads it yet: recipes extend `encoder.yaml`, and `train --from` takes
its weights.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from composer.data.tokenizer import Tokenizers
from composer.fingerprint import read_verified
from composer.inference.run import Run
from composer.model.builder import build
from composer.model.weights import read_weights, set_weights, unique_tensors
from composer.recipe.recipe import load_text
from composer.run_dir import RunDir

ENCODER = "encoder.yaml"
RECIPE = f"""\
recipe: 1
extends: {ENCODER}
data: {{parallel: {{train: {{source: train.source, target: train.target}}}}}}
model: {{decoder: [cross_attention]}}
training: {{max_steps: 1}}
"""
"""The least recipe that has an encoder."""
WEIGHTS = "encoders."
"""What the names of an encoder's tensors begin with."""


def is_encoder(folder: Path) -> bool:
    """True for the folder of an imported encoder."""
    return (folder / ENCODER).is_file()


def open_encoder(folder: Path) -> Run:
    """Return an imported encoder as a run whose model has nothing else. Raises RunError."""
    run = RunDir(folder)
    read_verified(run)
    recipe, tokenizers = load_text(RECIPE, run.recipe), Tokenizers.load(run.tokenizer)
    model = build(recipe, {**tokenizers.sizes, "target": tokenizers.sizes["source"]})
    own = {
        name: tensor for name, tensor in unique_tensors(model).items() if name.startswith(WEIGHTS)
    }
    set_weights(model, read_weights(run.weights), own, run.weights)
    model.embedding = None
    model.decoder = model.output = nn.Module()  # type: ignore[assignment]
    return Run(run, recipe, tokenizers, model.eval())
