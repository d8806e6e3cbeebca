"""Weights of another run as the initial ones (`--from`), for blocks that are the same."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blocks.core.contract import Path as BlockPath
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.inference.run import Run
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.parameter_paths import Owner, module_owners
from composer.model.weights import initialize, shapes, unique_tensors
from composer.recipe.recipe import Recipe
from composer.recipe.tree import match_trees, stack_trees


@dataclass(frozen=True)
class Transfer:
    """Parameters taken from another run, and new ones, counted by the paths of blocks."""

    taken: Mapping[str, int]
    new: Mapping[str, int]
    has_own_tokenizer: bool

    def describe(self) -> list[str]:
        """Return in lines how much was taken, and each block that starts anew."""
        taken, new = sum(self.taken.values()), sum(self.new.values())
        if not new:
            return []
        reason = ""
        if self.has_own_tokenizer:
            reason = "; its tokenizer is another, so embeddings and output do"
        width = max(map(len, self.new))
        return [
            f"{taken:,} of {taken + new:,} parameters have its weights; these start anew{reason}:",
            *(f"    {path:<{width}}  {count:>12,}" for path, count in self.new.items()),
        ]


def transfer_weights(
    recipe: Recipe, tokenizers: Tokenizers, model: EncoderDecoder, source: Run
) -> Transfer:
    """Load the weights of the run `source` into blocks that `diff` calls the same.

    Embeddings and output are taken where the tokenizer is the same. If anything starts anew, the
    model is initialized first as the recipe says. Raises RunError if no weights fit.
    """
    known, own = source.tokenizers.with_prefixes({}), tokenizers.with_prefixes({})
    is_same = own.sha256 == known.sha256 or recipe.tokenizer.is_extendable
    source_tensors = owned_tensors(source.recipe, source.model)
    source_paths = matched_paths(source.recipe, recipe)
    # tied tensors have one storage, which counts once
    sizes = {tensor.data_ptr(): tensor.numel() for tensor in unique_tensors(model).values()}
    copies: list[tuple[Tensor, Tensor]] = []
    taken, new = Counter[str](), Counter[str]()
    for owner, tensors in owned_tensors(recipe, model).items():
        weights: Mapping[str, Tensor] = {}
        if owner.is_block:
            origin = Owner(source_paths.get(owner.path, ()), owner.copy)
            weights = source_tensors.get(origin, {})
        elif is_same:
            weights = source_tensors.get(owner, {})
        size = sum(sizes.pop(tensor.data_ptr(), 0) for tensor in tensors.values())
        if shapes(weights) == shapes(tensors):
            copies += [(tensor, weights[name]) for name, tensor in tensors.items()]
            taken[owner.text(recipe)] += size
        else:
            new[owner.text(recipe)] += size
    if not taken:
        message = "these weights do not fit the model: no block has the same shapes"
        fix = "use blocks of the same shapes; `seqcomposer diff` compares the two models"
        raise RunError.of(message, fix, str(source.run_dir.weights))
    if new:
        initialize(model, recipe.training.initialization)
    with torch.no_grad():
        for tensor, weight in copies:
            tensor.copy_(weight)
    return Transfer(taken, new, not is_same)


def owned_tensors(recipe: Recipe, model: EncoderDecoder) -> dict[Owner, dict[str, Tensor]]:
    """Return the tensors of a model's state by their owner, and by their names in it."""
    owners, prefixes = module_owners(recipe, model), dict[Owner, str]()
    for name, owner in owners.items():
        prefixes.setdefault(owner, name)
    tensors: defaultdict[Owner, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in model.state_dict().items():
        owner = owners[name.rpartition(".")[0]]
        tensors[owner][name.removeprefix(prefixes[owner])] = tensor
    return tensors


def matched_paths(old: Recipe, new: Recipe) -> dict[BlockPath, BlockPath]:
    """Return the path in `old` of each block of `new` that is the same block, as `diff` sees it."""
    old_trees, new_trees = stack_trees(old), stack_trees(new)
    paths = {}
    for key in old_trees.keys() & new_trees.keys():
        for before, after in match_trees(old_trees[key], new_trees[key]):
            if (before.kind, before.word) == (after.kind, after.word):
                paths[after.path] = before.path
    return paths
