"""`supporting_facts`: finds the sentences of a story that tell an answer, one after another, and
reads them.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from blocks.core.contract import Block, Context, Count, Few, Memory, NoEffect, Positive, Site, State
from blocks.core.loops import over_positions
from blocks.core.sentence_encoding import (
    Encoding,
    as_sentence,
    as_story,
    embed_sentences,
    labelled_fact,
    normal_matrix,
    question_stream,
    required_question,
    story_stream,
)


class SupportingFacts(Block):
    """Memory network with supervised facts (Weston et al. 2015, arXiv 1410.3916).

    Sections 3.1 and 3.4: x is the question at first, and then the question and the facts found so
    far. Of two sentences i and j, s(x, i, j) = U x.(U y_i - U y_j + U t), where t says of three
    things whether they are so: x is older than i, x is older than j, i is older than j (equation
    9); x is as old as the last fact found, and the question is the youngest. s > 0 prefers i; the
    fact found is whoever wins against each sentence in turn. U has maps of its own for the
    question, the facts in x, and the sentences to choose from; so has the map R that answers: y = R
    q + sum_h R f_h.

    In training the facts that are told are taken for the ones found, and U learns from them alone:
    the penalty is sum_j max(0, margin - s(x, f, j)) + max(0, margin + s(x, j, f)) over all other
    sentences j, summed over the hops (equation 10). A fact that is not told is not read then. R
    learns from the answer, by the loss of the model.

    Settings:
        from: The memory to read: a grid's positions are sentences and its columns their words; the
            positions of a sequence are sentences of one word.
        query: The memory whose words are the question, a sequence.
        hops: How many facts are found, 1 or more.
        width: Features of U and of R; `model.width` by default.
        encoding: position | position_code | bag. How the place of a word counts, as in
            `memory_network`.
        margin: By how much a fact is to be preferred, above 0.

    Shapes: (B, T, .) reads (B, N, W, D) or (B, N, D) -> (B, T, width), the same at all positions.
    State: what was made of the sentences (B, N, 3, width), their mask (B, N), and of the question
    (B, 1, 2, width).
    Raises BlockError where a grid arrives, where there is no memory, or several and no `from`, and
    where the memory is one vector of a story, and where the question is missing or a grid.
    """

    family = "memory"
    not_packed = "it answers a question about a story, of which a row has one"

    reads_stream = False

    layouts: ClassVar = dict.fromkeys(("question_maps", "sentence_maps", "older"), "own")

    def __init__(
        self,
        site: Site,
        *,
        from_: Memory | None = None,
        query: Memory | None = None,
        hops: Few = 1,
        width: Count | None = None,
        encoding: Encoding = "bag",
        margin: Positive = 0.1,
    ) -> None:
        super().__init__()
        stream = site.sequence("supporting_facts")
        self.memory = site.memory(from_)
        query, story = required_question(site, query), story_stream(site, self.memory)
        self.question, self.width = query, width or site.width
        if encoding == "position_code" and self.width == 1:
            raise NoEffect("encoding", "of one feature all words count the same")
        self.hops, self.encoding, self.margin = hops, encoding, margin
        self.longest = max(1, story.columns)
        self.question_maps = normal_matrix(
            2 * self.width, question_stream(site, query).width
        )  # for U x, for the answer
        self.sentence_maps = normal_matrix(3 * self.width, story.width)  # U y, U x, the answer
        self.older = normal_matrix(3, self.width)
        self.out = stream._replace(width=self.width)

    def start(self, x: Tensor, context: Context) -> State:
        story = as_story(context.memories[self.memory])
        made = embed_sentences(
            story, self.sentence_maps, self.encoding, self.width, self.longest
        )  # (B, N, 3, d)
        question = as_sentence(context.memories[self.question])
        embedded = embed_sentences(
            question, self.question_maps, self.encoding, self.width, self.longest
        )  # (B, 1, 2, d)
        return made, story.mask.any(-1), embedded

    def forward(self, x: Tensor, state: State, context: Context) -> tuple[Tensor, State]:
        made, real, question = state
        asks, answer = question[:, 0].unbind(1)  # (B, d)
        facts = context.facts
        at, penalty, facts_read = real.sum(1), made.new_zeros(real.shape[0]), []
        for hop in range(self.hops):
            better = self._preferred(asks, made[:, :, 0], at)  # (B, N, N)
            fact = (
                labelled_fact(facts, hop, real)
                if facts is not None
                else tournament_winner(better, real)
            )  # (B,)
            read = (fact >= 0) & real.any(1)  # (B,)
            fact = fact.clamp(min=0)
            penalty = penalty + torch.where(
                read, margin_violation(better, fact, real, self.margin), 0.0
            )
            is_chosen = torch.arange(real.shape[1], device=fact.device) == fact[:, None]
            chosen = (is_chosen & read[:, None]).to(made.dtype)  # (B, N)
            _, more, answered = (chosen[:, None, None] @ made.transpose(1, 2))[:, :, 0].unbind(
                1
            )  # (B, d)
            asks, answer, at = asks + more, answer + answered, torch.where(read, fact, at)
            facts_read.append(chosen)
        if facts is not None:
            context.penalty("facts", penalty)
        context.record("hops", torch.stack(facts_read, 1)[:, None].expand(-1, x.shape[1], -1, -1))
        return answer[:, None].expand(-1, x.shape[1], -1), state

    def _preferred(self, asks: Tensor, sentences: Tensor, at: Tensor) -> Tensor:
        """Compute s(x, i, j) for all pairs of sentences; x is as old as the sentence `at`. -> (B,
        N, N)
        """
        scores = (sentences @ asks[:, :, None])[..., 0]  # (B, N)
        older = (asks @ self.older.T)[:, :, None, None]  # (B, 3, 1, 1)
        place = torch.arange(sentences.shape[1], device=at.device)
        after = (place > at[:, None]).to(scores.dtype)  # (B, N)
        first = (scores + older[:, 0, :, 0] * after)[:, :, None]
        second = (scores - older[:, 1, :, 0] * after)[:, None]
        return first - second + older[:, 2] * (place[:, None] < place).to(scores.dtype)


def tournament_winner(better: Tensor, real: Tensor) -> Tensor:
    """Return the sentence preferred to the last winner, sentence after sentence. better: (B, N, N)
    -> (B,)
    """
    first = torch.zeros(better.shape[0], dtype=torch.long, device=better.device)
    rows = torch.arange(better.shape[0], device=better.device)
    places = torch.arange(better.shape[1], device=better.device).expand_as(real)

    def step(
        best: Tensor, than: Tensor, is_there: Tensor, other: Tensor
    ) -> tuple[Tensor, tuple[()]]:
        return torch.where((than[rows, best] > 0) | ~is_there, best, other), ()

    winner: Tensor = over_positions(step, first, (better.mT, real, places))[0]
    return winner


def margin_violation(better: Tensor, fact: Tensor, real: Tensor, margin: float) -> Tensor:
    """Return the margin violation of a fact against each other sentence, both ways, summed: (B,)"""
    rows, index = (
        torch.arange(better.shape[0], device=fact.device),
        torch.arange(better.shape[1], device=fact.device),
    )
    lacking = (margin - better[rows, fact]).relu() + (
        margin + better[rows, :, fact]
    ).relu()  # (B, N)
    return (lacking * (real & (index != fact[:, None]))).sum(1)
