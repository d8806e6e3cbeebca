"""Share of real tokens in an epoch: `python -m benchmarks.padding RECIPE --data DIR [--tokens 1200
4096]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from composer.data.encoding import load_data
from composer.data.ids import Encoded
from composer.data.sampler import TrainBatchSampler
from composer.recipe.recipe import load


def fill_ratio(encoded: Encoded, batches: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the share of real tokens among the positions of these batches, of every side by name
    and of `all`.
    """
    real: dict[str, int] = {}
    padded: dict[str, int] = {}
    for side, ids in encoded.sides.items():
        lengths = ids.positions()
        real[side] = int(np.count_nonzero(ids.values) if ids.is_story else lengths.sum())
        padded[side] = sum(len(rows) * int(lengths[rows].max()) for rows in batches)
    ratios = {side: real[side] / padded[side] for side in real}
    return {**ratios, "all": sum(real.values()) / sum(padded.values())}


def main() -> None:
    """Print the share of every side and of all positions, for every batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument(
        "--tokens", type=int, nargs="*", help="batch sizes in tokens; by default the recipe's"
    )
    options = parser.parse_args()
    recipe = load(options.recipe)
    train = load_data(recipe, recipe.folders(options.data), wanted=["train"]).train
    for budget in options.tokens or [recipe.training.tokens_per_batch]:
        batches = TrainBatchSampler(
            train, tokens_per_batch=budget, seed=recipe.training.seed
        ).batches()
        shares = ", ".join(
            f"{side} {share:.2%}" for side, share in fill_ratio(train, batches).items()
        )
        print(f"{budget} tokens per batch: {len(batches)} batches; real tokens: {shares}")


if __name__ == "__main__":
    main()
