"""The law of exported programs: at any sizes they compute what the model does."""

from __future__ import annotations

import onnx_ir
import onnxruntime

from composer.model.encoder_decoder import EncoderDecoder
from composer.programs.files import difference, programs_of
from composer.programs.parts import Example, Sizes

SIZES = (
    Sizes(3, 37, 6),
    Sizes(2, 9, 0),
    Sizes(1, 1, 0),
    Sizes(1, 5, 1),
    Sizes(4, 70, 3),
    Sizes(6, 2, 2),
    Sizes(1, 20, 33),
)
"""One row, one position, nothing before; the first are those of the example."""
TOLERANCE = 1e-4


def assert_exported(model: EncoderDecoder, sizes: tuple[Sizes, ...] = SIZES) -> None:
    """Every program of a model computes what the model does. Raises NotExportable."""
    for program, graph in programs_of(model):
        session = to_session(graph)
        for size in sizes:
            tried = Example.of(model, size, seed=1).tensors()
            problem = difference(program, session, tried, TOLERANCE)
            assert not problem, f"{program.name} at {size}: {problem}"


def to_session(graph: onnx_ir.Model) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    content = onnx_ir.to_proto(graph).SerializeToString()
    return onnxruntime.InferenceSession(content, options)
