"""Initializations by their words in a recipe. Importing this imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocks.core.settings import Positive
from composer.recipe.choices import Initialization

if TYPE_CHECKING:
    from torch import Tensor


class Default(Initialization):
    """The block's own: Glorot's, orthogonal from one step of an rnn to the next, or that of its
    paper.
    """

    word = "default"
    keeps_matrices = True

    def draw(self, matrix: Tensor) -> Tensor:
        """Return the matrix as it is."""
        return matrix


class Orthogonal(Initialization):
    """Orthogonal rows of norm `gain`, convolution kernels flattened (Saxe et al. 2014, section 3).

    A matrix with more rows than columns is taken as several, one below the other, as the gates of a
    cell are.

    Settings:
        gain: the norm of each row; 1.44 in Kaiser & Bengio's code
    """

    word = "orthogonal"
    gain: Positive = 1.0

    def draw(self, matrix: Tensor) -> Tensor:
        """Return a new matrix of the same shape. (outputs, inputs) -> (outputs, inputs)"""
        import torch

        parts = matrix.split(matrix.shape[1])
        return torch.cat(
            [torch.nn.init.orthogonal_(torch.empty_like(part), self.gain) for part in parts]
        )


class Uniform(Initialization):
    """Uniform between two bounds, whatever the size of the matrix (Zaremba et al. 2014, section
    4.1).

    Settings:
        bound: the largest number; its negative is the smallest
    """

    word = "uniform"
    bound: Positive = 0.1

    def draw(self, matrix: Tensor) -> Tensor:
        """Return a new matrix of the same shape. (outputs, inputs) -> (outputs, inputs)"""
        import torch

        return torch.empty_like(matrix).uniform_(-self.bound, self.bound)


class UniformScaling(Initialization):
    """Uniform, of variance gain^2 / inputs, so that a layer keeps its input's size (Sussillo &
    Abbott 2014).

    Settings:
        gain: what the size is multiplied by; 1.8 in Kaiser & Sutskever's code
    """

    word = "uniform_scaling"
    gain: Positive = 1.8

    def draw(self, matrix: Tensor) -> Tensor:
        """Return a new matrix of the same shape. (outputs, inputs) -> (outputs, inputs)"""
        bound: float = self.gain * (3.0 / matrix.shape[1]) ** 0.5
        return Uniform(bound=bound).draw(matrix)


INITIALIZATIONS: dict[str, type[Initialization]] = {
    kind.word: kind for kind in (Default, Orthogonal, Uniform, UniformScaling)
}
"""Every initialization by its word in a recipe."""
