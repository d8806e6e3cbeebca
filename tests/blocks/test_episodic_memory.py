"""`episodic_memory`: its gates, episodes and penalty against the paper's equations written as
loops.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from blocks.core.contract import (
    BlockError,
    Context,
    Named,
    Output,
    Penalties,
    Stream,
    reduce_penalties,
)
from blocks.episodic_memory import EpisodicMemory, GRUCell
from tests.blocks.single_block import close, mask_of, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "episodic_memory": (
        {"from": "encoder.grid", "query": "encoder", "hops": 2},
        {
            "from": "encoder.earlier",
            "query": "encoder.summary",
            "gate": "softmax",
            "supervision": 0.5,
        },
        {"from": "encoder.earlier_grid", "query": "encoder.summary", "encoding": "bag", "width": 5},
        {
            "query": "encoder.earlier",
            "width": 6,
            "encoding": "position_code",
            "hops": 1,
            "supervision": 0.0,
        },
    ),
}
"""Settings with which the laws are checked, by block."""

WIDTH, LENGTHS = 4, (5, 3)
SEEN = {
    "story": Named(Stream(WIDTH)),
    "question": Named(Stream(WIDTH, length_ratio=Fraction(0))),
    "words": Named(Stream(3, grid=True, columns=2)),
    "asked": Named(Stream(3)),
}
READ = {
    "story": Output(torch.randn(2, 5, WIDTH, dtype=torch.float64), mask_of(*LENGTHS)),
    "question": Output(torch.randn(2, 1, WIDTH, dtype=torch.float64), mask_of(1, 1)),
    "words": Output(
        torch.randn(2, 5, 2, 3, dtype=torch.float64), mask_of(*LENGTHS)[..., None].expand(-1, -1, 2)
    ),
    "asked": Output(torch.randn(2, 4, 3, dtype=torch.float64), mask_of(4, 2)),
}
X = torch.zeros(2, 2, 3, dtype=torch.float64)


def build_block(**settings: Any) -> EpisodicMemory:
    torch.manual_seed(4)
    chosen = {"from_": "story", "query": "question", "width": WIDTH, "hops": 2, **settings}
    block = EpisodicMemory(site_of(3, memories=SEEN), **chosen)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return block


def run_block(block: EpisodicMemory, **changes: Any) -> Tensor:
    context = Context(mask_of(2, 2), {}, READ)._replace(**changes)
    return block(X, block.start(X[:, :1], context), context)[0]


def gru(cell: GRUCell, x: Tensor, h: Tensor) -> Tensor:
    """Section 2.1, gate by gate."""
    of_r, of_z, of_n = zip(*(part.chunk(3) for part in cell.parameters()), strict=True)
    r, z = (torch.sigmoid(w @ x + b + u @ h) for w, b, u in (of_r, of_z))
    w, b, u = of_n
    return z * h + (1 - z) * torch.tanh(w @ x + r * (u @ h) + b)


def by_hand(block: EpisodicMemory, facts: Tensor, q: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The last m of one row, and the gates of each hop."""
    m, gates = q, []
    for _ in range(block.hops):
        scores = []
        for c in facts:
            cwq, cwm = (c @ block.bilinear.weight.T @ vector for vector in (q, m))
            z = torch.cat(
                (c, m, q, c * q, c * m, (c - q).abs(), (c - m).abs(), torch.stack((cwq, cwm)))
            )
            scores.append(block.score(torch.tanh(block.hidden(z)))[0])
        together = torch.stack(scores)
        gates.append(together.softmax(0) if block.gate == "softmax" else torch.sigmoid(together))
        h = torch.zeros(WIDTH)
        for c, g in zip(facts, gates[-1], strict=True):
            h = g * gru(block.episode, c, h) + (1 - g) * h
        m = gru(block.update, h, m)
    return m, gates


@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
def test_two_hops_and_their_supervision_equal_the_equations(gate: str) -> None:
    block, penalties, facts = (
        build_block(gate=gate, supervision=0.5),
        {},
        torch.tensor([[1, 4], [2, -1]]),
    )
    y = run_block(block, facts=facts, penalties=penalties)
    total, expected = torch.zeros(()), []
    for row, length in enumerate(LENGTHS):
        m, gates = by_hand(
            block, READ["story"].states[row, :length], READ["question"].states[row, 0]
        )
        expected.append(m.expand(2, -1))
        for g, fact in zip(gates, facts[row].tolist(), strict=True):
            others = torch.cat((g[:fact], g[fact + 1 :])) if gate == "sigmoid" else torch.zeros(1)
            total = total - (g[fact].log() + (1 - others).log().sum() if fact >= 0 else 0.0)
    close(y, torch.stack(expected))
    (penalty,) = reduce_penalties(penalties).values()
    close(penalty, 0.5 * total / 2)
    losses = (y.square().sum() + penalty, torch.stack(expected).square().sum() + 0.5 * total / 2)
    parameters = [*block.parameters()]
    for one, other in zip(*(torch.autograd.grad(loss, parameters) for loss in losses), strict=True):
        close(one, other)


def test_words_become_sentences_and_a_question() -> None:
    block = build_block(from_="words", query="asked", encoding="bag")
    y = run_block(block)
    for row, length in enumerate(LENGTHS):
        facts = READ["words"].states[row, :length].sum(1) @ block.fact_map.T
        words = READ["asked"]
        m, _ = by_hand(
            block, facts, words.states[row][words.mask[row]].sum(0) @ block.question_map.T
        )
        close(y[row], m.expand(2, -1))


def test_facts_that_are_not_in_the_memory_cost_nothing() -> None:
    penalties: Penalties = {}
    run_block(build_block(supervision=0.5), facts=torch.tensor([[-1], [99]]), penalties=penalties)
    (penalty,) = reduce_penalties(penalties).values()
    assert penalty.item() == 0.0


def test_without_supervision_facts_cost_nothing() -> None:
    penalties: Penalties = {}
    run_block(build_block(supervision=0.0), facts=torch.tensor([[1], [2]]), penalties=penalties)
    assert not penalties


def test_the_gates_are_recorded() -> None:
    records: dict[Any, list[Tensor]] = {}
    block = build_block()
    run_block(block, records=records)
    ((key, (hops,)),) = records.items()
    assert (key.name, hops.shape) == ("hops", (2, 2, 2, 5))
    _, gates = by_hand(block, READ["story"].states[1, :3], READ["question"].states[1, 0])
    close(hops[1, 0, :, :3], torch.stack(gates))
    assert not hops[1, ..., 3:].any()


@pytest.mark.parametrize(
    ("setting", "message", "settings"),
    [
        ("query", "`query` is missing", {"query": None}),
        ("query", "is a grid", {"query": "words"}),
        ("from", "one position for a whole story", {"from_": "question"}),
        ("encoding", "no words are put together", {"encoding": "bag"}),
    ],
)
def test_conflicting_settings_are_refused(
    setting: str, message: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(BlockError, match=message) as refused:
        build_block(**settings)
    assert (refused.value.setting, bool(refused.value.fix.text)) == (setting, True)
