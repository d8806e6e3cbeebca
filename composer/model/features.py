"""Sources that are no tokens: images, sounds and vectors, as `data.table` describes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from composer.model.encoder_decoder import TokenEmbedding


def feature_settings(dataset: Mapping[str, Any], side: str) -> Mapping[str, Any] | None:
    """Return what the canonical section `data` says of a side that is no text; None of a text."""
    column = (dataset.get("table") or {}).get(side)
    return column if isinstance(column, Mapping) and column["kind"] != "text" else None


def feature_shape(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """Return what each position of a source has: numbers (F,), or of an image columns by channels (W, C)."""
    if settings["kind"] == "image":
        height, width = settings["size"]
        return (width if settings["positions"] == "rows" else height, settings["channels"])
    return (settings["width"] if settings["kind"] == "vectors" else settings["features"]["log_mel"]["bands"],)


def describe_features(settings: Mapping[str, Any]) -> str:
    """Return in words what each example of a column is: `images of 64 x 256 pixels`."""
    if settings["kind"] == "image":
        height, width = settings["size"]
        return f"images of {height} x {width} pixels{', in colour' if settings['channels'] == 3 else ''}"
    kind = "sounds, frames of" if settings["kind"] == "audio" else "vectors of"
    return f"{kind} {feature_shape(settings)[0]:,} {'bands' if settings['kind'] == 'audio' else 'numbers'}"


class FeatureInput(TokenEmbedding):
    """Features as they are, zeros in place of padding: learns nothing. (B, S, F) or (B, S, W, F), NaN is padding."""

    like: Tensor
    reads_features = True
    num_embeddings = 0

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.embedding_dim, self.columns = shape[-1], sum(shape[:-1])
        # a buffer without numbers has the type and the device of the model's
        self.register_buffer("like", torch.empty(0), persistent=False)

    def embed(self, ids: Tensor) -> Tensor:
        return self(ids)

    def forward(self, ids: Tensor) -> Tensor:
        return ids.nan_to_num().to(self.like.dtype)  # (B, S, F)
