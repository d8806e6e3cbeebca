"""One file with the weights of several graphs: each tensor once, whatever names it has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from composer.atomic_io import atomic_open

if TYPE_CHECKING:
    import onnx_ir

SMALL = 1024
"""Bytes below which a tensor stays in its graph."""
ALIGNMENT = 64
"""Bytes of which the place of a tensor in the file is a multiple."""


def store_weights(graphs: Sequence[onnx_ir.Model], file: Path) -> None:
    """Write the large tensors of graphs to a file to which the graphs then refer.

    Raises OSError.
    """
    import onnx_ir

    places: dict[bytes, int] = {}
    end = 0
    with atomic_open(file) as out:
        for graph in graphs:
            for value in weights_of(graph):
                tensor = value.const_value
                assert tensor is not None
                content = tensor.tobytes()
                digest = hashlib.sha256(content).digest()
                if digest not in places:
                    padding = -end % ALIGNMENT
                    out.write(bytes(padding) + content)
                    places[digest] = end + padding
                    end += padding + len(content)
                value.const_value = onnx_ir.ExternalTensor(
                    file.name,
                    places[digest],
                    len(content),
                    tensor.dtype,
                    shape=onnx_ir.Shape(tensor.shape.numpy()),
                    name=str(value.name),
                    base_dir=file.parent,
                )


def weights_of(graph: onnx_ir.Model) -> Iterator[onnx_ir.Value]:
    """Yield the large tensors of a graph."""
    for value in graph.graph.initializers.values():
        if value.const_value is not None and value.const_value.nbytes >= SMALL:
            yield value
