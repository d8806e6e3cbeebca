"""Weights of a model: safetensors files, counting, sharing, initialization, size limit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import Parameter

from blocks.core.contract import Path as BlockPath
from composer.atomic_io import atomic_write, open_regular
from composer.errors import RunError, one_line_error, shorten_list
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.machine import available_memory
from composer.recipe.choices import Initialization


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights of `model` atomically, each tensor under the first of its names."""
    tensors = {}
    for name, tensor in unique_tensors(model).items():
        tensors[name] = tensor.detach().cpu().contiguous()
    atomic_write(path, save(tensors))


def load_weights(model: nn.Module, path: Path) -> None:
    """Load the weights of a file into `model`. Raises RunError if a name or a shape differs."""
    if not os.path.lexists(path):
        raise RunError.of(
            "this run has no weights yet: it has not finished", "resume its training", str(path)
        )
    set_weights(model, read_weights(path), unique_tensors(model), path)


def set_weights(
    model: nn.Module, weights: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path
) -> None:
    """Load `weights`, read from `path`, in place of the model's `own`.

    Raises RunError if a name or a shape differs.
    """
    theirs, ours = shapes(weights), shapes(own)
    differing = [
        f"{name} is {theirs.get(name, 'absent')} there and {ours.get(name, 'absent')} here"
        for name in sorted({*theirs, *ours})
        if theirs.get(name) != ours.get(name)
    ]
    if differing:
        message = f"these weights do not fit the model: {shorten_list(differing)}"
        raise RunError.of(message, "use the same `model` and the same tokenizer", str(path))
    if not_finite := [name for name, value in weights.items() if not value.isfinite().all()]:
        message = f"these weights are not finite: {shorten_list(not_finite)}"
        raise RunError.of(
            message, "take the file from the run again; no training writes such", str(path)
        )
    model.load_state_dict(weights, strict=False)


def describe_difference(first_file: Path, second_file: Path) -> str:
    """Say how the weights in two files differ; "" if they are equal to the last bit.

    Raises RunError.
    """
    first, second = read_weights(first_file), read_weights(second_file)
    if shapes(first) != shapes(second):
        return "their names or shapes are others"
    differences = []
    for name, tensor in first.items():
        if not _same_bits(tensor, second[name]):
            differences.append(float((tensor.double() - second[name].double()).abs().max()))
    if not differences:
        return ""
    count = f"{len(differences)} of {len(first)} tensors differ"
    return f"{count}, by {max(differences):.1e} at most"


def _same_bits(first: Tensor, second: Tensor) -> bool:
    """True if two tensors are the same, NaN equal to itself and 0.0 not to -0.0."""
    bits = (tensor.flatten().view(torch.uint8) for tensor in (first, second))
    return first.dtype == second.dtype and torch.equal(*bits)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file. Raises RunError."""
    try:
        with open_regular(path):  # a FIFO would keep the library waiting
            weights: dict[str, Tensor] = load_file(path)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # a header can lie in any way
        fix = "take the file from the run again"
        raise RunError.of(
            f"these weights cannot be read: {one_line_error(error)}", fix, str(path)
        ) from None
    return weights


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model's state by name, shared ones by their first name alone."""
    tensors: dict[str, Tensor] = {}
    seen: set[tuple[int, int]] = set()
    for name, value in model.state_dict().items():
        address = (value.untyped_storage().data_ptr(), value.storage_offset())
        if value.numel() == 0 or address not in seen:  # empty tensors have one address
            seen.add(address)
            tensors[name] = value
    return tensors


def shapes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the shape of each tensor for messages: `3 x 4`, with the type of integers."""
    texts = {}
    for name, tensor in tensors.items():
        dtype = "" if tensor.is_floating_point() else f" of {tensor.dtype}"
        texts[name] = (" x ".join(map(str, tensor.shape)) or "a number") + dtype
    return texts


def count_parameters(model: nn.Module) -> int:
    """Return the number of learned numbers, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


def parameter_ids(module: nn.Module) -> set[int]:
    """Return the ids of all parameters of a module."""
    return {id(parameter) for parameter in module.parameters()}


def share_parameters(stack: nn.Module, first: nn.Module) -> bool:
    """Give `stack` the parameters of `first`, built of the same blocks; False if shapes differ."""
    own, shared = dict(stack.named_parameters()), dict(first.named_parameters())
    if {key: value.shape for key, value in own.items()} != {
        key: value.shape for key, value in shared.items()
    }:
        return False
    for key, parameter in shared.items():
        module, _, name = key.rpartition(".")
        setattr(stack.get_submodule(module), name, parameter)
    return True


MATRICES = ("weight", "arriving", "recurrent", "projection")
"""Names of the matrices and convolution kernels of layers; `arriving` to `projection` are a
recurrent layer's. A module says otherwise in `layouts`, by a parameter's name: how a matrix is
stored, "in out", or one for each head, "head out in" or "head in out"; OWN, or NO_MATRIX. Other
parameters are as with OWN.
"""
USUAL_LAYOUT = "out in"
"""How a matrix is stored; dimensions after these are those of a convolution kernel."""
OWN = "own"
"""A matrix or a table that keeps the block's own initialization; weight decay falls on it."""
NO_MATRIX = ""
"""Vectors, one for each head, gate or feature, and states: they keep their initialization and do
not decay.
"""


def initialize(model: EncoderDecoder, initialization: Initialization) -> None:
    """Initialize every matrix of the blocks by `training.initialization`.

    With weight norm, its direction.
    """
    if initialization.keeps_matrices:
        return
    with torch.no_grad():
        for parameter, layout in matrices_with_layouts(model):
            for matrix in as_matrices(parameter, layout):
                matrix.copy_(initialization.draw(matrix.flatten(1)).view_as(matrix))


def as_matrices(parameter: Tensor, layout: str) -> list[Tensor]:
    """Return the matrices in a parameter as views, (outputs, inputs, ...), one per head."""
    parts = [parameter]
    if layout.startswith("head"):
        parts = [parameter[head] for head in range(len(parameter))]
    if layout.endswith("in out"):
        parts = [part.t() for part in parts]
    return parts


def matrix_layout(module: nn.Module, name: str) -> str:
    """Return the layout of a parameter of a module, OWN unless it says another one."""
    layouts: Mapping[str, str] = getattr(module, "layouts", {})
    return layouts.get(name, USUAL_LAYOUT if name in MATRICES else OWN)


def matrices_with_layouts(model: EncoderDecoder) -> Iterator[tuple[Parameter, str]]:
    """Yield the matrices and convolution kernels of all blocks with their layouts, each once.

    There is no embedding and no output head among them.
    """
    stacks = nn.ModuleList(
        [*(encoder.stack for encoder in model.readers().values()), model.decoder]
    )
    seen: set[int] = set()
    for module in stacks.modules():
        for name, parameter in module.named_parameters(recurse=False):
            layout = matrix_layout(module, name)
            is_map = (
                layout not in (OWN, NO_MATRIX)
                and parameter.ndim > 1
                and not isinstance(module, nn.Embedding)
            )
            if is_map and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter, layout


def decaying_parameters(model: EncoderDecoder) -> set[int]:
    """Return the ids of the parameters that weight decay falls on: those of two dimensions or more.

    They are matrices, convolution kernels and embeddings. What a module calls no matrix in
    `layouts` is none of them.
    """
    decaying: set[int] = set()
    for module in model.modules():
        layouts: Mapping[str, str] = getattr(module, "layouts", {})
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1 and layouts.get(name) != NO_MATRIX:
                decaying.add(id(parameter))
    return decaying


def hidden_matrices(model: EncoderDecoder) -> set[int]:
    """Return the ids of the matrices between the embeddings and the output: those of the blocks.

    They have two dimensions, of more than one row and column: no convolution kernel, no matrices
    of several heads in one tensor, no table of vectors, and nothing that an embedding or the output
    has, too.
    """
    embeddings = [model.embedding, *(encoder.embedding for encoder in model.readers().values())]
    ends: set[int] = parameter_ids(model.output)
    for embedding in embeddings:
        if embedding is not None:
            ends |= parameter_ids(embedding)
    hidden: set[int] = set()
    for parameter, layout in matrices_with_layouts(model):
        if layout == USUAL_LAYOUT and parameter.ndim == 2 and min(parameter.shape) > 1:
            hidden.add(id(parameter))
    return hidden - ends


MOST_BUILT_BLOCKS = 10_000
"""Blocks that are built for one model, those included that only show how wide something is."""
MOST_PARAMETERS = 100_000
"""Matrices and vectors that one model learns."""
NO_MEMORY = "a single matrix here takes more memory than there is"


class ModelTooLarge(Exception):
    """A model that would take for ever to build, or more memory than there is.

    `path` is the block that is too much.
    """

    def __init__(self, message: str, path: BlockPath = ()) -> None:
        super().__init__(message)
        self.message, self.path = message, path


@dataclass
class ModelSizeGuard:
    """Counter of everything built for one model, stacks that are thrown away included."""

    blocks: int = 0
    parameters: int = 0
    num_bytes: int = 0
    alive: WeakValueDictionary[int, Tensor] = field(default_factory=WeakValueDictionary)

    def count_block(self, path: BlockPath) -> None:
        """Count a block.

        Raises ModelTooLarge at the outermost block of a stack in which the path ends.
        """
        self.blocks += 1
        if self.blocks > MOST_BUILT_BLOCKS:
            outermost = next(
                (path[: at + 2] for at, step in enumerate(path) if isinstance(step, int)), path
            )
            raise ModelTooLarge(f"the model has more than {MOST_BUILT_BLOCKS:,} blocks", outermost)

    @contextmanager
    def limits(self) -> Iterator[None]:
        """Count every parameter of a module while entered.

        Raises ModelTooLarge before a parameter has its values.
        """
        hook = nn.modules.module.register_module_parameter_registration_hook(self._count_parameter)
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise ModelTooLarge(NO_MEMORY) from error
        finally:
            hook.remove()

    def _count_parameter(self, module: nn.Module, name: str, parameter: Tensor) -> None:
        self.parameters += 1
        if self.parameters > MOST_PARAMETERS:
            raise ModelTooLarge(f"the model has more than {MOST_PARAMETERS:,} matrices and vectors")
        if parameter.device.type == "cpu":
            self.num_bytes += parameter.nbytes
            self.alive[id(parameter)] = parameter
        memory = available_memory()
        if self.num_bytes > memory:
            # tied and shared parameters have replaced others, which are freed by now
            self.num_bytes = sum(tensor.nbytes for tensor in self.alive.values())
        if self.num_bytes > memory:
            message = (
                f"the parameters take more than the {memory / 2**30:.3g} GiB of memory that this"
                " machine has"
            )
            raise ModelTooLarge(message)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for the errors by which Python and torch say that memory cannot be allocated."""
    # a plain RuntimeError where it is not CUDA's
    phrases = ("not enough memory", "allocate memory", "out of memory")
    says_so = isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)
    return says_so or isinstance(error, (torch.OutOfMemoryError, MemoryError))
