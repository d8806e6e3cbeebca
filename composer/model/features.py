"""Sources that are no tokens: images, sounds and vectors, as `data.table` describes them."""

from __future__ import annotations

import torch
from torch import Tensor

from composer.model.encoder_decoder import TokenEmbedding
from composer.recipe.data_sections import Data, TableColumn


def feature_settings(data: Data, side: str) -> TableColumn | None:
    """Return the settings of a side of images, sounds or vectors; None for a text."""
    column = data.table.of_side(side) if data.table else None
    return column if isinstance(column, TableColumn) and column.kind != "text" else None


def feature_shape(column: TableColumn) -> tuple[int, ...]:
    """Return the shape of a position: numbers (F,), for an image columns by channels (W, C)."""
    if column.kind == "image":
        height, width = image_size(column)
        return (width if column.positions == "rows" else height, column.channels)
    if column.kind == "audio":
        return (column.features.log_mel.bands,)
    assert column.width is not None
    return (column.width,)


def image_size(column: TableColumn) -> tuple[int, int]:
    """Return the height and the width to which the images of a column are scaled down."""
    assert column.size is not None
    return column.size


def describe_features(column: TableColumn) -> str:
    """Return in words what each example of a column is: `images of 64 x 256 pixels`."""
    if column.kind == "image":
        height, width = image_size(column)
        return f"images of {height} x {width} pixels{', in colour' if column.channels == 3 else ''}"
    kind = "sounds, frames of" if column.kind == "audio" else "vectors of"
    return f"{kind} {feature_shape(column)[0]:,} {'bands' if column.kind == 'audio' else 'numbers'}"


class FeatureInput(TokenEmbedding):
    """Features as they are, zeros in place of padding: learns nothing.

    (B, S, F) or (B, S, W, F), NaN is padding.
    """

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
