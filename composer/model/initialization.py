"""The initializations a recipe can name: what the matrices of the blocks are before training.

Each is a callable from a matrix, in the form (outputs, inputs), to a new one; its keyword-only arguments are the
settings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from blocks.core.contract import Positive
from composer.model.encoder_decoder import EncoderDecoder

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
        for parameter in matrices(model):
            parameter.copy_(INITIALIZATIONS[name](parameter.flatten(1), **settings).view_as(parameter))


def matrices(model: EncoderDecoder) -> Iterator[Parameter]:
    """The matrices and convolution kernels of all blocks, each once; no embedding, nor the map to the vocabulary."""
    stacks = nn.ModuleList([*(encoder.stack for encoder in model.readers().values()), model.decoder])
    seen: set[int] = set()
    for module in stacks.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_map = name in MATRICES and parameter.ndim > 1 and not isinstance(module, nn.Embedding)
            if is_map and id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter
