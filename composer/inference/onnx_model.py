"""A model whose programs onnxruntime runs, made once and cached."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blocks.core.contract import Output, State
from composer.atomic_io import atomic_directory, cache_dir
from composer.errors import RecipeError, RunError
from composer.inference.methods import Beam, Greedy
from composer.inference.run import Run
from composer.model.ctc import JointModel
from composer.model.encoder_decoder import (
    NO_INPUTS,
    EncoderDecoder,
    StepInputs,
    state_leaves,
)
from composer.programs.files import open_program, require_onnx, write_programs
from composer.programs.graphs import NotExportable
from composer.programs.parts import (
    ANSWER,
    IDS,
    LOGITS,
    Signature,
    Tensors,
    next_name,
    source_name,
    state_name,
)
from composer.recipe.choices import Decoder

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

PROGRAMS = "programs"
"""The folder of the cache."""
MEMORIES = "memories"
"""The one memory that a search sees: its last state holds the tensors of all."""


def on_onnxruntime(run: Run, decoding: Decoder) -> EncoderDecoder:
    """Return the model of a run as programs of onnxruntime. Raises RunError and RecipeError."""
    require_onnx()
    if decoding.precision == "bfloat16":
        message = "onnxruntime decodes in float32 or int8 here, and not in `bfloat16`"
        raise RunError.of(message, "write `engine: torch`, or `precision: float32`")
    model = weighted(run.model, decoding)
    folder = cache_dir() / PROGRAMS / f"{program_key(run, model)}-{decoding.precision}"
    if not folder.is_dir():
        try:
            with atomic_directory(folder) as draft:
                write_run_programs(run, decoding, draft, int8=decoding.precision == "int8")
        except RunError:
            if not folder.is_dir():  # or another process has made them
                raise
    return OnnxModel(model, folder)


def write_run_programs(
    run: Run, decoding: Decoder, folder: Path, int8: bool = False, attention: bool = False
) -> dict[str, Signature]:
    """Write the programs of a run's model. Raises RecipeError, or RunError without a place."""
    model = copy.deepcopy(weighted(run.model, decoding)).cpu().float().eval()
    try:
        return write_programs(model, folder, int8, attention)
    except NotExportable as problem:
        message = f"this cannot be exported: {problem}"
        fix = "export a model without it, or decode with this project and `engine: torch`"
        if not problem.path:
            raise RunError.of(message, fix, str(run.run_dir.path)) from problem
        fault = run.recipe.fault("export", problem.path, message, fix)
        raise RecipeError([fault]) from problem


def weighted(model: EncoderDecoder, decoding: Decoder) -> EncoderDecoder:
    """Return the model with the weight of CTC that a decoding has."""
    if isinstance(decoding, Greedy | Beam) and decoding.ctc_weight is not None:
        return model.with_ctc_weight(decoding.ctc_weight)
    return model


def program_key(run: Run, model: EncoderDecoder) -> str:
    """Return what decides the programs of a model: the exporter, its architecture, its weights."""
    decides = {
        "exporter": version("seqcomposer"),
        "model": run.recipe.canonical["model"],
        "ctc": model.weight if isinstance(model, JointModel) else type(model).__name__,
        "begins_after_end": model.begins_after_end,
    }
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {[*tensor.shape]}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class OnnxModel(EncoderDecoder):
    """A model whose `encode`, `start` and `step` are programs. Only a search runs it."""

    has_programs = True

    def __init__(self, model: EncoderDecoder, folder: Path) -> None:
        super().__init__(
            model.readers(), model.embedding, model.decoder, model.output, model.width, model.length
        )
        self.original = model
        threads = torch.get_num_threads()
        names = ("encode", "start", "step") if model.readers() else ("start", "step")
        self.programs = {name: OpenProgram(open_program(folder, name, threads)) for name in names}
        self.changed = [
            at
            for at in range(len(self.programs["start"].outputs))
            if next_name(at) in self.programs["step"].outputs
        ]

    @property
    def has_impossible_tokens(self) -> bool:
        return self.original.has_impossible_tokens

    def log_probs(self, logits: Tensor) -> Tensor:
        return self.original.log_probs(logits)

    def encode(
        self,
        sources: Mapping[str, Tensor],
        inputs: StepInputs = NO_INPUTS,
        target_mask: Tensor | None = None,
    ) -> dict[str, Output]:
        if not self.readers():
            return {}
        read = {source_name(key): source for key, source in sources.items()}
        if target_mask is not None:
            read[ANSWER] = target_mask
        made = self.programs["encode"].run(read)
        first = next(iter(made.values()))
        return {MEMORIES: Output(first, first, tuple(made.values()))}

    def start(self, memories: Mapping[str, Output], batch: int) -> State:
        ids = torch.zeros(batch, 1, dtype=torch.long)
        return tuple(self.programs["start"].run({IDS: ids, **self._tensors(memories)}).values())

    def step(
        self,
        ids: Tensor,
        state: State | None,
        memories: Mapping[str, Output],
        inputs: StepInputs = NO_INPUTS,
        answer: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        leaves = list(self.start(memories, ids.shape[0]) if state is None else state)
        read = self._tensors(memories)
        logits = []
        for token in ids.split(1, 1):
            read |= {state_name(at): leaf for at, leaf in enumerate(leaves)}
            made = self.programs["step"].run({**read, IDS: token})
            for at in self.changed:
                leaves[at] = made[next_name(at)]
            logits.append(made[LOGITS].unsqueeze(1))
        return logits[0] if len(logits) == 1 else torch.cat(logits, 1), tuple(leaves)

    def _tensors(self, memories: Mapping[str, Output]) -> Tensors:
        if not memories:
            return {}
        leaves = state_leaves(memories[MEMORIES].last)
        return dict(zip(self.programs["encode"].outputs, leaves, strict=True))


class OpenProgram:
    """A program that runs on tensors of PyTorch."""

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self.inputs = [node.name for node in session.get_inputs()]
        self.outputs = [node.name for node in session.get_outputs()]

    def run(self, inputs: Tensors) -> Tensors:
        """Run the program on what it reads of these tensors."""
        read = {name: inputs[name].contiguous().numpy() for name in self.inputs}
        made = self.session.run(self.outputs, read)
        return {
            name: torch.from_numpy(value) for name, value in zip(self.outputs, made, strict=True)
        }
