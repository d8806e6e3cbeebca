"""Sharing: pack a run as one file, and translate, check and train with it somewhere else."""

from pathlib import Path

import composer

BASE = Path(__file__).with_name("recipe.yaml")

recipe = composer.load(BASE)
composer.train(recipe, run="runs/copy")

# the pack has recipe, weights, tokenizer, scores and hashes, and a card for people; no code
pack = composer.pack("runs/copy", output="copy.tar", license="mit")
print(f"{pack}: {pack.stat().st_size:,} bytes")

# a path here; git, the Hugging Face hub and W&B look the same: docs/sharing.md
pulled = composer.pull(str(pack), output="runs/from-a-colleague")
run = composer.open_run(pulled)
print(run.translate(["a b c d"]))

# whoever has the fingerprints of a recipe knows that it is the same one
assert composer.fingerprints(pulled) == composer.fingerprints("runs/copy")

# training the pulled recipe again says whether the weights are the same to the last bit
again = composer.train(Path(pulled) / "recipe.yaml", run="runs/again")
print(again.record.reproduces)
