"""`supporting_facts`: its tournament and its penalty against the paper's equations written as
loops.
"""

from __future__ import annotations

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
from blocks.supporting_facts import SupportingFacts, tournament_winner
from tests.blocks.single_block import close, mask_of, site_of

pytestmark = pytest.mark.usefixtures("float64")

VARIANTS = {
    "supporting_facts": (
        {"from": "encoder.grid", "query": "encoder", "hops": 2},
        {
            "from": "encoder.earlier_grid",
            "query": "encoder.summary",
            "encoding": "position",
            "width": 5,
        },
        {"query": "encoder.earlier", "hops": 3, "margin": 0.5},
    ),
}
"""Settings with which the laws are checked, by block."""

WORDS, WIDTH, LENGTHS = 6, 3, (5, 3)
SEEN = {"story": Named(Stream(WORDS)), "question": Named(Stream(WORDS))}
READ = {
    "story": Output(torch.randn(2, 5, WORDS, dtype=torch.float64), mask_of(*LENGTHS)),
    "question": Output(torch.randn(2, 2, WORDS, dtype=torch.float64), mask_of(2, 1)),
}
X = torch.zeros(2, 2, 4, dtype=torch.float64)
MARGIN = 0.3


def build_block(**settings: Any) -> SupportingFacts:
    torch.manual_seed(4)
    chosen = {"from_": "story", "query": "question", "width": WIDTH, "margin": MARGIN, **settings}
    block = SupportingFacts(site_of(4, memories=SEEN), **chosen).double()
    for parameter in block.parameters():
        parameter.data *= 10
    return block


def run_block(block: SupportingFacts, **changes: Any) -> Tensor:
    context = Context(mask_of(2, 2), {}, READ)._replace(**changes)
    return block(X, block.start(X[:, :1], context), context)[0]


class Row:
    """One row, its equations as they are written."""

    def __init__(self, block: SupportingFacts, row: int) -> None:
        asked, output = (
            block.question_maps.unflatten(0, (2, -1)),
            block.sentence_maps.unflatten(0, (3, -1)),
        )
        question = READ["question"].states[row][READ["question"].mask[row]].sum(0)
        story = READ["story"].states[row, : LENGTHS[row]]
        self.x, self.answer = asked[0] @ question, asked[1] @ question
        self.candidates, self.facts, self.answers = (story @ item.T for item in output)
        self.older, self.at, self.count = block.older, LENGTHS[row], LENGTHS[row]

    def s(self, i: int, j: int) -> Tensor:
        """Equation 9."""
        features = torch.tensor([self.at < i, self.at < j, i < j], dtype=torch.float64)
        return self.x @ (self.candidates[i] - self.candidates[j] + self.older.T @ features)

    def winner(self) -> int:
        best = 0
        for other in range(1, self.count):
            best = best if self.s(best, other) > 0 else other
        return best

    def penalty(self, fact: int) -> Tensor:
        """Equation 10."""
        others = [j for j in range(self.count) if j != fact]
        terms = [
            (MARGIN - self.s(fact, j)).relu() + (MARGIN + self.s(j, fact)).relu() for j in others
        ]
        return torch.stack(terms).sum()

    def read(self, fact: int) -> None:
        self.x, self.answer, self.at = (
            self.x + self.facts[fact],
            self.answer + self.answers[fact],
            fact,
        )


def test_two_hops_equal_a_tournament_by_hand() -> None:
    block = build_block(hops=2)
    y = run_block(block)
    for index in range(2):
        row = Row(block, index)
        for _ in range(2):
            row.read(row.winner())
        close(y[index], row.answer.expand(2, -1))


def test_labelled_facts_are_read_and_penalised() -> None:
    block, penalties, facts = build_block(hops=2), {}, torch.tensor([[1, 4], [2, 0]])
    y = run_block(block, facts=facts, penalties=penalties)
    total = torch.zeros((), dtype=torch.float64)
    for index in range(2):
        row = Row(block, index)
        for fact in facts[index].tolist():
            total = total + row.penalty(fact)
            row.read(fact)
        close(y[index], row.answer.expand(2, -1))
    (penalty,) = reduce_penalties(penalties).values()
    close(penalty, total / 2)
    penalty.backward()
    assert block.older.grad.abs().max() > 0


@pytest.mark.parametrize("fact", [-1, 99])
def test_facts_that_are_not_told_or_not_in_the_memory_are_not_read(fact: int) -> None:
    penalties: Penalties = {}
    block = build_block(hops=2)
    y = run_block(block, facts=torch.tensor([[fact], [1]]), penalties=penalties)
    first, second = Row(block, 0), Row(block, 1)
    close(reduce_penalties(penalties)["facts", "mean"], second.penalty(1) / 2)
    second.read(1)
    close(y[:, 0], torch.stack([first.answer, second.answer]))


def test_the_answers_loss_does_not_train_the_selection() -> None:
    block = build_block(hops=2)
    run_block(block).sum().backward()
    choosing, teaching = (
        block.sentence_maps.grad[: 2 * WIDTH],
        block.sentence_maps.grad[2 * WIDTH :],
    )
    assert block.older.grad is None
    assert not choosing.any()
    assert teaching.any()


def test_a_tournament_has_the_expected_winner() -> None:
    better = torch.tensor([[[0.0, -1, 1], [1, 0, -1], [9, 1, 0]]])
    assert tournament_winner(better, mask_of(3)).tolist() == [2]  # 0 loses to 1, and 1 to 2
    assert tournament_winner(better, torch.tensor([[True, True, False]])).tolist() == [1]
    assert tournament_winner(better, torch.tensor([[True, False, False]])).tolist() == [0]


def test_conflicting_settings_are_refused() -> None:
    with pytest.raises(
        BlockError, match="`query` is missing: the memory that holds the question"
    ) as error:
        build_block(query=None)
    assert error.value.fix.text == "write `query: story`, or another memory"
