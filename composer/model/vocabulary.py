"""What a recipe says of its vocabulary before any text has been seen: how many ids, and what those of `bits` are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

FIXED_VOCABULARIES = ("bits", "integers")
"""Tokenizers whose words are all known before any text is; they learn nothing."""
LEVELS = range(-100, 101)
"""The numbers that can stand behind a vector, in hundredths."""


def max_vocabulary(tokenizer: Mapping[str, Mapping[str, Any]], target: bool) -> int:
    """The most ids that a side can have with this tokenizer, a frozen recipe's; the special ones are counted."""
    ((kind, settings),) = tokenizer.items()
    if kind == "bits":
        return NUM_SPECIAL + len(bits_vocabulary(settings, target))
    return NUM_SPECIAL + int(settings["below"]) if kind == "integers" else int(settings["size"])


def bits_vocabulary(settings: Mapping[str, Any], target: bool) -> list[str]:
    """The words that `bits` of these settings knows on a side, in the order of their ids, the first of which is 4."""
    vectors = [f"{index:0{settings['size']}b}" for index in range(2 ** settings["size"])]
    if target:
        return vectors
    levels = [f"@{level / 100:.2f}" if level else "" for level in LEVELS] if settings["numbers"] else [""]
    return [*dict.fromkeys(settings["marks"]), *(vector + level for vector in vectors for level in levels)]


def bits_features(settings: Mapping[str, Any], target: bool) -> Tensor:
    """What each id of a side is to a model that takes vectors as they are: float32 (ids, features), pad and unk zeros.

    The features: bos, eos, each mark, each digit, the first one first, and the number. A target has neither marks nor
    numbers, and a source has none without `numbers`.
    """
    size, marks = settings["size"], [] if target else list(dict.fromkeys(settings["marks"]))
    vectors = [word.partition("@") for word in bits_vocabulary(settings, target)[len(marks) :]]
    found = torch.zeros(NUM_SPECIAL + len(marks) + len(vectors), 2 + len(marks) + size + 1, dtype=torch.float32)
    found[BOS, 0] = found[EOS, 1] = 1
    for at in range(len(marks)):
        found[NUM_SPECIAL + at, 2 + at] = 1
    begin = NUM_SPECIAL + len(marks)
    found[begin:, 2 + len(marks) : -1] = torch.tensor([[digit == "1" for digit in vector] for vector, _, _ in vectors])
    found[begin:, -1] = torch.tensor([float(number or 0) for _, _, number in vectors], dtype=torch.float32)
    return found if settings["numbers"] and not target else found[:, :-1]


PAD, BOS, EOS, UNK = 0, 1, 2, 3
NUM_SPECIAL = 4
"""How many there are: a token's own id is this or more."""
