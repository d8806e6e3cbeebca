"""`memory_network`: against its equations written as loops, and what its settings come to where
that is known.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from blocks.core.contract import Block, BlockError, Context, Named, Output, Stream
from blocks.core.sentence_encoding import embed_sentences, randomly_aged, sentence_ages
from blocks.memory_network import MemoryNetwork
from tests.blocks.single_block import close, mask_of, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "memory_network": (
        {"from": "encoder.grid", "query": "encoder.earlier", "time": 5},
        {
            "from": "encoder.earlier_grid",
            "tying": "layer_wise",
            "encoding": "bag",
            "hops": 2,
            "width": 5,
            "time": 0,
            "slots": 9,
        },
        {
            "hops": 1,
            "noise": 0.5,
            "linear_start": 0.5,
            "answer": "words",
            "query": "encoder.summary",
        },
        {
            "from": "encoder.grid",
            "tying": "layer_wise",
            "query": "encoder",
            "answer": "words",
            "time": 3,
            "noise": 0.0,
        },
        {
            "from": "encoder.grid",
            "query": "encoder.earlier",
            "encoding": "position_code",
            "time": 5,
        },
    ),
}
"""Settings with which the laws are checked, by block."""

WORDS, WIDTH = 7, 4
COUNTS = ((3, 1, 2), (4, 2, 0))
"""How many words each sentence of each row has."""
ASKED = (3, 2)
LONGEST = 5
"""Four words and the age of the sentence."""
X = torch.randn(2, 3, 5, dtype=torch.float64)
SEEN = {
    "story": Named(Stream(WORDS, grid=True, columns=4)),
    "question": Named(Stream(WORDS)),
    "image": Named(Stream(6, grid=True, columns=2)),
    "narrow": Named(Stream(3)),
}
CELLS = torch.stack([torch.arange(4) < torch.tensor(row)[:, None] for row in COUNTS])  # (B, N, W)
READ = {
    "story": Output(torch.randn(2, 3, 4, WORDS, dtype=torch.float64), CELLS),
    "question": Output(torch.randn(2, 3, WORDS, dtype=torch.float64), mask_of(*ASKED)),
    "narrow": Output(torch.randn(2, 3, 3, dtype=torch.float64), mask_of(3, 2)),
}


def build_block(**settings: Any) -> MemoryNetwork:
    """A block where X arrives and READ can be read, in evaluation mode, with parameters that are
    not small.
    """
    torch.manual_seed(3)
    chosen = {"from_": "story", "query": "question", "width": WIDTH, **settings}
    block = MemoryNetwork(site_of(5, memories=SEEN), **chosen).double().eval()
    for parameter in block.parameters():
        parameter.data *= 5
    return block


def answers(block: Block, **changes: Any) -> Tensor:
    context = replace_context(**changes)
    return block(X, block.start(X[:, :1], context), context)[0]


def replace_context(**changes: Any) -> Context:
    return Context(mask_of(3, 2), {}, READ)._replace(**changes)


# ------------------------------------------------------------------------------------------- the
# equations


def weight(k: float, j: float, encoding: str, count: int) -> float:
    """l of the paper, for `count` words, or of its authors' code, for LONGEST places."""
    if encoding == "position":
        return (1 - j / count) - k / WIDTH * (1 - 2 * j / count)
    return 1 + 4 * (k - (WIDTH + 1) / 2) * (j - (LONGEST + 1) / 2) / (WIDTH * LONGEST)


def place_weight(j: float, encoding: str, count: int = 0) -> Tensor:
    return torch.tensor(
        [weight(k + 1, j, encoding, count) for k in range(WIDTH)], dtype=torch.float64
    )


def sentence(matrix: Tensor, words: Tensor, encoding: str, count: int) -> Tensor:
    """sum_j l_j * M x_j"""
    return torch.stack(
        [place_weight(j + 1, encoding, count) * (matrix @ words[j]) for j in range(count)]
    ).sum(0)


def by_hand(block: MemoryNetwork, row: int, tying: str, encoding: str) -> Tensor:
    """u after all hops, sentence by sentence."""
    maps, times = block.maps.unflatten(0, (-1, WIDTH)), block.times
    counts, story = COUNTS[row], READ["story"].states[row]
    real = [i for i, count in enumerate(counts) if count]
    u = sentence(
        maps[0] if block.question_map is None else block.question_map,
        READ["question"].states[row],
        encoding,
        ASKED[row],
    )
    of_age = place_weight(LONGEST, encoding) if encoding == "position_code" else 1.0
    for hop in range(block.hops):
        a, c = (hop, hop + 1) if tying == "adjacent" else (0, 1)
        read = torch.zeros(WIDTH, dtype=torch.float64)
        keys, values = [], []
        for i in real:
            age = min(len(real) - 1 - i, len(times) - 1)
            for chosen, rows in ((a, keys), (c, values)):
                aged = of_age * times[age].unflatten(0, (-1, WIDTH))[chosen]
                rows.append(sentence(maps[chosen], story[i], encoding, counts[i]) + aged)
        for weight_i, value in zip(
            torch.stack([u @ key for key in keys]).softmax(0), values, strict=True
        ):
            read += weight_i * value
        u = (u if block.between is None else block.between @ u) + read
    return u


@pytest.mark.parametrize("tying", ["adjacent", "layer_wise"])
@pytest.mark.parametrize("time", [2, 9])
@pytest.mark.parametrize("encoding", ["position", "position_code"])
def test_three_hops_equal_a_loop_over_sentences(tying: str, time: int, encoding: str) -> None:
    block = build_block(tying=tying, time=time, hops=3, encoding=encoding)
    y = answers(block)
    for row in range(2):
        close(y[row], by_hand(block, row, tying, encoding).expand(3, -1))


def test_the_position_encoding_of_the_code_differs_from_that_of_the_paper() -> None:
    for k in range(1, WIDTH + 1):
        for j in range(1, LONGEST + 1):
            half_a_step_back = weight(k - 0.5, j - 0.5, "position", LONGEST)
            assert weight(k, j, "position_code", 0) == pytest.approx(2 * half_a_step_back)


def test_a_bag_of_words_ignores_the_order() -> None:
    maps = torch.randn(2 * WIDTH, WORDS, dtype=torch.float64)
    words = torch.randn(1, 1, 4, WORDS, dtype=torch.float64)
    there = torch.ones(1, 1, 4, dtype=torch.bool)
    turned = Output(words.flip(2), there)
    there_and_back = {
        encoding: [
            embed_sentences(story, maps, encoding, WIDTH, LONGEST)
            for story in (Output(words, there), turned)
        ]
        for encoding in ("bag", "position", "position_code")
    }
    close(*there_and_back.pop("bag"))
    assert all((one - two).abs().max() > 0.01 for one, two in there_and_back.values())


def test_one_hop_is_key_value_attention() -> None:
    block = build_block(from_="narrow", query=None, encoding="bag", hops=1, time=0)
    keys, values = (READ["narrow"].states @ block.maps.T).split(WIDTH, -1)
    questions = X @ block.question_map.T
    there = READ["narrow"].mask[:, None]  # (B, 1, S)
    close(
        answers(block),
        questions + F.scaled_dot_product_attention(questions, keys, values, there, scale=1.0),
    )


def test_empty_sentences_are_part_of_the_softmax() -> None:
    block = build_block(from_="narrow", query=None, encoding="bag", hops=1, time=0, slots=7)
    keys, values = (READ["narrow"].states @ block.maps.T).split(WIDTH, -1)
    questions, result = X @ block.question_map.T, answers(block)
    for row, count in enumerate((3, 2)):
        scores = torch.cat(
            (questions[row] @ keys[row, :count].T, questions.new_zeros(X.shape[1], 7 - count)), -1
        )
        close(result[row], questions[row] + scores.softmax(-1)[:, :count] @ values[row, :count])
    close(
        answers(build_block(from_="narrow", query=None, encoding="bag", hops=1, time=0, slots=2))[
            1
        ],
        answers(build_block(from_="narrow", query=None, encoding="bag", hops=1, time=0))[1],
    )


def test_the_linear_start_has_no_softmax() -> None:
    block = build_block(
        from_="narrow", query=None, encoding="bag", hops=1, time=0, linear_start=0.25
    )
    after = build_block(from_="narrow", query=None, encoding="bag", hops=1, time=0)
    keys, values = (READ["narrow"].states @ block.maps.T * READ["narrow"].mask[..., None]).split(
        WIDTH, -1
    )
    questions = X @ block.question_map.T
    block.set_progress(0.2)
    close(answers(block), questions + questions @ (keys.transpose(1, 2) @ values))
    block.set_progress(0.25)
    close(answers(block), answers(after))


def test_the_linear_start_is_saved_with_the_weights() -> None:
    block, other = build_block(linear_start=0.5), build_block(linear_start=0.5)
    block.set_progress(0.7)
    other.load_state_dict(block.state_dict())
    close(answers(other), answers(block))


def test_words_are_scored_by_the_last_embedding() -> None:
    block = build_block(answer="words")
    close(answers(block), answers(build_block()) @ block.maps[-WIDTH:])
    assert block.out.width == WORDS


def test_a_question_of_another_width_has_its_own_map() -> None:
    assert build_block().question_map is None
    assert build_block(query="narrow").question_map.shape == (WIDTH, 3)
    assert build_block(tying="layer_wise").question_map.shape == (WIDTH, WORDS)


# ------------------------------------------------------------------------------------------- time


def test_the_last_sentence_is_of_age_0() -> None:
    assert sentence_ages(mask_of(4, 2)).tolist() == [[3, 2, 1, 0], [1, 0, 0, 0]]


def test_noise_preserves_the_order_and_adds_empty_sentences() -> None:
    torch.manual_seed(1)
    real = mask_of(*[5] * 400, 2)
    ages = randomly_aged(sentence_ages(real), real, 0.4)
    assert (ages[:400, :-1] > ages[:400, 1:]).all()
    assert ages[:400].max() == 6  # of 5 sentences, 2 blanks at most
    unchanged = (ages[:400] == sentence_ages(real)[:400]).all(1).float().mean()
    # no blank: all; one of three times each: the blank is the oldest of 6 with 1/6, both of 7 with
    # 1/21
    assert abs(unchanged - (1 + 1 / 6 + 1 / 21) / 3) < 0.1
    assert ages[400, :2].max() <= 2


def test_noise_is_added_in_training_only() -> None:
    block, quiet = build_block(noise=0.9), answers(build_block(noise=0.0))
    close(answers(block), quiet)
    block.train()
    assert any(not torch.equal(answers(block), quiet) for _ in range(9))


# -------------------------------------------------------------------------------------------
# pictures and refusals


def test_the_hops_are_recorded() -> None:
    records: dict[Any, list[Tensor]] = {}
    answers(build_block(hops=2), records=records)
    ((key, (hops,)),) = records.items()
    assert key.name == "hops"
    assert hops.shape == (2, 3, 2, 3)
    close(hops.sum(-1), torch.ones(2, 3, 2, dtype=torch.float64))
    assert not hops[1, :, :, 2].any()


def test_conflicting_settings_are_refused() -> None:
    with pytest.raises(BlockError, match="is a grid, and a question"):
        build_block(query="image")
    with pytest.raises(BlockError, match="no `from` chooses one"):
        build_block(from_=None)
    site = site_of(5, memories=SEEN)
    with pytest.raises(BlockError, match="a grid arrives"):
        MemoryNetwork(replace(site, stream=Stream(5, grid=True, columns=2)), from_="story")
