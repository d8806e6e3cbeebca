"""Random mutations of recipes. All choices are made by `random`."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from verify.text_mutations import (
    change_line,
    change_word,
    cut_bytes,
    flip_bit,
    insert_bytes,
    oversize,
    random_bytes,
    reencode,
    splice,
    tag_value,
)
from verify.tree_mutations import edit_tree

# bytes that a case may grow to, but for what is meant to be larger than a recipe may be
LARGEST = 1 << 16
Change = Callable[[bytes, Random, bytes], bytes]
CHANGES: tuple[Change, ...] = (
    flip_bit,
    insert_bytes,
    cut_bytes,
    splice,
    random_bytes,
    reencode,
    oversize,
    change_word,
    change_word,
    change_line,
    change_line,
    tag_value,
    *(edit_tree,) * 8,
)


def mutate(data: bytes, random: Random, other: bytes) -> bytes:
    """Return `data` with one change, which may take from `other`; unchanged where that cannot be
    written.
    """
    change = random.choice(CHANGES)
    try:
        return change(data, random, other)[: LARGEST if change is not oversize else None]
    except RecursionError:  # a tree that was made deeper than PyYAML can write
        return data
