"""Vectors of bits as tokens: the words that the tokenizer `bits` knows, their features, and the embedding of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from composer.model.encoder_decoder import TokenEmbedding
from composer.model.special_tokens import BOS, EOS, NUM_SPECIAL

LEVELS = range(-100, 101)
"""The numbers that can stand behind a vector, in hundredths."""


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
    first, digits = NUM_SPECIAL + len(marks), 2 + len(marks)
    features = torch.zeros(first + len(vectors), digits + size + 1, dtype=torch.float32)
    features[BOS, 0] = features[EOS, 1] = 1
    features[NUM_SPECIAL:first, 2:digits] = torch.eye(len(marks))
    features[first:, digits:-1] = torch.tensor([[digit == "1" for digit in vector] for vector, _, _ in vectors])
    features[first:, -1] = torch.tensor([float(number or 0) for _, _, number in vectors], dtype=torch.float32)
    return features if settings["numbers"] and not target else features[:, :-1]


class LinearEmbedding(TokenEmbedding):
    """Linear map of the bits of a token of the tokenizer `bits`, or other features: W f(id), W ~ N(0, 1/F).

    features: (V, F), fixed, of each id in order.
    """

    features: Tensor

    def __init__(self, features: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("features", features.to(torch.get_default_dtype()), persistent=False)
        self.num_embeddings, self.embedding_dim = len(features), width
        self.map = nn.Linear(self.features.shape[1], width, bias=False)
        nn.init.normal_(self.map.weight, std=self.features.shape[1] ** -0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.map(self.features[ids].to(self.map.weight.dtype))  # (B, T, D)
