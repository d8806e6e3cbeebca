"""Parameters by the paths of their blocks in the recipe, and `training.parameter_groups`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from blocks.core.contract import Block, Path
from composer.errors import KeyPath
from composer.model.builder import encoder_stacks
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.recipe import Recipe, source_path
from composer.recipe.schema_reader import is_block_path

GROUPS = ("training", "parameter_groups")


class Owner(NamedTuple):
    """The owner of a tensor: a block, by its path and copy; an embedding; or the output."""

    path: Path
    copy: int = 0

    @property
    def is_block(self) -> bool:
        """False for an embedding and the output, which belong to a vocabulary."""
        return is_block_path(self.path)

    def text(self, recipe: Recipe) -> str:
        """Return the path as `plan` prints it: `decoder[1].repeat`, `encoder.embedding`."""
        path = source_path(recipe, self.path) if self.is_block else ".".join(map(str, self.path))
        return path.removeprefix("model.")


def module_owners(recipe: Recipe, model: EncoderDecoder) -> dict[str, Owner]:
    """Return the innermost block of the recipe that each module belongs to, by its name."""
    ends = {
        f"encoders.{stack.key}.embedding": (*stack.path, "embedding")
        for stack in encoder_stacks(recipe.model)
    }
    output = "model", "output"
    ends |= {
        "embedding": ("model", "decoder", "embedding"),
        "output": output,
        "ctc": (*output, "ctc"),
    }
    copies: Counter[Path] = Counter()
    owners: dict[str, Owner] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        around = owners.get(name.rpartition(".")[0], Owner(()))
        owners[name] = Owner(ends[name]) if name in ends else around
        if isinstance(module, Block) and module.path:
            owners[name] = Owner(module.path, copies[module.path])
            copies[module.path] += 1
    return owners


class GroupPath(NamedTuple):
    """A path in `training.parameter_groups`, with its place and its group's two numbers.

    The path is without `model`; a factor or a weight decay is None where the group has none.
    """

    path: str
    factor: float | None
    weight_decay: float | None
    place: KeyPath

    def covers(self, text: str) -> bool:
        """True if a block at `text` is the one at this path, or in it."""
        return covers(self.path, text)


def covers(path: str, text: str) -> bool:
    """True if a block at `text` is the one at `path`, or in it."""
    return text == path or text.startswith((f"{path}.", f"{path}["))


def group_paths(recipe: Recipe) -> list[GroupPath]:
    """Return the paths of all groups, the longest first."""
    paths = []
    for number, group in enumerate(recipe.training.parameter_groups or ()):
        for index, block in enumerate(group.blocks):
            place = (*GROUPS, number, "blocks", index)
            path = block.removeprefix("model.")
            paths.append(GroupPath(path, group.factor, group.weight_decay, place))
    return sorted(paths, key=lambda group: len(group.path), reverse=True)


def learning_rate_factors(recipe: Recipe, model: EncoderDecoder) -> dict[str, float]:
    """Return each parameter's factor of the learning rate by its first name; {} without groups.

    The longest path that covers a parameter decides; where several blocks share it, the smallest
    factor.
    """
    paths = [group for group in group_paths(recipe) if group.factor is not None]
    return _smallest(recipe, model, [(group, group.factor) for group in paths], 1.0)


def own_weight_decays(recipe: Recipe, model: EncoderDecoder) -> dict[str, float]:
    """Return the weight decays that groups give to parameters, by their first names."""
    paths = [
        (group, group.weight_decay)
        for group in group_paths(recipe)
        if group.weight_decay is not None
    ]
    decays = _smallest(recipe, model, paths, math.inf)
    return {name: decay for name, decay in decays.items() if decay < math.inf}


def _smallest(
    recipe: Recipe,
    model: EncoderDecoder,
    paths: Sequence[tuple[GroupPath, float | None]],
    otherwise: float,
) -> dict[str, float]:
    """Return for each parameter the number of the longest path that covers it.

    A shared parameter has the smallest of its numbers.
    """
    if not paths:
        return {}
    owners, numbers = module_owners(recipe, model), dict[int, float]()
    for name, parameter in model.named_parameters(remove_duplicate=False):
        text = owners[name.rpartition(".")[0]].text(recipe)
        covering = [own for group, own in paths if group.covers(text)]
        number = next((own for own in covering if own is not None), otherwise)
        numbers[id(parameter)] = min(numbers.get(id(parameter), math.inf), number)
    return {name: numbers[id(parameter)] for name, parameter in model.named_parameters()}
