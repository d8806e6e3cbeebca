"""The programs of a model as files: `encode.onnx`, `start.onnx`, `step.onnx` and `weights.bin`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import torch

from composer.errors import RunError, one_line_error
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.output_heads import CnnOutput
from composer.programs.graphs import NotExportable, to_graph
from composer.programs.parts import (
    MEMORY,
    Encode,
    Example,
    Program,
    Signature,
    Sizes,
    Start,
    Step,
    Tensors,
)
from composer.programs.weights_file import store_weights

if TYPE_CHECKING:
    import onnx_ir
    from onnxruntime import InferenceSession

WEIGHTS = "weights.bin"
EXAMPLES = (Sizes(3, 37, 6), Sizes(5, 53, 7), Sizes(7, 41, 10))
"""Sizes of which a program is made. Those of sources differ after most strides too."""
LONGER = 8
"""What sources are longer by where they do not."""
PROOFS = (Sizes(2, 29, 0), Sizes(1, 11, 3), Sizes(1, 1, 0))
"""Sizes at which it is compared with the model."""
TOLERANCE = 1e-3
"""Relative and absolute difference from the model at most."""
ANY_NUMBER = 1e6
"""The same for weights of 8 bits: all numbers but NaN and infinite ones."""


def program_file(name: str) -> str:
    """Return the name of a program's file."""
    return f"{name}.onnx"


def write_programs(
    model: EncoderDecoder, folder: Path, int8: bool = False, attention: bool = False
) -> dict[str, Signature]:
    """Write the programs of a model on a CPU, in float32 and evaluation mode.

    Returns what each reads and returns. int8: Quantise weights afterwards. attention: As of `Step`.
    Raises NotExportable, before anything is written or where a program differs from the model.
    """
    exported = programs_of(model, attention)
    graphs = {program.name: graph for program, graph in exported}
    save_graphs(graphs, folder)
    check_programs([program for program, _ in exported], model, folder, TOLERANCE)
    if int8:
        save_graphs({name: quantised(folder / program_file(name)) for name in graphs}, folder)
        check_programs([program for program, _ in exported], model, folder, ANY_NUMBER)
    return {name: signature_of(graph) for name, graph in graphs.items()}


def save_graphs(graphs: Mapping[str, onnx_ir.Model], folder: Path) -> None:
    """Write graphs and their weights to a folder."""
    import onnx_ir

    store_weights(list(graphs.values()), folder / WEIGHTS)
    for name, graph in graphs.items():
        onnx_ir.save(graph, folder / program_file(name))


def quantised(file: Path) -> onnx_ir.Model:
    """Return the graph of a file with weights of 8 bits; onnxruntime scales what meets them."""
    import onnx_ir
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with TemporaryDirectory() as folder:
        made = Path(folder, file.name)
        # the library advises steps that have been taken
        logging.disable(logging.WARNING)
        try:
            quantize_dynamic(file, made, weight_type=QuantType.QInt8)
        finally:
            logging.disable(logging.NOTSET)
        return onnx_ir.load(made)


def programs_of(
    model: EncoderDecoder, attention: bool = False
) -> list[tuple[Program, onnx_ir.Model]]:
    """Return the programs of a model with their graphs: `encode` last, and only if it has encoders.

    Raises NotExportable.
    """
    if isinstance(model.output, CnnOutput):
        reason = "`cnn` computes the vectors of all words once, and a program would at every token"
        raise NotExportable(reason, ("model", "output", "kind"))
    examples = examples_of(model)
    inputs, first = [example.tensors() for example in examples], examples[0]
    with torch.no_grad():
        start = Start(model, first.memories, len(first.ids))
        step = Step(model, first.ids, first.state, first.memories, attention)
    exported: list[tuple[Program, onnx_ir.Model]] = []
    for program in (start, step):
        exported.append((program, to_graph(program, inputs)))
    if model.readers():
        memories = memories_read(graph for _, graph in exported)
        if not memories:
            reason = "no block reads the encoder, and so no source would change an answer"
            raise NotExportable(reason, ("model", "decoder"))
        encode = Encode(model, memories)
        exported.append((encode, to_graph(encode, inputs)))
    return exported


def examples_of(model: EncoderDecoder) -> list[Example]:
    """Return the examples of a model: memories that can differ in length do."""
    examples = [Example.of(model, sizes) for sizes in EXAMPLES]
    if len(different_memories(examples)) == len(examples[0].memories):
        return examples
    longer = [replace(sizes, source=LONGER * sizes.source) for sizes in EXAMPLES]
    others = [Example.of(model, sizes) for sizes in longer]
    return others if different_memories(others) > different_memories(examples) else examples


def different_memories(examples: Sequence[Example]) -> set[str]:
    """Return the names of the memories whose lengths differ in examples."""
    return {
        name
        for name in examples[0].memories
        if len({example.memories[name].states.shape[1] for example in examples}) > 1
    }


def memories_read(graphs: Iterable[onnx_ir.Model]) -> list[str]:
    """Remove the memories that graphs do not use from their inputs; return the others."""
    names = dict[str, None]()
    for graph in graphs:
        inputs = graph.graph.inputs
        memories = [value for value in inputs if str(value.name).startswith(MEMORY)]
        for value in memories:
            if value.uses() or value.is_graph_output():
                names[str(value.name)] = None
            else:
                inputs.remove(value)
    return [*names]


def signature_of(graph: onnx_ir.Model) -> Signature:
    """Return the names of a graph's inputs and outputs."""
    inputs = tuple(str(value.name) for value in graph.graph.inputs)
    return Signature(inputs, tuple(str(value.name) for value in graph.graph.outputs))


def open_program(folder: Path, name: str, threads: int = 0) -> InferenceSession:
    """Open a program of a folder. threads: 0 lets onnxruntime choose. Raises RunError."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = threads
    # threads that wait by counting take the cores from PyTorch, which searches between two steps
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    file = folder / program_file(name)
    try:
        return InferenceSession(os.fspath(file), options)
    except Exception as error:  # of onnxruntime, whose errors have no common class
        message = f"this program cannot be opened: {one_line_error(error)}"
        raise RunError.of(
            message, "copy its folder again, or export the model again", str(file)
        ) from error


def check_programs(
    programs: Sequence[Program], model: EncoderDecoder, folder: Path, tolerance: float
) -> None:
    """Compare programs with the model at sizes that none was made of. Raises NotExportable."""
    for program in programs:
        try:
            session = open_program(folder, program.name)
        except RunError as error:
            raise NotExportable(error.faults[0].message) from error
        for sizes in PROOFS:
            inputs = Example.of(model, sizes, seed=1).tensors()
            if problem := difference(program, session, inputs, tolerance):
                raise NotExportable(f"its `{program.name}` would differ from the model: {problem}")


def difference(
    program: Program, session: InferenceSession, inputs: Tensors, tolerance: float
) -> str:
    """Return how a program differs from the model on these inputs; "" if it does not."""
    read = {node.name: inputs[node.name].numpy() for node in session.get_inputs()}
    try:
        outputs = session.run(list(program.signature.outputs), read)
    except Exception as error:  # the library's own kinds are many
        return one_line_error(error)
    with torch.no_grad():
        expected = program(*(inputs[name] for name in program.signature.inputs))
    for name, one, other in zip(program.signature.outputs, outputs, expected, strict=True):
        if one.shape != tuple(other.shape):
            return f"`{name}` has the shape {one.shape}, and not {tuple(other.shape)}"
        if not np.allclose(one, other.numpy(), tolerance, tolerance, equal_nan=True):
            return f"`{name}` has other numbers"
    return ""
