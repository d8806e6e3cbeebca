"""From ids to the stream: what a token is before any block has seen it.

Every kind has `embedding_dim`, the width of what it makes, and `num_embeddings`, the number of its ids.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from composer.model.vocabulary import SPECIAL


class Embedding(nn.Embedding):
    """A learned vector for each token, with entries of variance 1 (Vaswani et al. 2017, section 3.4): sqrt(D) E,
    E ~ N(0, 1/D)."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids) * math.sqrt(self.embedding_dim)  # (B, T, D)


class LinearEmbedding(nn.Module):
    """A linear map of the features that a token has, such as its bits: W f(id), W ~ N(0, 1/F).

    features: (V, F), fixed, of each id in order.
    """

    features: Tensor

    def __init__(self, features: np.ndarray, width: int) -> None:
        super().__init__()
        self.register_buffer("features", torch.tensor(features, dtype=torch.get_default_dtype()), persistent=False)
        self.num_embeddings, self.embedding_dim = len(features), width
        self.map = nn.Linear(self.features.shape[1], width, bias=False)
        nn.init.normal_(self.map.weight, std=self.features.shape[1] ** -0.5)

    def forward(self, ids: Tensor) -> Tensor:
        return self.map(self.features[ids].to(self.map.weight.dtype))  # (B, T, D)


class OneHot(nn.Module):
    """A unit vector for each token, zeros for the special ones: what a bag of words is the sum of. Learns nothing."""

    table: Tensor

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = vocabulary, vocabulary - SPECIAL
        table = torch.cat([torch.zeros(SPECIAL, vocabulary - SPECIAL), torch.eye(vocabulary - SPECIAL)])
        self.register_buffer("table", table, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table[ids]  # (B, T, V - 4)
