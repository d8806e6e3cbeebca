"""model.safetensors: a model's weights, shared ones once, written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from blocks.core.contract import Positive
from composer.atomic_io import atomic_write
from composer.errors import RunError, first_few
from composer.model.encoder_decoder import EncoderDecoder


def save_weights(model: nn.Module, path: Path) -> None:
    """Writes the weights of `model`, each tensor under the first of its names."""
    from safetensors.torch import save  # imported late: an exported model uses this module without safetensors

    atomic_write(path, save({name: value.detach().cpu().contiguous() for name, value in unique_tensors(model).items()}))


def load_weights(model: nn.Module, path: Path) -> None:
    """Puts the weights in a file into `model`. Raises RunError where a name or a shape differs."""
    if not path.exists():
        raise RunError.of("this run has no weights yet: it has not finished", "finish it with `--resume`", str(path))
    found = read_weights(path)
    wanted = unique_tensors(model)
    differing = [
        f"{name} is {format_shape(found.get(name))} there and {format_shape(wanted.get(name))} here"
        for name in sorted({*found, *wanted})
        if format_shape(found.get(name)) != format_shape(wanted.get(name))
    ]
    if differing:
        raise RunError.of(
            f"these weights do not fit the model: {first_few(differing)}",
            "use the same `model` and the same tokenizer",
            str(path),
        )
    model.load_state_dict(found, strict=False)


def describe_difference(one: Path, other: Path) -> str:
    """How the weights in two files differ, in words; "" where they are the same to the last bit. Raises RunError."""
    first, second = read_weights(one), read_weights(other)
    if {name: format_shape(value) for name, value in first.items()} != {
        name: format_shape(value) for name, value in second.items()
    }:
        return "their names or shapes are others"
    pairs = {name: (value, second[name]) for name, value in first.items()}
    apart = {name: pair for name, pair in pairs.items() if not bitwise_equal(*pair)}
    if not apart:
        return ""
    most = max(float((a.double() - b.double()).abs().max()) for a, b in apart.values())
    return f"{len(apart)} of {len(pairs)} tensors differ, by {most:.1e} at most"


def bitwise_equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape hold the same bytes."""
    same: bool = one.dtype == other.dtype and torch.equal(_as_bytes(one), _as_bytes(other))
    return same


def _as_bytes(value: Tensor) -> Tensor:
    """The bytes of a tensor."""
    return value.flatten().view(torch.uint8)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors in a file. Raises RunError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        fix = "take the file from the run again"
        raise RunError.of(f"these weights cannot be read: {error}", fix, str(path)) from None
    return found


def unique_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's state by name, shared ones under the first of their names only."""
    found: dict[str, Tensor] = {}
    seen: set[tuple[int, int]] = set()
    for name, value in model.state_dict().items():
        place = (value.untyped_storage().data_ptr(), value.storage_offset())
        if value.numel() == 0 or place not in seen:
            seen.add(place)
            found[name] = value
    return found


def format_shape(value: Tensor | None) -> str:
    """A shape in words."""
    return "absent" if value is None else " x ".join(map(str, value.shape)) or "a number"


MATRICES = ("weight", "arriving", "recurrent", "projection")
"""What the matrices and convolution kernels of layers are called; `arriving` to `projection` are a recurrent layer's.
What has another name, or one dimension, is no matrix: a bias, a gain, a vector for each head, a table of distances."""


def default(matrix: Tensor) -> Tensor:
    """What each block makes of its own: Glorot's, from one step of an rnn to the next orthogonal, or its paper's."""
    return matrix


def orthogonal(matrix: Tensor, *, gain: Positive = 1.0) -> Tensor:
    """Orthogonal rows of norm `gain`, convolution kernels flattened (Saxe et al. 2014, section 3).

    A matrix with more rows than columns is taken as several, one below the other, as the gates of a cell are.

    Settings:
        gain: the norm of each row; 1.44 in Kaiser & Bengio's code
    """
    parts = matrix.split(matrix.shape[1])
    return torch.cat([nn.init.orthogonal_(torch.empty_like(part), gain) for part in parts])


def uniform_scaling(matrix: Tensor, *, gain: Positive = 1.8) -> Tensor:
    """Uniform, of variance gain^2 / inputs, so that a layer keeps its input's size (Sussillo & Abbott 2014).

    Settings:
        gain: what the size is multiplied by; 1.8 in Kaiser & Sutskever's code
    """
    bound = gain * (3.0 / matrix.shape[1]) ** 0.5
    return torch.empty_like(matrix).uniform_(-bound, bound)


INITIALIZATIONS: dict[str, Callable[..., Tensor]] = {
    "default": default,
    "orthogonal": orthogonal,
    "uniform_scaling": uniform_scaling,
}


def initialize(model: EncoderDecoder, chosen: Mapping[str, Mapping[str, Any]]) -> None:
    """Makes every matrix of the blocks anew, as `training.initialization` says; with weight norm, its direction."""
    ((name, settings),) = chosen.items()
    with torch.no_grad():
        for parameter in block_matrices(model):
            parameter.copy_(INITIALIZATIONS[name](parameter.flatten(1), **settings).view_as(parameter))


def block_matrices(model: EncoderDecoder) -> Iterator[Parameter]:
    """The matrices and convolution kernels of all blocks, each once; no embedding, nor the map to the vocabulary."""
    stacks = nn.ModuleList([*(encoder.stack for encoder in model.readers().values()), model.decoder])
    seen: set[int] = set()
    for module in stacks.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_map = name in MATRICES and parameter.ndim > 1 and not isinstance(module, nn.Embedding)
            if is_map and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
