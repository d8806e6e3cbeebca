"""Share of real tokens in an epoch: `python benchmarks/padding.py RECIPE --data DIR [--tokens 1200 4096]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from composer.data.encoding import load_data
from composer.data.sampler import TrainBatchSampler, fill_ratio
from composer.recipe.recipe import load


def main() -> None:
    """Print the share of every side and of all positions, for every batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tokens", type=int, nargs="*", help="batch sizes in tokens; by default the recipe's")
    options = parser.parse_args()
    recipe = load(options.recipe)
    train = load_data(recipe, recipe.folders(options.data), wanted=["train"]).train
    for budget in options.tokens or [recipe.training["tokens_per_batch"]]:
        batches = TrainBatchSampler(train, tokens_per_batch=budget, seed=recipe.training["seed"]).batches()
        shares = ", ".join(f"{side} {share:.2%}" for side, share in fill_ratio(train, batches).items())
        print(f"{budget} tokens per batch: {len(batches)} batches; real tokens: {shares}")


if __name__ == "__main__":
    main()
