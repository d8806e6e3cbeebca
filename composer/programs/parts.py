"""The programs of a model: `encode`, `start` and `step` as functions from tensors to tensors.

Every tensor has a name. `encode` reads the sources and returns what the others read of the
memories; `start` returns the state before the first token; `step` reads a token of each row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from blocks.core.contract import Output, Path, Records, State
from blocks.core.lazy_outputs import LazyOutputs
from blocks.cross_attention import CrossAttention
from composer.model.encoder_decoder import (
    EncoderDecoder,
    StepInputs,
    example_source,
    state_leaves,
)
from composer.model.special_tokens import BOS, NUM_SPECIAL, PAD

Tensors = dict[str, Tensor]
Memories = Mapping[str, Output]

IDS, ANSWER, LOG_PROBS, LOGITS = "ids", "answer", "log_probs", "logits"
ATTENTION = "attention"
MEMORY = "memory."


@dataclass(frozen=True)
class Sizes:
    """The sizes of an example: rows, positions of the sources, tokens before the next one."""

    rows: int
    source: int
    before: int


@dataclass(frozen=True)
class Signature:
    """What a program reads and returns, in order."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class Program(nn.Module):
    """A part of a model as a function from tensors to tensors."""

    name: str
    signature: Signature

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def run(self, inputs: Tensors) -> Tensors:
        """Return the outputs of the program by their names."""
        raise NotImplementedError

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs = self.run(dict(zip(self.signature.inputs, inputs, strict=True)))
        return tuple(usual_strides(outputs[name]) for name in self.signature.outputs)


class Encode(Program):
    """The encoders. With room for an answer, each source is as long as the `answer` (B, N)."""

    name = "encode"

    def __init__(self, model: EncoderDecoder, outputs: Sequence[str]) -> None:
        super().__init__(model)
        self.keys = tuple(model.readers())
        answer = [ANSWER] if model.max_target_ratio else []
        self.signature = Signature((*map(source_name, self.keys), *answer), tuple(outputs))

    def run(self, inputs: Tensors) -> Tensors:
        sources = {key: inputs[source_name(key)] for key in self.keys}
        memories = self.model.encode(sources, target_mask=inputs.get(ANSWER))
        return memory_tensors(memories)


class Start(Program):
    """The state before the first token, of as many rows as `ids` has, (R, 1)."""

    name = "start"

    def __init__(self, model: EncoderDecoder, memories: Memories, rows: int) -> None:
        super().__init__(model)
        reads = LazyOutputs(memories, lambda memory: memory)
        state = model.start(reads, rows)
        self.memories = {name: memories[name] for name in reads.read}
        self.layout = memory_layout(self.memories)
        names = tuple(state_name(at) for at, _ in enumerate(state_leaves(state)))
        self.signature = Signature((IDS, *memory_tensors(self.memories)), names)

    def run(self, inputs: Tensors) -> Tensors:
        state = self.model.start(to_memories(inputs, self.layout), inputs[IDS].shape[0])
        return {state_name(at): leaf for at, leaf in enumerate(state_leaves(state))}


class Step(Program):
    """A token of each row, (R, 1): log p of the next one (R, V), and the leaves that it changes.

    attention: Where the decoder looked at the first encoder's positions, (R, S), is an output too:
    the mean over the blocks of `attended_paths` and their heads. Without such a block it is none.
    """

    name = "step"

    def __init__(
        self,
        model: EncoderDecoder,
        ids: Tensor,
        state: State,
        memories: Memories,
        attention: bool = False,
    ) -> None:
        super().__init__(model)
        self.attended = attended_paths(model) if attention else frozenset()
        reads = LazyOutputs(memories, lambda memory: memory)
        _, after = model.step(ids, state, reads)
        self.memories = {name: memories[name] for name in reads.read}
        self.layout, self.tree = memory_layout(self.memories), pytree.tree_structure(state)
        before = list(state_leaves(state))
        self.count = len(before)
        pairs = zip(before, state_leaves(after), strict=True)
        self.changed = tuple(at for at, (old, new) in enumerate(pairs) if old is not new)
        inputs = (IDS, *map(state_name, range(self.count)), *memory_tensors(self.memories))
        outputs = (LOG_PROBS, LOGITS, *([ATTENTION] if self.attended else []))
        self.signature = Signature(inputs, (*outputs, *map(next_name, self.changed)))

    def run(self, inputs: Tensors) -> Tensors:
        leaves = [inputs[state_name(at)] for at in range(self.count)]
        state = pytree.tree_unflatten(leaves, self.tree)
        memories = to_memories(inputs, self.layout)
        records: Records | None = {} if self.attended else None
        logits, after = self.model.step(inputs[IDS], state, memories, StepInputs(records))
        logits = logits.squeeze(1)  # (R, V)
        outputs = {LOG_PROBS: self.model.log_probs(logits).float(), LOGITS: logits.float()}
        if records is not None:
            outputs[ATTENTION] = self.mean_attention(records)
        made = list(state_leaves(after))
        return outputs | {next_name(at): made[at] for at in self.changed}

    def mean_attention(self, records: Records) -> Tensor:
        """Return the mean of recorded weights. -> (R, S)"""
        maps = []
        for record, (weights,) in records.items():  # (R, 1, H, S)
            if record.path in self.attended and record.name == "weights":
                maps.append(weights.mean((1, 2)))
        return torch.stack(maps).mean(0)


def memories_of(block: CrossAttention) -> list[str]:
    """Return the names of the memories that a block reads."""
    return [source.memory for source in block.sources]


def attended_paths(model: EncoderDecoder) -> frozenset[Path]:
    """Return the paths of the blocks of the decoder that attend to the first encoder alone."""
    memories = [encoder.memory for encoder in model.readers().values()]
    paths = set()
    for block in model.decoder.modules():
        if isinstance(block, CrossAttention) and memories_of(block) == memories[:1]:
            paths.add(block.path)
    return frozenset(paths)


# ------------------------------------------------------------------------------------------- names


def source_name(key: str) -> str:
    """Return the name of an encoder's input."""
    return f"source.{key}"


def state_name(at: int) -> str:
    """Return the name of a leaf of the state."""
    return f"state.{at}"


def next_name(at: int) -> str:
    """Return the name of a leaf of the state after a step."""
    return f"next.{at}"


def memory_tensors(memories: Memories) -> Tensors:
    """Return the tensors of memories by name: `memory.NAME.states`, `.mask`, `.last.0` ..."""
    tensors: Tensors = {}
    for name, memory in memories.items():
        tensors[f"{MEMORY}{name}.states"] = memory.states
        tensors[f"{MEMORY}{name}.mask"] = memory.mask
        for at, leaf in enumerate(state_leaves(memory.last)):
            tensors[f"{MEMORY}{name}.last.{at}"] = leaf
    return tensors


Layout = dict[str, pytree.TreeSpec]
"""The form of the last state of each memory."""


def memory_layout(memories: Memories) -> Layout:
    """Return the form of each memory."""
    return {name: pytree.tree_structure(memory.last) for name, memory in memories.items()}


def to_memories(tensors: Tensors, layout: Layout) -> dict[str, Output]:
    """Return memories from their tensors."""
    memories = {}
    for name, form in layout.items():
        last = [tensors[f"{MEMORY}{name}.last.{at}"] for at in range(form.num_leaves)]
        memories[name] = Output(
            tensors[f"{MEMORY}{name}.states"],
            tensors[f"{MEMORY}{name}.mask"],
            pytree.tree_unflatten(last, form),
        )
    return memories


def usual_strides(tensor: Tensor) -> Tensor:
    """Return a tensor with standard strides, also in dimensions of size 1."""
    return tensor.clone(memory_format=torch.contiguous_format)


# ---------------------------------------------------------------------------------------- examples


@dataclass(frozen=True)
class Example:
    """Inputs of all programs, and what they make of each other's."""

    sources: Tensors
    memories: dict[str, Output]
    ids: Tensor
    state: State

    @classmethod
    def of(cls, model: EncoderDecoder, sizes: Sizes, seed: int = 0) -> Example:
        """Return an example of a model: random tokens, the last row a little shorter.

        Of several rows, the last one has ended: its token is pad.
        """
        random = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            sources = example_inputs(model, sizes, random)
            by_key = {key: sources[source_name(key)] for key in model.readers()}
            memories = model.encode(by_key, target_mask=sources.get(ANSWER))
            state = model.start(memories, sizes.rows)
            if sizes.before:
                ids = random_ids(model.vocabulary, (sizes.rows, sizes.before), random)
                state = model.step(ids, state, memories)[1]
        ids = random_ids(model.vocabulary, (sizes.rows, 1), random)
        if not sizes.before:
            ids.fill_(BOS)
        elif sizes.rows > 1:
            ids[-1] = PAD
        return cls(sources, memories, ids, state)

    def tensors(self) -> Tensors:
        """Return all of them by the names of the programs' inputs."""
        state = {state_name(at): leaf for at, leaf in enumerate(state_leaves(self.state))}
        tensors = {IDS: self.ids, **self.sources, **state, **memory_tensors(self.memories)}
        # a state may begin as a parameter
        return {name: usual_strides(tensor.detach()) for name, tensor in tensors.items()}


def example_inputs(model: EncoderDecoder, sizes: Sizes, random: torch.Generator) -> Tensors:
    """Return the inputs of `encode`. Sources of several encoders differ in length.

    Where there is room for an answer, that of the last row is longer than its source.
    """
    sources: Tensors = {}
    for number, (key, encoder) in enumerate(model.readers().items()):
        length = sizes.source + (0 if encoder.max_target_ratio else number * sizes.rows)
        count = encoder.embedding.num_embeddings
        ids = random_ids(count, (sizes.rows, length), random)
        source = example_source(encoder, ids).clone()
        if source.is_floating_point():
            source = torch.rand(source.shape, generator=random)
        if sizes.rows > 1:
            source[-1, length - length // 4 :] = torch.nan if source.is_floating_point() else PAD
        sources[source_name(key)] = source
    if model.max_target_ratio:
        answer = torch.ones(sizes.rows, sizes.source, dtype=torch.bool)
        if sizes.rows > 1:
            answer[-1, sizes.source - sizes.source // 8 :] = False
        sources[ANSWER] = answer
    return sources


def random_ids(vocabulary: int, shape: tuple[int, int], random: torch.Generator) -> Tensor:
    """Return ids of tokens that are not special."""
    return torch.randint(NUM_SPECIAL, max(vocabulary, NUM_SPECIAL + 1), shape, generator=random)
