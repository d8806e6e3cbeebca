"""Blocks in the place of an attention: the loss soon after, with its projections and with new ones.

A small Transformer is trained on number words. Then every self-attention of its encoder and decoder
gives way to a recurrent mixer, and each mixer is trained for a few steps twice: with the
projections of the attention, as `--from` copies them, and with new ones in their place.

    python -m verify.surgery [--steps 20] [--mixer retention ...]
"""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from composer.recipe.recipe import Recipe, load
from composer.training import transfer
from composer.training.train import train

RECIPE = """
recipe: 1
name: source
data:
  generate: {number_words: {}}
  tokenizer: {char: {joint: true}}
model:
  width: 64
  residual: {norm: pre}
  cross_attention: {heads: 4}
  feed_forward: {hidden: 256}
  encoder:
    - positions
    - repeat: {times: 2, stack: [residual: [MIXER], residual: [feed_forward]]}
    - norm
  decoder:
    - positions
    - repeat:
        times: 2
        stack: [residual: [MIXER], residual: [cross_attention], residual: [feed_forward]]
    - norm
training:
  optimizer: {adam: {learning_rate: 1e-3}}
  tokens_per_batch: 1500
  clip_norm: 1.0
  max_steps: STEPS
  validate_every: STEPS
  validation_sample: {lines: 0}
  seed: SEED
trainer: {enable_progress_bar: false}
logging: {wandb: false}
"""
ATTENTION = "self_attention: {heads: 4}"
MIXERS = {
    "linear_attention": "linear_attention: {heads: 4}",
    "gated_linear_attention": "gated_linear_attention: {heads: 4, state: 16}",
    "retention": "retention: {heads: 4, head_width: 16}",
    "delta_net": "delta_net: {heads: 4}",
    "gated_delta_net": "gated_delta_net: {heads: 4}",
}
"""Each mixer with heads as wide as those of the attention."""
SOURCE_STEPS = 400


def recipe_with(mixer: str, steps: int, folder: Path, seed: int = 1) -> Recipe:
    """Return the recipe with a block in the place of every self-attention."""
    file = folder / "source.yaml"
    text = RECIPE.replace("MIXER", mixer).replace("STEPS", str(steps))
    file.write_text(text.replace("SEED", str(seed)), encoding="utf-8")
    return load(file)


def val_loss(recipe: Recipe, run: Path, source: Path | None = None) -> float:
    """Train a recipe in silence, and return its validation loss at the end."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        loss = train(recipe, run, start_from=source).scores["val/loss"]
    assert loss is not None
    return loss


def losses_after_surgery(mixer: str, steps: int, source: Path, folder: Path) -> tuple[float, float]:
    """Return the loss with the projections of the attention, and with new ones."""
    recipe = recipe_with(mixer, steps, folder)
    name = f"{mixer.partition(':')[0]}-{steps}"
    inherited = val_loss(recipe, folder / f"{name}-inherited", source)
    with patch.object(transfer, "projections_of", lambda *blocks: {}):
        fresh = val_loss(recipe, folder / f"{name}-fresh", source)
    return inherited, fresh


def main() -> None:
    """Print a table of both losses."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="*", default=[5, 20, 100])
    parser.add_argument("--mixer", nargs="*", default=[*MIXERS], choices=MIXERS)
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "source"
        loss = val_loss(recipe_with(ATTENTION, SOURCE_STEPS, folder), source)
        print(f"self_attention, {SOURCE_STEPS} steps: {loss:.3f}", flush=True)
        print(f"{'mixer':<24}{'steps':>6}{'inherited':>12}{'new':>8}")
        for mixer in arguments.mixer:
            for steps in arguments.steps:
                losses = losses_after_surgery(MIXERS[mixer], steps, source, folder)
                print(f"{mixer:<24}{steps:>6}{losses[0]:>12.3f}{losses[1]:>8.3f}", flush=True)


if __name__ == "__main__":
    main()
