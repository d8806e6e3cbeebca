"""Programs as ONNX graphs with free sizes: any rows, source length and length of the answer so far.

A size that becomes a constant on the way would be a wrong answer at another size: it is refused,
with the block in which it happened.
"""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.utils.hooks import RemovableHandle

from blocks.core.contract import Block, Context, Path, State
from composer.errors import one_line_error
from composer.programs.fused_layers import translations, whole_layers
from composer.programs.parts import Program, Tensors

if TYPE_CHECKING:
    import onnx_ir

LARGEST = 1 << 24
"""Bound of a free size; with larger ones PyTorch's arithmetic of sizes overflows."""
SMALLEST = 1, 32
"""Bounds that are tried, of which the second keeps shortened streams above 1: PyTorch asks whether
they are 1 where the graph is the same, and so it computes as well below.
"""

WARNING_OF_NOTHING = "torch.onnx", "onnx_ir", "onnxscript"
"""Loggers that warn of packages that are not needed, and of what is left as it is in a graph."""


class NotExportable(Exception):
    """Reason why a program has no graph, and the block where it lies, if that is known."""

    def __init__(self, reason: str, path: Path = ()) -> None:
        super().__init__(reason)
        self.path = path


def to_graph(program: Program, examples: Sequence[Tensors]) -> onnx_ir.Model:
    """Return the ONNX graph of a program. Raises NotExportable.

    Examples: The inputs at several sizes; a dimension in which they differ is free.
    """
    names = program.signature.inputs
    inputs = tuple(examples[0][name] for name in names)
    sizes = [shapes_of([example[name] for example in examples]) for name in names]
    places = FixedSizes(program, [varying(several) for several in sizes])
    problem = Exception()
    for smallest in SMALLEST:
        with quiet_tracing(), places:
            try:
                shapes = (tuple(free_sizes(sizes, smallest)),)
                graph = torch.export.export(
                    program,
                    inputs,
                    dynamic_shapes=shapes,
                    # what PyTorch cannot prove of sizes is asserted, and a constant still refused
                    prefer_deferred_runtime_asserts_over_guards=True,
                )
                return to_onnx(program, graph)
            except Exception as error:  # the tracer may raise anything
                problem = error
    path = places.found or block_of(problem)
    raise NotExportable(one_line_error(problem), path) from problem


def to_onnx(program: Program, graph: torch.export.ExportedProgram) -> onnx_ir.Model:
    """Translate a graph."""
    from onnx_ir.passes.common import ClearMetadataAndDocStringPass, RemoveUnusedNodesPass

    exported = torch.onnx.export(
        graph,
        input_names=program.signature.inputs,
        output_names=program.signature.outputs,
        custom_translation_table=translations(),
        dynamo=True,
        verbose=False,
        opset_version=20,
    )
    assert exported is not None
    model = exported.model
    RemoveUnusedNodesPass()(model)
    ClearMetadataAndDocStringPass()(model)
    remove_empty_lists(model)
    return model


def remove_empty_lists(model: onnx_ir.Model) -> None:
    """Remove attributes that say nothing, such as the directions of no outputs of a loop.

    The library that quantises a graph cannot copy them.
    """
    for node in model.graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if attribute.value == ():
                del node.attributes[name]


class FixedSizes(AbstractContextManager["FixedSizes"]):
    """Finds the first block in which a free size becomes a constant, while a program is traced."""

    def __init__(self, program: Program, free: Sequence[Sequence[int]]) -> None:
        self.program, self.free = program, free
        self.inputs: tuple[Tensor, ...] = ()
        self.found: Path = ()
        self.hooks = ExitStack()

    def __enter__(self) -> FixedSizes:
        self.inputs, self.found = (), ()
        self._watch(self.program.register_forward_pre_hook(self._begin))
        for block in self.program.modules():
            if isinstance(block, Block):
                self._watch(block.register_forward_hook(self._look))
                self._watch_start(block)
        return self

    def __exit__(self, *exception: object) -> None:
        self.hooks.close()

    def _watch(self, hook: RemovableHandle) -> None:
        self.hooks.callback(hook.remove)

    def _watch_start(self, block: Block) -> None:
        start = block.start

        def watched(x: Tensor, context: Context) -> State:
            state = start(x, context)
            self._look(block, x, state)
            return state

        # hides the method of the class
        self.hooks.callback(vars(block).pop, "start")
        vars(block)["start"] = watched

    def _begin(self, program: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = inputs

    def _look(self, block: nn.Module, inputs: object, outputs: object) -> None:
        if self.found or torch.compiler.is_dynamo_compiling() or not isinstance(block, Block):
            return
        for tensor, dims in zip(self.inputs, self.free, strict=True):
            if any(is_constant(tensor.shape[dim]) for dim in dims):
                self.found = block.path


def is_constant(size: int) -> bool:
    """True for a size that can have one value alone."""
    if is_concrete_int(size):
        return True
    node = cast("torch.SymInt", size).node
    return bool(node.shape_env.bound_sympy(node.expr).is_singleton())


def block_of(problem: BaseException) -> Path:
    """Return the path of the innermost block in which an error was raised, () of none."""
    path: Path = ()
    place = problem.__traceback__
    while place is not None:
        block = place.tb_frame.f_locals.get("self")
        if isinstance(block, Block) and block.path:
            path = block.path
        place = place.tb_next
    return path


def varying(sizes: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the dimensions with several sizes."""
    return [dim for dim, several in enumerate(sizes) if len({*several}) > 1]


def shapes_of(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Return the sizes of each dimension over several tensors."""
    return list(zip(*(tensor.shape for tensor in tensors), strict=True))


def free_sizes(sizes: Sequence[Sequence[tuple[int, ...]]], smallest: int) -> list[tuple[Any, ...]]:
    """Return each dimension as fixed or free, given its sizes in all examples.

    Dimensions whose sizes always differ by a constant share one symbol, plus the constant.
    """
    symbols: dict[tuple[int, ...], Any] = {}
    return [tuple(_size(several, symbols, smallest) for several in shape) for shape in sizes]


def _size(several: tuple[int, ...], symbols: dict[tuple[int, ...], Any], smallest: int) -> Any:
    if len({*several}) == 1:
        return torch.export.Dim.STATIC
    for known, symbol in symbols.items():
        more = {*map(operator.sub, several, known)}
        if len(more) == 1:
            (added,) = more
            return symbol + added if added else symbol
    smallest = min(smallest, *several)
    symbols[several] = torch.export.Dim(f"size_{len(symbols)}", min=smallest, max=LARGEST)
    return symbols[several]


@contextmanager
def quiet_tracing() -> Iterator[None]:
    """Trace without gradients and warnings; treat sizes of 1 as any other, as torch.onnx does."""
    config: Any = torch.fx.experimental._config
    for library in WARNING_OF_NOTHING:
        logging.getLogger(library).setLevel(logging.ERROR)
    with (
        torch.no_grad(),
        warnings.catch_warnings(action="ignore"),
        config.patch(backed_size_oblivious=True),
        whole_layers(),
    ):
        yield
