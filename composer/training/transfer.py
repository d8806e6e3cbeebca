"""Weights of another run as the initial ones (`--from`), for blocks that are the same.

A block in the place of an attention begins with the projections of the attention that fit, as in
T2R (Kasai et al. 2021, arXiv 2103.13076), LoLCATs (Zhang et al. 2024, arXiv 2410.10254) and the
Mamba in the Llama (Wang et al. 2024, arXiv 2408.15237, section 3.1).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from blocks.core.contract import Block
from blocks.core.contract import Path as BlockPath
from composer.data.pairs import TARGET
from composer.data.tokenizer import Tokenizers
from composer.errors import RunError
from composer.inference.run import Run
from composer.model.builder import encoder_stacks
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.parameter_paths import Owner, module_owners
from composer.model.weights import initialize, shapes, unique_tensors
from composer.recipe.recipe import Recipe
from composer.recipe.tree import TreeNode, match_trees, stack_trees
from composer.runs.record import Transferred

ATTENTION = "self_attention"
"""The block whose projections go to the block in its place."""
Copies = list[tuple[Tensor, Tensor]]
"""Tensors of a model, each with the values that it takes over."""


@dataclass(frozen=True)
class Transfer:
    """Parameters taken from another run, and new ones, counted by the paths of blocks.

    from_attention: What blocks in the place of an attention took from it: `query`, `key`, `value`,
    `output`.
    """

    taken: Mapping[str, int]
    new: Mapping[str, int]
    from_attention: Mapping[str, tuple[str, ...]]
    has_own_tokenizer: bool

    def record(self) -> Transferred:
        """Return `transferred` of run.json."""
        return Transferred(self.taken, self.new, self.from_attention)

    def describe(self) -> list[str]:
        """Return in lines how much was taken, from which attention, and what starts anew."""
        taken, new = sum(self.taken.values()), sum(self.new.values())
        lines = []
        if new:
            reason = ""
            if self.has_own_tokenizer:
                reason = "; its tokenizer is another, so embeddings and output do"
            width = max(map(len, self.new))
            total = f"{taken:,} of {taken + new:,}"
            lines = [
                f"{total} parameters have its weights; these start anew{reason}:",
                *(f"    {path:<{width}}  {count:>12,}" for path, count in self.new.items()),
            ]
        if self.from_attention:
            width = max(map(len, self.from_attention))
            lines.append("these begin with projections of the attention in whose place they are:")
            for path, parts in self.from_attention.items():
                lines.append(f"    {path:<{width}}  {', '.join(parts)}")
        return lines


def transfer_weights(
    recipe: Recipe, tokenizers: Tokenizers, model: EncoderDecoder, source: Run
) -> Transfer:
    """Load the weights of the run `source` into blocks that `diff` calls the same.

    A block in the place of a self-attention takes the projections that fit. Embeddings and output
    are taken where the tokenizer is the same. If anything starts anew, the model is initialized
    first as the recipe says. Raises RunError if no weights fit.
    """
    same = same_sides(recipe, tokenizers, source.tokenizers)
    sides = sides_of_owners(recipe)
    origin = TransferSource.of(source, recipe)
    blocks = owned_blocks(recipe, model)
    # tied tensors have one storage, which counts once
    sizes = {tensor.data_ptr(): tensor.numel() for tensor in unique_tensors(model).values()}
    copies: Copies = []
    taken, new = Counter[str](), Counter[str]()
    from_attention: dict[str, tuple[str, ...]] = {}
    for owner, tensors in owned_tensors(recipe, model).items():
        is_same = owner.is_block or sides.get(owner.path, TARGET) in same
        weights = origin.weights(owner) if is_same else {}
        size = sum(sizes.pop(tensor.data_ptr(), 0) for tensor in tensors.values())
        text = owner.text(recipe)
        if shapes(weights) == shapes(tensors):
            copies += [(tensor, weights[name]) for name, tensor in tensors.items()]
            taken[text] += size
            continue
        parts = projections_of(origin.attention(owner), blocks.get(owner))
        pairs = [pair for part in parts.values() for pair in part]
        # shared matrices count in the first copy alone
        inherited = min(size, sum(tensor.numel() for tensor, _ in pairs))
        if parts:
            copies += pairs
            from_attention[text] = tuple(parts)
            taken[text] += inherited
        if not parts or inherited < size:
            new[text] += size - inherited
    if not copies:
        message = "these weights do not fit the model: no block has the same shapes"
        fix = "use blocks of the same shapes; `seqcomposer diff` compares the two models"
        raise RunError.of(message, fix, str(source.run_dir.weights))
    if new:
        initialize(model, recipe.training.initialization)
    with torch.no_grad():
        for tensor, weight in copies:
            tensor.copy_(weight)
    return Transfer(taken, new, from_attention, same != {*tokenizers.sides})


def same_sides(recipe: Recipe, own: Tokenizers, other: Tokenizers) -> set[str]:
    """Return the sides whose texts become the same ids with both tokenizers."""
    if recipe.tokenizer.is_extendable:
        return {*own.sides}
    same = set()
    for side, at in own.sides.items():
        if side in other.sides and own.lowercase == other.lowercase:
            mine, theirs = own.parts[at], other.parts[other.sides[side]]
            if type(own.kind) is type(other.kind) and mine.to_str() == theirs.to_str():
                same.add(side)
    return same


def sides_of_owners(recipe: Recipe) -> dict[BlockPath, str]:
    """Return the side of each encoder's embedding by its path; all others are of the target."""
    stacks = encoder_stacks(recipe.model)
    return {(*stack.path, "embedding"): stack.key for stack in stacks}


@dataclass(frozen=True)
class TransferSource:
    """Tensors and blocks of a run by their owners, and the owners that a new recipe matches."""

    tensors: Mapping[Owner, Mapping[str, Tensor]]
    blocks: Mapping[Owner, Block]
    paths: MatchedPaths

    @classmethod
    def of(cls, run: Run, recipe: Recipe) -> TransferSource:
        """Return those of a run, for a model of `recipe`."""
        return cls(
            owned_tensors(run.recipe, run.model),
            owned_blocks(run.recipe, run.model),
            matched_paths(run.recipe, recipe),
        )

    def weights(self, owner: Owner) -> Mapping[str, Tensor]:
        """Return the tensors of the same block, or of the embedding or the output."""
        path = self.paths.same.get(owner.path, ()) if owner.is_block else owner.path
        return self.tensors.get(Owner(path, owner.copy), {})

    def attention(self, owner: Owner) -> Block | None:
        """Return the attention in whose place a block is."""
        return self.blocks.get(Owner(self.paths.attention.get(owner.path, ()), owner.copy))


def projections_of(attention: Block | None, block: Block | None) -> dict[str, Copies]:
    """Return what a block takes from the attention in whose place it is, by the parts' names."""
    theirs, own = attention and attention.attention_parts(), block and block.attention_parts()
    return dict(own.copies(theirs)) if theirs and own else {}


def owned_blocks(recipe: Recipe, model: EncoderDecoder) -> dict[Owner, Block]:
    """Return the blocks of a model by their paths and copies."""
    modules, blocks = dict(model.named_modules(remove_duplicate=False)), dict[Owner, Block]()
    for name, owner in module_owners(recipe, model).items():
        module = modules[name]
        if isinstance(module, Block):
            blocks.setdefault(owner, module)
    return blocks


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


@dataclass(frozen=True)
class MatchedPaths:
    """Paths in an old recipe by those of a new one.

    same: Of the same block, as `diff` sees it. attention: Of the self-attention in whose place the
    new block is.
    """

    same: Mapping[BlockPath, BlockPath]
    attention: Mapping[BlockPath, BlockPath]


def matched_paths(old: Recipe, new: Recipe) -> MatchedPaths:
    """Return the paths in `old` of the blocks of `new` that are the same, or replace an attention.

    Where nothing but attentions was replaced, blocks are matched by their places: equal layers of a
    stack, of which a few are replaced, must not be taken for each other.
    """
    old_trees, new_trees = stack_trees(old), stack_trees(new)
    same: dict[BlockPath, BlockPath] = {}
    attention: dict[BlockPath, BlockPath] = {}
    for key in old_trees.keys() & new_trees.keys():
        first, second = old_trees[key], new_trees[key]
        pairs = match_trees(first, second)
        if differ_in_attention_alone(first, second):
            in_place = [*zip(first.descendants(), second.descendants(), strict=True)]
            if any(replaces_attention(*pair) for pair in in_place):
                pairs = in_place
        for before, after in pairs:
            if (before.kind, before.word) == (after.kind, after.word):
                same[after.path] = before.path
            elif replaces_attention(before, after):
                attention[after.path] = before.path
    return MatchedPaths(same, attention)


def replaces_attention(before: TreeNode, after: TreeNode) -> bool:
    """True if a block without stacks is in the place of a self-attention."""
    is_leaf = before.kind == after.kind and not after.children
    return is_leaf and before.word == ATTENTION != after.word


def differ_in_attention_alone(first: TreeNode, second: TreeNode) -> bool:
    """True if two trees have blocks of the same words, but for some in place of attentions."""
    if len(first.children) != len(second.children):
        return False
    for before, after in zip(first.children, second.children, strict=True):
        if replaces_attention(before, after):
            continue
        is_same = (before.kind, before.word) == (after.kind, after.word)
        if not is_same or not differ_in_attention_alone(before, after):
            return False
    return True
