"""`export --onnx`: any model as ONNX programs, with all that is needed to run them elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from composer.atomic_io import atomic_directory, require_absent, sha256_of_file
from composer.errors import RecipeError, RunError
from composer.exporters import model_file
from composer.exporters.description import describe, save_tokenizers
from composer.exporters.model_file import ProgramFile
from composer.inference.methods import Beam, Greedy
from composer.inference.run import Run, open_run
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.output_heads import CnnOutput
from composer.programs.graphs import NotExportable, to_graph
from composer.programs.parts import (
    MEMORY,
    Encode,
    Example,
    Program,
    Sizes,
    Start,
    Step,
    Tensors,
)
from composer.programs.weights_file import store_weights

if TYPE_CHECKING:
    import onnx_ir
    from onnxruntime import InferenceSession

PACKAGES = ("onnx", "onnxscript", "onnxruntime")
EXAMPLES = (Sizes(3, 37, 6), Sizes(5, 53, 7), Sizes(7, 41, 10))
"""Sizes of which a program is made. Those of sources differ after every stride too."""
PROOFS = (Sizes(2, 29, 0), Sizes(1, 11, 3))
"""Sizes at which it is compared with the model."""
TOLERANCE = 1e-3
"""Relative and absolute difference from the model at most."""


def export_onnx(run: str | Path | Run, folder: str | Path) -> Path:
    """Write a run's model as ONNX programs in a new folder, and return its path.

    Raises RecipeError for a block that has no program, at its line, and RunError if packages are
    missing or `folder` exists. Nothing is written then.
    """
    opened = run if isinstance(run, Run) else open_run(run)
    target = Path(folder)
    require_absent(target)
    missing = [package for package in PACKAGES if find_spec(package) is None]
    if missing:
        message = f"the package `{missing[0]}` is not installed"
        raise RunError.of(message, 'pip install "seqcomposer[onnx]"')
    model = copy.deepcopy(opened.model).cpu().float().eval()
    decoding = opened.recipe.decoding
    if isinstance(decoding, Greedy | Beam) and decoding.ctc_weight is not None:
        model = model.with_ctc_weight(decoding.ctc_weight)
    with atomic_directory(target) as draft:
        write_programs(opened, model, draft)
    return target


def write_programs(run: Run, model: EncoderDecoder, folder: Path) -> None:
    """Write all files of an export. Raises as `export_onnx`."""
    import onnx_ir

    try:
        exported = programs_of(model)
    except NotExportable as problem:
        raise refusal(run, problem) from problem
    graphs = {program.name: graph for program, graph in exported}
    weights = folder / model_file.WEIGHTS
    store_weights(list(graphs.values()), weights)
    for name, graph in graphs.items():
        onnx_ir.save(graph, folder / f"{name}.onnx")
    check_programs([program for program, _ in exported], model, folder)
    names = save_tokenizers(run, folder)
    files = {name: file_of(graph) for name, graph in graphs.items()}
    described = describe(run, files, names, sha256_of_file(weights))
    (folder / model_file.MODEL).write_text(described.to_json(), encoding="utf-8")


def programs_of(model: EncoderDecoder) -> list[tuple[Program, onnx_ir.Model]]:
    """Return the programs of a model with their graphs: `encode` last, and only if it has encoders.

    Raises NotExportable.
    """
    if isinstance(model.output, CnnOutput):
        reason = "`cnn` computes the vectors of all words once, and a program would at every token"
        raise NotExportable(reason, ("model", "output", "kind"))
    examples = [Example.of(model, sizes) for sizes in EXAMPLES]
    inputs, first = [example.tensors() for example in examples], examples[0]
    with torch.no_grad():
        start = Start(model, first.memories, len(first.ids))
        step = Step(model, first.ids, first.state, first.memories)
    exported: list[tuple[Program, onnx_ir.Model]] = []
    for program in (start, step):
        exported.append((program, to_graph(program, inputs)))
    if model.readers():
        encode = Encode(model, memories_read(graph for _, graph in exported))
        exported.append((encode, to_graph(encode, inputs)))
    return exported


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


def file_of(graph: onnx_ir.Model) -> ProgramFile:
    """Return the names of a graph's inputs and outputs."""
    inputs = tuple(str(value.name) for value in graph.graph.inputs)
    return ProgramFile(inputs, tuple(str(value.name) for value in graph.graph.outputs))


def refusal(run: Run, problem: NotExportable) -> RecipeError | RunError:
    """Return the error of a model that has no program."""
    message = f"this cannot be exported: {problem}"
    fix = "export a model without it, or decode with this project"
    if not problem.path:
        return RunError.of(message, fix, str(run.run_dir.path))
    return RecipeError([run.recipe.fault("export", problem.path, message, fix)])


def check_programs(programs: Sequence[Program], model: EncoderDecoder, folder: Path) -> None:
    """Compare programs with the model at sizes that no program was made of. Raises RunError."""
    from onnxruntime import InferenceSession

    for program in programs:
        session = InferenceSession(folder / f"{program.name}.onnx")
        for sizes in PROOFS:
            inputs = Example.of(model, sizes, seed=1).tensors()
            if problem := difference(program, session, inputs):
                message = f"the exported `{program.name}` is not equal to the model: {problem}"
                fix = "decode with this project, and report this with the recipe"
                raise RunError.of(message, fix, str(folder))


def difference(
    program: Program, session: InferenceSession, inputs: Tensors, tolerance: float = TOLERANCE
) -> str:
    """Return how a program differs from the model on these inputs; "" if it does not."""
    read = {node.name: inputs[node.name].numpy() for node in session.get_inputs()}
    outputs = session.run(list(program.signature.outputs), read)
    with torch.no_grad():
        expected = program(*(inputs[name] for name in program.signature.inputs))
    for name, one, other in zip(program.signature.outputs, outputs, expected, strict=True):
        if one.shape != tuple(other.shape):
            return f"`{name}` has the shape {one.shape}, and not {tuple(other.shape)}"
        if not np.allclose(one, other.numpy(), tolerance, tolerance, equal_nan=True):
            return f"`{name}` has other numbers"
    return ""
