"""Vocabulary: special tokens, its largest size, and the fixed vocabulary of `bits` with the features of each id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL_TOKENS = ["⟨pad⟩", "⟨bos⟩", "⟨eos⟩", "⟨unk⟩"]
"""The special tokens by id. Text cannot produce one: `bpe` and `unigram` know only bytes, `char` only characters, and
the tokenizers of words take the brackets off or map such a word to unk."""
NUM_SPECIAL = len(SPECIAL_TOKENS)
"""A token's own id is this or more."""
FIXED_VOCABULARIES = ("bits", "integers")
"""Tokenizers whose words are all known before any text is; they learn nothing."""
LEVELS = range(-100, 101)
"""The numbers that can stand behind a vector, in hundredths."""


def max_vocabulary(tokenizer: Mapping[str, Mapping[str, Any]], target: bool) -> int:
    """Return the most ids that a side can have with this tokenizer of a frozen recipe, special tokens included."""
    ((kind, settings),) = tokenizer.items()
    if kind == "bits":
        return NUM_SPECIAL + len(bits_vocabulary(settings, target))
    return NUM_SPECIAL + int(settings["below"]) if kind == "integers" else int(settings["size"])


def bits_vocabulary(settings: Mapping[str, Any], target: bool) -> list[str]:
    """Return the words that `bits` of these settings knows on a side, by id; the first id is NUM_SPECIAL."""
    vectors = [f"{index:0{settings['size']}b}" for index in range(2 ** settings["size"])]
    if target:
        return vectors
    levels = [f"@{level / 100:.2f}" if level else "" for level in LEVELS] if settings["numbers"] else [""]
    return [*dict.fromkeys(settings["marks"]), *(vector + level for vector in vectors for level in levels)]


def bits_features(settings: Mapping[str, Any], target: bool) -> Tensor:
    """Return the features of each id of a side, for a model that takes vectors as they are. -> (ids, features) float32

    The features: bos, eos, each mark, each digit from the first, and the number; pad and unk are zeros. A target has
    neither marks nor numbers, and a source has no numbers without `numbers`.
    """
    size, marks = settings["size"], [] if target else list(dict.fromkeys(settings["marks"]))
    vectors = [word.partition("@") for word in bits_vocabulary(settings, target)[len(marks) :]]
    features = torch.zeros(NUM_SPECIAL + len(marks) + len(vectors), 2 + len(marks) + size + 1, dtype=torch.float32)
    features[BOS, 0] = features[EOS, 1] = 1
    for at in range(len(marks)):
        features[NUM_SPECIAL + at, 2 + at] = 1
    first = NUM_SPECIAL + len(marks)
    features[first:, 2 + len(marks) : -1] = torch.tensor(
        [[digit == "1" for digit in vector] for vector, _, _ in vectors]
    )
    features[first:, -1] = torch.tensor([float(number or 0) for _, _, number in vectors], dtype=torch.float32)
    return features if settings["numbers"] and not target else features[:, :-1]
