"""The recipes of bAbI against the paper, from ids: embedding matrices, hops, and the word that is
chosen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from composer.model.builder import build
from composer.model.encoder_decoder import EncoderDecoder
from composer.model.special_tokens import EOS, NUM_SPECIAL
from composer.recipe.recipe import load
from tests.recipes.paper_models import expect_same_function

BABI = Path(__file__).parents[2] / "recipes" / "babi"
WORDS, WIDTH, SLOTS = 9, 4, 50
STORY, ASKED = [[5, 6, 7], [8, 4], [6, 12, 5, 9]], [10, 6]
TARGET = torch.tensor([[1, 7]])
LONGEST = 12
"""J of the authors' position encoding: the words of the longest sentence, and the word that says
its age.
"""


def model_of(name: str, *changes: str) -> EncoderDecoder:
    recipe = load(BABI / f"{name}.yaml", [f"model.width={WIDTH}", *changes])
    model = build(
        recipe, dict.fromkeys(("question", "story", "target"), WORDS + NUM_SPECIAL)
    ).eval()
    for parameter in model.parameters():
        parameter.data = 0.6 * torch.randn_like(parameter)
    for block in model.modules():
        getattr(block, "set_progress", lambda progress: None)(1.0)
    return model


def logits(model: EncoderDecoder) -> Tensor:
    """Of the two positions of one answer: (2, V)"""
    story = torch.zeros(1, 3, LONGEST - 1, dtype=torch.long)
    for at, sentence in enumerate(STORY):
        story[0, at, : len(sentence)] = torch.tensor(sentence)
    result: Tensor = model({"question": torch.tensor([ASKED]), "story": story}, TARGET)[0]
    return result


def place_weight(j: int, encoding: str) -> Tensor:
    """l_kj of the authors' code for all features k; 1 in a bag. (d,)"""
    k = torch.arange(1, WIDTH + 1)
    place = 1 + 4 * (k - (WIDTH + 1) / 2) * (j - (LONGEST + 1) / 2) / (WIDTH * LONGEST)
    return torch.ones(WIDTH) if encoding == "bag" else place


def sentence(matrix: Tensor, words: list[int], encoding: str) -> Tensor:
    """sum_j l_j * A_(x_j); matrix: (d, V)"""
    return torch.stack(
        [place_weight(j, encoding) * matrix[:, w - NUM_SPECIAL] for j, w in enumerate(words, 1)]
    ).sum(0)


def hops(block: Any, encoding: str, wise: bool) -> tuple[Tensor, Tensor]:
    """u after three hops, and the last C."""
    maps, times = block.maps.unflatten(0, (-1, WIDTH)), block.times.unflatten(1, (-1, WIDTH))
    u = sentence(block.question_map if wise else maps[0], ASKED, encoding)
    for hop in range(3):
        a, c = (0, 1) if wise else (hop, hop + 1)
        m, read = (
            torch.stack(
                [
                    sentence(maps[at], words, encoding)
                    + place_weight(LONGEST, encoding) * times[len(STORY) - 1 - i, at]
                    for i, words in enumerate(STORY)
                ]
            )
            for at in (a, c)
        )
        # the missing sentences are empty
        scores = torch.cat((m @ u, torch.zeros(SLOTS - len(STORY))))
        u = (block.between @ u if wise else u) + scores.softmax(0)[: len(STORY)] @ read
    return u, maps[-1]


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("bag_of_words", "bag"),
        ("position_encoding", "position_code"),
        ("linear_start", "position_code"),
        ("end_to_end", "position_code"),
        ("joint", "position_code"),
    ],
)
def test_the_output_is_tied_to_the_last_embedding(name: str, encoding: str) -> None:
    model = model_of(name)
    u, c = hops(model.decoder.blocks[0], encoding, wise=False)
    made = logits(model)
    expect_same_function(model, made[0, NUM_SPECIAL:], c.T @ u)
    assert made[1].argmax() == EOS
    assert made[1].softmax(-1)[EOS] == 1


def test_layer_wise_tying_equals_its_equations() -> None:
    model = model_of("layer_wise")
    u, _ = hops(model.decoder.blocks[0], "position_code", wise=True)
    expect_same_function(model, logits(model)[0, NUM_SPECIAL:], model.output(u)[NUM_SPECIAL:])


@pytest.mark.parametrize(
    ("name", "start", "noise"),
    [
        ("bag_of_words", 0, 0),
        ("position_encoding", 0, 0),
        ("linear_start", 20 / 120, 0),
        ("end_to_end", 20 / 120, 0.1),
        ("joint", 30 / 90, 0.1),
        ("layer_wise", 30 / 90, 0.1),
    ],
)
def test_each_ablation_has_its_linear_start_and_noise(
    name: str, start: float, noise: float
) -> None:
    block = model_of(name).decoder.blocks[0]
    assert block.linear_start == pytest.approx(start)
    assert block.noise == noise


@pytest.mark.parametrize(
    ("name", "falls"),
    [
        ("end_to_end", [45 / 120, 70 / 120, 95 / 120]),
        ("joint", [45 / 90, 60 / 90, 75 / 90]),
        ("bag_of_words", [0.25, 0.5, 0.75]),
    ],
)
def test_the_learning_rate_falls_as_in_the_paper(name: str, falls: list[float]) -> None:
    training = load(BABI / f"{name}.yaml", []).training
    assert training.schedule.shares == pytest.approx(falls)


def test_a_memory_network_reads_as_many_facts_as_it_has_hops() -> None:
    model = model_of("memory_network", "model.supporting_facts.hops=2")
    block: Any = model.decoder.blocks[0]
    (choose, asks), (more, sentences) = (
        block.question_maps.unflatten(0, (2, -1)),
        block.sentence_maps.unflatten(0, (3, -1))[1:],
    )
    candidates = torch.stack(
        [sentence(block.sentence_maps[:WIDTH], words, "bag") for words in STORY]
    )
    x, y, at = sentence(choose, ASKED, "bag"), sentence(asks, ASKED, "bag"), len(STORY)
    for _ in range(2):
        best = 0
        for other in range(1, len(STORY)):
            ages = torch.tensor([at < best, at < other, best < other], dtype=x.dtype)
            best = (
                best
                if x @ (candidates[best] - candidates[other] + block.older.T @ ages) > 0
                else other
            )
        x, y = x + sentence(more, STORY[best], "bag"), y + sentence(sentences, STORY[best], "bag")
        at = best
    torch.testing.assert_close(logits(model)[0, NUM_SPECIAL:], model.output(y)[NUM_SPECIAL:])
