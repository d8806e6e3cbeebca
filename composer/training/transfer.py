"""Initial weights from another run (`--from`): of the same architecture, or of another one as far as its blocks fit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from blocks.core.contract import Path
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.inference.run import Run
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.parameter_paths import Owner, module_owners
from composer.model.weights import initialize, shapes, unique_tensors
from composer.recipe.recipe import Recipe
from composer.recipe.tree import match_trees, stack_trees


class Transfer(NamedTuple):
    """Parameters that were taken from another run, and those that start anew, counted by the paths of their blocks."""

    taken: Mapping[str, int]
    new: Mapping[str, int]
    has_own_tokenizer: bool

    def describe(self) -> list[str]:
        """Return in lines what was taken, and each block that starts anew."""
        taken, new = sum(self.taken.values()), sum(self.new.values())
        if not new:
            return []
        reason = "; its tokenizer is another, so embeddings and output do" if self.has_own_tokenizer else ""
        width = max(map(len, self.new))
        rows = [f"    {path:<{width}}  {count:>12,}" for path, count in self.new.items()]
        return [f"{taken:,} of {taken + new:,} parameters have its weights; these start anew{reason}:", *rows]


def transfer_weights(recipe: Recipe, tokenizers: Tokenizers, model: EncoderDecoder, other: Run) -> Transfer:
    """Load the weights of another run into the blocks that `diff` calls the same, if all their shapes are.

    Embeddings and output are taken where the tokenizer is the same. If anything starts anew, the model is initialized
    first as the recipe says. Raises RunError if no weights fit.
    """
    is_same = tokenizers.sha256 == other.tokenizers.sha256 or recipe.tokenizer.is_extendable
    theirs, origins = owned_tensors(other.recipe, other.model), matched_paths(other.recipe, recipe)
    unique = {tensor.data_ptr(): tensor.numel() for tensor in unique_tensors(model).values()}
    pairs: list[tuple[Tensor, Tensor]] = []
    counts = (Counter[str](), Counter[str]())  # of what starts anew, and of what is taken
    for owner, tensors in owned_tensors(recipe, model).items():
        origin = Owner(origins.get(owner.path, ()), owner.copy) if owner.is_block else owner
        weights = theirs.get(origin, {}) if owner.is_block or is_same else {}
        fits = shapes(weights) == shapes(tensors)
        pairs += [(tensor, weights[name]) for name, tensor in tensors.items()] if fits else []
        counts[fits][owner.text(recipe)] += sum(unique.pop(tensor.data_ptr(), 0) for tensor in tensors.values())
    new, taken = counts
    if not taken:
        message = "these weights do not fit the model: no block is there that has the same shapes"
        fix = "use blocks of the same shapes; `seqcomposer diff` compares the two models"
        raise RunError.of(message, fix, str(other.run_dir.weights))
    if new:
        initialize(model, recipe.training["initialization"])
    with torch.no_grad():
        for tensor, weight in pairs:
            tensor.copy_(weight)
    return Transfer(taken, new, not is_same)


def owned_tensors(recipe: Recipe, model: EncoderDecoder) -> dict[Owner, dict[str, Tensor]]:
    """Return the tensors of a model's state by what they belong to, and by their names in it."""
    owners, first = module_owners(recipe, model), dict[Owner, str]()
    for name, owner in owners.items():
        first.setdefault(owner, name)
    tensors: defaultdict[Owner, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in model.state_dict().items():
        owner = owners[name.rpartition(".")[0]]
        tensors[owner][name.removeprefix(first[owner])] = tensor
    return tensors


def matched_paths(one: Recipe, other: Recipe) -> dict[Path, Path]:
    """Return the path in `one` of each block of `other` that is the same block, as `diff` sees it."""
    trees, others = stack_trees(one), stack_trees(other)
    pairs = [pair for key in trees.keys() & others.keys() for pair in match_trees(trees[key], others[key])]
    return {new.path: old.path for old, new in pairs if old.kind == new.kind and old.word == new.word}
