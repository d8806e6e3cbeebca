"""`export --onnx`: any model as ONNX programs, with all that is needed to run them elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from composer.atomic_io import atomic_directory, require_absent, sha256_of_file
from composer.errors import RecipeError, RunError
from composer.exporters import model_file
from composer.exporters.description import describe, save_tokenizers
from composer.inference.run import Run, open_run
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.output_heads import CnnOutput
from composer.programs.graphs import NotExportable, to_graph
from composer.programs.parts import (
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
    with atomic_directory(target) as draft:
        write_programs(opened, model, draft)
    return target


def write_programs(run: Run, model: EncoderDecoder, folder: Path) -> None:
    """Write all files of an export. Raises as `export_onnx`."""
    import onnx_ir

    examples = [Example.of(model, sizes) for sizes in EXAMPLES]
    inputs = [example.tensors() for example in examples]
    graphs: dict[str, onnx_ir.Model] = {}
    try:
        programs = programs_of(model, examples[0])
        for program in programs:
            graphs[program.name] = to_graph(program, inputs)
    except NotExportable as problem:
        raise refusal(run, problem) from problem
    weights = folder / model_file.WEIGHTS
    store_weights(list(graphs.values()), weights)
    for name, graph in graphs.items():
        onnx_ir.save(graph, folder / f"{name}.onnx")
    check_programs(programs, model, folder)
    names = save_tokenizers(run, folder)
    described = describe(run, programs, names, sha256_of_file(weights))
    (folder / model_file.MODEL).write_text(described.to_json(), encoding="utf-8")


def programs_of(model: EncoderDecoder, example: Example) -> list[Program]:
    """Return the programs of a model; `encode` is left out where nothing reads a memory.

    Raises NotExportable.
    """
    if isinstance(model.output, CnnOutput):
        reason = "`cnn` computes the vectors of all words once, and a program would at every token"
        raise NotExportable(reason, ("model", "output", "kind"))
    rows = len(example.ids)
    with torch.no_grad():
        start = Start(model, example.memories, rows)
        step = Step(model, example.ids, example.state, example.memories)
    read = dict.fromkeys((*start.signature.inputs, *step.signature.inputs))
    memories = [name for name in read if name.startswith("memory.")]
    encode = [Encode(model, memories)] if model.readers() else []
    return [*encode, start, step]


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
