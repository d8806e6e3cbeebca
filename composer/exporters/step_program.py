"""A decoding step as a graph with dynamic shapes: any rows, source length and target length.

An export to another runtime starts from this graph. The weights are the model's own.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.utils import _pytree as pytree

from blocks.core.contract import Output, State
from blocks.core.lazy_outputs import LazyOutputs
from composer.errors import RunError, one_line_error
from composer.model.encoder_decoder import EncoderDecoder, example_ids, example_sources
from composer.model.output_heads import CnnOutput
from composer.model.special_tokens import BOS

Memories = Mapping[str, Output]
Inputs: TypeAlias = "tuple[Tensor, list[Tensor], list[State]]"
"""Inputs of the graph: ids (R, 1), the leaves of the state, the memories that are read."""
Dims = Sequence[Sequence[int]]
"""Dimensions of each of several tensors."""

SIZES = (3, 14, 6), (5, 9, 7), (7, 12, 10)
"""(rows, source tokens, target tokens) of examples, from which dynamic dimensions are found."""
LARGEST = 1 << 30


class Interface(NamedTuple):
    """The inputs and outputs of a step that the graph needs."""

    read: tuple[str, ...]  # names of the memories that a step reads
    changed: tuple[int, ...]  # leaves of the state that a step replaces

    @classmethod
    def observe(
        cls, model: EncoderDecoder, ids: Tensor, state: State, memories: Memories
    ) -> tuple[Interface, Tensor, State]:
        """Run a step and observe it. -> interface, logits, state"""
        reads = LazyOutputs(memories, lambda memory: memory)
        logits, after = model.step(ids, state, reads)
        pairs = zip(pytree.tree_leaves(state), pytree.tree_leaves(after), strict=True)
        changed = tuple(place for place, (old, new) in enumerate(pairs) if old is not new)
        return cls(tuple(reads.read), changed), logits, after

    def inputs(self, ids: Tensor, state: State, memories: Memories) -> Inputs:
        """Return the inputs of the graph, with the strides that it expects."""
        arguments = (ids, pytree.tree_leaves(state), [tuple(memories[name]) for name in self.read])
        return pytree.tree_map(with_usual_strides, arguments)


def with_usual_strides(tensor: Tensor) -> Tensor:
    """Return a tensor with standard strides, also in dimensions of size 1."""
    if tensor.is_contiguous() and 1 not in tensor.shape:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class StepModule(nn.Module):
    """The step of a model as a function from tensors to tensors, which can be exported."""

    def __init__(self, model: EncoderDecoder, interface: Interface, state: State) -> None:
        super().__init__()
        self.model, self.interface = model, interface
        self.layout = pytree.tree_structure(state)

    def forward(
        self, ids: Tensor, leaves: list[Tensor], memories: list[State]
    ) -> tuple[Tensor, list[Tensor]]:
        named = {
            name: Output(*memory)
            for name, memory in zip(self.interface.read, memories, strict=True)
        }
        logits, after = self.model.step(ids, pytree.tree_unflatten(leaves, self.layout), named)
        made = pytree.tree_leaves(after)
        return logits, [made[place] for place in self.interface.changed]


class Program(NamedTuple):
    """The graph of a step, and the dimensions of its inputs that may not be 1."""

    graph: torch.export.ExportedProgram
    above_one: Dims


def export_step(module: StepModule) -> Program:
    """Export a step for any sizes: from 1 on where torch can, else from 2 on. Raises RunError."""
    if isinstance(module.model.output, CnnOutput):
        reason = "`cnn` computes the vectors of all words once, and the graph would at every token"
        raise not_exportable(reason)
    examples = [module.interface.inputs(*example_step(module.model, *sizes)) for sizes in SIZES]
    columns = [*zip(*map(pytree.tree_leaves, examples), strict=True)]
    sizes = [*map(sizes_of, columns)]
    varying = [*map(varying_dims, sizes)]
    problem = Exception()
    for smallest in (1, 2):
        layout = pytree.tree_structure(examples[0])
        dynamic = pytree.tree_unflatten(dynamic_shapes(sizes, smallest), layout)
        with oblivious_of_ones(), torch.no_grad(), warnings.catch_warnings(action="ignore"):
            try:
                graph = torch.export.export(module, examples[0], dynamic_shapes=dynamic)
                exported = varying_sizes(graph)
                # only decompositions show that a write in place fixes a size
                if varying_sizes(graph.run_decompositions({})) == exported:
                    return Program(graph, [[] for _ in varying] if smallest == 1 else varying)
                problem = ValueError("its graph works for one input size only")
            except Exception as error:  # the tracer may raise anything
                problem = error
    raise not_exportable(one_line_error(problem)) from problem


def sizes_of(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Return the sizes of each dimension over several tensors."""
    return [*zip(*(tensor.shape for tensor in tensors), strict=True)]


def varying_dims(sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the dimensions with several sizes."""
    return [dim for dim, several in enumerate(sizes) if len({*several}) > 1]


def varying_sizes(graph: torch.export.ExportedProgram) -> list[list[bool]]:
    """Return, for each input, True for each dimension that varies."""
    inputs = {*graph.graph_signature.user_inputs}
    shapes = [node.meta["val"].shape for node in graph.graph.nodes if node.name in inputs]
    are_fixed = [map(is_concrete_int, shape) for shape in shapes]
    return [[*map(operator.not_, fixed)] for fixed in are_fixed]


def not_exportable(reason: str) -> RunError:
    """Return the error of a step that cannot be exported."""
    message = f"the decoding step of this model cannot be exported: {reason}"
    return RunError.of(message, "export another model, or decode with this project")


def dynamic_shapes(
    sizes: Sequence[Sequence[tuple[int, ...]]], smallest: int
) -> list[tuple[Any, ...]]:
    """Return each dimension as static or dynamic, given its sizes in all examples.

    Dimensions whose sizes always differ by a constant share one symbol, plus the constant.
    """
    numbers: dict[tuple[int, ...], Any] = {}

    def kind(several: tuple[int, ...]) -> Any:
        if len({*several}) == 1:
            return torch.export.Dim.STATIC
        for known, number in numbers.items():
            more = {*map(operator.sub, several, known)}
            if len(more) == 1:
                (added,) = more
                return number + added if added else number
        numbers[several] = torch.export.Dim(f"size_{len(numbers)}", min=smallest, max=LARGEST)
        return numbers[several]

    return [tuple(map(kind, shape)) for shape in sizes]


def example_step(
    model: EncoderDecoder, rows: int, tokens: int, positions: int
) -> tuple[Tensor, State, Memories]:
    """Return inputs of a step: ids (R, 1), the state after `positions` tokens, the memories."""
    with torch.no_grad():
        # independent of each other
        lengths = {key: tokens + number * rows for number, key in enumerate(model.readers())}
        sources = {key: example_sources(model, length)[key] for key, length in lengths.items()}
        sources = {key: ids.expand(rows, *ids.shape[1:]) for key, ids in sources.items()}
        answer = example_ids(model, positions).expand(rows, -1)  # (R, t)
        target_mask = example_ids(model, tokens).expand(rows, -1).bool()
        memories = model.encode(sources, target_mask=target_mask)
        state = model.step(answer, model.start(memories, rows), memories)[1]
    return torch.full_like(answer[:, :1], BOS), state, memories


def oblivious_of_ones() -> AbstractContextManager[object]:
    """Treat sizes of 1 as any other, as PyTorch's export to ONNX does."""
    config: Any = torch.fx.experimental._config
    return config.patch(backed_size_oblivious=True)
