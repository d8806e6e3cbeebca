"""A model whose programs onnxruntime runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from blocks.core.contract import Output, State
from composer.errors import RunError
from composer.inference.precision import Versions, versions_of
from composer.inference.run import Run
from composer.inference.run_programs import cached_programs, weighted
from composer.model.encoder_decoder import (
    NO_INPUTS,
    EncoderDecoder,
    StepInputs,
    state_leaves,
)
from composer.model.machine import PROGRAMS, require_packages
from composer.programs.files import open_program
from composer.programs.parts import (
    ANSWER,
    IDS,
    LOGITS,
    Tensors,
    next_name,
    source_name,
    state_name,
)
from composer.recipe.choices import Decoder

if TYPE_CHECKING:
    from pathlib import Path

    from onnxruntime import InferenceSession

MEMORIES = "memories"
"""The one memory that a search sees: its last state holds the tensors of all."""

_open: WeakKeyDictionary[EncoderDecoder, tuple[Versions, EncoderDecoder]] = WeakKeyDictionary()


def on_onnxruntime(run: Run, decoding: Decoder) -> EncoderDecoder:
    """Return the model of a run as programs, open for as long as its weights do not change.

    Raises RunError and RecipeError.
    """
    require_packages(PROGRAMS)
    if decoding.precision != "float32":
        message = f"onnxruntime decodes in float32 here, and not in `{decoding.precision}`"
        raise RunError.of(message, "write `engine: torch`, or `precision: float32`")
    model = weighted(run.model, decoding)
    versions = versions_of(model)
    opened_at, opened = _open.get(model, ((), model))
    if opened_at != versions:
        opened = OnnxModel(model, cached_programs(run, decoding))
        _open[model] = versions, opened
    return opened


class OnnxModel(EncoderDecoder):
    """A model on the CPU whose `encode`, `start` and `step` are programs, for searches alone."""

    has_programs = True

    def __init__(self, model: EncoderDecoder, folder: Path) -> None:
        # a copy, whose parameters are the model's own if they are on the CPU
        original = copy.copy(model) if model.device.type == "cpu" else copy.deepcopy(model).cpu()
        super().__init__(
            original.readers(),
            original.embedding,
            original.decoder,
            original.output,
            original.width,
            original.length,
        )
        self.train()
        self.original = original
        threads = torch.get_num_threads()
        names = ("encode", "start", "step") if original.readers() else ("start", "step")
        self.programs = {name: OpenProgram(open_program(folder, name, threads)) for name in names}
        self.changed = [
            at
            for at in range(len(self.programs["start"].outputs))
            if next_name(at) in self.programs["step"].outputs
        ]

    def train(self, mode: bool = True) -> Self:
        """Leave the mode of the model, which has the same modules; programs have none."""
        self.training = False
        return self

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
