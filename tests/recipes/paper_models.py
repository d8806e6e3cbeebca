"""Small models of the recipes in `recipes/papers/`, their blocks, and one batch to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blocks.core.contract import Block
from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.recipe.extends_and_overrides import extend
from composer.recipe.recipe import load
from composer.recipe.yaml_reader import to_data
from tests.recipes.model_sizes import size_overrides

PAPERS = Path(__file__).parents[2] / "recipes" / "papers"
WORDS = 11
SOURCE = {"source": torch.tensor([[5, 6, 7, 8, 2], [9, 4, 2, 0, 0]])}
LENGTHS = (5, 3)
TARGET = torch.tensor([[1, 6, 5, 9], [1, 8, 7, 0]])
REAL = TARGET != 0


def model_of(name: str, *overrides: str, **sizes: int) -> EncoderDecoder:
    """Return the recipe's model with small sizes and random weights, in evaluation mode.

    `width` is the model's own; blocks of another width have a variable for it, or an override.
    """
    path = PAPERS / f"{name}.yaml"
    recipe = load(path, [*_sizes(path, sizes), *overrides])
    keys = [*(recipe.model.encoders or {"source": ()}), "target"]
    model = build(recipe, dict.fromkeys(keys, WORDS))
    for parameter in model.parameters():
        parameter.data = 0.4 * torch.randn_like(parameter)
    return model.eval()


def planned(name: str, *overrides: str, words: int = WORDS, **sizes: int) -> int:
    """Return the number of parameters of the recipe at its own sizes but for `sizes`; no memory is
    used.
    """
    path = PAPERS / f"{name}.yaml"
    recipe = load(path, [*_sizes(path, sizes), *overrides])
    with torch.device("meta"):
        return sum(
            item.numel() for item in build(recipe, {"source": words, "target": words}).parameters()
        )


def _sizes(path: Path, sizes: Mapping[str, int]) -> list[str]:
    variables = to_data(extend(path)).get("vars") or {}
    width = "width" if "width" in variables else "model.width"
    return size_overrides(
        path, {width if name == "width" else name: size for name, size in sizes.items()}
    )


def all_of(model: EncoderDecoder, word: str, part: str = "decoder") -> list[Any]:
    """The blocks with this word in the encoder or decoder, in order."""
    return [
        item
        for item in model.modules()
        if isinstance(item, Block) and item.path[1:2] == (part,) and item.path[-1] == word
    ]


def lstm_cell(layer: Any, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """A step of an LSTM, by its equations."""
    arriving, recurrent, *biases = layer.weights()
    i, f, g, o = (arriving @ x + recurrent @ h + sum(biases)).chunk(4)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


Row = Callable[[Tensor, Tensor], Tensor]
"""From a row's embedded source (S, D) and target (T, D) to its logits (T, V)."""


def by_rows(model: EncoderDecoder, row: Row) -> None:
    """Expect the model's logits of each row to be those of `row`, and so its gradients."""
    theirs = []
    for index, length in enumerate(LENGTHS):
        source = model.readers()["source"].embedding(SOURCE["source"][index, :length])
        theirs.append(row(source, model.embedding(TARGET[index][REAL[index]])))
    expect_same_function(model, model(SOURCE, TARGET)[REAL], torch.cat(theirs))


def expect_same_function(model: EncoderDecoder, mine: Tensor, theirs: Tensor) -> None:
    """Expect equal outputs, and equal gradients of a random mean of them for every parameter of the
    model.
    """
    expect(mine, theirs)
    parameters, goal = list(model.parameters()), torch.randn_like(mine)
    one, other = (
        torch.autograd.grad((y * goal).sum(), parameters, allow_unused=True) for y in (mine, theirs)
    )
    for parameter, my_gradient, their_gradient in zip(parameters, one, other, strict=True):
        zeros = torch.zeros_like(parameter)
        expect(
            zeros if my_gradient is None else my_gradient,
            zeros if their_gradient is None else their_gradient,
        )


def expect(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)
