"""A text has the same log-probabilities in one piece and in windows of any length whose state is
carried, detached.

True of every block whose state is bounded, which is what `plan` accepts beside `carry`, and of
random decoders.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from torch import Tensor

from blocks.core.functional import default_dtype
from composer.data.tokenizer import Tokenizers
from composer.errors import RecipeError
from composer.model.encoder_decoder import map_leaves, state_bytes
from composer.model.special_tokens import BOS, PAD, UNK
from composer.recipe.recipe import Recipe, load
from composer.testing.harness import NARROW, STACKS, WIDTH
from composer.training import module as training_module
from composer.training.module import Seq2SeqModule
from tests.laws.test_blocks import EVERY_DAY, VARIANTS
from verify.random_models import target_stack
from verify.scene import Draw, Scene

LENGTHS = (23, 16, 23)
"""Tokens of each stream; the second ends within a window, and has nothing in the last ones."""
WINDOWS = (1, 4, 7, 22)
VOCABULARY = 11
TOLERANCE = 1e-9
SHARE_ACCEPTED = 0.4
STAND_ALONE = {
    *(
        "activation",
        "add",
        "concat",
        "conv",
        "discrete_stacks",
        "dropout",
        "feed_forward",
        "highway",
        "identity",
        "linear",
        "long_conv",
        "mamba",
        "maxout",
        "mixture_of_experts",
    ),
    *(
        "delta_net",
        "gated_delta_net",
        "gated_linear_attention",
        "linear_attention",
        "mamba2",
        "mlstm",
    ),
    *(
        "multiply",
        "norm",
        "ntm",
        "parallel",
        "positions",
        "recurrent",
        "repeat",
        "residual",
        "retention",
        "rg_lru",
    ),
    *("rnn", "rnn_cell", "rwkv7", "scale", "self_attention", "slstm", "use", "window_memory"),
}
"""Blocks of a decoder without an encoder that have a bounded state, or none, with some of their
settings.
"""


def carrying(
    file: Path, width: int, decoder: list[Any], stacks: dict[str, Any] | None = None
) -> Recipe | None:
    """The recipe of a language model whose state is carried; None where `plan` refuses it."""
    model = {"width": width, "decoder": decoder, **({"stacks": stacks} if stacks else {})}
    data = {"text": {"train": "text.txt"}, "tokenizer": "char"}
    text = {"recipe": 1, "data": data, "model": model, "training": {"window": 7, "carry": True}}
    file.write_text(json.dumps(text), encoding="utf-8")
    try:
        recipe = load(file)
        recipe.plan()
    except RecipeError:
        return None
    return recipe


@default_dtype(torch.float64)
def expect_one_piece(recipe: Recipe) -> None:
    """Check log-probabilities, and that the state is as large after each window as before the
    first.
    """
    torch.manual_seed(0)
    sides = SimpleNamespace(
        sides=["target"], sizes={"target": VOCABULARY}, vocabulary=lambda _: ["a"] * VOCABULARY
    )
    module = Seq2SeqModule("", "", (recipe, cast("Tokenizers", sides))).eval()
    tokens = torch.randint(UNK, VOCABULARY, (len(LENGTHS), max(LENGTHS)))
    real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    tokens = tokens.masked_fill(~real, PAD)
    read = torch.cat((torch.full((len(LENGTHS), 1), BOS), tokens[:, :-1]), 1).masked_fill(
        ~real, PAD
    )
    in_one_piece = log_probabilities(module.model({}, read), tokens)[real]
    size = state_bytes(module.model.start({}, len(LENGTHS)))
    for window in WINDOWS:
        pieces = []
        for at in range(0, max(LENGTHS), window):
            logits = module.carry_on(read[:, at : at + window], at, streams=0)
            pieces.append(log_probabilities(logits, tokens[:, at : at + window]))
            assert state_bytes(module.carried[0]) == size
        gap = (torch.cat(pieces, 1)[real] - in_one_piece).abs().max().item()
        assert gap < TOLERANCE, f"windows of {window}: log-probabilities differ by {gap:.3g}"


def log_probabilities(logits: Tensor, tokens: Tensor) -> Tensor:
    """(B, T, V), (B, T) -> (B, T)"""
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def accepted(word: str, file: Path) -> list[Recipe]:
    """The language models of one block, after what it may read, with the settings of the table, but
    those refused.
    """
    before = [
        {"linear": {"as": "earlier"}},
        {"linear": {"width": NARROW, "as": "narrow"}},
        "linear",
    ]
    built = []
    for settings in VARIANTS[word]:
        shared = {name: blocks for name, blocks in STACKS.items() if name == settings.get("stack")}
        stacks = {name: [block.as_data() for block in blocks] for name, blocks in shared.items()}
        built.append(carrying(file, WIDTH, [*before, {word: dict(settings)}], stacks))
    return [recipe for recipe in built if recipe is not None]


OFTEN = ("rnn", "mamba2", "conv", "self_attention", "ntm")
"""One block of each kind of state; the others take minutes."""


@pytest.mark.parametrize(
    "word",
    [word if word in OFTEN else pytest.param(word, marks=pytest.mark.slow) for word in VARIANTS],
)
def test_a_block_carries_its_state_from_window_to_window(word: str, tmp_path: Path) -> None:
    recipes = accepted(word, tmp_path / "block.yaml")
    assert bool(recipes) == (word in STAND_ALONE)
    for recipe in recipes[:EVERY_DAY]:
        expect_one_piece(recipe)


@pytest.mark.slow
@pytest.mark.parametrize("word", sorted(STAND_ALONE))
def test_further_variants_of_a_block_carry_their_state(word: str, tmp_path: Path) -> None:
    for recipe in accepted(word, tmp_path / "block.yaml")[EVERY_DAY:]:
        expect_one_piece(recipe)


@st.composite
def decoders(draw: Draw) -> list[Any]:
    """A decoder that reads no encoder."""
    return [*target_stack(Scene(draw, causal=True)), {"linear": {"width": 6}}]


@pytest.mark.slow
def test_random_decoders_carry_their_state(tmp_path: Path) -> None:
    tally: Counter[bool] = Counter()

    @effort(effort.get_profile("random_stacks"), max_examples=40)
    @given(decoders())
    def holds(decoder: list[Any]) -> None:
        recipe = carrying(tmp_path / "random.yaml", 6, decoder)
        tally[recipe is not None] += 1
        if recipe is not None:
            expect_one_piece(recipe)

    holds()
    assert tally[True] > SHARE_ACCEPTED * tally.total(), tally


def forget_the_first_slot(leaf: Tensor) -> Tensor:
    """A mask without its first slot, and all else as it was."""
    return leaf & (torch.arange(leaf.shape[1]) > 0) if leaf.dtype is torch.bool else leaf


@pytest.mark.parametrize(
    ("block", "change"),
    [
        ({"rnn": {}}, torch.zeros_like),
        ({"self_attention": {"heads": 2, "window": 4}}, forget_the_first_slot),
    ],
    ids=["a state that is lost", "a memory that is a slot too short"],
)
def test_the_law_catches(
    block: dict[str, Any], change: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    recipe = carrying(tmp_path / "broken.yaml", 6, [block])
    assert recipe is not None

    def lose(state: Any, _: Callable[[Tensor], Tensor]) -> Any:
        return map_leaves(state, change)

    with (
        patch.object(training_module, "map_leaves", lose),
        pytest.raises(AssertionError, match="windows of 1"),
    ):
        expect_one_piece(recipe)
