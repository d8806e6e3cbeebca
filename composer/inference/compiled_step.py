"""A decoding step as machine code: exported, compiled by AOTInductor, and cached on disk for the next process.

What is compiled is the step of one token, for any number of rows, source length and positions so far. The weights stay
the model's own. The store, beside the recipes, has a folder of each user's, `compiled-UID`: nobody loads code that
somebody else has written, nor code that has changed, and a run folder never has any.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import os
import pickle
import platform
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import is_concrete_int
from torch.utils import _pytree as pytree

from blocks.core.contract import Block, Output, State
from blocks.core.lazy_outputs import LazyOutputs
from composer.atomic_io import atomic_write, cache_dir, os_errors_as_run_errors, read_text, sha256_of_file
from composer.errors import RunError, one_line_error
from composer.inference.decoders import Step
from composer.model.encoder_decoder import BOS, EncoderDecoder, example_ids, example_sources
from composer.model.output_heads import CnnOutput
from composer.recipe import registry

Memories = Mapping[str, Output]
Inputs: TypeAlias = "tuple[Tensor, list[Tensor], list[State]]"
"""What the compiled code takes: ids (R, 1), the leaves of the state, the memories that are read."""
Dims = Sequence[Sequence[int]]
"""Some of the dimensions of each tensor of some inputs."""

SIZES = (3, 14, 6), (5, 9, 7), (7, 12, 10)
"""Rows, source tokens and positions so far of examples, which show what dimensions vary and which vary together."""
LARGEST = 1 << 30
ON_GPU = "the decoding step is compiled for CPUs alone"  # on an H200 the compiled code ended the process
ONE_SIZE = "the compiler makes code for inputs of one size alone"
INDUCTOR = {"aot_inductor.package_constants_in_so": False, "aot_inductor.check_lowerbound": False}
"""The model's own weights are used, and the sizes are not what they are in the examples."""

_compiled: WeakKeyDictionary[EncoderDecoder, CompiledStep] = WeakKeyDictionary()


def compiled_step(model: EncoderDecoder) -> Step:
    """Return the step of one token of a model, compiled; the first call compiles it where the cache has none.

    It raises RunError on a GPU, where there is no C++ compiler, or where the step cannot be exported.
    """
    if model.device.type != "cpu":
        raise RunError.of(ON_GPU, "remove `compile`, or set `trainer.accelerator=cpu`")
    addresses = [tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())]
    step = _compiled.get(model)
    if step is None or step.addresses != addresses:
        step = _compiled[model] = CompiledStep(addresses)
    return lambda ids, state, memories: step(model, ids, state, memories)


class CompiledStep:
    """The compiled step of one model, whose tensors are at `addresses`; its first call loads it."""

    def __init__(self, addresses: Sequence[int]) -> None:
        self.addresses = addresses
        self.interface: Interface | None = None
        self.code: Code | None = None

    def __call__(self, model: EncoderDecoder, ids: Tensor, state: State, memories: Memories) -> tuple[Tensor, State]:
        if self.interface is None or self.code is None:
            self.interface, logits, after = Interface.observe(model, ids, state, memories)
            self.code = load_or_compile(StepModule(model, self.interface, state))
            return logits, after
        inputs = self.code.fit(self.interface.inputs(ids, state, memories))
        if inputs is None:
            return model.step(ids, state, memories)
        try:
            logits, made = self.code.package(*inputs)
        except RuntimeError as error:
            if "unmatched" not in str(error):  # of the checks of the code's inputs
                raise
            raise uncompilable(ONE_SIZE) from error
        if len(logits) > len(ids):
            logits, made = logits[:1], [leaf[:1] for leaf in made]
        leaves, layout = pytree.tree_flatten(state)
        for place, leaf in zip(self.interface.changed, made, strict=True):
            leaves[place] = leaf
        return logits, pytree.tree_unflatten(leaves, layout)


class Interface(NamedTuple):
    """What of a step's inputs and outputs is for the compiled code."""

    read: tuple[str, ...]  # names of the memories that a step reads
    changed: tuple[int, ...]  # leaves of the state that a step makes anew; the others it hands on

    @classmethod
    def observe(
        cls, model: EncoderDecoder, ids: Tensor, state: State, memories: Memories
    ) -> tuple[Interface, Tensor, State]:
        """Run a step and see what it does. -> interface, logits, state"""
        reads = LazyOutputs(memories, lambda memory: memory)
        logits, after = model.step(ids, state, reads)
        pairs = zip(pytree.tree_leaves(state), pytree.tree_leaves(after), strict=True)
        changed = tuple(place for place, (old, new) in enumerate(pairs) if old is not new)
        return cls(tuple(reads.read), changed), logits, after

    def inputs(self, ids: Tensor, state: State, memories: Memories) -> Inputs:
        """Return what the compiled code takes, with the strides that it expects."""
        arguments = (ids, pytree.tree_leaves(state), [tuple(memories[name]) for name in self.read])
        return pytree.tree_map(with_usual_strides, arguments)


def with_usual_strides(tensor: Tensor) -> Tensor:
    """Return a tensor with the strides of a new one; a contiguous one may have any where its size is 1."""
    if tensor.is_contiguous() and 1 not in tensor.shape:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


class StepModule(nn.Module):
    """The step of a model as a function from tensors to tensors, which is what can be exported."""

    def __init__(self, model: EncoderDecoder, interface: Interface, state: State) -> None:
        super().__init__()
        self.model, self.interface = model, interface
        self.layout = pytree.tree_structure(state)

    def forward(self, ids: Tensor, leaves: list[Tensor], memories: list[State]) -> tuple[Tensor, list[Tensor]]:
        named = {name: Output(*memory) for name, memory in zip(self.interface.read, memories, strict=True)}
        logits, after = self.model.step(ids, pytree.tree_unflatten(leaves, self.layout), named)
        made = pytree.tree_leaves(after)
        return logits, [made[place] for place in self.interface.changed]


# ------------------------------------------------------------------------------------------- export


def compilation_problem(build: Callable[[], EncoderDecoder]) -> str:
    """Return why the step of a model cannot be compiled on this machine; "" if it can. Allocates no memory for it."""
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "there is no C++ compiler, such as g++, to compile the decoding step"
    with FakeTensorMode():
        model = build().eval()
        ids, state, memories = example_step(model, *SIZES[0])
        module = StepModule(model, Interface.observe(model, ids, state, memories)[0], state)
        try:
            fingerprint(module)
            export_step(module)
        except RunError as error:
            return error.faults[0].message
    return ""


class Program(NamedTuple):
    """The graph of a step, and the dimensions of its inputs that may not be 1."""

    graph: torch.export.ExportedProgram
    above_one: Dims


def export_step(module: StepModule) -> Program:
    """Export a step for any sizes: from 1 on where torch can, else from 2 on. Raises RunError."""
    if isinstance(module.model.output, CnnOutput):
        raise uncompilable("`cnn` makes the vectors of all words once, and the code would at every token")
    examples = [module.interface.inputs(*example_step(module.model, *sizes)) for sizes in SIZES]
    columns = [*zip(*map(pytree.tree_leaves, examples), strict=True)]
    sizes = [[*zip(*(tensor.shape for tensor in column), strict=True)] for column in columns]
    varying = [[dim for dim, several in enumerate(shape) if len({*several}) > 1] for shape in sizes]
    problem = Exception()
    for smallest in (1, 2):
        layout = pytree.tree_structure(examples[0])
        dynamic = pytree.tree_unflatten(dynamic_shapes(sizes, smallest), layout)
        with oblivious_of_ones(), torch.no_grad(), warnings.catch_warnings(action="ignore"):
            try:
                graph = torch.export.export(module, examples[0], dynamic_shapes=dynamic)
                exported = varying_sizes(graph)
                # what is compiled writes nothing in place, and a write may fix a size there
                if varying_sizes(graph.run_decompositions({})) == exported:
                    return Program(graph, [[] for _ in varying] if smallest == 1 else varying)
                problem = ValueError(ONE_SIZE)
            except Exception as error:  # whatever the tracer meets
                problem = error
    raise uncompilable(one_line_error(problem)) from problem


def varying_sizes(graph: torch.export.ExportedProgram) -> list[list[bool]]:
    """Return of each dimension of each input whether it varies."""
    inputs = {*graph.graph_signature.user_inputs}
    shapes = [node.meta["val"].shape for node in graph.graph.nodes if node.name in inputs]
    return [[not is_concrete_int(size) for size in shape] for shape in shapes]


def uncompilable(reason: str) -> RunError:
    """Return the error of a step for which there can be no code."""
    return RunError.of(f"the decoding step of this model cannot be compiled: {reason}", "remove `compile`")


def dynamic_shapes(sizes: Sequence[Sequence[tuple[int, ...]]], smallest: int) -> list[tuple[Any, ...]]:
    """Return the kind of each dimension, of which the sizes in all examples are given: fixed, or a number.

    Sizes that are the same in all examples, or always differ by as much, are one number and what is added to it.
    """
    numbers: dict[tuple[int, ...], Any] = {}

    def kind(several: tuple[int, ...]) -> Any:
        if len({*several}) == 1:
            return torch.export.Dim.STATIC
        for known, number in numbers.items():
            more = {one - other for one, other in zip(several, known, strict=True)}
            if len(more) == 1:
                (added,) = more
                return number + added if added else number
        numbers[several] = torch.export.Dim(f"size_{len(numbers)}", min=smallest, max=LARGEST)
        return numbers[several]

    return [tuple(map(kind, shape)) for shape in sizes]


def example_step(model: EncoderDecoder, rows: int, tokens: int, positions: int) -> tuple[Tensor, State, Memories]:
    """Return inputs of a step: ids (R, 1), the state after so many positions, and what the encoders left."""
    with torch.no_grad():
        lengths = {key: tokens + number * rows for number, key in enumerate(model.readers())}  # none hangs on another
        sources = {key: example_sources(model, length)[key] for key, length in lengths.items()}
        sources = {key: ids.expand(rows, *ids.shape[1:]) for key, ids in sources.items()}
        answer = example_ids(model, positions).expand(rows, -1)  # (R, t)
        memories = model.encode(sources, target_mask=example_ids(model, tokens).expand(rows, -1).bool())
        state = model.step(answer, model.start(memories, rows), memories)[1]
    return torch.full_like(answer[:, :1], BOS), state, memories


def oblivious_of_ones() -> AbstractContextManager[Any]:
    """Let a graph serve sizes of 1 as any other, as PyTorch's export to ONNX does."""
    return torch.fx.experimental._config.patch(backed_size_oblivious=True)  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------- compilation


class Code(NamedTuple):
    """Machine code, and the dimensions of its inputs that may not be 1."""

    package: Callable[..., tuple[Tensor, list[Tensor]]]
    above_one: Dims

    def fit(self, inputs: Inputs) -> Inputs | None:
        """Return the inputs in sizes that the code is for, a single row twice if need be; None if there are none."""
        tensors = zip(pytree.tree_leaves(inputs), self.above_one, strict=True)
        too_small = {dim for tensor, dims in tensors for dim in dims if tensor.shape[dim] == 1}
        if too_small == {0}:  # a second row costs less than a step that is not compiled
            return cast("Inputs", pytree.tree_map(lambda tensor: torch.cat((tensor, tensor)), inputs))
        return None if too_small else inputs


def load_or_compile(module: StepModule) -> Code:
    """Return the compiled code of a step, which computes with the tensors of the module."""
    path = own_folder() / f"{fingerprint(module)}.pt2"
    if not is_as_written(path):
        sys.stderr.write("compiling the decoding step; it is cached for the next time\n")
        compile_to(path, module)
    os.environ.setdefault("AOTI_RUNTIME_CHECK_INPUTS", "1")  # read at the first call: else wrong inputs are noise
    package = torch._inductor.aoti_load_package(str(path))
    tensors = {name: attrgetter(name)(module) for name in package.get_constant_fqns()}
    package.load_constants(tensors, check_full_update=True, user_managed=True)
    return Code(package, json.loads(package.get_metadata()["above_one"]))


def own_folder() -> Path:
    """Return the folder of the store that this user alone writes into: no program of others is loaded. Raises RunError.

    It lies in the store itself, which several users may share, and not in a folder that the first of them made.
    """
    if not hasattr(os, "getuid"):
        return cache_dir() / "compiled"
    own = cache_dir() / f"compiled-{os.getuid()}"
    with os_errors_as_run_errors(own):
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own(own) or os.lstat(own).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            fix = "remove it, or set SEQCOMPOSER_STORE to a folder of your own"
            raise RunError.of("others can write into this folder of compiled code", fix, str(own))
    return own


def is_own(path: Path) -> bool:
    """Return whether a file or folder, itself and not what it links to, belongs to this user."""
    return not hasattr(os, "getuid") or os.lstat(path).st_uid == os.getuid()


def is_as_written(path: Path) -> bool:
    """Return whether compiled code is there, is this user's, and is what was compiled."""
    with suppress(OSError, ValueError):
        return is_own(path) and read_text(hash_file(path)) == sha256_of_file(path)
    return False


def hash_file(path: Path) -> Path:
    """Return the file that has the SHA-256 of compiled code."""
    return path.with_suffix(".sha256")


def compile_to(path: Path, module: StepModule) -> None:
    """Compile a step into a file, which appears once it is whole. Raises RunError."""
    program = export_step(module)
    settings = INDUCTOR | {"aot_inductor.metadata": {"above_one": json.dumps(program.above_one)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    quiet = warnings.catch_warnings(action="ignore")  # PyTorch's compiler warns of its own code
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, oblivious_of_ones(), quiet:
        file = str(Path(folder, "step.pt2"))
        try:
            torch._inductor.aoti_compile_and_package(program.graph, package_path=file, inductor_configs=settings)
        except Exception as error:
            message = f"the decoding step was not compiled: {one_line_error(error)}"
            raise RunError.of(message, "remove `compile`; it needs a C++ compiler, such as g++") from error
        atomic_write(hash_file(path), sha256_of_file(Path(file)).encode())
        os.replace(file, path)


class StructurePickler(pickle.Pickler):
    """Pickles a module without the numbers in its tensors, and sets in order."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return str, (f"{tuple(value.shape)} {value.stride()} {value.dtype} {value.device.type}",)
        if isinstance(value, (set, frozenset)):
            return tuple, (sorted(map(repr, value)),)
        return NotImplemented


def fingerprint(module: StepModule) -> str:
    """Return the SHA-256 of all that the compiled code depends on: structure, sources, PyTorch and the processor.

    Raises RunError where the structure is not known, as of a block that keeps a function made inside another one.
    """
    structure = io.BytesIO()
    try:
        StructurePickler(structure).dump(module)
    except (pickle.PicklingError, AttributeError, TypeError) as error:  # which of them, depends on Python's version
        raise uncompilable(one_line_error(error)) from error
    digest = hashlib.sha256(structure.getvalue())
    for text in (torch.__version__, platform.machine(), processor(), *(own.sha256 for own in registry.OWN.values())):
        digest.update(text.encode())
    modules = {cls.__module__ for part in module.modules() for cls in type(part).__mro__ if cls is not object}
    files = {getattr(sys.modules[name], "__file__", None) for name in modules if not name.startswith("torch.")}
    core = Path(inspect.getfile(Block)).parent.glob("*.py")
    for file in sorted({*map(str, core), *filter(None, files)}):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()


def processor() -> str:
    """Return what machine code depends on: of Linux the instructions that the processor has."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
