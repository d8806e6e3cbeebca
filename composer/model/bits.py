"""Vectors of bits as tokens: the embedding of their features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from composer.model.encoder_decoder import TokenEmbedding


class LinearEmbedding(TokenEmbedding):
    """Linear map of the features of a token: W f(id), W ~ N(0, 1/F).

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
