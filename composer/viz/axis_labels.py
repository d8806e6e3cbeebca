"""What stands at the positions of what a block records: whose tokens, and which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from blocks.core.contract import Path
from composer.data.sources import TARGET
from composer.model.builder import encoder_stacks
from composer.recipe.recipe import Recipe

Tokens = Mapping[str, Sequence[str]]
"""What stands at the positions of every side: of a source its tokens and eos; of the target bos and its tokens."""
BLANK = "·"


def sides_of(path: Path, tokens: Tokens) -> list[str]:
    """Whose tokens may stand at a block's positions: one side's, or anybody's in a stack with a name."""
    if path[1] == "stacks":
        return [TARGET, *(side for side in tokens if side != TARGET)]
    return [str(path[2]) if path[1] == "encoders" else {"encoder": "source", "decoder": TARGET}[str(path[1])]]


def what_is_read(recipe: Recipe, path: Path, tokens: Tokens) -> list[str]:
    """What stands at the positions of the memory that a block reads, or of several in a row; or its branches."""
    keys = {memory: key for key, memory, _, _ in encoder_stacks(recipe.model)}
    settings = recipe.settings_at(path)
    branches = settings.get("branches")
    if isinstance(branches, Mapping):
        return list(branches)
    told = settings.get("from") or settings.get("keys") or next(iter(keys), "")
    read = [str(each).partition(".")[0] for each in (told if isinstance(told, list) else [told])]
    return [token for memory in read for token in tokens.get(keys.get(memory, ""), ())]


def named(tokens: Sequence[str], length: int, answer: int) -> list[str]:
    """The tokens, with blanks after them where there is room for an answer of so many positions; or numbers where a
    block has made more or fewer positions of them."""
    if len(tokens) < length == answer:
        return [*tokens, *[BLANK] * (length - len(tokens))]
    return list(tokens) if len(tokens) == length else [str(number) for number in range(1, length + 1)]


def passes(values: Sequence[Tensor], lengths: Sequence[int]) -> Iterator[list[Tensor]]:
    """The values in parts that have as many positions as a side: a stack with a name may run several times."""
    part: list[Tensor] = []
    for value in values:
        if part and sum(each.shape[1] for each in part) in lengths:
            yield part
            part = []
        part.append(value)
    yield part
